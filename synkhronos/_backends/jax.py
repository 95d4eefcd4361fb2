"""JAX: the only file that imports it, and only once a function is compiled for JAX or runs.

These rules hold:

* The import starts threads, and may take a GPU. So it happens where a function needs JAX, and never
  in a process that will be forked. Each member's GPU is chosen before, by the environment.
* Results have the dtypes that PyTensor's graph declares. JAX mixes dtypes by other rules, and
  PyTensor turns its 64-bit dtypes off where floatX is float32; both are corrected here (`wide`,
  `declared_dtypes`), so a mode changes no type.
* JAX on the CPU reads aligned arrays of numpy in place, and may compute after a call has returned.
  So callers wait (`ready`) before memory is the user's again, and copy what JAX would copy into
  memory that is used again (`is_copied`).
* Memory that a function may overwrite (`donated`) is held by nobody else; `are_gone` says whether
  JAX has taken it.
* Random states are those of the user's numpy generators: JAX's state is made from a generator
  before a call and written back after it, so that the modes agree on what was drawn.
* `bind` gives the process back as it was, as far as JAX lets it. Once JAX has computed on a device,
  this process stays there.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
from numpy.typing import DTypeLike
from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.ops import DeepCopyOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.link.jax.linker import JAXLinker
from pytensor.tensor.basic import Alloc, constant
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.random.type import RandomType

from synkhronos._compiling.data.aligned import BORDER, aligned_empty
from synkhronos._compiling.late_imports import imported_jax
from synkhronos._errors import GroupError, InputTypeError
from synkhronos._host.devices import Device
from synkhronos._libraries.jax import JAX
from synkhronos._libraries.library import optional_gain
from synkhronos._proofs import reductions
from synkhronos._proofs.reductions import Reduction, accumulator, check_alike, result_dtype

if TYPE_CHECKING:
    import jax

    type Value = np.ndarray | jax.Array

_LAST = 1000.0  # position after all rewrites of PyTensor
_NOTHING = contextlib.nullcontext()
_LOW_32, _LOW_64 = (1 << 32) - 1, (1 << 64) - 1
_BIG = 1 << 16  # bytes; copies of smaller arrays do not matter


def runs_jax(mode: object) -> bool:
    """Whether functions of a mode are compiled by JAX."""
    return isinstance(get_mode(mode).linker, JAXLinker)


@node_rewriter([CAReduce])  # type: ignore[untyped-decorator]
def _declared_sum(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Make a reduction return the dtype that it declares.

    JAX always sums in the dtype of the input, and PyTensor 3.3 casts the result to the dtype of the
    accumulator. So a sum of float32 becomes float64, and all operations on it take twice as long,
    above all the matrix products of gradients.
    """
    del fgraph
    dtype = node.outputs[0].type.dtype
    if node.op.acc_dtype in (None, dtype) or node.inputs[0].type.dtype != dtype:
        return None
    return [node.op.clone(acc_dtype=dtype)(*node.inputs)]


@node_rewriter([Alloc])  # type: ignore[untyped-decorator]
def _declared_fill(fgraph: FunctionGraph, node: Apply) -> list[Variable] | None:
    """Make an array that is filled with a constant have the dtype that it declares.

    PyTensor 3.3 passes 0-d constants to JAX as Python numbers, which makes the array float64.
    Gradients of indexing are written into such arrays.
    """
    del fgraph
    value, *shape = node.inputs
    if not isinstance(value, Constant) or value.type.ndim or not shape:
        return None
    return [node.op(constant(np.reshape(value.data, (1,)), dtype=value.type.dtype), *shape)]


class _PassedOn(DeepCopyOp):
    """Replaces the copy of a generator without draws: JAX can copy only arrays."""


def _pass_on(op: Op, **kwargs: object) -> Callable[[object], object]:
    del op, kwargs
    return lambda state: state


class AotFunction:
    """A jitted function that can be compiled ahead of time."""

    def __init__(self, jitted: Any) -> None:
        self._jitted = jitted
        self._run = jitted
        self._made: dict[object, Callable[..., Any]] = {}

    def __call__(self, *inputs: object) -> Any:
        return self._run(*inputs)

    def chosen(self, key: object) -> bool:
        """Select the executable compiled under a key; False if there is none."""
        found = self._made.get(key)
        if found is not None:
            self._run = found
        return found is not None

    def compile(self, key: object, inputs: Sequence[tuple[tuple[int, ...], str]]) -> None:
        """Compile for inputs of these shapes and dtypes, and select the executable."""
        import jax

        with wide():
            given = [jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for shape, dtype in inputs]
            self._run = self._made[key] = self._jitted.lower(*given).compile()


class _Declared(JAXLinker):
    """JAX's linker with outputs in the dtypes that the graph declares; for use in `wide`.

    JAX's rules for mixed dtypes differ from PyTensor's: they widen some values and narrow others.
    """

    def fgraph_convert(  # type: ignore[override]
        self, fgraph: FunctionGraph, input_storage: object, storage_map: Any, **kwargs: object
    ) -> Callable[..., object]:
        """Convert the graph; constants become arrays of JAX, else each shape compiles a copy."""
        import jax
        from pytensor.link.jax.dispatch import jax_funcify

        jax_funcify.register(_PassedOn, _pass_on)
        for node in fgraph.apply_nodes:
            if isinstance(node.op, DeepCopyOp) and isinstance(node.outputs[0].type, RandomType):
                node.op = _PassedOn()
        for variable, held in storage_map.items():
            if isinstance(variable, Constant) and isinstance(held[0], np.ndarray) and held[0].ndim:
                held[0] = jax.device_put(held[0])
        return super().fgraph_convert(fgraph, input_storage, storage_map, **kwargs)

    donated: tuple[int, ...] = ()  # inputs whose memory outputs may take
    programs: list[AotFunction] = []  # noqa: RUF012 (a class of its own for each function that donates)

    def jit_compile(self, fn: Callable[..., Any]) -> Callable[..., jax.Array]:
        """Compile the function with the casts of its outputs."""
        import jax
        import jax.numpy as jnp

        graph: Any = self.fgraph
        dtypes = [getattr(v.type, "dtype", None) for v in graph.outputs]

        @functools.wraps(fn)
        def declared(*inputs: object) -> object:
            found = fn(*inputs)
            if not dtypes:
                return found
            return tuple(
                value if dtype is None else jnp.asarray(value, dtype)
                for value, dtype in zip(found, dtypes, strict=True)
            )

        if self.donated:
            self.programs.append(AotFunction(jax.jit(declared, donate_argnums=self.donated)))
            return self.programs[-1]
        return super().jit_compile(declared)


def declared_dtypes(mode: object) -> Mode:
    """A mode of JAX in which float32 graphs stay float32, and results have the declared dtypes."""
    found = get_mode(mode).register(
        (dfs_rewriter(_declared_sum), _LAST), (dfs_rewriter(_declared_fill), _LAST)
    )
    kind = type(found.linker)
    if not issubclass(kind, _Declared):
        found = Mode(type(kind.__name__, (_Declared, kind), {})(), found.provided_optimizer)
    return found


def in_place(mode: object, donated: Iterable[int]) -> tuple[Mode, list[AotFunction]]:
    """The same for a function that may overwrite inputs; its AotFunction is appended to the list.

    `donated`: the indices of these inputs.
    """
    found = declared_dtypes(mode)
    kind = type(found.linker)
    programs: list[AotFunction] = []
    members = {"donated": tuple(donated), "programs": programs}
    return Mode(type(kind.__name__, (kind,), members)(), found.provided_optimizer), programs


def wide() -> AbstractContextManager[object]:
    """A context with JAX's 64-bit dtypes, which PyTensor turns off where floatX is float32."""
    import jax

    return _NOTHING if jax.config.jax_enable_x64 else jax.enable_x64(True)


def typified(state: object) -> object:
    """A random generator for JAX: PyTensor uses the low 64 bits of the state of a PCG64."""
    if not isinstance(state, np.random.Generator):
        return state
    bits: Any = state.bit_generator.state["state"]
    if not isinstance(bits, dict) or not isinstance(bits.get("state"), int):
        raise InputTypeError(
            f"JAX draws only from PCG64 generators, found {state}: share "
            "numpy.random.default_rng(seed)"
        )
    low = bits["state"] & _LOW_64
    return {"jax_state": np.array([low & _LOW_32, low >> 32], np.uint32)}


def generator(state: Any, before: object) -> object:
    """The numpy generator that continues from a state which JAX has returned.

    `before` is the generator from which JAX's state was made.
    """
    if not isinstance(before, np.random.Generator):
        return state
    low, high = np.asarray(state["jax_state"]).tolist()
    old: Any = before.bit_generator
    held = old.state
    bits = type(old)(old.seed_seq)
    whole = held["state"]["state"] & ~_LOW_64 | high << 32 | low
    bits.state = held | {"state": held["state"] | {"state": whole}}
    return np.random.Generator(bits)


def ready(values: Sequence[object]) -> None:
    """Wait until JAX has computed these values."""
    for value in values:
        if hasattr(value, "block_until_ready"):
            value.block_until_ready()


def send_scalars(values: Sequence[Any]) -> None:
    """Let scalars, such as a loss, travel to the host as soon as a GPU has computed them.

    A copy that begins after `ready` costs a second wait (0.3 ms). JAX keeps the copy, so nothing
    may write to these values in place afterwards.
    """
    if on_cpu():
        return
    for value in values:
        if value.ndim == 0 and hasattr(value, "copy_to_host_async"):
            value.copy_to_host_async()


@functools.cache
def on_cpu() -> bool:
    """Whether JAX computes on the CPU, in the host's memory."""
    import jax

    return bool(jax.default_backend() == "cpu")


def is_copied(array: object) -> bool:
    """Whether JAX on the CPU copies this array at each call (only large arrays count)."""
    if not isinstance(array, np.ndarray) or array.nbytes < _BIG:
        return False
    misplaced = array.__array_interface__["data"][0] % BORDER
    return bool(misplaced or not array.flags.c_contiguous)


def is_far(value: object) -> bool:
    """Whether JAX copies a shared variable's value at each call, to a GPU or within memory."""
    return isinstance(value, np.ndarray) and (not on_cpu() or is_copied(value))


def brought(value: np.ndarray) -> np.ndarray | jax.Array:
    """The value where JAX does not copy it: aligned to 64 bytes, or as an array of JAX."""
    if not on_cpu():
        import jax

        with wide():
            return jax.device_put(value)
    found = aligned_empty(value.shape, value.dtype)
    np.copyto(found, value)
    return found


def is_held(value: object) -> bool:
    """Whether a value is an array of JAX, entirely on the device that JAX computes on."""
    jax = imported_jax()
    if jax is None or not isinstance(value, jax.Array):
        return False
    return bool(value.devices() == {jax.devices()[0]})


def dtype(name: str) -> np.dtype:
    """A dtype by its name, also one that only JAX has (bfloat16)."""
    import jax.numpy as jnp

    return jnp.dtype(name)


def ordinal() -> int:
    """CUDA's number, in this process, of the GPU that JAX computes on."""
    import jax

    return int(getattr(jax.devices()[0], "local_hardware_id", None) or 0)


def held(value: object) -> jax.Array:
    """A fresh copy of a value on the device that JAX computes on."""
    import jax.numpy as jnp

    with wide():
        return jnp.array(value, copy=True)


def are_gone(arrays: Iterable[jax.Array]) -> bool:
    """Whether JAX has given away the memory of any of these arrays."""
    return any(array.is_deleted() for array in arrays)


def pointer(array: jax.Array) -> int:
    """The address of an array in the device's memory; waits until the array is computed."""
    return int(array.block_until_ready().unsafe_buffer_pointer())


def blank(shape: Sequence[int], dtype: object) -> jax.Array:
    """A fresh array, to be written at its `pointer`."""
    import jax.numpy as jnp

    with wide():
        return jnp.zeros(shape, dtype)


def weighted(array: jax.Array, dtype: str, share: float | None) -> jax.Array:
    """The array times a number, in a dtype; without a number and a cast the array itself."""
    if share is None:
        return array if array.dtype.name == dtype else _cast(array, dtype)
    with wide():
        return _compiled("weighted", dtype)(array, share)


def divided(array: jax.Array, divisor: float) -> jax.Array:
    """Floats divided by a number, in their dtype."""
    with wide():
        return _compiled("divided", array.dtype.name)(array, divisor)


def rounded(value: Value, dtype: DTypeLike) -> Value:
    """A reduced value, of JAX or of numpy, in another dtype; see `reductions.rounded`."""
    kind = np.dtype(dtype)
    if not is_held(value):
        return reductions.rounded(np.asarray(value), kind)
    return value if value.dtype.name == kind.name else _cast(value, kind.name)


def _cast(array: jax.Array, dtype: str) -> jax.Array:
    with wide():
        return _compiled("cast", dtype)(array)


@functools.cache
def _compiled(what: str, dtype: str) -> Callable[..., jax.Array]:
    import jax
    import jax.numpy as jnp

    def weighted(array: jax.Array, share: jax.Array) -> jax.Array:
        real = dtype.replace("complex128", "float64").replace("complex64", "float32")
        return array.astype(dtype) * jnp.asarray(share, real)

    def divided(array: jax.Array, divisor: jax.Array) -> jax.Array:
        return array / jnp.asarray(divisor, dtype)

    def cast(array: jax.Array) -> jax.Array:
        whole = np.dtype(dtype).kind in "biu"
        rounds = whole and jnp.issubdtype(array.dtype, jnp.floating)
        return (jnp.rint(array) if rounds else array).astype(dtype)

    return jax.jit({"weighted": weighted, "divided": divided, "cast": cast}[what])


def flat(arrays: Sequence[jax.Array], dtype: str, share: float) -> jax.Array:
    """All arrays times a number, end to end, in a fresh vector."""
    with wide():
        return _flattening(dtype)(list(arrays), share)


@functools.cache
def _flattening(dtype: str) -> Callable[..., jax.Array]:
    import jax
    import jax.numpy as jnp

    def flattened(arrays: list[jax.Array], share: jax.Array) -> jax.Array:
        whole = jnp.concatenate([jnp.reshape(a, (-1,)).astype(dtype) for a in arrays])
        return whole * jnp.asarray(share, dtype)

    return jax.jit(flattened)


class Total:
    """Combines the values of slices on the device; `Accumulator` is the same for numpy."""

    def __init__(self, op: Reduction) -> None:
        self._op = op
        self._total: Any = None
        self._weight = 0.0
        self._dtype: Any = None

    def add(self, value: jax.Array, rows: float) -> None:
        """Add the value of a slice of `rows` rows."""
        if self._total is None:
            self._dtype = np.dtype(value.dtype)
        elif self._total.shape != value.shape:
            check_alike([np.empty(v.shape, bool) for v in (self._total, value)])
        wide_ = accumulator(self._dtype, self._op).name
        with wide():
            scaled = weighted(value, wide_, rows if self._op is Reduction.AVG else None)
            first = self._total is None
            self._total = scaled if first else _adding(str(self._op))(self._total, scaled)
        self._weight += rows

    def result(self) -> Value:
        """The combined value of all slices."""
        found = self._total
        if self._op is Reduction.AVG:
            found = weighted(found, found.dtype.name, 1.0 / self._weight)
        return rounded(found, result_dtype(self._dtype, self._op))


@functools.cache
def _adding(op: str) -> Callable[..., jax.Array]:
    import jax
    import jax.numpy as jnp

    kinds = {"prod": jnp.multiply, "min": jnp.minimum, "max": jnp.maximum}
    return jax.jit(kinds.get(op, jnp.add))


def combined(parts: jax.Array, op: str) -> jax.Array:
    """The product, minimum or maximum over the first axis."""
    import jax.numpy as jnp

    with wide():
        total = parts[0]
        for part in parts[1:]:
            combine = {"prod": jnp.multiply, "min": jnp.minimum, "max": jnp.maximum}[op]
            total = combine(total, part)
        return total


_bound: list[Device] = []  # to which groups bind JAX in this process, or did when it started
_OPTIONS = {"JAX_PLATFORMS": None, "JAX_CUDA_VISIBLE_DEVICES": "all"}  # read at JAX's import


@dataclass
class _Setting:
    """The value of an environment variable before groups set it, and how many groups set it."""

    before: str | None
    option: object  # the value of JAX's option of that name
    holders: int = 0


_settings: dict[str, _Setting] = {}


def has_run() -> bool:
    """Whether JAX has started a backend in this process."""
    with optional_gain():
        return JAX.is_imported("_backends") and bool(JAX.get("_backends"))
    return False


def bind(device: Device, spans: bool = False) -> Callable[[], None]:
    """Bind JAX in this process to a device; returns the function that ends this.

    `spans`: whether the group may span several machines.

    Raises
    ------
    GroupError
        JAX has started on another device, or with another share of the device's memory.
    """
    if not device.asked:
        return lambda: None
    started = has_run()
    _check_free(device, started)
    before = {n: s.before for n, s in _settings.items()}
    environ = {n: v for n, v in {**os.environ, **before}.items() if v is not None}
    settings = device.exchange(environ, spans) if device.kind == "cuda" else {}
    if not started:
        settings |= _start_of(device, environ)
    _hold(settings)
    if not started:
        _bound.append(device)
    return functools.partial(_release, device, not started, tuple(settings))


def _start_of(device: Device, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that JAX reads when it starts."""
    if device.kind == "cpu":
        return {"JAX_PLATFORMS": "cpu"}
    number = {"JAX_CUDA_VISIBLE_DEVICES": str(device.number)}
    return {"JAX_PLATFORMS": "cuda,cpu"} | number | device.memory(environ)


def _check_free(device: Device, started: bool) -> None:
    """Refuse a device to which JAX cannot be bound any more."""
    if device in _bound or not (started or _bound):
        return
    alike = _runs_on(device) if started else str(device) == str(_bound[-1])
    if started and alike and device.sharers == 1:
        return
    early = "call synk.fork() before anything computes with JAX"
    if alike:
        held = "when JAX started in this process" if started else "in another group that is alive"
        raise GroupError(
            f"devices: {device} is for {device.sharers} members, but it was for another number "
            f"{held}. JAX takes its share of a GPU's memory only once in a process: "
            + (early if started else "close that group first")
        )
    if started:
        raise GroupError(
            f"devices: the master's is {device}, but JAX already runs on another one in this "
            f"process: {early}"
        )
    raise GroupError(
        f"devices: the master's is {device}, but it is {_bound[-1]} in another group that is "
        "alive, and JAX has one device in a process"
    )


def _runs_on(device: Device) -> bool:
    """Whether JAX has started on this device."""
    import jax

    first = jax.devices()[0]
    if device.kind == "cpu":
        return bool(first.platform == "cpu")
    return bool(first.platform == "gpu" and first.local_hardware_id == device.number)


def _release(device: Device, bound: bool, names: Sequence[str]) -> None:
    if bound and not has_run():
        _bound.remove(device)
    for name in names:
        setting = _settings[name]
        setting.holders -= 1
        if not setting.holders:
            del _settings[name]
            _set(name, setting.before, setting.option)


def _hold(settings: Mapping[str, str]) -> None:
    """Set environment variables, unless another group has set them."""
    for name, value in settings.items():
        if name not in _settings:
            _settings[name] = _Setting(os.environ.get(name), _option(name))
            _set(name, value, value)
        _settings[name].holders += 1


def _option(name: str) -> object:
    """JAX's option of the name of an environment variable, or the variable if there is none."""
    with optional_gain():
        if imported_jax() is not None and name in _OPTIONS:
            return JAX.get("_read")(name.lower())  # some options are not attributes
    return os.environ.get(name, _OPTIONS.get(name))


def _set(name: str, value: str | None, option: object) -> None:
    """Set or unset an environment variable, and the option of an imported JAX."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
    jax = imported_jax()
    if jax is not None and name in _OPTIONS and not has_run():
        jax.config.update(name.lower(), option)


@contextlib.contextmanager
def shared_cache(used: bool = True) -> Iterator[None]:
    """Let JAX write compiled functions to disk, for other members to load, if `used`.

    A cache that the user has configured stays as it is.
    """
    if not used:
        yield
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.jax_compilation_cache_dir:
        yield
        return
    wanted = {
        "jax_compilation_cache_dir": str(Path(pytensor.config.base_compiledir) / "synkhronos-jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,  # else JAX leaves small functions out
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in wanted}
    try:
        _configure(jax, wanted)
        compilation_cache.reset_cache()  # JAX reads the folder once
        yield
    finally:
        _configure(jax, before)
        compilation_cache.reset_cache()


def set_precision(name: str | None) -> str | None:
    """Set the precision of matrix products of float32 in programs from now on.

    Parameters
    ----------
    name : str, or None
        Of ``jax_default_matmul_precision``. None: JAX's default.

    Returns
    -------
    str, or None
        What it was.
    """
    import jax

    before: str | None = jax.config.jax_default_matmul_precision
    jax.config.update("jax_default_matmul_precision", name)
    return before


def _configure(jax: ModuleType, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
