"""Gives what a run records to other programs, by a process that is not the run's.

`export` does so in this process; `exported` starts one beside a run. Each target has a file of its
own, which imports its library.
"""

from synkhronos.training._record.exporters.exporter import export as export
from synkhronos.training._record.exporters.process import checked_targets as checked_targets
from synkhronos.training._record.exporters.process import exported as exported
