"""A stand-in for nccl4py 0.6, for members whose arrays lie in the host's memory."""
