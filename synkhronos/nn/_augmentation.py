"""Augmentation: images are padded, cropped and flipped, each by a random word, and normalised.

The words are an input with one entry for each image, so that nothing random happens here: members,
modes and batches of any size make the same pixels of the same words. `synkhronos.training` draws
them from seed, epoch and row.

The offsets and the flip of an image are the digits of one number: the low 32 bits of its word,
modulo the number of outcomes. JAX without 64-bit numbers keeps these bits of a word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_type, grad_not_implemented
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op, OutputStorageType
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor import TensorLike
from pytensor.tensor.variable import TensorVariable

from synkhronos._checks import check_flag, check_word
from synkhronos._compiling.graph_types import Arrays, Inputs
from synkhronos.nn._convolution import pair
from synkhronos.nn._windows import Pair
from synkhronos.ops._collectives import Shape

BORDERS = ("zeros", "reflect")
_KINDS = ("uint8", "float32", "float64")
MOST = 1 << 31  # outcomes: offsets are computed as int32


class Augmentation(Op):
    """images, mean, factor, words -> images; without words: from the centre, not flipped.

    Parameters
    ----------
    pad : (vertical, horizontal)
    size : (height, width) or None
        Of the result; None: as the images.
    flip : bool
    border : str
        One of `BORDERS`.
    """

    __props__ = ("pad", "size", "flip", "border")

    def __init__(self, pad: Pair, size: Pair | None, flip: bool, border: str) -> None:
        self.pad, self.size, self.flip, self.border = pad, size, flip, border

    def make_node(self, *inputs: Variable) -> Apply:
        images, mean, factor, *words = map(pt.as_tensor, inputs)
        n, *lengths, channels = images.type.shape
        if None not in lengths:
            self.check(lengths)
        shape = (n, *(self.size or lengths), channels)
        out = pt.tensor(dtype=mean.type.dtype, shape=shape)
        return Apply(self, [images, mean, factor, *words], [out])

    def infer_shape(self, node: Apply, shapes: Sequence[Shape]) -> list[Shape]:
        n, *lengths, channels = shapes[0]
        return [(n, *(self.size or lengths), channels)]

    def perform(self, node: Apply, inputs: Arrays, output_storage: OutputStorageType) -> None:
        output_storage[0][0] = np.ascontiguousarray(self.computed(np, *inputs))

    def computed(
        self,
        xp: ModuleType,
        images: np.ndarray,
        mean: np.ndarray,
        factor: np.ndarray,
        words: np.ndarray | None = None,
    ) -> np.ndarray:
        """The result, by numpy or by jax.numpy.

        A subtraction and then a product of one dtype: every mode rounds them alike.
        """
        n, *lengths, channels = images.shape
        self.check(lengths)
        check_counts(n, n if words is None else len(words), channels, len(mean), len(factor))
        height, width = self.size or lengths
        top, left, flipped = self._drawn(lengths, words)
        columns = xp.arange(width)
        if self.flip and words is not None:
            columns = xp.where(flipped[:, None], columns[::-1], columns)
        rows, columns = top[:, None] + xp.arange(height), left[:, None] + columns
        if any(self.pad):
            around = ((0, 0), *((side, side) for side in self.pad), (0, 0))
            images = xp.pad(images, around, mode="reflect" if self._reflects else "constant")
        found = images[xp.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
        return (found.astype(mean.dtype) - mean) * factor

    def _drawn(
        self, lengths: Sequence[int], words: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """By image: the first row and column in the padded image, and whether it is flipped."""
        down, right = self.offsets(lengths)
        if words is None:
            return np.array([(down - 1) // 2]), np.array([(right - 1) // 2]), None
        number = words.astype("uint32") % np.uint32(down * right * (1 + self.flip))
        flipped = number % np.uint32(2) == 1
        if self.flip:
            number = number // np.uint32(2)
        number = number.astype("int32")
        return number // np.int32(right), number % np.int32(right), flipped

    @property
    def _reflects(self) -> bool:
        return self.border == "reflect"

    def offsets(self, lengths: Sequence[int]) -> Pair:
        """The numbers of vertical and horizontal offsets of the result in padded images."""
        down, right = [
            n + 2 * side - k + 1
            for n, side, k in zip(lengths, self.pad, self.size or lengths, strict=True)
        ]
        return down, right

    def check(self, lengths: Sequence[int]) -> None:
        """Raise if images of this height and width do not fit."""
        offsets, found = self.offsets(lengths), tuple(lengths)
        if min(offsets) < 1:
            raise ValueError(
                f"augment: images of {found} with padding {self.pad} are smaller than "
                f"size={self.size}"
            )
        if math.prod(offsets) * (1 + self.flip) > MOST:
            raise ValueError(f"augment: images of {found} have more offsets than a word can draw")
        if self._reflects and any(
            side and side >= n for side, n in zip(self.pad, lengths, strict=True)
        ):
            raise ValueError(
                f"augment: images of {found} cannot be reflected by padding {self.pad}: it has to "
                "be smaller than the images"
            )

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """The words are only read as numbers of pixels."""
        return [[True], [True], [True], [False]][: len(node.inputs)]

    def pullback(self, inputs: Inputs, outputs: Inputs, cotangents: Inputs) -> list[Variable]:
        """Refuse: images are data, and parameters come after them."""
        why = "augment is for data, and has no gradient"
        refused = [grad_not_implemented(self, i, v, why) for i, v in enumerate(inputs[:3])]
        return [*refused, *(disconnected_type() for _ in inputs[3:])]


def augment(
    images: TensorLike,
    words: TensorLike | None = None,
    *,
    pad: int | Pair = 0,
    flip: bool = False,
    size: int | Pair | None = None,
    border: str = "zeros",
    mean: float | Sequence[float] = 0.0,
    scale: float | Sequence[float] = 1.0,
) -> TensorVariable:
    """Pad, crop, flip and normalise images, by one random word for each; in any mode.

    Parameters
    ----------
    images : variable of shape (rows, height, width, channels), uint8, float32 or float64
    words : uint64 variable of shape (rows,), optional
        `synkhronos.training.augmentation_words` draws them. None: for evaluation, the centre of
        each image, not flipped. With only `mean` and `scale` they have no effect.
    pad : int or (vertical, horizontal)
        Pixels to add on each side, before images are cropped.
    flip : bool
        Exchange left and right, with a probability of 1/2.
    size : int or (height, width), optional
        Of the result. Default: that of the images.
    border : {"zeros", "reflect"}
        The added pixels: 0 before normalisation, or the image reflected at its outermost pixels.
    mean, scale : float, or one for each channel
        The result is (pixel - mean) / scale.

    Returns
    -------
    variable of shape (rows, new height, new width, channels)
        float32; float64 for images of float64.

    Raises
    ------
    TypeError
        Images or words have another dtype or number of dimensions.
    ValueError
        An argument is out of range, or images turn out not to fit.

    Notes
    -----
    Cost: one pass over the images, about a nanosecond for a value. It has no gradient.

    Let d and r be the numbers of vertical and horizontal offsets, and k the low 32 bits of a word
    modulo 2 d r. An image is flipped if k is odd; its offsets are k // 2 // r and k // 2 % r.
    Without `flip`, these are k // r and k % r, of k modulo d r. No outcome is more probable than
    another by more than 2 d r in 2**32.

    The same padding and flips: He et al., Deep residual learning for image recognition,
    arXiv:1512.03385, section 4.2.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt
    >>> from synkhronos.nn import augment
    >>> images, words = pt.tensor4("images", dtype="uint8"), pt.vector("words", dtype="uint64")
    >>> flipped = augment(images, words, flip=True, mean=1, scale=0.5)
    >>> given = {images: np.array([[[[1], [2], [3]]]] * 2, "uint8"), words: np.uint64([6, 7])}
    >>> flipped.eval(given, mode="FAST_COMPILE")[:, 0, :, 0].tolist()
    [[0.0, 2.0, 4.0], [4.0, 2.0, 0.0]]
    """
    found = _images(images)
    dtype = "float64" if found.dtype == "float64" else "float32"
    sides = pair(pad, "pad", 0)
    crop = None if size is None else pair(size, "size")
    check_word("augment: border", border, BORDERS)
    flip = check_flag("augment: flip", flip)
    channels = found.type.shape[3]
    means, scales = _numbers("mean", mean, channels), _numbers("scale", scale, channels)
    if not np.all(scales):
        raise ValueError(f"augment: scale={scale!r} divides by 0")
    given = [found, means.astype(dtype), (1 / scales).astype(dtype)]
    if words is not None:
        given.append(_words(words))
        moves = any(sides) or crop is not None or flip
        if not moves and not np.any(means) and np.all(scales == 1):
            raise ValueError("augment: nothing to do: give pad=, size=, flip=, mean= or scale=")
    operation = Augmentation(sides, crop, bool(flip), border)
    return operation(*given)


def without_augmentation(outputs: Sequence[Variable]) -> list[Variable]:
    """Copies of expressions in which `augment` gets no words: images are only normalised.

    Parameters
    ----------
    outputs : sequence of Variable

    Returns
    -------
    list of Variable

    Notes
    -----
    `synkhronos.training` does this to what it validates. Other operations on words remain.

    Examples
    --------
    >>> import numpy as np, pytensor.tensor as pt
    >>> from synkhronos.nn import augment, without_augmentation
    >>> images, words = pt.tensor4("images", dtype="uint8"), pt.vector("words", dtype="uint64")
    >>> mean = augment(images, words, pad=1).mean()
    >>> [found] = without_augmentation([mean])
    >>> float(found.eval({images: np.full((2, 3, 3, 1), 7, "uint8")}, mode="FAST_COMPILE"))
    7.0
    """
    found = list(outputs)
    while replaced := _replacements(found):
        found = list(clone_replace(found, replace=replaced))
    return found


def _replacements(outputs: Sequence[Variable]) -> dict[Variable, Variable]:
    """Each augmented variable, and the same without words; inside may be another such variable."""
    nodes = {v: v.owner for v in ancestors(outputs) if v.owner is not None}
    return {
        v: node.op(*node.inputs[:3])
        for v, node in nodes.items()
        if isinstance(node.op, Augmentation) and len(node.inputs) > 3
    }


def check_counts(images: int, words: int, channels: int, *numbers: int) -> None:
    """Raise unless there is a word for each image, and a number for each channel or for all."""
    if words != images:
        raise ValueError(f"augment: {words} words for {images} images: give one for each")
    for count in numbers:
        if count not in (1, channels):
            raise ValueError(
                f"augment: mean or scale has {count} numbers for {channels} channels: give one, or "
                "one for each channel"
            )


def _images(given: TensorLike) -> TensorVariable:
    found = pt.as_tensor(given)
    if found.type.ndim != 4 or found.dtype not in _KINDS:
        raise TypeError(
            "augment: images are tensors of (rows, height, width, channels), of uint8, float32 or "
            f"float64, found {found.type}"
        )
    return found


def _words(given: TensorLike) -> TensorVariable:
    found = pt.as_tensor(given)
    if found.type.ndim != 1 or found.dtype != "uint64":
        raise TypeError(
            'augment: words are a vector of uint64, as pt.vector("words", dtype="uint64"), found '
            f"{found.type}"
        )
    return found


def _numbers(name: str, given: TensorVariable, channels: int | None) -> np.ndarray:
    """One number for each channel, or one for all; float64 of shape (1,) or (channels,)."""
    if isinstance(given, Variable) and not isinstance(given, Constant):
        raise TypeError(f"augment: {name}={given}: give numbers, not a variable")
    found = np.atleast_1d(np.asarray(getattr(given, "data", given), np.float64))
    if found.ndim != 1 or not np.all(np.isfinite(found)):
        raise ValueError(f"augment: {name}={given!r}: one finite number, or one for each channel")
    if channels is not None:
        check_counts(0, 0, channels, len(found))
    return found
