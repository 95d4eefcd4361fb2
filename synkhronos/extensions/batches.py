"""Shuffled index batches, seeded, that continue where they were."""

from synkhronos.extensions._rows.batches import Batches as Batches
