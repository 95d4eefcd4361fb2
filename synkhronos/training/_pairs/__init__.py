"""Training functions that take turns, and pairs of networks that train against each other."""
