"""Parts of ``synk completion``: scripts by which a shell completes words."""
