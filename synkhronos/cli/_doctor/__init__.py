"""Parts of ``synk doctor``: looks for what would keep groups from working."""
