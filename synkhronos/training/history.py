"""What a run gives back."""

from synkhronos.training._record.history import History as History
