"""The functions that the package calls."""
