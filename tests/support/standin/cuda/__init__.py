"""A stand-in for cuda.core: streams run what they are given in order, beside the host."""
