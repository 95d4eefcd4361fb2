"""The text of configs."""
