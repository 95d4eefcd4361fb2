"""One machine: its shared memory, memory limits, cores and devices."""
