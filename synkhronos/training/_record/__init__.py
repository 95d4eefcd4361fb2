"""What a run leaves: its history, its folder, its lines on the terminal, exports of it."""
