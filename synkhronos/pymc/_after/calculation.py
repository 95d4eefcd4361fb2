"""A compiled function that is computed for each draw, with a random stream for each."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.compile import Function
from pytensor.link.jax.linker import JAXLinker
from pytensor.tensor.random.type import RandomType

from synkhronos._errors import InputError
from synkhronos.pymc._after.blocks import block_length, blocks
from synkhronos.pymc._after.store import Store
from synkhronos.pymc._after.work import InMemory, Target, Work

type Seed = int | Sequence[int]
type RandomSeed = Seed | np.random.Generator | np.random.RandomState | None  # as PyMC takes it


@dataclass
class Calculation(Work):
    """A function of PyMC, compiled, and the draws that it is computed for.

    Its parts are blocks of draws.
    """

    counted = "draws"
    if_lost = "With store= the results so far would stay, and the same call would go on"

    # its inputs are variables of the model, in the order of `inputs`. It can be pickled
    function: Function
    names: list[str]  # of its outputs
    inputs: list[np.ndarray]  # the values of each input, of shape ``(draws, ...)``
    # the lengths of the dimensions of the draws, such as chains and draws of a chain
    sample_shape: tuple[int, ...]
    seed: Seed = 0
    block: int = 1  # the number of draws in a block
    there: frozenset[int] = frozenset()  # the first draws of blocks that need not be computed

    def __post_init__(self) -> None:
        graph = self.function.maker.fgraph
        self._streams = [
            self.function.input_storage[place].storage
            for place, variable in enumerate(graph.inputs)
            if isinstance(variable.type, RandomType)
        ]
        if not all(isinstance(storage[0], np.random.Generator) for storage in self._streams):
            raise InputError(
                "draws in mode JAX have streams of JAX: leave backend and mode out, or name "
                'another one, such as backend="numba"'
            )
        if not self.draws:
            raise InputError(f"there is no draw: the draws have the shape {self.sample_shape}")
        self.function.trust_input = True  # the inputs have the dtypes of the function's variables

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without the streams, which are parts of the function."""
        given = self.function, self.names, self.inputs, self.sample_shape, self.seed
        return Calculation, (*given, self.block, self.there)

    @property
    def total(self) -> int:
        return sum(map(len, self.parts))

    @property
    def before(self) -> int:
        return self.draws - self.total

    @property
    def parts(self) -> list[range]:
        every = blocks(self.sample_shape, self.block)
        return [draws for draws in every if draws.start not in self.there]

    @property
    def draws(self) -> int:
        """The number of draws over all dimensions."""
        return math.prod(self.sample_shape)

    @property
    def in_processes(self) -> bool:
        return in_processes(self.function)

    def values(self, draw: int) -> list[np.ndarray]:
        """The outputs for one draw.

        The random numbers follow from the seed and the place of the draw alone: each generator of
        the function gets ``SeedSequence(seed, spawn_key=(chain, draw, generator))``.
        """
        if self._streams:
            place = [int(i) for i in np.unravel_index(draw, self.sample_shape)]
            for number, storage in enumerate(self._streams):
                sequence = np.random.SeedSequence(self.seed, spawn_key=(*place, number))
                storage[0] = np.random.Generator(np.random.PCG64(sequence))
        found: list[np.ndarray] = self.function(*[given[draw, ...] for given in self.inputs])
        return found

    def shorten(self, length: int) -> None:
        self.block = min(self.block, length)

    def computed(self, part: range) -> list[np.ndarray]:
        draws = [self.values(draw) for draw in part]
        return [np.stack(values) for values in zip(*draws, strict=True)]

    def compute(self, mine: Sequence[range], target: Target) -> Iterator[int]:
        done, longest = 0, max(map(len, mine), default=0)
        buffers: list[np.ndarray] = []
        for draws in mine:
            for place, draw in enumerate(draws):
                values = self.values(draw)
                if isinstance(target, InMemory):
                    for array, value in zip(target.arrays, values, strict=True):
                        array[draw] = value
                    continue
                if not buffers:
                    buffers = [np.empty((longest, *v.shape), v.dtype) for v in values]
                for buffer, value in zip(buffers, values, strict=True):
                    buffer[place] = value
            if isinstance(target, Store):
                for stored, buffer in zip(target.arrays, buffers, strict=True):
                    stored.write(draws, buffer[: len(draws)])
            done += len(draws)
            yield done

    def measured(self) -> tuple[list[np.ndarray], float]:
        """The outputs for the first draw, and the seconds that a draw takes; sets `block`."""
        first = self.values(0)  # the first call takes longer
        self.block = block_length(self.sample_shape, sum(value.nbytes for value in first))
        began = time.perf_counter()
        self.values(self.draws - 1)
        return first, time.perf_counter() - began

    def digest(self) -> str:
        """Equal for calculations of the same values, on one machine.

        The model is told by the values of its first and its last draw.
        """
        given = hashlib.blake2b(digest_size=16)
        shapes = [(values.dtype.str, values.shape) for values in self.inputs]
        given.update(repr((self.names, self.sample_shape, self.seed, self.block, shapes)).encode())
        values = (v for draw in (0, self.draws - 1) for v in self.values(draw))
        for array in (*self.inputs, *values):
            given.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return given.hexdigest()


def in_processes(function: Function) -> bool:
    """Whether other processes can compute a function as well; JAX has threads for all cores."""
    return not isinstance(function.maker.linker, JAXLinker)


def seed_of(random_seed: RandomSeed) -> Seed:
    """A seed for `Calculation` from what PyMC's ``random_seed`` can be.

    Parameters
    ----------
    random_seed : int, sequence of int, RandomState, Generator or None
        A generator is asked for a number, so the next call gets another one. None: the system's.
    """
    if random_seed is None:
        entropy = np.random.SeedSequence().entropy
        assert isinstance(entropy, int)
        return entropy
    if isinstance(random_seed, np.random.Generator):
        return int(random_seed.integers(2**63))
    if isinstance(random_seed, np.random.RandomState):
        return int(random_seed.randint(2**31))
    try:
        found = np.asarray(random_seed)
        np.random.SeedSequence(random_seed)
    except (TypeError, ValueError) as exc:
        raise InputError(
            f"random_seed={random_seed!r}: give a number of at least 0, a list of such numbers, "
            "a RandomState or a Generator"
        ) from exc
    return int(found) if found.ndim == 0 else [int(n) for n in found.ravel()]
