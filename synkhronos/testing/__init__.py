"""For tests, yours and ours: leak checks, fault injection, conformance suites.

`leaks`         what a process holds before and after
`plugin`        the same as a fixture of pytest, to be named in pytest_plugins
`faults`        commands that misbehave in one member
`nodes`         tests under mpirun
`conformance`   what every channel and every communicator must do
`killing`       a process killed at its k-th system call, for every k; import it by itself
"""

from synkhronos.testing import conformance, faults, leaks, nodes

__all__ = ["conformance", "faults", "leaks", "nodes"]
