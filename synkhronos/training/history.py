"""The result of a run."""

from synkhronos.training._record.history import History as History
