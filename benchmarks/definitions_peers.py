"""What torch and optax make of the gradients of definitions.py, as JSON, without Synkhronos."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

STEPS, RATE = 100, 0.01
SIZES = (1.0, 1e-3, 1e-6)


def gradients(size: float) -> np.ndarray:
    """One row for each step."""
    found: np.ndarray = size * np.random.default_rng(0).normal(size=(STEPS, 64))
    return found


def rates(changing: bool) -> list[float]:
    """The rate of each step; one that changes becomes a tenth in the middle."""
    return [RATE * (0.1 if changing and step >= STEPS // 2 else 1.0) for step in range(STEPS)]


def bounds() -> dict[str, float]:
    """Bounds for the norm of the first gradient."""
    norm = float(np.linalg.norm(gradients(1.0)[0]))
    return {"below the bound": 2 * norm, "at the bound": norm, "above the bound": norm / 2}


def of_torch() -> dict[str, Callable[[Any, float], Any]]:
    """By name: makes an optimizer of torch for parameters and a rate."""
    from torch import optim

    return {
        "sgd": lambda p, lr: optim.SGD(p, lr),
        "momentum": lambda p, lr: optim.SGD(p, lr, momentum=0.9),
        "momentum and a rate that changes": lambda p, lr: optim.SGD(p, lr, momentum=0.9),
        "nesterov_momentum": lambda p, lr: optim.SGD(p, lr, momentum=0.9, nesterov=True),
        "adagrad": lambda p, lr: optim.Adagrad(p, lr, eps=1e-8),
        "rmsprop": lambda p, lr: optim.RMSprop(p, lr, alpha=0.9, eps=1e-8),
        "adadelta": lambda p, lr: optim.Adadelta(p, lr, rho=0.9, eps=1e-8),
        "adam": lambda p, lr: optim.Adam(p, lr, eps=1e-8),
        "adam with decay": lambda p, lr: optim.AdamW(p, lr, eps=1e-8, weight_decay=0.1),
        "adamax": lambda p, lr: optim.Adamax(p, lr, eps=1e-8),
        "amsgrad": lambda p, lr: optim.Adam(p, lr, eps=1e-8, amsgrad=True),
        "nadam": lambda p, lr: optim.NAdam(p, lr, eps=1e-8),
    }


def of_optax() -> dict[str, Callable[[Any], Any]]:
    """By name: makes a transformation of optax for a rate."""
    import optax

    return {
        "sgd": lambda lr: optax.sgd(lr),
        "momentum": lambda lr: optax.sgd(lr, momentum=0.9),
        "momentum and a rate that changes": lambda lr: optax.sgd(lr, momentum=0.9),
        "nesterov_momentum": lambda lr: optax.sgd(lr, momentum=0.9, nesterov=True),
        "adagrad": lambda lr: optax.adagrad(lr, initial_accumulator_value=0.0, eps=1e-8),
        "rmsprop": lambda lr: optax.rmsprop(lr, decay=0.9, eps=1e-8),
        "adadelta": lambda lr: optax.adadelta(lr, rho=0.9, eps=1e-8),
        "adam": lambda lr: optax.adam(lr, eps=1e-8),
        "adam with decay": lambda lr: optax.adamw(lr, eps=1e-8, weight_decay=0.1),
        "adamax": lambda lr: optax.adamax(lr, eps=1e-8),
        "amsgrad": lambda lr: optax.amsgrad(lr, eps=1e-8),
        "nadam": lambda lr: optax.nadam(lr, eps=1e-8),
    }


def torch_end(name: str, make: Any, size: float) -> list[float]:
    """Where an optimizer of torch leads to."""
    import torch

    w = torch.ones(64, dtype=torch.float64, requires_grad=True)
    optimizer = make([w], RATE)
    for gradient, rate in zip(gradients(size), rates("changes" in name), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        w.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    return list(w.detach().tolist())


def optax_end(name: str, make: Any, size: float) -> list[float]:
    """Where a transformation of optax leads to."""
    import jax.numpy as jnp
    import optax

    every = jnp.asarray(rates("changes" in name))
    transform = make(lambda count: every[count])
    w = jnp.ones(64)
    state = transform.init(w)
    for gradient in gradients(size):
        step, state = transform.update(jnp.asarray(gradient), state, w)
        w = optax.apply_updates(w, step)
    return list(w.tolist())


def torch_clip(bound: float) -> list[float]:
    """A gradient, clipped by torch."""
    import torch

    w = torch.zeros(64, dtype=torch.float64, requires_grad=True)
    w.grad = torch.from_numpy(gradients(1.0)[0].copy())
    torch.nn.utils.clip_grad_norm_([w], bound)
    return list(w.grad.tolist())


def optax_clip(bound: float) -> list[float]:
    """A gradient, clipped by optax."""
    import jax.numpy as jnp
    import optax

    g = jnp.asarray(gradients(1.0)[0])
    found, _ = optax.clip_by_global_norm(bound).update(g, optax.EmptyState())
    return list(found.tolist())


def main() -> None:
    if "--help" in sys.argv:
        raise SystemExit(print(__doc__))
    """Print all ends."""
    import jax
    import optax
    import torch

    jax.config.update("jax_enable_x64", True)
    found: dict[str, Any] = {"versions": {"torch": torch.__version__, "optax": optax.__version__}}
    for library, made, end, clip in (
        ("torch", of_torch(), torch_end, torch_clip),
        ("optax", of_optax(), optax_end, optax_clip),
    ):
        found[library] = {
            name: {str(size): end(name, make, size) for size in SIZES}
            for name, make in made.items()
        }
        found[library]["clip"] = {what: clip(bound) for what, bound in bounds().items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
