"""Rows that repeat: the sum over rows as a sum over fewer rows, whose value is the same."""
