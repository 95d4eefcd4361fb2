"""The folder of a run."""

from synkhronos.training._record.recorder import Recorder as Recorder
