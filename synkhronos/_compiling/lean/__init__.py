"""Short first calls in mode NUMBA: lean implementations of the operations that compile slowest.

PyTensor's numba code for a matrix product takes 5 to 15 s to compile, since it normalises every
pattern of strides in code that is inlined several times. The functions of a group use operations
with code of this package's own, which a rewrite puts in last. The user's `pytensor.function` stays
as it is.
"""
