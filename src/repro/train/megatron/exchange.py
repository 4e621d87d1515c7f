"""Timers for the all-to-alls of expert parallelism, separate from those of compute."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from megatron.core.timers import Timers
from megatron.core.transformer.moe.moe_layer import MoELayer

from repro.train.pacing import pause, resume

_Way = Literal["forward", "backward"]


def all_to_all_timer(way: _Way) -> str:
    """Return the name of the timer of a pass's exchanges."""
    return f"{way}-all-to-all"


def time_exchanges(model: torch.nn.Module, timers: Timers) -> None:
    """Stop a pass's timer while Megatron-Core's all-to-all dispatchers exchange tokens within it.

    An exchange lasts from when the rank is ready to when it has its tokens. It contains the wait
    for slower ranks, and the exchange of token counts.
    """
    for layer in model.modules():
        if isinstance(layer, MoELayer):
            dispatcher = layer.token_dispatcher
            dispatcher.preprocess = partial(_counts, dispatcher.preprocess, timers)
            for name in ("token_dispatch", "token_combine"):
                exchange = getattr(dispatcher, name)
                setattr(dispatcher, name, partial(_both_ways, exchange, timers))


def _enter(timers: Timers, way: _Way) -> None:
    pause(timers(f"{way}-compute"))
    timers(all_to_all_timer(way)).start()


def _leave(timers: Timers, way: _Way) -> None:
    timers(all_to_all_timer(way)).stop()
    resume(timers(f"{way}-compute"))


def _counts(count: Callable[..., Any], timers: Timers, *arguments: Any) -> Any:
    """Exchange token counts, which have no gradients."""
    _enter(timers, "forward")
    found = count(*arguments)
    _leave(timers, "forward")
    return found


class _Boundary(torch.autograd.Function):
    """Identity that calls one function in the forward and one in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        on_forward: Callable[[], None],
        on_backward: Callable[[], None],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.on_backward = on_backward
        on_forward()
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.on_backward()
        return None, None, *gradients


def _both_ways(
    exchange: Callable[..., Any], timers: Timers, *tensors: torch.Tensor, **options: Any
) -> Any:
    """Exchange tensors, and in the backward pass their gradients in the other direction."""
    enter, leave = partial(_enter, timers), partial(_leave, timers)
    boundary: Callable[..., tuple[torch.Tensor, ...]] = _Boundary.apply
    ready = boundary(partial(enter, "forward"), partial(leave, "backward"), *tensors)
    found = exchange(*ready, **options)
    several = isinstance(found, tuple)
    given = found if several else (found,)
    out = boundary(partial(leave, "forward"), partial(enter, "backward"), *given)
    return out if several else out[0]
