"""Values, random states and the cursor on disk."""
