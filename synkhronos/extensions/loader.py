"""Batches that are read ahead of the training."""

from synkhronos.extensions._rows.loader import Loader as Loader
