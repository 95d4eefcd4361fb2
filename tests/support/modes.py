"""The mode of tests whose subject is not the compiler."""

from pytensor.compile.mode import Mode

# No rewriting, which takes most of the time of FAST_COMPILE; operations run in Python.
FAST = Mode(linker="py", optimizer=None)
