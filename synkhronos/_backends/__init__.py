"""Users of JAX, MPI and NCCL, and of numba for compiled loops: one file for each."""
