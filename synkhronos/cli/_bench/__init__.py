"""Parts of ``synk bench``."""
