"""Parts of ``synk new``: starters to copy, and translations of old command lines."""
