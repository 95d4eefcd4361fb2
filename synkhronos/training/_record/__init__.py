"""The traces of a run: its history, its folder, its lines on the terminal, exports of it."""
