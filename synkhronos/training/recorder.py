"""What a run leaves in its folder."""

from synkhronos.training._record.recorder import Recorder as Recorder
