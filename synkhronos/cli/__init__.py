"""The commands of ``synk``."""
