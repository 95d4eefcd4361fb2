"""The random words by which `synkhronos.nn.augment` moves pixels."""

from synkhronos.training._run.augmentation import augmentation_words as augmentation_words
