"""Tools for tests of programs that use groups, and for this package's own tests.

`leaks`         compares what a process holds before and after
`plugin`        the same check as a pytest fixture; name it in pytest_plugins
`faults`        commands that fail in one member
`nodes`         tests under mpirun
`conformance`   checks that every channel and every communicator has to pass
`simulation`    training rules under a virtual clock, in one process
`killing`       kills a process at its k-th system call, for every k; imported only by name
"""

from synkhronos.testing import conformance, faults, leaks, nodes
from synkhronos.testing.simulation import Simulation, simulate

__all__ = ["Simulation", "conformance", "faults", "leaks", "nodes", "simulate"]
