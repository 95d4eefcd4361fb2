"""Chains over several nodes, as far as one node shows it; see tests/mpi/test_node_sampling.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.random import MT19937
from pymc.util import get_random_generator
from xarray import Dataset, DataTree

from synkhronos._errors import InputError, SynkhronosError
from synkhronos._host.cores import available
from synkhronos._transport.serialization import pack_graph, unpack_graph
from synkhronos.pymc._chains import node_main
from synkhronos.pymc._chains import nodes as _node_chains
from synkhronos.pymc._chains.nodes import ChainsProcess, NodeChains, can_divide_chains

LIMIT = 270.0  # seconds; a hang fails
SHORT = {"draws": 5, "tune": 5, "chains": 1, "progressbar": False, "quiet": True}


def model_of(function: Any = None) -> pm.Model:
    r = np.random.default_rng(4)
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        pm.Poisson("y", pm.math.exp(r.normal(size=(80, 2)) @ b), observed=r.poisson(1, 80))
    model.__dict__["function"] = function
    return model


def chains_of(packed: bytes) -> NodeChains:
    found: NodeChains = unpack_graph(packed)
    return found


def packed(**arguments: Any) -> bytes:
    return packed_for([arguments.get("chains", 1)], **SHORT | arguments)


def packed_for(counts: list[int], function: Any = None, **arguments: Any) -> bytes:
    return _node_chains.packed_chains(model_of(function), arguments, counts, "other nodes")


def draws_of(packed: bytes) -> Any:
    with ChainsProcess(packed, 0, available()) as process:
        assert process.wait(LIMIT)
        return unpack_graph(process.answer())


def test_an_error_that_cannot_be_made_again_is_told() -> None:
    """Its class takes arguments that it does not keep."""

    class ChainError(Exception):  # here, since Dask makes all that it finds fit to be pickled
        def __init__(self, message: str, chain: int) -> None:
            super().__init__(f"{message} {chain}")

    found = unpack_graph(node_main._packed(ChainError("the chain has failed", 0)))
    assert type(found) is SynkhronosError
    assert "ChainError: the chain has failed 0" in str(found)


def test_each_node_gets_its_share_of_the_chains() -> None:
    starts = [{"b": np.full(2, float(i))} for i in range(5)]
    given = {"chains": 5, "initvals": starts, "random_seed": 3, "cores": 8, "progressbar": True}
    first, second = chains_of(packed_for([3, 2], **given)).arguments
    assert (first["chains"], second["chains"]) == (3, 2)
    assert [float(v["b"][0]) for v in (*first["initvals"], *second["initvals"])] == [0, 1, 2, 3, 4]
    assert (first["progressbar"], second["progressbar"]) == (True, False)
    assert first["cores"] == second["cores"] == 8


def test_chains_of_nodes_have_the_seeds_that_pm_sample_gives_them() -> None:
    def seeds(seed: Any, counts: list[int]) -> list[int]:
        """As `pm.sample` makes them of the arguments of each node."""
        each = chains_of(packed_for(counts, chains=sum(counts), random_seed=seed)).arguments
        return [
            int(rng.integers(2**30))
            for given, count in zip(each, counts, strict=True)
            for rng in get_random_generator(given["random_seed"]).spawn(count)
        ]

    used = np.random.default_rng(3)
    used.spawn(4)
    for seed in (3, [1, 2], np.random.default_rng(3), used, np.random.Generator(MT19937(5))):
        wanted = [int(r.integers(2**30)) for r in get_random_generator(seed).spawn(4)]
        assert seeds(seed, [2, 2]) == seeds(seed, [1, 1, 1, 1]) == wanted
    assert seeds(None, [2, 2]) != seeds(None, [2, 2])


def test_a_model_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(InputError, match=r"cannot be sent to other nodes: .*generator"):
        packed_for([1, 1], function=(i for i in "ab"), chains=2)


@pytest.mark.parametrize(
    ("chains", "nodes", "arguments", "divided"),
    [
        (4, 2, {}, True),
        (2, 2, {"nuts_sampler": "nutpie"}, True),
        (1, 2, {}, False),
        (4, 1, {}, False),
        (4, 2, {"return_inferencedata": False}, False),
        (4, 2, {"callback": print}, False),
        (4, 2, {"callback": None}, True),
    ],
)
def test_when_chains_are_divided_over_nodes(
    chains: int, nodes: int, arguments: dict[str, Any], divided: bool
) -> None:
    assert can_divide_chains(chains, nodes, arguments) == divided


def tree(chains: int, first: float, seconds: float) -> bytes:
    values = np.arange(chains * 3.0).reshape(chains, 3) + first
    posterior = Dataset({"b": (("chain", "draw"), values)}, {"chain": np.arange(chains)})
    posterior.attrs = {"sampling_time": seconds, "tuning_steps": 5}
    data = Dataset({"y": ("row", np.arange(4))})
    return pack_graph(DataTree.from_dict({"posterior": posterior, "observed_data": data}))


def test_draws_are_joined() -> None:
    found = _node_chains.joined([tree(2, 0, 7.0), tree(1, 100, 9.0)], None, {"quiet": True})
    assert found.posterior.chain.values.tolist() == [0, 1, 2]
    assert found.posterior["b"].values.tolist() == [[0, 1, 2], [3, 4, 5], [100, 101, 102]]
    assert found.posterior.attrs == {"sampling_time": 9.0, "tuning_steps": 5}
    assert found.observed_data["y"].values.tolist() == [0, 1, 2, 3]


def test_the_process_draws_what_pymc_draws() -> None:
    made = packed(random_seed=11, members_per_chain=1, cores=1, mode="FAST_COMPILE")
    found = draws_of(made)
    seed = chains_of(made).arguments[0]["random_seed"]
    given = SHORT | {"random_seed": seed, "cores": 1, "nuts_sampler": "pymc"}
    plain = pm.sample(model=model_of(), compute_convergence_checks=False, **given)
    np.testing.assert_allclose(found.posterior["b"], plain.posterior["b"], rtol=1e-6)


def test_the_process_is_killed() -> None:
    with ChainsProcess(packed(), 0, available()) as process:
        process._child.kill()
        assert process.wait(LIMIT)
        with pytest.raises(SynkhronosError, match=r"samples this node's chains .*SIGKILL"):
            process.answer()


@pytest.mark.thorough
def test_the_process_raises() -> None:
    with pytest.raises(ValueError, match="Sampler nix not found") as raised:
        draws_of(packed(nuts_sampler="nix"))
    assert any("process that samples" in note for note in raised.value.__notes__)
