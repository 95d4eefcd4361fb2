"""How a Loader reads: by a thread of the master, or of the leader of each node."""
