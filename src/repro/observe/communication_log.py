"""Log of all collectives and messages of this process, intercepted at two levels.

Calls from Python go through a method of `ProcessGroup`: while a log is open, the frequent methods
are patched to record each call. All calls, also those of functional collectives and of C++, end in
the operators `c10d::*`, for which a second kernel is registered. That kernel costs three times as
much as the patched methods, so it is skipped for calls that a method has recorded. Backends,
Megatron-Core and callers stay unchanged, and no other operator is slowed. A call ends when its
`Work.wait` returns.
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

# Collective or message of each c10d operator.
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
# Frequently called methods of `ProcessGroup`: the operation, and the number of leading tensor
# arguments. A message's peer, or options, follow.
_METHODS = {
    "allreduce": ("all_reduce", 1),
    **{name: (name, 1) for name in ("broadcast", "reduce", "send", "recv")},
    # Each third name is the one that the second method had until torch 2.12.
    **dict.fromkeys(("allgather", "all_gather_single", "_allgather_base"), ("all_gather", 2)),
    **dict.fromkeys(
        ("reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base"), ("reduce_scatter", 2)
    ),
    **dict.fromkeys(("alltoall", "all_to_all_single", "alltoall_base"), ("all_to_all", 2)),
    **{name: (name, 2) for name in ("gather", "scatter")},
    "barrier": ("barrier", 0),
}
# Dispatch key of the logging kernels. All tensors have it (except in inference mode), the c10d
# operators have no kernel for it, and excluding it does not change how backends allocate.
_KEY = torch._C.DispatchKey.ADInplaceOrView
_exclude_key = torch._C._dispatch_tls_set_dispatch_key_excluded
# Options of a call that blocks its caller.
_SYNCHRONOUS = SimpleNamespace(asyncOp=False)
# Seconds, or on a GPU an event whose time can be read after the device has reached it.
_Moment = float | torch.cuda.Event
_open_log: "CommunicationLog | None" = None


class _Call(NamedTuple):
    """Minimal record of a call; `CommunicationLog.take` derives the rest, after the iteration.

    `options` may be an options object of c10d, and `peer` is a rank of the group.
    """

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
    """Calls of this process in groups of more than one rank, recorded within `logging`.

    Parameters
    ----------
    phase
        Returns the current phase of the iteration.
    """

    def __init__(self, phase: Callable[[], str]) -> None:
        self._phase = phase
        self._calls: list[_Call] = []
        self._ends: dict[int, _Moment] = {}
        # Index of the call that each work belongs to.
        self._unfinished: dict[dist.Work, int] = {}
        self._paused = False

    def take(self, iteration: int) -> list[Transfer]:
        """Return the calls since the last `take` as those of `iteration`, and empty the log."""
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

    def record_as_one(
        self,
        operation: str,
        group: dist.ProcessGroup,
        largest: torch.Tensor,
        collective: Callable[[], None],
    ) -> None:
        """Run a collective, and record all calls that it makes as one call.

        The size, element type and device are those of its `largest` tensor.
        """

        def run_unrecorded() -> None:
            self._paused = True
            try:
                collective()
            finally:
                self._paused = False

        number = len(self._calls)
        self.record(operation, group, (largest,), _SYNCHRONOUS, None, run_unrecorded)
        self._ends[number] = _now(largest.is_cuda)

    def record(
        self,
        operation: str,
        group: dist.ProcessGroup,
        buffers: Sequence[Any],
        options: Any,
        peer: int | None,
        original: Callable[..., Any],
        *arguments: Any,
    ) -> Any:
        """Run a call, record it, and return its result.

        Parameters
        ----------
        buffers
            Input and output, each a tensor or (nested) lists of tensors.
        options
            Their attribute `asyncOp` is whether the caller continues before the call ends. Without
            the attribute the call is asynchronous.
        peer
            Rank, in the group, at the other end of a message.
        original
            Function to call with `arguments`.
        """
        if self._paused:
            return original(*arguments)
        size_bytes, dtype, on_gpu = 0, torch.uint8, False  # For a barrier, which moves no data.
        for buffer in buffers:
            if type(buffer) is list and len(buffer) == 1:
                buffer = buffer[0]
            if not isinstance(buffer, torch.Tensor):
                flat = _flat(buffer)
                if not flat:
                    continue
                size_bytes = max(size_bytes, sum([tensor.nbytes for tensor in flat]))
                buffer = flat[0]
            size_bytes = max(size_bytes, buffer.nbytes)
            dtype, on_gpu = buffer.dtype, buffer.is_cuda
        start = _now(on_gpu)
        number, phase = len(self._calls), self._phase()
        self._calls.append(
            _Call(start, operation, group, size_bytes, dtype, phase, options, peer, on_gpu)
        )
        _exclude_key(_KEY, True)
        try:
            result = original(*arguments)
        finally:
            _exclude_key(_KEY, False)
        work = result[-1] if isinstance(result, tuple) else result
        if work is not None:
            unboxed = work if isinstance(work, dist.Work) else dist.Work.unbox(work)
            self._unfinished[unboxed] = number
        return result

    def record_wait(self, work: dist.Work) -> None:
        """Record that the caller has waited for a work.

        A work that no recorded call returned is that of a batch, and ends all open messages.
        """
        number = self._unfinished.pop(work, None)
        if number is not None:
            self._ends[number] = _now(self._calls[number].on_gpu)
            return
        for number in self._unfinished.values():
            if (call := self._calls[number]).operation in MESSAGES:
                self._ends[number] = _now(call.on_gpu)


@contextmanager
def logging(log: CommunicationLog) -> Iterator[None]:
    """Record in `log` all communication of this process within the context."""
    global _open_log
    wait = dist.Work.wait

    def recorded_wait(work: dist.Work, *arguments: Any, **options: Any) -> Any:
        result = wait(work, *arguments, **options)
        log.record_wait(work)
        return result

    with ExitStack() as patches:
        library = patches.enter_context(torch.library._scoped_library("c10d", "IMPL"))
        for name in _OPERATIONS:
            library.impl(name, _recording_kernel(log, name), _KEY.name, with_keyset=True)
        for name in filter(partial(hasattr, dist.ProcessGroup), _METHODS):
            method = _recording_method(log, name)
            patches.enter_context(mock.patch.object(dist.ProcessGroup, name, method))
        patches.enter_context(mock.patch.object(dist.Work, "wait", recorded_wait))
        _open_log = log
        try:
            yield
        finally:
            _open_log = None


def logged_as(operation: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a collective that is made of messages, so that it is recorded as one `operation`.

    Its signature is `collective(output, input, ..., group=...)`.
    """

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
            if _open_log is None or ring is None or ring.size() == 1:
                collective(output, input, *arguments, group=group, **options)
                return
            largest = max(output, input, key=torch.Tensor.numel)
            inner = partial(collective, output, input, *arguments, group=group, **options)
            _open_log.record_as_one(operation, ring, largest, inner)

        return call

    return decorate


def _recording_method(log: CommunicationLog, name: str) -> Callable[..., Any]:
    """Return a replacement of a `ProcessGroup` method that records each call."""
    original = getattr(dist.ProcessGroup, name)
    operation, tensors = _METHODS[name]
    is_message, record = operation in MESSAGES, log.record

    def method(group: dist.ProcessGroup, *arguments: Any, **options: Any) -> Any:
        if options:
            if tensors:  # Recorded by the kernel, which sees the arguments by position.
                return original(group, *arguments, **options)
            inner = partial(original, group, **options)
            return record(operation, group, (), options["opts"], None, inner)
        peer = arguments[1] if is_message else None
        chosen = arguments[-1] if arguments else None
        buffers = arguments[:tensors]
        return record(operation, group, buffers, chosen, peer, original, group, *arguments)

    return method


def _recording_kernel(log: CommunicationLog, name: str) -> Callable[..., Any]:
    """Return a kernel that records each call of a c10d operator and then redispatches it."""
    operator = getattr(torch.ops.c10d, name).default
    at = {argument.name: number for number, argument in enumerate(operator._schema.arguments)}
    tensors, peer_at = at["process_group"], at.get("dst", at.get("src"))
    asynchronous_at = at.get("async_op")
    below = torch._C._dispatch_keyset_full_after(_KEY)

    # No operator has keyword-only arguments. `async_op` is absent at its default, and from
    # messages, which are always asynchronous.
    def kernel(keys: Any, *arguments: Any) -> Any:
        waits = asynchronous_at is not None and arguments[asynchronous_at:][:1] == (False,)
        return log.record(
            _OPERATIONS[name],
            dist.ProcessGroup.unbox(arguments[tensors]),
            () if name == "barrier" else arguments[:tensors],
            _SYNCHRONOUS if waits else None,
            None if peer_at is None else arguments[peer_at],
            operator.redispatch,
            keys & below,
            *arguments,
        )

    return kernel


def _flat(buffer: Any) -> Sequence[torch.Tensor]:
    if isinstance(buffer, torch.Tensor):
        return (buffer,)
    if buffer and isinstance(buffer[0], torch.Tensor):
        return buffer  # type: ignore[no-any-return]
    return [tensor for part in buffer for tensor in _flat(part)]


def _now(on_gpu: bool) -> _Moment:
    return _event() if on_gpu else time.monotonic()


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _clock(on_gpu: bool) -> Callable[[_Moment], float]:
    """Return a converter of moments to seconds on the monotonic clock.

    GPU events are converted by their distance from an event that is recorded now, after all others.
    """
    if not on_gpu:
        return lambda moment: moment if isinstance(moment, float) else math.nan
    torch.cuda.synchronize()
    anchor = _event()
    anchor.synchronize()
    at_s = time.monotonic()
    return lambda moment: (
        moment if isinstance(moment, float) else at_s - moment.elapsed_time(anchor) * 1e-3
    )
