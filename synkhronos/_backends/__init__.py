"""The libraries that one file each imports: JAX, MPI, NCCL, and numba for compiled loops."""
