"""Shuffled batches, and a Loader that reads them: in the master, or in the leader of each node."""
