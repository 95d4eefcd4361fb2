"""What uses JAX, MPI and NCCL, and numba for compiled loops: one file for each."""
