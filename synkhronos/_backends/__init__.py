"""The engine's use of JAX, MPI and NCCL, and loops and machine code that its arrays need."""
