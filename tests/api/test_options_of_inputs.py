"""Options of `In` and types of results: what PyTensor takes and returns, so does a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.sparse as psp
import pytensor.tensor as pt
import pytest
import scipy.sparse
from modes import FAST
from pytensor import In
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.null_type import NullType
from pytensor.graph.op import Op
from pytensor.link.c.type import generic
from pytensor.tensor.type_other import MakeSlice, NoneConst
from pytensor.typed_list import make_list

import synkhronos as synk

pytestmark = pytest.mark.usefixtures("lasting_groups")

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "strict": {"strict": True},
    "downcast": {"allow_downcast": True},
    "no downcast": {"allow_downcast": False},
    "strict, downcast": {"strict": True, "allow_downcast": True},
    "borrow": {"borrow": True},
    "mutable": {"mutable": True},
}
WHOLE: dict[str, Any] = {"whole": None, "whole, downcast": True, "whole, no downcast": False}

VALUES: dict[str, Any] = {
    "int": 3,
    "large int": 300,
    "huge int": 2**70,
    "float": 1.5,
    "whole float": 2.0,
    "bool": True,
    "complex": 1j,
    "nan": float("nan"),
    "int8": np.int8(3),
    "int64": np.int64(3),
    "float32": np.float32(1.5),
    "float64": np.float64(1.5),
    "0-d float64": np.array(1.5),
    "0-d float32": np.array(1.5, "f"),
    "list": [1, 2],
    "large list": [300],
    "list of floats": [1.5, 2.0],
    "list of whole floats": [1.0, 2.0],
    "empty list": [],
    "ragged": [[1], [1, 2]],
    "array of int8": np.array([1, 2], "int8"),
    "array of int64": np.array([1, 2]),
    "array of float32": np.array([1, 2], "f"),
    "array of float64": np.array([1.5, 2.0]),
    "array of bools": np.array([True]),
    "array of complex": np.array([1j]),
    "strided": np.ones(4)[::2],
    "big-endian": np.ones(2, ">f8"),
    "2-d": np.ones((2, 2)),
    "text": "abc",
}


def outcome(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return f(*args, **kwargs)
    except Exception as exc:
        return exc


@pytest.mark.filterwarnings("ignore:.*discards the imaginary part", "ignore:invalid value")
@pytest.mark.each_choice
@pytest.mark.parametrize("option", [*OPTIONS, *WHOLE])
@pytest.mark.parametrize("dtype", ["bool", "int8", "float32", "float64"])
def test_arguments_fit_as_in_pytensor(group2: synk.Group, dtype: str, option: str) -> None:
    """The same values are taken, and become the same; all others raise InputTypeError."""
    given: dict[str, Any] = {}
    if option in WHOLE:
        given = {"allow_input_downcast": WHOLE[option]}
    for ndim in (0, 1):
        x = pt.tensor("x", dtype=dtype, shape=(None,) * ndim)
        inputs = [In(x, **OPTIONS[option]) if option in OPTIONS else x]
        plain = pytensor.function(inputs, x, mode=FAST, **given)
        f = synk.function([], x, bcast_inputs=inputs, mode=FAST, **given)
        for name, value in VALUES.items():
            wanted = outcome(plain, value)
            for call in (f, f.as_pytensor):
                found = outcome(call, value)
                if isinstance(wanted, Exception):
                    assert isinstance(found, synk.InputTypeError), name
                    continue
                assert found.dtype == wanted.dtype, name
                np.testing.assert_array_equal(found, wanted)


def test_options_of_scattered_inputs(group2: synk.Group) -> None:
    x, y = pt.fvector("x"), pt.fvector("y")
    f = synk.function([In(x, strict=True), In(y, allow_downcast=True)], (x * y).sum(), mode=FAST)
    assert f(np.ones(3, "f"), [1, 2, 3]) == 6
    assert f(synk.data(np.ones(3, "f")), np.ones(3)) == 3
    with pytest.raises(synk.InputTypeError, match=r"strict=True\) takes only an array of numpy"):
        f([1, 1, 1], [1, 2, 3])
    g = synk.function([x, In(y)], (x * y).sum(), mode=FAST, allow_input_downcast=True)
    assert g(np.ones(3), np.ones(3, "f")) == 3
    with pytest.raises(synk.InputTypeError, match=r"In\(..., allow_downcast=True\)"):
        g(np.ones(3), np.ones(3))  # as in PyTensor, an In has an option of its own


def test_mutable_inputs_are_not_written_to(group2: synk.Group) -> None:
    """The option is a permission, which calls do not use."""
    x = pt.dvector("x")
    f = synk.function([In(x, mutable=True)], pt.exp(x), mode="FAST_COMPILE")
    rows = np.zeros(5)
    np.testing.assert_array_equal(f(rows), np.ones(5))
    np.testing.assert_array_equal(rows, np.zeros(5))


def test_implicit_inputs(group2: synk.Group) -> None:
    """An input with a value is implicit: no call gives another one, in PyTensor neither."""
    x, k, s = pt.dvector("x"), pt.dscalar("k"), pytensor.shared(2.0)
    for option in ({}, {"implicit": True}, {"implicit": None}, {"shared": True}):
        f = synk.function([x, In(k, value=s, **option)], x.sum() * k, mode=FAST)
        assert f([1.0, 2.0]) == 6
        for args, kwargs in (([[1.0], 3.0], {}), ([[1.0]], {"k": 3.0})):
            with pytest.raises(synk.InputTypeError, match="'k' is implicit"):
                f(*args, **kwargs)
    with pytest.raises(synk.InputError, match="implicit=False"):
        synk.function([x, In(k, value=s, implicit=False)], x.sum() * k)
    with pytest.raises(synk.InputError, match="needs a value"):
        synk.function([x, In(k, shared=True)], x.sum() * k)


def test_names_of_inputs(group2: synk.Group) -> None:
    x, k = pt.dvector("x"), pt.dscalar("k")
    f = synk.function([In(x, name="rows"), In(k, autoname=False)], x.sum() * k, mode=FAST)
    assert f([1.0, 2.0], 2.0) == 6
    with pytest.raises(synk.InputTypeError, match="no input 'k'"):
        f(rows=[1.0, 2.0], k=2.0)
    with pytest.raises(synk.InputTypeError, match="no input 'x'"):
        f(x=[1.0, 2.0])
    with pytest.raises(synk.InputTypeError, match="not an input variable"):
        synk.function([pt.constant(1.0)], x.sum())


SHARED: Any = pytensor.shared({"a": 1})
TEXT: Any = pytensor.shared("abc")
# inputs to broadcast, outputs and arguments of functions without rows
RESULTS: dict[str, Callable[[Any, Any], tuple[Any, ...]]] = {
    "no outputs": lambda x, g: ([], None, []),
    "empty list": lambda x, g: ([], [], []),
    "empty tuple": lambda x, g: ([], (), []),
    "a text": lambda x, g: ([], TEXT, []),
    "a dict": lambda x, g: ([], [SHARED], []),
    "a dict twice": lambda x, g: ([], [SHARED, SHARED], []),
    "a generic input": lambda x, g: ([g], g, ["xyz"]),
    "a generic None": lambda x, g: ([g], [g], [None]),
    "None": lambda x, g: ([], NoneConst, []),
    "a slice": lambda x, g: ([x], MakeSlice()(0, x.astype("int64"), None), [3.0]),
    "a scalar": lambda x, g: ([x], pt.scalar_from_tensor(x), [3.0]),
    "a scalar input": lambda x, g: ([s := ps.float64("s")], s, [3.0]),
    "a list of arrays": lambda x, g: ([x], make_list([x, x * 2]), [3.0]),
    "a 0-d array": lambda x, g: ([x], x * 2, [3.0]),
    "an Out": lambda x, g: ([x], pytensor.Out(x * 2, borrow=True), [3.0]),
}


@pytest.mark.parametrize("case", RESULTS)
def test_results_have_the_types_of_pytensor(group2: synk.Group, case: str) -> None:
    whole, outputs, args = RESULTS[case](pt.dscalar("x"), generic("g"))
    wanted = pytensor.function(whole, outputs, mode=FAST)(*args)
    f = synk.function([], outputs, whole, mode=FAST)
    for found in (f(*args), f.as_pytensor(*args)):
        assert type(found) is type(wanted)
        assert found == wanted
        if isinstance(wanted, list):
            assert list(map(type, found)) == list(map(type, wanted))


def test_results_beside_rows(group2: synk.Group) -> None:
    """Also where the master has no rows, and another member gives the value."""
    x = pt.dvector("x")
    length = MakeSlice()(0, x.shape[0], None)
    f = synk.function([x], [TEXT, x.sum(), length, pt.scalar_from_tensor(x.sum())], mode=FAST)
    text, total, rows, scalar = f([1.0, 2.0, 3.0])
    assert (text, total, scalar) == ("abc", 6.0, 6.0)
    assert (type(rows), rows.stop) == (slice, 3)
    assert type(scalar) is np.float64
    named = synk.function([x], (make_list([x, x * 2]), None), mode=FAST)
    assert [list(v) for v in named([1.0, 2.0, 3.0])] == [[1.0, 2.0], [2.0, 4.0]]


def test_values_that_are_not_combined(group2: synk.Group) -> None:
    x = pt.dvector("x")
    listed, sparse = make_list([x, x * 2]), psp.csr_from_dense(x[:, None])
    for wrong in (listed, (listed, "sum"), sparse, (sparse, "gather")):
        with pytest.raises(synk.InputTypeError, match="members cannot combine"):
            synk.function([x], wrong)
    m: Any = psp.csr_matrix("m", dtype="float32")
    f = synk.function([], m, bcast_inputs=[m], mode=FAST)
    assert f(scipy.sparse.csr_matrix(np.eye(2, dtype="f"))).nnz == 2
    strict = synk.function([], m, bcast_inputs=[In(m, strict=True)], mode=FAST)
    with pytest.raises(synk.InputTypeError, match="input 'm' is SparseTensorType"):
        strict(np.eye(2, dtype="f"))


class NoGradient(Op):
    """The identity, whose gradient nobody has written."""

    def make_node(self, *inputs: Any) -> Apply:
        return Apply(self, list(inputs), [inputs[0].type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = inputs[0]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        return [pytensor.gradient.grad_not_implemented(self, 0, inputs[0], "nobody wrote it")]


def test_gradients_that_do_not_exist(group2: synk.Group) -> None:
    """The error says which operation has none, as PyTensor's does."""
    x = pt.dscalar("x")
    gradient = pytensor.grad(NoGradient()(x), x, null_gradients="return")
    assert isinstance(gradient.type, NullType)
    with pytest.raises(synk.InputTypeError, match=r"NoGradient op is not implemented.*nobody"):
        synk.function([x], [gradient, x])
    with pytest.raises(synk.InputTypeError, match="disconnected gradient"):
        synk.function([x], [disconnected_type(), x])
