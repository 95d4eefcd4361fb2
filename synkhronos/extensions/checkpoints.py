"""Values, random states and cursor on disk."""

from synkhronos.extensions._saving.checkpoints import Checkpoints as Checkpoints
