"""Parts of ``synk report``: what a run has left, its figures, and the page."""
