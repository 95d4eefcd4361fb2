"""One machine: its shared memory, its memory limits, its cores and its devices."""
