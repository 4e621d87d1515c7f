"""Communicator between pipeline stages as in Megatron-Core, with times of its messages."""

import time
from math import prod
from typing import Any, NamedTuple

import torch
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator, _p2p_ops

from repro.catalog.parallel.encoded_volumes import encoded_bytes
from repro.observe.messages import Direction, MessageEnd
from repro.train.compression.coder import Coder

# Requests that a call of the 1F1B schedule posts, in this order, and its timer. The forward message
# comes first at both ends, as in Megatron-Core. NCCL carries the messages of a pair of ranks in
# order, so two ends with different orders would deadlock.
_TIMERS = {
    ("recv_prev",): "forward-recv",
    ("send_next",): "forward-send",
    ("recv_next",): "backward-recv",
    ("send_prev",): "backward-send",
    ("send_next", "recv_next"): "forward-send-backward-recv",
    ("recv_prev", "send_prev"): "backward-send-forward-recv",
}
_ORDER = ("recv_prev", "send_next", "recv_next", "send_prev")
_DIRECTIONS: dict[str, Direction] = {
    "recv_prev": "forward",
    "send_next": "forward",
    "recv_next": "backward",
    "send_prev": "backward",
}


class _Posted(NamedTuple):
    name: str
    tensor: torch.Tensor
    posted_s: float
    request: Any


class RecordingCommunicator(P2PCommunicator):  # type: ignore[misc]
    """Megatron-Core's communicator of a stage, with a log of its messages.

    It posts all requests of a call, then waits for the receives and then for the sends. So the end
    of a receive is that of its message. With a `coder`, messages are encoded before the first is
    posted, and decoded when all have arrived.
    """

    def __init__(
        self, pp_group: torch.distributed.ProcessGroup, config: Any, coder: Coder | None = None
    ) -> None:
        super().__init__(pp_group, config)
        self._coder = coder
        self._calls = 0
        self._log: list[tuple[str, int, Direction, int, int, bool, float, float]] = []

    def take(self, iteration: int) -> list[MessageEnd]:
        """Return the messages since the last call as those of `iteration`, and clear the log."""
        ends = [MessageEnd(iteration, *entry) for entry in self._log]
        self._calls = 0
        self._log = []
        return ends

    def _communicate(
        self,
        *,
        tensor_send_next: torch.Tensor | None,
        tensor_send_prev: torch.Tensor | None,
        recv_prev: bool,
        recv_next: bool,
        tensor_shape: Any,
        wait_on_reqs: bool = True,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        tensors = {
            "recv_prev": self._buffer(tensor_shape) if recv_prev else None,
            "send_next": self._encoded(tensor_send_next),
            "recv_next": self._buffer(tensor_shape) if recv_next else None,
            "send_prev": self._encoded(tensor_send_prev),
        }
        posted = [
            self._post(name, tensor) for name in _ORDER if (tensor := tensors[name]) is not None
        ]
        timer = _TIMERS[tuple(message.name for message in posted)]
        for message in sorted(posted, key=lambda message: message.name.startswith("send")):
            self._wait(message, timer)
        self._calls += 1
        return (
            self._decoded(tensors["recv_prev"], tensor_shape),
            self._decoded(tensors["recv_next"], tensor_shape),
            None,
        )

    def _coder_of(self, shape: Any) -> Coder | None:
        coder = self._coder
        return coder if coder and coder.takes(shape, self.config.pipeline_dtype) else None

    def _buffer(self, shape: Any) -> torch.Tensor:
        device = torch.cuda.current_device()
        if coder := self._coder_of(shape):
            size = encoded_bytes(coder.codec, prod(shape))
            return torch.empty(size, device=device, dtype=torch.uint8)
        return torch.empty(
            shape, requires_grad=True, device=device, dtype=self.config.pipeline_dtype
        )

    def _encoded(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        coder = None if tensor is None else self._coder_of(tensor.shape)
        return tensor if tensor is None or coder is None else coder.encode(tensor)

    def _decoded(self, received: torch.Tensor | None, shape: Any) -> torch.Tensor | None:
        coder = None if received is None else self._coder_of(shape)
        if received is None or coder is None:
            return received
        return coder.decode(received, shape, self.config.pipeline_dtype).requires_grad_()

    def _post(self, name: str, tensor: torch.Tensor) -> _Posted:
        """Post one request in Megatron-Core's process group for it."""
        none = {f"tensor_{other}": None for other in _ORDER}
        posted_s = time.monotonic()
        (request,) = _p2p_ops(
            **{**none, f"tensor_{name}": tensor},
            group=self.pp_group,
            prev_pipeline_rank=self.prev_rank,
            next_pipeline_rank=self.next_rank,
        ).values()
        return _Posted(name, tensor, posted_s, request)

    def _wait(self, message: _Posted, timer: str) -> None:
        message.request.wait()
        if message.tensor.is_cuda:
            # The stream waits for NCCL's requests, the host does not.
            torch.cuda.current_stream().synchronize()
        completed_s = time.monotonic()
        self._log.append(
            (
                timer,
                self._calls,
                _DIRECTIONS[message.name],
                self.prev_rank if message.name.endswith("prev") else self.next_rank,
                message.tensor.nbytes,
                message.name.startswith("send"),
                message.posted_s,
                completed_s,
            )
        )
