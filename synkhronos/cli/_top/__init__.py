"""Parts of ``synk top``: looks at the groups of this user, and draws them."""
