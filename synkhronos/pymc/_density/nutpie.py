"""nutpie's functions, compiled in less time. This file alone knows how nutpie compiles.

nutpie (0.16) calls PyTensor's compiled functions from C functions that numba types and compiles in
each process, together with the whole log-density. Here they are a few instructions of LLVM, which
call the machine code in numba's cache: :mod:`synkhronos._compiling.lean.c_functions`.

Functions are compiled in the mode of groups: :mod:`synkhronos._compiling.lean`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from pymc import Model
from pymc.sampling import sample as pm_sample
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Variable

from synkhronos._compiling.data.aligned import aligned_copy
from synkhronos._compiling.data.lifted import Data, lifted
from synkhronos._compiling.data.once import values_of
from synkhronos._compiling.direct.unfit import OutsideError, UnfitError
from synkhronos._compiling.kept.machine_code import CFunction
from synkhronos._compiling.lean.mode import with_lean
from synkhronos._compiling.traces import untraced
from synkhronos._libraries.fork_safe_lock import ForkSafeLock
from synkhronos._libraries.library import NameGone, Replacing, optional_gain, replacing, usable
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos._libraries.pymc import PYMC
from synkhronos._warnings import log
from synkhronos.pymc._density.adaptation import choice_for, replaced
from synkhronos.pymc._density.functions import compiled_as_in_groups
from synkhronos.pymc._density.late_arviz import import_nutpie
from synkhronos.pymc._density.step_methods import ASSIGN, ModelWithGraph, StepMethods

if TYPE_CHECKING:
    from synkhronos._compiling.direct.flat import Flat

_COMPILE = "_compile_pymc_model_numba"
_CALLED = (
    *("_make_functions", "make_user_data", "_prepare_dims_and_coords"),
    *(_COMPILE, "CompiledPyMCModel"),
)
_FIELDS = (
    *("dims", "reparameterized_names", "compiled_logp_func", "compiled_expand_func"),
    *("initial_point_func", "shared_data", "shared_var_keys", "user_data", "n_expanded"),
    *("shape_info", "logp_func", "expand_func", "_n_dim", "_shapes", "_coords"),
    "_transform_adapt_args",
)
_MODE = "NUMBA"  # the name of the mode that nutpie compiles for
_C_FUNCTIONS = "synkhronos._compiling.lean.c_functions"
_WORD_BYTES = 8
# whether nobody gives a compiled model other data: what follows from them is computed once, and
# code is for their lengths
data_stay = ContextVar("data_stay", default=False)


def sample(*args: object, **kwargs: object) -> Any:
    """`pm.sample`, with a compilation in less time, and in mode NUMBA with functions of groups."""
    with compiled_as_in_groups, ExitStack() as stack:
        if kwargs.get("nuts_sampler") in (None, "nutpie"):
            stack.enter_context(compiled_soon())
            stack.callback(data_stay.reset, data_stay.set(True))
        return pm_sample(*args, **kwargs)


def expected_metric(model: Model, seconds: float) -> str:
    """The metric that is expected to sample a model in less time, with the reason.

    Raises
    ------
    ImportError
        nutpie cannot be imported, or lacks what is needed.
    """
    import_nutpie()
    with compiled_soon():
        compiled = NUTPIE.get("compile_pymc_model")(model)
        return str(choice_for(NUTPIE.get("sample"), compiled, seconds))


@contextmanager
def compiled_soon() -> Iterator[None]:
    """A context in which nutpie compiles a model in less time; without nutpie it does nothing.

    Several threads may be in it at once: the last one to leave restores nutpie's function.
    """
    if not _is_known():
        yield
        return
    with _made_soon, replaced:
        yield


def _is_known() -> bool:
    """Whether nutpie can be imported and has all that is used here; a warning tells if not."""
    try:
        import_nutpie()
    except Exception as exc:  # `pm.sample` says so
        log.debug("nutpie cannot be imported: %s", exc)
        return False
    with optional_gain():
        for name in _CALLED:
            NUTPIE.get(name)
        fields = getattr(NUTPIE.get("CompiledPyMCModel"), "__dataclass_fields__", {}).keys()
        if differing := fields ^ set(_FIELDS):
            raise NameGone(
                f"nutpie compiles as it is, which takes longer: of {sorted(differing)}, its "
                f"compiled models lack fields or have new ones. Install nutpie {NUTPIE.tried}, "
                "or a later version of synkhronos"
            )
        return True
    return False


def _make_soon() -> Callable[[], None]:
    """Replace functions of nutpie and PyMC; returns what restores them."""
    step_methods = None
    with ExitStack() as undo:
        with optional_gain(), replacing.held():
            step_methods = StepMethods()
            undo.callback(PYMC.replace({ASSIGN: step_methods.assigned}))
        undo.callback(NUTPIE.replace({_COMPILE: _soon(step_methods)}))
        return undo.pop_all().close


_made_soon = Replacing(_make_soon)
_one_by_one = ForkSafeLock()


def _has_lengths(variable: Any) -> bool:
    """Whether data have the same lengths as long as a compiled model lives."""
    if variable.owner is not None:
        return all(map(_has_lengths, variable.owner.inputs))
    # integers may be lengths of other arrays
    known = None not in variable.type.shape and variable.type.dtype.startswith("float")
    return isinstance(variable, Data) or known


def _soon(step_methods: StepMethods | None) -> Callable[..., object]:
    """Nutpie's function that compiles a model, in less time; one thread after another."""
    compile_model: Callable[..., object] = NUTPIE.get(_COMPILE)

    @functools.wraps(compile_model)
    def compile_soon(model: Model, *args: Any, **kwargs: Any) -> object:
        for_numba = kwargs.keys() - {"pymc_initial_point_fn", "var_names"}
        with _one_by_one.held(), _in_mode_of_groups, untraced():
            # options are for C functions that numba compiles
            if for_numba or not usable(_C_FUNCTIONS):
                return compile_model(model, *args, **kwargs)
            known = step_methods.with_graph(model) if step_methods else model
            return _compiled(model, known, *args, **kwargs)

    return compile_soon


def _take_mode() -> Callable[[], None]:
    """Let nutpie compile for mode NUMBA as groups do; returns what restores it."""
    from synkhronos._compiling.lean.closed import ClosedLinker  # a model that is kept needs none

    make = NUTPIE.get("_make_functions")
    mode = with_lean(Mode(ClosedLinker(), get_mode(_MODE).provided_optimizer))

    @functools.wraps(make)
    def make_in_mode(model: Model, **given: Any) -> object:
        return make(model, **{**given, "mode": mode if given["mode"] == _MODE else given["mode"]})

    return NUTPIE.replace({"_make_functions": make_in_mode})


_in_mode_of_groups = Replacing(_take_mode)


def _compiled(
    model: Model,
    known: Model | ModelWithGraph,
    pymc_initial_point_fn: Callable[..., Any],
    var_names: Iterable[str] | None = None,
) -> object:
    """The compiled model of nutpie, whose C functions are made without numba's compiler.

    Parameters
    ----------
    known : Model or ModelWithGraph
        The model, with its graph if that is made already.
    """
    c_functions: Any = importlib.import_module(_C_FUNCTIONS)
    make = NUTPIE.get("_make_functions")
    normals: Any = importlib.import_module("synkhronos.pymc._density.normals")
    # the graph that the key of what is kept is made of; the closed form has its lengths inside
    plain, *drawn = lifted([known.logp(), *known.unobserved_value_vars])
    regressions: Any = importlib.import_module("synkhronos.pymc._density.regressions")
    normal = normals.with_normals(plain, known.value_vars)
    value = regressions.with_regressions(normal, data_stay.get())
    length, expanded, log_density, expand, start, shapes, reparameterized = make(
        ModelWithGraph(known, value, drawn),
        mode=_MODE,
        compute_grad=True,
        join_expanded=True,
        pymc_initial_point_fn=pymc_initial_point_fn,
        var_names=var_names,
    )
    reads = [reads_of(function) for function in (log_density, expand)]
    keys = {variable: uuid4().hex for each in reads for variable in each}
    data, record = recorded(keys, values_of(list(keys)))

    asked = [[keys[v] for v in each] for each in reads]

    def for_these_lengths(function: Any, at: int, *numbers: int) -> CFunction:
        return code_for(flat_of(function), asked[at], data, record, numbers)

    made = None
    if data_stay.get() or all(map(_has_lengths, keys)):
        with contextlib.suppress(UnfitError), optional_gain():
            made = (
                for_these_lengths(log_density, 0, length),
                for_these_lengths(expand, 1, length, expanded),
            )
    if made is None:  # the code of numba is for data of all lengths
        places = [places_of(each, data, record) for each in asked]
        made = (
            c_functions.log_density(log_density.vm.jit_fn, length, places[0]),
            c_functions.expansion(expand.vm.jit_fn, length, expanded, places[1]),
        )
    dims, coords = NUTPIE.get("_prepare_dims_and_coords")(model, shapes, reparameterized)
    found: object = NUTPIE.get("CompiledPyMCModel")(
        _n_dim=length,
        dims=dims,
        _coords=coords,
        _shapes={name: tuple(shape) for name, _, shape in zip(*shapes, strict=True)},
        compiled_logp_func=made[0],
        compiled_expand_func=made[1],
        initial_point_func=start,
        shared_data=data,
        shared_var_keys=keys,
        user_data=record,
        n_expanded=expanded,
        shape_info=shapes,
        logp_func=log_density,
        expand_func=expand,
        reparameterized_names=reparameterized,
    )
    return found


def recorded(
    keys: Mapping[Variable, str], values: Iterable[np.ndarray]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Copies of data that nobody writes to, by their keys, and nutpie's record of their places."""
    data = {key: aligned_copy(value) for key, value in zip(keys.values(), values, strict=True)}
    for value in data.values():
        value.flags.writeable = False
    return data, NUTPIE.get("make_user_data")(keys, data)


def flat_of(function: Any) -> Flat:
    """The rewritten graph of a function that `_make_functions` has made."""
    from synkhronos._compiling.direct.flat import Flat

    return Flat.of(function.maker.linker.graph)


def reads_of(function: Any) -> list[Any]:
    """The data that such a function reads, in the order in which its graph takes them."""
    return list(function.maker.linker.arguments[1:])


def places_of(keys: Iterable[str], data: Mapping[str, np.ndarray], record: np.ndarray) -> list[Any]:
    """The places of data in nutpie's record."""
    c_functions: Any = importlib.import_module(_C_FUNCTIONS)
    words = [[_word(record.dtype, field, key) for field in ("data", "shape")] for key in keys]
    return [c_functions.Place.of(data[k], *w) for k, w in zip(keys, words, strict=True)]


def code_for(
    graph: Flat,
    keys: Sequence[str],
    data: Mapping[str, np.ndarray],
    record: np.ndarray,
    numbers: Sequence[int],
) -> CFunction:
    """The C function of a rewritten graph, for the lengths of these data.

    Parameters
    ----------
    graph : Flat
    keys : sequence of str
        Of the data that it reads, in their order.
    data, record
        Of `recorded`.
    numbers : sequence of int
        The length of the point; and of an expansion that of what it writes.

    Raises
    ------
    UnfitError
    IndexError
        An index that is data chooses no element.
    """
    functions: Any = importlib.import_module("synkhronos._compiling.direct.functions")
    values, places = [data[key] for key in keys], places_of(keys, data, record)
    try:
        found: CFunction = functions.c_function(graph, values, places, numbers)
    except (UnfitError, NameGone):
        raise
    except OutsideError as exc:
        raise IndexError(str(exc)) from exc
    except Exception as exc:  # a fault there is no reason for a model not to be sampled
        log.warning("code of a log-density cannot be written, numba compiles it: %r", exc)
        raise UnfitError(str(exc)) from exc
    return found


def _word(record: np.dtype, *names: str) -> int:
    """The place of a field of nutpie's record, in words."""
    place = 0
    for name in ("shared", *names):
        fields: Any = record.fields
        record, offset = fields[name][:2]
        place += offset
    return place // _WORD_BYTES
