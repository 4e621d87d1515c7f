"""A log of all collectives and messages of this process, taken at two doors that all of them pass.

What Python calls, by the functions of torch.distributed or by itself, goes through a method of the
process group: while a log is open, the frequent ones note each call and hand it on. Everything,
torch's functional collectives and its C++ too, ends in the operators `c10d::*`: these have a kernel
in front of their own, which costs three times as much and is passed by for what was noted already.
Backends, Megatron-Core and callers stay as they are, and no other operator is slowed. A call is
over when its `Work.wait` returns.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist

from repro.observe.transfers import MESSAGES, Transfer, role_of

# c10d's operators, and what they are.
_OPERATIONS = {
    **dict.fromkeys(("allreduce_", "allreduce_coalesced_"), "all_reduce"),
    **dict.fromkeys(("allgather_", "_allgather_base_", "allgather_coalesced_"), "all_gather"),
    "allgather_into_tensor_coalesced_": "all_gather",
    **dict.fromkeys(("reduce_scatter_", "_reduce_scatter_base_"), "reduce_scatter"),
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    **dict.fromkeys(("alltoall_", "alltoall_base_"), "all_to_all"),
    **{f"{name}_": name for name in ("broadcast", "reduce", "gather", "scatter")},
    **{"send": "send", "recv_": "recv", "recv_any_source_": "recv", "barrier": "barrier"},
}
# The methods of a process group that Python calls often, what they are, and how many arguments of
# tensors come first; behind them are whom a message is for, or options.
_METHODS = {
    "allreduce": ("all_reduce", 1),
    **{name: (name, 1) for name in ("broadcast", "reduce", "send", "recv")},
    # The last of each is what the one before it was called until torch 2.12.
    **dict.fromkeys(("allgather", "all_gather_single", "_allgather_base"), ("all_gather", 2)),
    **dict.fromkeys(
        ("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"), ("reduce_scatter", 2)
    ),
    **dict.fromkeys(("alltoall", "all_to_all_single", "alltoall_base"), ("all_to_all", 2)),
    **{name: (name, 2) for name in ("gather", "scatter")},
    "barrier": ("barrier", 0),
}
# The dispatcher's key of the kernels: all tensors have it (but those of inference mode), these
# operators have no kernel there, and without it what backends allocate is dispatched as ever.
_KEY = torch._C.DispatchKey.ADInplaceOrView
_pass_by = torch._C._dispatch_tls_set_dispatch_key_excluded
# Options of a call whose caller waits.
_SYNCHRONOUS = SimpleNamespace(asyncOp=False)
# On a GPU a moment is an event, whose time is known when the device has come to it.
_Moment = float | torch.cuda.Event
_in_use: "CommunicationLog | None" = None


class _Call(NamedTuple):
    """What is noted of a call while it is made: as little as can be, in caches that computing has
    filled, and the rest when the log is taken. `options` may be c10d's, and `peer` is a rank of
    the group."""

    start: _Moment
    operation: str
    group: dist.ProcessGroup
    size_bytes: int
    dtype: torch.dtype
    phase: str
    options: Any
    peer: int | None
    on_gpu: bool


class CommunicationLog:
    """What this process calls in groups of more than one rank, while `logging` has it.

    Parameters
    ----------
    phase
        Says in which phase of the iteration the process is.
    """

    def __init__(self, phase: Callable[[], str]) -> None:
        self._phase = phase
        self._calls: list[_Call] = []
        self._ends: dict[int, _Moment] = {}
        # Which calls these works are.
        self._unfinished: dict[dist.Work, int] = {}
        self._within = False

    def take(self, iteration: int) -> list[Transfer]:
        """What was called since the last time, as of `iteration`; the log is empty then."""
        seconds = _clock(any(call.on_gpu for call in self._calls))
        found = [
            Transfer(
                iteration,
                call.operation,
                role_of(call.group.group_desc, call.operation),
                tuple(dist.get_process_group_ranks(call.group)),
                call.size_bytes,
                str(call.dtype).removeprefix("torch."),
                call.phase,
                getattr(call.options, "asyncOp", True),
                -1 if call.peer is None else dist.get_global_rank(call.group, call.peer),
                seconds(call.start),
                seconds(self._ends.get(number, math.nan)),
            )
            for number, call in enumerate(self._calls)
            if call.group.size() > 1
        ]
        self._calls, self._ends, self._unfinished = [], {}, {}
        return found

    def one_call(
        self,
        operation: str,
        group: dist.ProcessGroup,
        whole: torch.Tensor,
        collective: Callable[[], None],
    ) -> None:
        """Note everything that a collective calls as one call."""

        def unseen() -> None:
            self._within = True
            try:
                collective()
            finally:
                self._within = False

        number = len(self._calls)
        self.note(operation, group, (whole,), _SYNCHRONOUS, None, unseen)
        self._ends[number] = _now(whole.is_cuda)

    def note(
        self,
        operation: str,
        group: dist.ProcessGroup,
        sides: Sequence[Any],
        options: Any,
        peer: int | None,
        own: Callable[..., Any],
        *arguments: Any,
    ) -> Any:
        """Make a call, and note it.

        Parameters
        ----------
        sides
            What it gives and gets, each a tensor or lists of them.
        options
            Say as `asyncOp` whether the caller goes on before it is over; others do not.
        peer
            A message's rank in its group.
        own
            What is called, with the arguments behind it.
        """
        if self._within:
            return own(*arguments)
        size_bytes, dtype, on_gpu = 0, torch.uint8, False  # A barrier's, which moves nothing.
        for side in sides:
            if type(side) is list and len(side) == 1:
                side = side[0]
            if not isinstance(side, torch.Tensor):
                flat = _flat(side)
                if not flat:
                    continue
                size_bytes = max(size_bytes, sum([tensor.nbytes for tensor in flat]))
                side = flat[0]
            size_bytes = max(size_bytes, side.nbytes)
            dtype, on_gpu = side.dtype, side.is_cuda
        start = _now(on_gpu)
        number, phase = len(self._calls), self._phase()
        self._calls.append(
            _Call(start, operation, group, size_bytes, dtype, phase, options, peer, on_gpu)
        )
        _pass_by(_KEY, True)
        try:
            result = own(*arguments)
        finally:
            _pass_by(_KEY, False)
        work = result[-1] if isinstance(result, tuple) else result
        if work is not None:
            known = work if isinstance(work, dist.Work) else dist.Work.unbox(work)
            self._unfinished[known] = number
        return result

    def waited(self, work: dist.Work) -> None:
        """The caller has waited for a work; one that is unknown ends a batch of messages."""
        number = self._unfinished.pop(work, None)
        if number is not None:
            self._ends[number] = _now(self._calls[number].on_gpu)
            return
        for one in self._unfinished.values():
            if (call := self._calls[one]).operation in MESSAGES:
                self._ends[one] = _now(call.on_gpu)


@contextmanager
def logging(log: CommunicationLog) -> Iterator[None]:
    """Note what this process communicates in `log`."""
    global _in_use
    wait = dist.Work.wait

    def noted_wait(work: dist.Work, *arguments: Any, **options: Any) -> Any:
        result = wait(work, *arguments, **options)
        log.waited(work)
        return result

    with ExitStack() as doors:
        library = doors.enter_context(torch.library._scoped_library("c10d", "IMPL"))
        for name in _OPERATIONS:
            library.impl(name, _noting_kernel(log, name), _KEY.name, with_keyset=True)
        for name in filter(partial(hasattr, dist.ProcessGroup), _METHODS):
            method = _noting_method(log, name)
            doors.enter_context(mock.patch.object(dist.ProcessGroup, name, method))
        doors.enter_context(mock.patch.object(dist.Work, "wait", noted_wait))
        _in_use = log
        try:
            yield
        finally:
            _in_use = None


def logged_as(operation: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a collective that is made of messages, `collective(output, input, ..., group=...)`,
    noted as the one call that it stands for."""

    def decorate(collective: Callable[..., None]) -> Callable[..., None]:
        @wraps(collective)
        def call(
            output: torch.Tensor,
            input: torch.Tensor,
            *arguments: Any,
            group: dist.ProcessGroup | None = None,
            **options: Any,
        ) -> None:
            ring = group or dist.group.WORLD
            if _in_use is None or ring is None or ring.size() == 1:
                collective(output, input, *arguments, group=group, **options)
                return
            whole = max(output, input, key=torch.Tensor.numel)
            inner = partial(collective, output, input, *arguments, group=group, **options)
            _in_use.one_call(operation, ring, whole, inner)

        return call

    return decorate


def _noting_method(log: CommunicationLog, name: str) -> Callable[..., Any]:
    """What stands in front of a process group's own method."""
    own = getattr(dist.ProcessGroup, name)
    operation, sides = _METHODS[name]
    is_message, note = operation in MESSAGES, log.note

    def method(group: dist.ProcessGroup, *arguments: Any, **options: Any) -> Any:
        if options:
            if sides:  # The kernel knows their names.
                return own(group, *arguments, **options)
            return note(operation, group, (), options["opts"], None, partial(own, group, **options))
        peer = arguments[1] if is_message else None
        chosen = arguments[-1] if arguments else None
        return note(operation, group, arguments[:sides], chosen, peer, own, group, *arguments)

    return method


def _noting_kernel(log: CommunicationLog, name: str) -> Callable[..., Any]:
    """What stands in front of c10d's own kernels of an operator."""
    operator = getattr(torch.ops.c10d, name).default
    at = {one.name: number for number, one in enumerate(operator._schema.arguments)}
    sides, peer_at = at["process_group"], at.get("dst", at.get("src"))
    asynchronous_at = at.get("async_op")
    below = torch._C._dispatch_keyset_full_after(_KEY)

    # None of them has an argument that goes by name only. The operators' default is left out;
    # messages are requests, which have no such word.
    def kernel(keys: Any, *arguments: Any) -> Any:
        waits = asynchronous_at is not None and arguments[asynchronous_at:][:1] == (False,)
        return log.note(
            _OPERATIONS[name],
            dist.ProcessGroup.unbox(arguments[sides]),
            () if name == "barrier" else arguments[:sides],
            _SYNCHRONOUS if waits else None,
            None if peer_at is None else arguments[peer_at],
            operator.redispatch,
            keys & below,
            *arguments,
        )

    return kernel


def _flat(side: Any) -> Sequence[torch.Tensor]:
    if isinstance(side, torch.Tensor):
        return (side,)
    if side and isinstance(side[0], torch.Tensor):
        return side  # type: ignore[no-any-return]
    return [tensor for part in side for tensor in _flat(part)]


def _now(on_gpu: bool) -> _Moment:
    return _event() if on_gpu else time.monotonic()


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _clock(on_gpu: bool) -> Callable[[_Moment], float]:
    """Turns moments into seconds, events by one that is recorded now, when all are over."""
    if not on_gpu:
        return lambda moment: moment if isinstance(moment, float) else math.nan
    torch.cuda.synchronize()
    anchor = _event()
    anchor.synchronize()
    at_s = time.monotonic()
    return lambda moment: (
        moment if isinstance(moment, float) else at_s - moment.elapsed_time(anchor) * 1e-3
    )
