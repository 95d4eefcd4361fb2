"""Parts of ``synk bench``: a process for each number of members, and its measurements."""
