"""One run: its feed of rows, its loop of steps, what is looked at and who is told."""
