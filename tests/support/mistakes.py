"""Usual mistakes, and the messages that they get: tests/api/test_mistakes.py runs each of them.

The page docs/errors.rst shows the same list, so it cannot differ from what the package says.
"""

from __future__ import annotations

from dataclasses import dataclass

# What each of them follows.
BEFORE = """\
import numpy as np, pytensor, pytensor.tensor as pt, synkhronos as synk
from synkhronos.extensions import Batches, make_train_function, updates

synk.fork(2)
x = pt.matrix("x", dtype="float32")
w = pytensor.shared(np.zeros(3, "float32"), name="w")
f = synk.function([x], x.sum(), name="f")
rows = np.ones((1000, 3))  # float64
"""


@dataclass(frozen=True)
class Mistake:
    """Code that raises in its last line, and how its message begins; "..." stands for any text.

    Attributes
    ----------
    needs : str
        A library that must be installed.
    """

    code: str
    message: str
    needs: str = ""


GROUPS = {
    "Inputs of a call": (
        Mistake(
            "f(rows)",
            "InputTypeError: function f: input 'x' is float32 with 2 dimensions, found <ndarray "
            'float64 (1000, 3)>: cast it, value.astype("float32"); make Data of it once, '
            'synk.data(array, dtype="float32", force_cast=True); or give the function '
            "allow_input_downcast=True",
        ),
        Mistake(
            "d = synk.data(rows)\nf(d)",
            "InputTypeError: function f: input 'x' is float32 with 2 dimensions, found "
            "<synkhronos.Data float64 (1000, 3)>: make it by synk.data(array, "
            'dtype="float32", force_cast=True)',
        ),
        Mistake(
            "f(rows[0])",
            "InputTypeError: function f: input 'x' is float32 with 2 dimensions, found array([1., "
            "1., 1.]): give an array of as many dimensions, such as by reshape",
        ),
        Mistake(
            'f([["a", "b"]])',
            "InputTypeError: function f: input 'x' is float32 with 2 dimensions, found [['a', "
            "'b']]: it is text, and not numbers: encode it by numbers",
        ),
        Mistake(
            "import scipy.sparse\nf(scipy.sparse.csr_array(rows))",
            "InputTypeError: function f: input 'x' is float32 with 2 dimensions, found ...: it is "
            "a sparse matrix, whose rows are not divided: pass value.toarray()",
        ),
        Mistake(
            "f(row for row in rows)",
            "InputTypeError: function f: input 'x' is float32 with 2 dimensions, found <generator "
            "...>: it is a generator, which can be read only once: pass np.array(list(it))",
        ),
        Mistake(
            'f({"x": rows})',
            "InputTypeError: function f: input 'x' is float32 with 2 dimensions, found {'x': "
            "<ndarray float64 (1000, 3)>}: it is a dict, and not an array: pass its values as "
            "arrays",
        ),
        Mistake("f(y=rows)", "InputTypeError: function f has no input 'y'; it has: x"),
        Mistake(
            "f(rows, batch_size=100)",
            "InputTypeError: function f has no input 'batch_size'; it has: x. To take some of the "
            "rows, pass batch=",
        ),
        Mistake("f()", "InputTypeError: function f: input 'x' is missing"),
        Mistake(
            'v = pt.vector("v", dtype="float32")\n'
            'g = synk.function([x, v], (x @ v, "gather"), name="g")\n'
            'g(rows.astype("float32"), np.ones(3, "float32"))',
            "InputError: function g: scattered inputs differ in length ('x': 1000, 'v': 3): name "
            "in bcast_inputs what every member needs whole",
        ),
        Mistake(
            'y = pt.vector("y", dtype="float32")\n'
            'g = synk.function([x, y], (x.T @ y, "sum"), name="g")\n'
            'g(rows.astype("float32"), synk.data(var=y))',
            "InputError: function g: scattered inputs differ in length ('x': 1000, 'y': 0): give "
            "'y' a value, by set_value",
        ),
        Mistake(
            'f(np.ones((4, 3), "float32"), batch=[0, 9])',
            "BatchError: batch: rows must lie in -4..3, found 0..9",
        ),
    ),
    "Data": (
        Mistake(
            "synk.data(rows, var=x)",
            "InputTypeError: <synkhronos.Data 'x' float32 2-d, no value yet> does not take float64 "
            'without loss: pass force_cast=True to cast, or make Data with dtype="float64"',
        ),
        Mistake(
            'synk.data(["a", "b"])',
            "InputTypeError: synk.data: ['a', 'b'] cannot be held: it is text, and not numbers: "
            "encode it by numbers",
        ),
        Mistake(
            "synk.data(row for row in rows)",
            "InputTypeError: synk.data: <generator ...> cannot be held: it is a generator, which "
            "can be read only once: pass np.array(list(it))",
        ),
        Mistake(
            "import scipy.sparse\nsynk.data(scipy.sparse.csr_array(rows))",
            "InputTypeError: synk.data: ... cannot be held: it is a sparse matrix, whose rows are "
            "not divided: pass value.toarray()",
        ),
    ),
    "Functions": (
        Mistake(
            "synk.function([rows], x.sum())",
            "InputTypeError: inputs: <ndarray float64 (1000, 3)> is not an input variable",
        ),
        Mistake(
            "synk.function(x, x.sum())",
            "InputTypeError: inputs must be a list of variables, found TensorVariable",
        ),
        Mistake(
            "unnamed = synk.function([x], x.sum())\nunnamed()",
            "InputTypeError: function at ...: input 'x' is missing",
        ),
    ),
    "Shared variables": (
        Mistake(
            "synk.scatter(rows)",
            "InputTypeError: scatter: <ndarray float64 (1000, 3)> is not a shared variable, a "
            "name, or a list of them",
        ),
        Mistake(
            "synk.set_value(1, w, None)",
            "InputTypeError: set_value: the value of w is None: give an array. To give all members "
            "the master's own value, synk.broadcast(w)",
        ),
        Mistake(
            'synk.set_value(1, w, ["a", "b", "c"])',
            "InputTypeError: set_value: w is Vector(float32, shape=(?,)), found ['a', 'b', 'c']: "
            "it is text, and not numbers: encode it by numbers",
        ),
        Mistake(
            "synk.all_reduce(w, weights=rows)",
            "InputTypeError: weights=<ndarray float64 (1000, 3)> is not a list of numbers: give "
            "one for each of the 2 ranks",
        ),
    ),
    "Training": (
        Mistake(
            "Batches(rows, 5)",
            "InputTypeError: Batches: n is the number of rows, found <ndarray float64 (1000, 3)>: "
            "write len(array)",
        ),
        Mistake(
            "make_train_function(rows, [w], x, None, updates.sgd, 0.1)",
            "InputTypeError: the loss is <ndarray float64 (1000, 3)>: give a 0-d variable of "
            "floats (reduce it by mean or sum), or a list of gradients",
        ),
        Mistake(
            "make_train_function((x @ w).mean(), [w], x, rows, updates.sgd, 0.1)",
            "InputTypeError: make_train_function: x and y are variables of the graph, found "
            "<ndarray float64 (1000, 3)>: pass arrays when you call the training function",
        ),
        Mistake(
            "Batches(800, batch_size=100)",
            "InputTypeError: Batches: no option 'batch_size'; there are n, size, seed, shuffle, "
            "last, blocks, window; did you mean size=?",
        ),
        Mistake(
            "make_train_function((x @ w).mean(), [w], x, None, updates.adam(0.1))",
            "InputTypeError: updates.adam takes a loss and parameters first. A training function "
            "takes the rule and its arguments apart: make_train_function(loss, params, x, y, "
            "updates.adam, learning_rate=0.1)",
        ),
        Mistake(
            "make_train_function((x @ w).mean(), [w], x, None, updates.adam, learn_rate=0.1)",
            "InputTypeError: the rule adam: no option 'learn_rate'; there are loss_or_grads, "
            "params, learning_rate, beta1, beta2, epsilon, weight_decay, decoupled; did you mean "
            "learning_rate=?",
        ),
        Mistake(
            "make_train_function((x @ w).mean(), [w], x, None, updates.sgd)",
            "InputTypeError: the rule sgd: missing a required argument: 'learning_rate'; it takes "
            "loss_or_grads, params, learning_rate, weight_decay, decoupled",
        ),
        Mistake(
            'from synkhronos.extensions.checkpoints import Checkpoints\nCheckpoints([w], "run")',
            "InputTypeError: Checkpoints: the folder comes first, as in Checkpoints(folder, "
            "train); found [w]",
            needs="safetensors",
        ),
        Mistake(
            "make_train_function((x @ w).mean(), w, x, None, updates.sgd, 0.1)",
            "InputTypeError: params: give a list of shared variables; found TensorSharedVariable w",
        ),
    ),
    "Groups": (
        Mistake(
            "synk.fork(n_jobs=2)",
            "InputTypeError: synk.fork: no option 'n_jobs'; there are members, devices, "
            "master_rank, start, cores, infer, vectorised, profile_workers, debug, timeout, "
            "stall_warning, max_restarts, mpi, trace, n_parallel; did you mean members=?",
        ),
        Mistake(
            "synk.fork(3)",
            "GroupError: synk.fork(members=3): <synkhronos.Group of 2, ...>, made by "
            "synk.fork(members=2), is alive already: call synk.close() first, or make a second "
            "group with synk.Group",
        ),
        Mistake(
            "synk.fork(2)\nsynk.close()\nf(rows)",
            "GroupClosed: function f: the group has been closed. Call synk.fork() to start "
            "another, and make the functions and Data again",
        ),
        Mistake(
            "synk.close()\nsynk.data(rows)",
            "NotForked: synk.data needs a group, and no group is open: call synk.fork() first",
        ),
    ),
    "Operations of your own": (
        Mistake(
            """\
from pytensor.compile.ops import wrap_py

@wrap_py(itypes=[pt.fmatrix], otypes=[pt.fmatrix])
def checked(a):
    if len(a) == 2:  # the part of rank 1
        raise ValueError("only two rows")
    return a

g = synk.function([x], (checked(x), "gather"), name="g")
g(np.ones((5, 3), "float32"))""",
            "WorkerError[ValueError]: rank 1 (pid ...) failed in function g: ValueError: only two "
            "rows\nat ...:6, in checked\nNo value of any member was changed, and the group goes "
            "on.",
        ),
        Mistake(
            """\
import time
from pytensor.compile.ops import wrap_py

@wrap_py(itypes=[pt.fmatrix], otypes=[pt.fmatrix])
def slow(a):
    time.sleep(0 if len(a) == 3 else 0.6)  # the part of rank 1 has two rows
    return a

g = synk.function([x], (slow(x), "gather"), name="g")
g(np.ones((6, 3), "float32"))
g(np.ones((5, 3), "float32"), timeout=0.2)""",
            "GroupTimeout: function g: waited ... s for rank 1 (pid ..., waiting, at ...:6, in "
            "slow). No value has changed, and the group goes on: the next command waits for the "
            "member.\nrank 1:\nCurrent thread ... (most recent call first):\n  File ..., line 6 in "
            "slow\n  [... frames of the engine]",
        ),
    ),
    "PyMC": (
        Mistake(
            "synk.pymc.parallel()",
            "InputTypeError: parallel() was given no model, and is not inside of one: write "
            "parallel(model), or call it inside of `with model:`",
            needs="pymc",
        ),
        Mistake(
            """\
import pymc as pm

with pm.Model() as model:
    pm.Normal("y", pm.Normal("mu"), 1, observed=rows[:, 0])
synk.pymc.parallel(model, 2)""",
            "InputTypeError: dim=2 is not the name of a dimension; for 2 members write "
            "parallel(model, members=2)",
            needs="pymc",
        ),
        Mistake(
            """\
import pymc as pm

with pm.Model() as model:
    pm.Potential("fit", -pm.Normal("mu") ** 2)
synk.pymc.parallel(model)""",
            "InputError: the model has no observed variables, and none of its Potentials (fit) "
            "sums over rows of data: there is nothing to divide",
            needs="pymc",
        ),
        Mistake(
            "import pymc as pm\nsynk.pymc.parallel(pm.Model(), n_parallel=2)",
            "InputTypeError: parallel: no option 'n_parallel'; there are model, dim, members, "
            "members_per_chain, chains, mode, min_speedup, row_wise, repeated; "
            "did you mean members=?",
            needs="pymc",
        ),
        Mistake(
            "synk.pymc.parallel(2)",
            "InputTypeError: parallel takes a pymc.Model first, as in parallel(model, members=2); "
            "found int 2",
            needs="pymc",
        ),
    ),
}
