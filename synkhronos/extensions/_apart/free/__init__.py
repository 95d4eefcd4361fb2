"""Free rules: members train apart, and each exchanges with a centre, or with another, by itself."""
