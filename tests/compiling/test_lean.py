"""Lean operations of mode NUMBA: values, layouts, caches, and what happens without them."""

import ctypes
import itertools
import os
import subprocess
import sys
from itertools import combinations

import numba
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target
from pytensor.graph.basic import Apply
from pytensor.tensor.basic import Split
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.rewriting.fused_elemwise import FusedElemwise
from pytensor.tensor.subtensor import AdvancedSubtensor
from rewritten import in_python
from selection import examples, thorough

import synkhronos as synk
from synkhronos._compiling.kept.image import Image
from synkhronos._compiling.lean import reductions, rewrite
from synkhronos._compiling.lean.inner import inner_code
from synkhronos._compiling.lean.linker import LeanLinker
from synkhronos._compiling.lean.mode import lean, without_c
from synkhronos._compiling.lean.op import Lean
from synkhronos._compiling.python_mode import python_mode
from synkhronos._libraries.library import tell


def compiled(inputs, outputs):
    """A function in the mode of groups; its inputs are not checked, nor copied."""
    function = pytensor.function(inputs, outputs, mode=lean("NUMBA"))
    function.trust_input = True
    return function


def operations_of(function):
    """The operations that a function runs, those of inner graphs among them."""
    found, graphs = [], [function.maker.fgraph]
    while graphs:
        for node in graphs.pop().apply_nodes:
            found.append(node.op)
            if hasattr(node.op, "fgraph"):
                graphs.append(node.op.fgraph)
    return found


def is_lean(function, kind):
    """Whether all operations of a kind are lean ones."""
    ops = operations_of(function)
    return any(isinstance(op, Lean) and isinstance(op.op, kind) for op in ops) and not any(
        isinstance(op, kind) for op in ops
    )


@numba.njit
def steps_to_one(number):
    """It is not inlined."""
    return 0 if number <= 1 else 1 + steps_to_one(number // 2)


def test_a_function_calls_its_own_copies_of_others():
    """Not those that this process has compiled: from the cache it is loaded without these."""
    called = numba.njit(lambda number: 2 * steps_to_one(number))
    found = LeanLinker().jit_compile((called, None))
    assert found(9) == called(9) == 6
    [result], [plain] = found.overloads.values(), called.overloads.values()
    kinds, before = (
        {f.linkage.name for f in r.library.get_defined_functions()} for r in (result, plain)
    )
    assert kinds == {"internal", "external"}
    assert "linkonce_odr" in before


def test_a_function_is_optimised_again_after_others_were_inlined(monkeypatch):
    """As in PyTensor's linker, which compiles it twice."""
    optimise, of = JITCodeLibrary._optimize_final_module, []

    def noted(library):
        of.append(library.name)
        optimise(library)

    monkeypatch.setattr(JITCodeLibrary, "_optimize_final_module", noted)
    called = numba.njit(lambda number: 3 * steps_to_one(number))
    found = LeanLinker().jit_compile((called, None))
    assert found(9) == 9
    [result] = found.overloads.values()
    assert of.count(result.library.name) == 2


DATA = [np.arange(float(length)) for length in (3, 130, 7, 1001)]
FIRST, SECOND_ONE, THIRD, FOURTH = DATA


@numba.njit
def addresses():
    """Of arrays that are a part of the machine code."""
    given = FIRST.ctypes.data, SECOND_ONE.ctypes.data, THIRD.ctypes.data, FOURTH.ctypes.data
    return given, FIRST.sum() + SECOND_ONE.sum() + THIRD.sum() + FOURTH.sum()


def test_arrays_of_machine_code_begin_at_cache_lines():
    found = LeanLinker().jit_compile((addresses, None))
    places, total = found()
    assert total == sum(map(np.sum, DATA))
    assert len(set(places)) == len(DATA)
    assert [place % 64 for place in places] == [0] * len(DATA)
    [result] = found.overloads.values()
    image = Image.of([result.library._compiled_object], [])
    start, held = image.placed(lambda name: 0)
    assert held is not None
    memory = (ctypes.c_char * len(image.data)).from_address(start).raw
    at = [memory.find(each.tobytes()[8:]) - 8 for each in DATA]  # the first number is 0
    assert [(start + each) % 64 for each in at] == [0] * len(DATA)


@numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
def root_of(number):
    if number < 0:
        raise ValueError(number)
    return number**0.5


def test_a_function_that_others_call_has_no_machine_code():
    """Until something asks for its address; its errors are raised, and numba is as before."""
    codegen = cpu_target.target_context.codegen()
    before = codegen.magic_tuple()
    found = LeanLinker().jit_compile((numba.njit(lambda number: 2 * root_of(number)), None))
    assert found(9) == 6.0
    with pytest.raises(ValueError, match="-9"):
        found(-9)
    [result] = root_of.overloads.values()
    engine, name = codegen._engine, result.fndesc.llvm_func_name
    assert not engine.is_symbol_defined(name)
    assert result.library.serialize_using_object_code()[1] == "bitcode"
    assert numba.njit(lambda number: root_of(number))(4) == 2.0  # its copy
    assert not engine.is_symbol_defined(name)
    assert result.library.get_pointer_to_function("another") == 0
    assert result.library.get_pointer_to_function(name) != 0
    assert engine.is_symbol_defined(name)
    with inner_code():
        assert codegen.magic_tuple() != before  # plain functions do not load what is cached here
    with pytest.raises(numba.TypingError), inner_code():
        numba.njit(lambda: root_of("text"))()
    assert codegen.magic_tuple() == before
    assert not {"_library_class", "set_env", "magic_tuple"} & vars(codegen).keys()


LENGTHS = st.sampled_from([0, 1, 2, 3, 5, 17])


@st.composite
def views(draw, rows, columns, dtype):
    """An array (rows, columns) whose strides are any that numpy can make."""
    steps = [draw(st.sampled_from([-2, -1, 1, 1, 1, 2])) for _ in range(2)]
    turned, repeated = draw(st.booleans()), draw(st.sampled_from([None, None, None, 0, 1]))
    shape = [
        n * abs(s) + draw(st.integers(0, 2)) for n, s in zip((rows, columns), steps, strict=False)
    ]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    base = rng.normal(size=shape[::-1] if turned else shape).astype(dtype)
    base = base.T if turned else base
    view = base[:: steps[0], :: steps[1]][:rows, :columns]
    if repeated is not None:
        strides = [0 if axis == repeated else s for axis, s in enumerate(view.strides)]
        view = np.lib.stride_tricks.as_strided(view, strides=strides)
    return view


@pytest.fixture(scope="module", params=["float32", *thorough("float64")])
def product(request):
    x, y = (pt.TensorType(request.param, (None, None))(name) for name in "xy")
    function = compiled([x, y], x @ y)
    assert is_lean(function, Dot)
    return request.param, function


@pytest.mark.parametrize("kind", ["int64", *thorough("bool", "uint8", "float32")])
def test_a_product_of_another_dtype_is_cast(kind):
    x, y = pt.TensorType(kind, (None, None))("x"), pt.dmatrix("y")
    function = compiled([x, y], [x @ y, y @ x.T])
    assert is_lean(function, Dot)
    values = np.random.default_rng(0).integers(0, 2, (6, 6)).astype(kind)
    others = np.random.default_rng(1).normal(size=(6, 6))
    for found, expected in zip(
        function(values, others), (values @ others, others @ values.T), strict=True
    ):
        assert found.dtype == "float64"
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_products_of_any_strides(product, data):
    dtype, function = product
    m, k, n = (data.draw(LENGTHS) for _ in range(3))
    x, y = data.draw(views(m, k, dtype)), data.draw(views(k, n, dtype))
    before = x.copy(), y.copy()
    found = function(x, y)
    assert found.shape == (m, n)
    assert found.dtype == dtype
    assert found.flags.c_contiguous
    np.testing.assert_allclose(
        found,
        x.astype("f8") @ y.astype("f8"),
        rtol=1e-5,
        atol=1e-5 if dtype == "float32" else 1e-12,
    )
    assert np.array_equal(x, before[0])
    assert np.array_equal(y, before[1])
    assert not np.shares_memory(found, x)
    assert not np.shares_memory(found, y)


@pytest.mark.thorough  # in single precision: the test above
def test_a_product_in_double_precision():
    x = pt.dmatrix("x")
    function = compiled([x], [x @ x.T, x @ x[0]])
    assert is_lean(function, Dot)
    values = np.random.default_rng(0).normal(size=(5, 7))
    for found, expected in zip(
        function(values), (values @ values.T, values @ values[0]), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_products_of_other_lengths_are_refused(product):
    dtype, function = product
    with pytest.raises(ValueError, match="columns of the first matrix"):
        function(np.ones((2, 3), dtype), np.ones((4, 2), dtype))


NAMES = {  # of reductions: the scalar operation, and a dtype that it is tried with
    "sum": ("Add", "int8"),
    "prod": ("Mul", "float64"),
    "max": ("Maximum", "float32"),
    "min": ("Minimum", "int64"),
    "all": ("AND", "bool"),
    "any": ("OR", "bool"),
}


def layouts(values):
    """The same values in several layouts of memory."""
    yield values
    yield np.asfortranarray(values)
    padded = np.zeros([2 * n + 1 for n in values.shape], values.dtype)
    strided = padded[tuple(slice(0, 2 * n, 2) for n in values.shape)]
    strided[...] = values
    yield strided
    yield np.ascontiguousarray(values[..., ::-1])[..., ::-1]
    turned = np.moveaxis(values, 0, -1).copy()
    yield np.moveaxis(turned, -1, 0)


def values_of(dtype, lengths):
    found = np.random.default_rng(0).integers(-2, 9, lengths)
    return (found > 0 if dtype == "bool" else found).astype(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_sources_of_reductions(name):
    """The code of all reductions, layouts and numbers of axes, run by Python."""
    scalar, dtype = NAMES[name]
    wide = np.dtype("int64" if dtype == "int8" else dtype)
    identity = {"sum": 0, "prod": 1, "max": -np.inf, "min": np.inf, "all": -1, "any": 0}[name]
    names = {
        "np": np,
        "flat": lambda a: a.reshape(-1, order="A"),
        "identity": reductions._identity(identity, wide),
        "wide": wide,
        "narrow": wide,
        "narrowed": lambda a: a,
    }
    for ndim in (1, 2, 3, 4):
        for axes in itertools.chain(*(combinations(range(ndim), n + 1) for n in range(ndim))):
            for lengths in ((9, 3, 4, 2)[:ndim], (1, 5, 1, 2)[:ndim], (2, 3, 2, 0)[:ndim]):
                if 0 in lengths and name in ("max", "min"):
                    continue
                values = values_of(dtype, lengths)
                expected = getattr(np, name)(values, axis=axes)
                for array in layouts(values):
                    flags = array.flags
                    layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
                    for kind in {layout, "A"}:
                        exec(reductions._Reduction(scalar, ndim, axes, kind).source(), names)
                        np.testing.assert_array_equal(names["careduce"](array), expected)


@pytest.mark.parametrize(
    ("name", "dtype", "ndim", "axes"),
    [
        ("sum", "float32", 2, (0,)),  # in float64, as PyTensor does
        *thorough(
            ("min", "int8", 3, (0, 1)),
            ("min", "int8", 4, (0, 1, 2)),
            ("sum", "uint16", 3, (0, 2)),
            ("prod", "int32", 1, (0,)),
            ("max", "float32", 2, (1,)),
            ("all", "bool", 3, (1,)),
        ),
    ],
)
def test_reductions_of_any_layout(name, dtype, ndim, axes):
    x = pt.TensorType(dtype, (None,) * ndim)("x")
    reduced = getattr(pt, name)(x, axis=axes)
    function = compiled([x], reduced)
    assert any(isinstance(op, Lean) for op in operations_of(function))
    for lengths in ((5, 11, 3, 4)[:ndim], (1,) * ndim):
        values = values_of(dtype, lengths)
        expected = getattr(np, name)(values, axis=axes)
        for array in layouts(values):
            found = function(array)
            assert found.dtype == reduced.type.dtype
            np.testing.assert_array_equal(found, expected.astype(found.dtype))


def test_maxima_keep_nan():
    x = pt.fmatrix("x")
    function = compiled([x], [x.max(axis=0), x.max(axis=1), x.max()])
    values = np.arange(40, dtype="f4").reshape(2, 20)
    values[1, 13] = np.nan
    for found, axis in zip(function(values), (0, 1, None), strict=True):
        np.testing.assert_array_equal(found, values.max(axis=axis))


def test_fills_and_checked_shapes():
    n, x = pt.lscalar("n"), pt.fmatrix("x")
    function = compiled(
        [n, x], [pt.alloc(np.float32(2.5), n, 3) * 1.0, pt.specify_shape(x, (n, None)) + 1]
    )
    filled, checked = function(np.array(2), np.ones((2, 4), "f4"))
    assert filled.tolist() == [[2.5] * 3] * 2
    assert checked.tolist() == [[2.0] * 4] * 2
    with pytest.raises(AssertionError, match="SpecifyShape: axis 0"):
        function(np.array(3), np.ones((2, 4), "f4"))


@pytest.mark.parametrize("axis", [*thorough(0), 1])
def test_splits(axis):
    x, sizes = pt.fmatrix("x"), pt.lvector("sizes")
    function = compiled([x, sizes], [v + 1 for v in pt.split(x, sizes, n_splits=3, axis=axis)])
    assert is_lean(function, Split)
    values = np.arange(42, dtype="f4").reshape(6, 7)
    for given_sizes in ([1, 2, 3 + axis], [0, 6 + axis, 0]):
        expected = np.split(values + 1, np.cumsum(given_sizes)[:-1], axis=axis)
        for found, wanted in zip(function(values, np.array(given_sizes)), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    for wrong, text in (
        ([1, 2], "3 sizes"),
        ([-1, 3, 4 + axis], "negative"),
        ([1, 1, 1], "add up"),
    ):
        with pytest.raises(ValueError, match=text):
            function(values, np.array(wrong))


def test_graphs_inside_of_operations_have_them_too():
    h, w = pt.fmatrix("h"), pt.fmatrix("w")
    states = pytensor.scan(
        lambda s, w: pt.tanh(s @ w),
        outputs_info=h,
        non_sequences=w,
        n_steps=3,
        return_updates=False,
    )
    function = compiled([h, w], states[-1])
    assert is_lean(function, Dot)
    expected, given_w = np.eye(3, dtype="f4"), np.full((3, 3), 0.3, "f4")
    found = function(expected, given_w)
    for _ in range(3):
        expected = np.tanh(expected @ given_w)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_functions_of_the_user_stay_as_they_are():
    x = pt.fmatrix("x")
    function = pytensor.function([x], x @ x, mode="NUMBA")
    assert not any(isinstance(op, Lean) for op in operations_of(function))


class Changed(Dot):
    """A product as another version of PyTensor may have it."""

    __props__ = ("new",)
    new = True


def test_an_operation_of_another_version_is_left_alone(monkeypatch):
    monkeypatch.setitem(rewrite._KNOWN, Changed, rewrite._KNOWN[Dot])
    x = pt.fmatrix("x")
    graph = pytensor.graph.fg.FunctionGraph(outputs=[Changed()(x, x)], clone=False)
    told = r"Changed, which has unknown properties \['new'\]"
    with pytest.warns(synk.VersionWarning, match=told):
        rewrite._replace(graph)
    assert isinstance(graph.outputs[0].owner, Apply)
    assert type(graph.outputs[0].owner.op) is Changed
    tell.cache_clear()


def test_parts_of_numba_that_are_gone_cost_only_time(monkeypatch):
    monkeypatch.setattr(rewrite, "usable", lambda module: False)
    x = pt.fmatrix("x")
    graph = pytensor.graph.fg.FunctionGraph(outputs=[Dot()(x, x)], clone=False)
    rewrite._replace(graph)
    assert type(graph.outputs[0].owner.op) is Dot


SECOND = """
import numpy as np, pytensor, pytensor.tensor as pt
from numba.core import event
from synkhronos._compiling.lean.mode import lean, without_c
x, n = pt.fmatrix("x"), pt.lscalar("n")
found = pt.specify_shape(x @ x.T, (n, n)).sum(axis=0) + pt.alloc(np.float32(1), n)
with event.install_recorder("numba:compile") as recorded:
    function = pytensor.function([x, n], [found, found.max()], mode=lean("NUMBA"))
    function.trust_input = True
    function(np.ones((3, 2), "f4"), np.array(3))
print(len(recorded.buffer))
"""


@pytest.mark.thorough  # of members: tests/pymc/test_compiling.py
def test_machine_code_is_found_by_the_next_process(tmp_path, monkeypatch):
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    monkeypatch.setenv("PYTENSOR_FLAGS", f"{flags},base_compiledir={tmp_path}")

    def compilations():
        done = subprocess.run(
            [sys.executable, "-c", SECOND], capture_output=True, text=True, timeout=300, check=True
        )
        return int(done.stdout.split()[-1])

    assert compilations() > 10
    assert compilations() == 0


@in_python
def test_sums_of_outer_products_are_products(made):
    a, b = pt.dmatrix("a"), pt.dmatrix("b")
    column = pt.tensor("column", dtype="float64", shape=(None, 1))
    r = np.random.default_rng(0)
    values = r.normal(size=(7, 3)), r.normal(size=(7, 2)), r.normal(size=(7, 1))
    cases = {
        "rows": ((a[:, :, None] * b[:, None, :]).sum(axis=0), True),
        "columns first": ((b[:, None, :] * a[:, :, None]).sum(axis=0), True),
        "transposed": ((a.T.T[:, None, :] * b[:, :, None]).sum(axis=0), True),
        "another axis": ((a[:, :, None] * b[:, None, :]).sum(axis=1), False),
        "one column": ((a[:, :, None] * column[:, None, :]).sum(axis=0), False),
    }
    for what, (graph, is_product) in cases.items():
        given = [a, b, column]
        fast = made(given, graph)
        plain = pytensor.function(given, graph, mode="FAST_COMPILE", on_unused_input="ignore")
        np.testing.assert_allclose(fast(*values), plain(*values), rtol=1e-14, err_msg=what)
        assert ("dot" in pytensor.printing.debugprint(fast, file="str").lower()) == is_product, what


def operations(compiled, kind):
    """The number of operations of this kind in a function's graph."""
    return sum(isinstance(node.op, kind) for node in compiled.maker.fgraph.apply_nodes)


@in_python
def test_loops_gather_rows_by_themselves(made):
    """Value and gradient read the same rows: no array of them is made for both."""
    a, b, square = pt.dmatrix("a"), pt.dmatrix("b"), pt.dmatrix("square")
    i, mask = pt.lvector("i"), pt.vector("mask", dtype="bool")
    products = (a[i] * b[i]).sum(axis=1)
    cases = {
        "value and gradient": ([products.sum(), *pt.grad(pt.sqr(products).sum(), [a, b])], 0),
        "one loop": ([(a[i] * b[i]).sum()], 0),
        "a product also": ([pt.sqr(a[i]).sum(axis=1), pt.sqrt(a[i]), a[i] @ square], 1),
        "a mask": ([pt.sqr(a[mask]).sum(axis=1), pt.sqrt(a[mask])], 0),
    }
    r = np.random.default_rng(0)
    rows = np.array([0, 6, 6, -1])
    values = r.random((7, 3)), r.random((7, 3)), r.random((3, 3)), rows, np.arange(7) % 2 == 0
    for what, (graph, gathers) in cases.items():
        given = [a, b, square, i, mask]
        fast = made(given, graph)
        plain = pytensor.function(given, graph, mode="FAST_COMPILE", on_unused_input="ignore")
        for found, wanted in zip(fast(*values), plain(*values), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-14, err_msg=what)
        assert operations(fast, AdvancedSubtensor) == gathers, what


@in_python
def test_columns_join_the_loops_of_vectors(made):
    """The gradient of a sum over an axis is a column; what it is made of are vectors."""
    x, column = pt.dmatrix("x"), pt.tensor("column", dtype="float64", shape=(None, 1))
    total = x.sum(axis=1)
    graph = [pt.sqr(total) + 1, (pt.sqr(total)[:, None] * 3 - column) * x]
    r = np.random.default_rng(0)
    values = r.random((5, 3)), r.random((5, 1))
    fast = made([x, column], graph)
    plain = pytensor.function([x, column], graph, mode="FAST_COMPILE")
    for found, wanted in zip(fast(*values), plain(*values), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-14)
    assert operations(fast, Elemwise | FusedElemwise) == 2  # one of vectors, one of the matrix


def test_a_loop_over_many_arrays_is_one_without_a_c_compiler():
    """PyTensor fuses none of it then if it has more than 32 operands, as numpy's functions."""
    vectors = [pt.dvector() for _ in range(40)]
    total = pt.sqr(sum((i + 1.0) * vector for i, vector in enumerate(vectors)))
    with without_c("NUMBA"):
        fast = pytensor.function(vectors, total, mode=lean("NUMBA"))
        in_python = pytensor.function(vectors, total, mode=python_mode("fast_run"))
    given = np.random.default_rng(0).random((40, 3))
    np.testing.assert_allclose(fast(*given), in_python(*given), rtol=1e-14)
    assert operations(fast, Elemwise) == 1
    assert max(len(node.inputs) for node in in_python.maker.fgraph.apply_nodes) <= 32
