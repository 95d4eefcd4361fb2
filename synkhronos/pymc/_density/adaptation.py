"""The argument `adaptation` of sampling: its check, and the short warm-up that chooses for "auto".

`pm.sample` calls ``nutpie.sample`` deep inside. In `adapted` this chooses first, and in
`sampled_by` another function samples. One function does both: threads may leave in any order.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from synkhronos._checks import shown
from synkhronos._compiling.progress import tell, telling
from synkhronos._errors import InputError
from synkhronos._libraries.library import Replacing
from synkhronos._libraries.nutpie import NUTPIE
from synkhronos._warnings import log
from synkhronos.pymc._density.draws import DRAWS, TUNE
from synkhronos.pymc._density.late_arviz import import_nutpie
from synkhronos.pymc._density.metric import (
    CHAINS,
    DIAG,
    LOW_RANK,
    Choice,
    Warmup,
    choice,
    draws_of_warmup,
    draws_of_warmups,
    early_choice,
    late_choice,
    without_warmup,
)

AUTO = "auto"
ADAPTATIONS = (AUTO, DIAG, "draw_diag", LOW_RANK)
_OF_LOW_RANK = {"mass_matrix_eigval_cutoff", "mass_matrix_gamma"}
# nutpie's older arguments that name a metric
_OLD_NAMES = {"low_rank_modified_mass_matrix", "transform_adapt", "use_grad_based_mass_matrix"}
_SEED = 1  # of the short warm-up: the choice is that of the model, whatever the seed of draws is
_DEPTH = 5  # of its trees
_SOON = 0.002  # seconds between looks at its draws, at least
STUCK = 0.9  # of the draws of a chain diverge

type Keep = Callable[[Callable[[], Choice]], Choice]  # returns a choice, or calls for it

_asked: ContextVar[Auto | None] = ContextVar("_asked", default=None)
_by: ContextVar[tuple[Callable[..., Any], Keep] | None] = ContextVar("_by", default=None)


def check_adaptation(asked: str | None, given: MutableMapping[str, Any]) -> str | None:
    """The metric that is asked for with these arguments of `pm.sample`, by default "auto".

    None if nutpie's own arguments name one in another way, or another kind of sampler. An "auto"
    in `nuts` is taken out of the arguments: no sampler knows it.

    Raises
    ------
    InputError
        There is no such metric, `nuts` names another one, or has an option of another one.
    """
    if asked not in (None, *ADAPTATIONS):
        raise InputError(f"adaptation={shown(asked)}: give one of {_listed(ADAPTATIONS)}")
    of_nuts = name_of_nuts(given)
    nuts = given.get(of_nuts) or {}
    found = nuts.get("adaptation", asked or AUTO)
    if found not in ADAPTATIONS and found not in (names := _of_nutpie() or (found,)):
        raise InputError(
            f'{of_nuts}={{"adaptation": {shown(found)}}}: give one of {_listed((AUTO, *names))}'
        )
    old = sorted(_OLD_NAMES & nuts.keys())
    if asked not in (None, AUTO):
        for name in old if found == asked else ["adaptation"]:
            raise InputError(
                f'adaptation="{asked}", nuts={{"{name}": {shown(nuts[name])}}}: name the metric '
                "once"
            )
    if nuts.get("adaptation") == AUTO:
        given[of_nuts] = {name: value for name, value in nuts.items() if name != "adaptation"}
    if old:
        return None
    if found != LOW_RANK:
        for option in _OF_LOW_RANK & nuts.keys():
            raise InputError(
                f'nuts={{"{option}": ...}} is an option of adaptation="{LOW_RANK}", and this is '
                f'adaptation="{found or DIAG}": name "{LOW_RANK}", or leave the option out'
            )
    chosen_for = nuts.get("sampler", "nuts")
    return None if found == AUTO and chosen_for != "nuts" else found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _of_nutpie() -> tuple[str, ...]:
    """The metrics of nutpie, which may be newer ones; empty if it does not tell."""
    with contextlib.suppress(ImportError):  # `pm.sample` says so
        import_nutpie()
        taken = inspect.signature(NUTPIE.get("sample")).parameters
        return get_args(taken["adaptation"].annotation) if "adaptation" in taken else ()
    return ()


def name_of_nuts(given: Mapping[str, Any]) -> str:
    """The argument of `pm.sample` with the settings of NUTS: the older one, if that is given."""
    return "nuts" if given.get("nuts_sampler_kwargs") is None else "nuts_sampler_kwargs"


@dataclass(frozen=True)
class Auto:
    """The choice for a model.

    `seconds` are those of the rows of a gradient. `kept` returns a choice that it has kept, or
    calls a function for it, with one thread of BLAS; it gets a key. `say` tells the choice.
    """

    seconds: float = 0.0
    kept: Callable[[Sequence[object], Callable[[], Choice]], Choice] = lambda _, find: find()
    say: Callable[[str], object] = tell


@contextlib.contextmanager
def adapted(auto: Auto | None) -> Iterator[None]:
    """A context in which nutpie samples by the choice for a model; None leaves nutpie's default."""
    token = _asked.set(auto)
    try:
        yield
    finally:
        _asked.reset(token)


@contextlib.contextmanager
def sampled_by(function: Callable[..., Any], keep: Keep) -> Iterator[None]:
    """A context in which this function samples in place of nutpie's, which it gets first.

    Other calls go on with what it samples. So it samples by one choice, which `keep` keeps.

    Raises
    ------
    NameGone
    """
    NUTPIE.get("sample")
    token = _by.set((function, keep))
    try:
        with replaced:
            yield
    finally:
        _by.reset(token)


def choosing(sample: Callable[..., Any]) -> Callable[..., Any]:
    """``nutpie.sample`` which chooses in `adapted`, and samples by what `sampled_by` names."""

    @functools.wraps(sample)
    def sample_chosen(compiled: Any, **given: Any) -> Any:
        auto, by = _asked.get(), _by.get()
        sampled = sample if by is None else functools.partial(by[0], sample)
        draws = given.get("draws") or DRAWS
        tune = TUNE if given.get("tune") is None else given["tune"]
        if auto is None or "adaptation" in given:
            return sampled(compiled, **given)
        if by is None and not draws_of_warmup(draws, tune):
            return sampled(compiled, **given)
        cores = min(CHAINS, given.get("cores") or CHAINS)
        find = functools.partial(choice_for, sample, compiled, auto.seconds, draws, tune, cores)
        choose = functools.partial(_kept_or_diag, auto, (auto.seconds, draws, tune), find)
        found = choose() if by is None else by[1](choose)
        auto.say(str(found))
        tree = sampled(compiled, adaptation=found.name, **given)
        if found.name == DIAG or by is not None or not (stuck := _stuck(tree)):
            return tree
        of = f"{stuck} of {len(tree.posterior.chain)} chains"
        auto.say(f"{LOW_RANK} has left {of} stuck: diag again")
        return sampled(compiled, adaptation=DIAG, **given)

    return sample_chosen


# a context in which nutpie samples so
replaced = Replacing(lambda: NUTPIE.replace({"sample": choosing(NUTPIE.get("sample"))}))


def _kept_or_diag(auto: Auto, key: Sequence[object], find: Callable[[], Choice]) -> Choice:
    try:
        return auto.kept(key, find)
    except Exception as exc:  # sampling says what is wrong with the model, if anything is
        log.debug("the short warm-up has failed: %s", exc)
        return Choice(DIAG, 1.0, "a short warm-up has failed")


def _stuck(tree: Any) -> int:
    """The chains that do not move, since nutpie has learnt a metric without a usable step size.

    None counts where Ctrl-C has ended the sampling.
    """
    stats = tree.sample_stats
    if not (stats["n_steps"] > 0).all():
        return 0
    return int((stats["diverging"].mean("draw") > STUCK).sum())


def choice_for(
    sample: Callable[..., Any],
    compiled: Any,
    seconds: float,
    draws: int = DRAWS,
    tune: int = TUNE,
    cores: int = 1,
) -> Choice:
    """The choice for a compiled model; `seconds` are those of the rows of a gradient."""
    known = without_warmup(int(compiled.n_dim), seconds, draws, tune)
    if known is not None:
        return known
    warm_up = functools.partial(
        sample,
        compiled,
        draws=0,
        chains=CHAINS,
        cores=cores,
        seed=_SEED,
        maxdepth=_DEPTH,
        adaptation=DIAG,
        store_gradient=True,
        store_unconstrained=True,
        progress_bar=False,
        blocking=False,
        return_raw_trace=True,  # ArviZ's tree takes longer than the draws of a small model
    )
    with telling("choosing the metric"):
        for count in draws_of_warmups(draws, tune):
            running = warm_up(tune=count)
            try:
                found, is_last = _choice_of(running, count // 2, (seconds, draws, tune))
            finally:  # half of the draws are enough, or Ctrl-C
                running.cancel()
            if is_last:
                break
    return found


def _choice_of(running: Any, half: int, of_call: tuple[float, int, int]) -> tuple[Choice, bool]:
    """As `choice`, by half of the draws soon after they are there, or by all of them."""
    began = time.monotonic()
    while True:
        try:
            whole = running.wait(timeout=max(_SOON, (time.monotonic() - began) / 20))
        except TimeoutError:
            _, chains = running.inspect().get_arrow_trace()
            if len(chains) == CHAINS and min(chain.num_rows for chain in chains) >= half:
                break
        else:
            return choice(_warmup_of(whole.get_arrow_trace()[1]), *of_call)
    early = early_choice(_warmup_of([chain.slice(0, half) for chain in chains]), *of_call)
    if early:
        return early, True
    return late_choice(_warmup_of(running.wait().get_arrow_trace()[1]), *of_call)


def _warmup_of(chains: Sequence[Any]) -> Warmup:
    """The draws in nutpie's raw trace."""
    draws, gradients = (
        np.stack([_matrix(chain.column(name)) for chain in chains])
        for name in ("unconstrained_draw", "gradient")
    )
    steps = np.stack([chain.column("n_steps").to_numpy() for chain in chains])
    return Warmup(draws, gradients, steps)


def _matrix(lists: Any) -> np.ndarray:
    """The numbers of lists of one length, by list."""
    from arro3.core import list_flatten  # nutpie needs it

    found: np.ndarray = list_flatten(lists).to_numpy().reshape(len(lists), -1)
    return found
