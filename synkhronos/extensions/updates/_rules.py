"""Update rules in Lasagne's form: ``rule(loss_or_grads, params, ...) -> {shared: new value}``.

They do not use groups; `pytensor.function` can use their results. A rule takes ``loss_or_grads,
params, learning_rate, ..., weight_decay, decoupled``. Its docstring has a Cost, References and
Examples; `_documented` adds what all take and return. Common to all:

* Each new value is elementwise in the gradient, the parameter and its states, beside which there
  are only 0-d scalars. A state that is the same for all parameters (a count of steps) is one 0-d
  variable.
* A parameter's arithmetic and its states have its dtype, whatever the dtypes of hyper-parameters
  and of floatX. Scalars are worked out before they are rounded to it.
* Hyper-parameters are numbers, 0-d shared variables, or 0-d inputs of the call. The latter two may
  change from step to step; nothing is compiled anew.
* ``weight_decay`` is coupled (``weight_decay * param`` joins the gradient, and passes through the
  rule as a gradient does) or decoupled (``learning_rate * weight_decay * param`` is taken off the
  parameter, past the rule). For plain sgd both are the same.
* States start at zero and are named ``<parameter>.<state>``; a parameter without a name counts as
  ``param<number>``.

References
----------
Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, arXiv:1711.05101.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable

from synkhronos._compiling.graph_types import Variables
from synkhronos.extensions.updates._slots import (
    Hyper,
    Updates,
    clock,
    hypers,
    in_dtype,
    slots_of,
    weight_so_far,
)

_PARAMETERS = """Parameters
----------
loss_or_grads : 0-d loss, or list of gradients
params : list of shared variables
"""
_RETURNS = """Returns
-------
dict
    New values by shared variable.

"""


def _documented[F: Callable[..., Updates]](rule: F) -> F:
    """Add to a rule's docstring what all rules take and return."""
    if rule.__doc__ is None:  # python -OO
        return rule
    head, own = inspect.cleandoc(rule.__doc__).split("Parameters\n----------\n")
    own, rest = own.split("Notes\n-----\n")
    numbers = ", ".join([*inspect.signature(rule).parameters][2:-1])
    if not own.startswith(numbers):
        own = f"{numbers} : 0-d\n{own}"
    rule.__doc__ = f"{head}{_PARAMETERS}{own}{_RETURNS}Notes\n-----\n{rest}"
    return rule


@_documented
def sgd(
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper,
    weight_decay: Hyper = 0.0,
    decoupled: bool = False,
) -> Updates:
    """Gradient descent: ``param - learning_rate * gradient``.

    Parameters
    ----------
    decoupled : bool
        Without effect here: both forms of decay give the same step.

    Notes
    -----
    Cost: no state.

    References
    ----------
    Robbins and Monro, A Stochastic Approximation Method, Ann. Math. Stat. 22, 1951.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> new = sgd((w**2).sum(), [w], learning_rate=0.25)
    >>> new[w].eval().tolist()
    [0.5, -1.0]
    """
    (lr,) = hypers(learning_rate=learning_rate)
    slots = slots_of(loss_or_grads, params, lr, weight_decay, decoupled)
    return {s.param: s.start - s.num(lr) * s.grad for s in slots}


@_documented
def momentum(
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper,
    momentum: Hyper = 0.9,
    weight_decay: Hyper = 0.0,
    decoupled: bool = False,
) -> Updates:
    """Gradient descent with momentum: the gradients change a velocity, which is the step.

    ``velocity = momentum * velocity - learning_rate * gradient; param + velocity``

    Parameters
    ----------
    decoupled : bool
        Whether the decay stays out of the velocity (SGDW: Loshchilov and Hutter, algorithm 1).

    Notes
    -----
    Cost: one state, `velocity`.

    References
    ----------
    Polyak, Some methods of speeding up the convergence of iteration methods, 1964, equation 9.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> new = momentum((w**2).sum(), [w], learning_rate=0.25)
    >>> [v.name for v in new], new[w].eval().tolist()
    (['w.velocity', 'w'], [0.5, -1.0])
    """
    lr, mu = hypers(learning_rate=learning_rate, momentum=momentum)
    updates: Updates = {}
    for s in slots_of(loss_or_grads, params, lr, weight_decay, decoupled):
        velocity = s.state("velocity")
        new = s.num(mu) * velocity - s.num(lr) * s.grad
        updates[velocity] = new
        updates[s.param] = s.start + new
    return updates


@_documented
def nesterov_momentum(
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper,
    momentum: Hyper = 0.9,
    weight_decay: Hyper = 0.0,
    decoupled: bool = False,
) -> Updates:
    """Gradient descent with Nesterov's momentum, in the form that looks one velocity ahead.

    ``velocity = momentum * velocity - learning_rate * gradient;
    param + momentum * velocity - learning_rate * gradient``

    Parameters
    ----------
    decoupled : bool
        Whether the decay stays out of the velocity.

    Notes
    -----
    Cost: one state, `velocity`. The parameters held are those at the point looked ahead to, so the
    gradient is taken where they are.

    References
    ----------
    Sutskever et al., On the importance of initialization and momentum in deep learning, ICML 2013,
    equations 3 and 4; the form used: Bengio et al., arXiv:1212.0901, equation 7.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> new = nesterov_momentum((w**2).sum(), [w], learning_rate=0.25, momentum=0.5)
    >>> new[w].eval().tolist()
    [0.25, -0.5]
    """
    lr, mu = hypers(learning_rate=learning_rate, momentum=momentum)
    updates: Updates = {}
    for s in slots_of(loss_or_grads, params, lr, weight_decay, decoupled):
        velocity = s.state("velocity")
        push = s.num(lr) * s.grad
        new = s.num(mu) * velocity - push
        updates[velocity] = new
        updates[s.param] = s.start + s.num(mu) * new - push
    return updates


@_documented
def adagrad(
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper = 1.0,
    epsilon: Hyper = 1e-6,
    weight_decay: Hyper = 0.0,
    decoupled: bool = False,
) -> Updates:
    """Adagrad: steps divided by the root of the sum of all squared gradients so far.

    ``accu = accu + gradient**2; param - learning_rate * gradient / sqrt(accu + epsilon)``

    Parameters
    ----------
    decoupled : bool
        Whether the decay goes past the division.

    Notes
    -----
    Cost: one state, `accu`. `epsilon` is inside of the root, as in Lasagne; the paper adds its
    delta to the root.

    References
    ----------
    Duchi, Hazan and Singer, Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization, JMLR 12, 2011, figure 1 (diagonal).

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> new = adagrad((w**2).sum(), [w], learning_rate=0.5)
    >>> new[w].eval().round(3).tolist()
    [0.5, -1.5]
    """
    lr, eps = hypers(learning_rate=learning_rate, epsilon=epsilon)
    updates: Updates = {}
    for s in slots_of(loss_or_grads, params, lr, weight_decay, decoupled):
        accu = s.state("accu")
        new = accu + pt.sqr(s.grad)
        updates[accu] = new
        updates[s.param] = s.start - s.num(lr) * s.grad / pt.sqrt(new + s.above_zero(eps))
    return updates


@_documented
def rmsprop(
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper = 1.0,
    rho: Hyper = 0.9,
    epsilon: Hyper = 1e-6,
    weight_decay: Hyper = 0.0,
    decoupled: bool = False,
) -> Updates:
    """RMSProp: steps divided by the root of a running mean of the squared gradient.

    ``accu = rho * accu + (1 - rho) * gradient**2;
    param - learning_rate * gradient / sqrt(accu + epsilon)``

    Parameters
    ----------
    decoupled : bool
        Whether the decay goes past the division.

    Notes
    -----
    Cost: one state, `accu`.

    References
    ----------
    Tieleman and Hinton, Lecture 6.5 (rmsprop), Neural Networks for Machine Learning, 2012.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> new = rmsprop((w**2).sum(), [w], learning_rate=0.5, rho=0.75)
    >>> new[w].eval().round(3).tolist()
    [0.0, -1.0]
    """
    lr, decay, eps = hypers(learning_rate=learning_rate, rho=rho, epsilon=epsilon)
    updates: Updates = {}
    for s in slots_of(loss_or_grads, params, lr, weight_decay, decoupled):
        accu = s.running_mean(updates, "accu", decay, pt.sqr(s.grad))
        updates[s.param] = s.start - s.num(lr) * s.grad / pt.sqrt(accu + s.above_zero(eps))
    return updates


@_documented
def adadelta(
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper = 1.0,
    rho: Hyper = 0.95,
    epsilon: Hyper = 1e-6,
    weight_decay: Hyper = 0.0,
    decoupled: bool = False,
) -> Updates:
    """Adadelta: steps in units of the parameter, by the running means of both squares.

    ``accu = rho * accu + (1 - rho) * gradient**2;
    step = gradient * sqrt(delta_accu + epsilon) / sqrt(accu + epsilon);
    delta_accu = rho * delta_accu + (1 - rho) * step**2; param - learning_rate * step``

    Parameters
    ----------
    learning_rate, rho, epsilon, weight_decay : 0-d
        The paper has no learning rate: 1.
    decoupled : bool
        Whether the decay goes past the division.

    Notes
    -----
    Cost: two states, `accu` and `delta_accu`.

    References
    ----------
    Zeiler, ADADELTA: An Adaptive Learning Rate Method, arXiv:1212.5701, algorithm 1.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> new = adadelta((w**2).sum(), [w], rho=0.75, epsilon=1e-2)
    >>> new[w].eval().round(2).tolist()
    [0.8, -1.8]
    """
    lr, decay, eps = hypers(learning_rate=learning_rate, rho=rho, epsilon=epsilon)
    updates: Updates = {}
    for s in slots_of(loss_or_grads, params, lr, weight_decay, decoupled):
        tiny = s.above_zero(eps)
        accu = s.running_mean(updates, "accu", decay, pt.sqr(s.grad))
        taken = s.state("delta_accu")
        step = s.grad * pt.sqrt(taken + tiny) / pt.sqrt(accu + tiny)
        updates[taken] = s.mixed(decay, taken, pt.sqr(step))
        updates[s.param] = s.start - s.num(lr) * step
    return updates


@_documented
def adam(
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper = 0.001,
    beta1: Hyper = 0.9,
    beta2: Hyper = 0.999,
    epsilon: Hyper = 1e-8,
    weight_decay: Hyper = 0.0,
    decoupled: bool = True,
) -> Updates:
    """Adam: the running mean of the gradient over the root of that of its square.

    ``t = t + 1; m = beta1 * m + (1 - beta1) * gradient; v = beta2 * v + (1 - beta2) * gradient**2;
    rate = learning_rate * sqrt(1 - beta2**t) / (1 - beta1**t);
    param - rate * m / (sqrt(v) + epsilon)``

    Parameters
    ----------
    decoupled : bool
        True makes it AdamW (Loshchilov and Hutter, algorithm 2), which their experiments favour:
        a coupled decay would be divided by the root and fade where gradients are large.

    Notes
    -----
    Cost: two states, `m` and `v`, and the 0-d count `adam.t`. The biases are corrected in the
    rate, as the end of the paper's section 2 has it, so `epsilon` there is its epsilon-hat.

    References
    ----------
    Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, arXiv:1412.6980.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> new = adam((w**2).sum(), [w], learning_rate=0.5)
    >>> [v.name for v in new], new[w].eval().round(3).tolist()
    (['w.m', 'w.v', 'w', 'adam.t'], [0.5, -1.5])
    """
    lr, b1, b2, eps = hypers(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    slots = slots_of(loss_or_grads, params, lr, weight_decay, decoupled)
    count, t = clock("adam", slots)
    rate = in_dtype(lr, t.dtype) * pt.sqrt(weight_so_far(b2, t)) / weight_so_far(b1, t)
    updates: Updates = {}
    for s in slots:
        m = s.running_mean(updates, "m", b1, s.grad)
        v = s.running_mean(updates, "v", b2, pt.sqr(s.grad))
        updates[s.param] = s.start - s.num(rate) * m / (pt.sqrt(v) + s.above_zero(eps))
    updates[count] = t
    return updates


@_documented
def adamax(
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper = 0.002,
    beta1: Hyper = 0.9,
    beta2: Hyper = 0.999,
    epsilon: Hyper = 1e-8,
    weight_decay: Hyper = 0.0,
    decoupled: bool = True,
) -> Updates:
    """Adamax: Adam with a decaying maximum of gradients instead of the root.

    ``t = t + 1; m = beta1 * m + (1 - beta1) * gradient; u = maximum(beta2 * u, abs(gradient));
    param - learning_rate / (1 - beta1**t) * m / (u + epsilon)``

    Parameters
    ----------
    decoupled : bool
        Whether the decay goes past the division, as in AdamW.

    Notes
    -----
    Cost: two states, `m` and `u`, and the 0-d count `adamax.t`. The paper has no epsilon; without
    one a gradient of zero would be divided by zero.

    References
    ----------
    Kingma and Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, arXiv:1412.6980,
    algorithm 2.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> new = adamax((w**2).sum(), [w], learning_rate=0.5)
    >>> new[w].eval().round(3).tolist()
    [0.5, -1.5]
    """
    lr, b1, b2, eps = hypers(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    slots = slots_of(loss_or_grads, params, lr, weight_decay, decoupled)
    count, t = clock("adamax", slots)
    rate = in_dtype(lr, t.dtype) / weight_so_far(b1, t)
    updates: Updates = {}
    for s in slots:
        m = s.running_mean(updates, "m", b1, s.grad)
        u = s.state("u")
        largest = pt.maximum(s.num(b2) * u, pt.abs(s.grad))
        updates[u] = largest
        updates[s.param] = s.start - s.num(rate) * m / (largest + s.above_zero(eps))
    updates[count] = t
    return updates


@_documented
def amsgrad(
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper = 0.001,
    beta1: Hyper = 0.9,
    beta2: Hyper = 0.999,
    epsilon: Hyper = 1e-8,
    weight_decay: Hyper = 0.0,
    decoupled: bool = True,
) -> Updates:
    """AMSGrad: Adam whose divisor never shrinks.

    As `adam`, but ``v_max = maximum(v_max, v)`` is what the step is divided by.

    Parameters
    ----------
    decoupled : bool
        Whether the decay goes past the division, as in AdamW.

    Notes
    -----
    Cost: three states, `m`, `v` and `v_max`, and the 0-d count `amsgrad.t`. The biases are
    corrected as in `adam` and Lasagne; the paper leaves them.

    References
    ----------
    Reddi, Kale and Kumar, On the Convergence of Adam and Beyond, ICLR 2018, arXiv:1904.09237,
    algorithm 2.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> new = amsgrad((w**2).sum(), [w], learning_rate=0.5)
    >>> new[w].eval().round(3).tolist()
    [0.5, -1.5]
    """
    lr, b1, b2, eps = hypers(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    slots = slots_of(loss_or_grads, params, lr, weight_decay, decoupled)
    count, t = clock("amsgrad", slots)
    rate = in_dtype(lr, t.dtype) * pt.sqrt(weight_so_far(b2, t)) / weight_so_far(b1, t)
    updates: Updates = {}
    for s in slots:
        m = s.running_mean(updates, "m", b1, s.grad)
        v = s.running_mean(updates, "v", b2, pt.sqr(s.grad))
        v_max = s.state("v_max")
        largest = pt.maximum(v_max, v)
        updates[v_max] = largest
        updates[s.param] = s.start - s.num(rate) * m / (pt.sqrt(largest) + s.above_zero(eps))
    updates[count] = t
    return updates


@_documented
def nadam(
    loss_or_grads: Variables,
    params: Sequence[SharedVariable],
    learning_rate: Hyper = 0.002,
    beta1: Hyper = 0.9,
    beta2: Hyper = 0.999,
    epsilon: Hyper = 1e-8,
    weight_decay: Hyper = 0.0,
    decoupled: bool = True,
) -> Updates:
    """Nadam: Adam with Nesterov's look ahead.

    With `m`, `v` and `t` as in `adam`,
    ``ahead = beta1 * m / (1 - beta1**(t + 1)) + (1 - beta1) * gradient / (1 - beta1**t);
    param - learning_rate * ahead / (sqrt(v / (1 - beta2**t)) + epsilon)``

    Parameters
    ----------
    decoupled : bool
        Whether the decay goes past the division, as in AdamW.

    Notes
    -----
    Cost: two states, `m` and `v`, and the 0-d count `nadam.t`. `beta1` is the same at each step;
    the schedule for it that the paper also tries is left to a shared `beta1`.

    References
    ----------
    Dozat, Incorporating Nesterov Momentum into Adam, ICLR workshop 2016, algorithm 2.

    Examples
    --------
    >>> import numpy as np, pytensor
    >>> w = pytensor.shared(np.array([1.0, -2.0]), name="w")
    >>> new = nadam((w**2).sum(), [w], learning_rate=0.5, beta1=0.5)
    >>> new[w].eval().round(3).tolist()
    [0.333, -1.333]
    """
    lr, b1, b2, eps = hypers(learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    slots = slots_of(loss_or_grads, params, lr, weight_decay, decoupled)
    count, t = clock("nadam", slots)
    rate, one = in_dtype(lr, t.dtype), in_dtype(1.0, t.dtype)
    of_mean = rate * in_dtype(b1, t.dtype) / weight_so_far(b1, t + one)
    of_grad = rate * in_dtype(1.0 - b1, t.dtype) / weight_so_far(b1, t)
    root = pt.sqrt(weight_so_far(b2, t))
    updates: Updates = {}
    for s in slots:
        m = s.running_mean(updates, "m", b1, s.grad)
        v = s.running_mean(updates, "v", b2, pt.sqr(s.grad))
        ahead = s.num(of_mean) * m + s.num(of_grad) * s.grad
        updates[s.param] = s.start - ahead / (pt.sqrt(v) / s.num(root) + s.above_zero(eps))
    updates[count] = t
    return updates
