"""Parts of ``synk report``."""
