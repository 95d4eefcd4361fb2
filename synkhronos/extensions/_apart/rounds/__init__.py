"""Round rules: members train apart on values of their own, and all meet after each period."""
