"""A stand-in for cuda.core: streams that run what they are given in order, behind the host's back."""
