"""The libraries that only one file each imports: JAX, MPI, NCCL, and numba's compiled loops."""
