"""All-reduce on a ring whose messages are encoded.

As in other rings each rank receives a partial sum, adds its own part, and sends the result. Here
it decodes the received sum and encodes the sent one. With n ranks, n - 1 partial sums have been
encoded when a part is complete. That is encoded once more, and all ranks pass its bytes on. So the
error of a number is at most the sum of n bounds, of ever larger sums. All ranks have the same
result, because all decode the same bytes.

A hop's encoding, message and decoding are sequential.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from repro.catalog.parallel.codecs import Codec
from repro.catalog.parallel.encoded_volumes import encoded_bytes, has_fixed_size
from repro.train.compression.coder import Coder


@dataclass
class EncodedRing:
    """Sums with one codec; with `feeds_back` the loss of a tensor is added to its next sum.

    Tensors are identified by address and length, because the gradients of one parameter may start
    at the address of the whole buffer.
    """

    coder: Coder
    feeds_back: bool = False
    _lost: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def all_reduce(self, tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Sum a contiguous tensor over a group, in place."""
        key = tensor.data_ptr(), tensor.numel()
        if self.feeds_back and key not in self._lost:
            self._lost[key] = torch.zeros_like(tensor, dtype=torch.float32).view(-1)
        _all_reduce(tensor, group, self.coder, self._lost.get(key))


@torch.no_grad()
def _all_reduce(
    tensor: torch.Tensor, group: dist.ProcessGroup, coder: Coder, lost: torch.Tensor | None
) -> None:
    """Sum a tensor; a rank encodes each part once, and the part with its number when complete."""
    rank, ranks = group.rank(), group.size()
    parts = tensor.view(-1).tensor_split(ranks)
    missed: Sequence[torch.Tensor | None] = (
        [None] * ranks if lost is None else lost.tensor_split(ranks)
    )
    total = parts[(rank - 1) % ranks]
    for step in range(ranks - 1):
        given, own = (rank - step - 1) % ranks, parts[(rank - step - 2) % ranks]
        got = _hop(coder.encode(total, missed[given]), own.numel(), group, coder.codec)
        total = coder.decode(got, own.shape, own.dtype) + own
    encoded = coder.encode(total, missed[rank])
    for step in range(ranks):
        part = parts[(rank - step) % ranks]
        part.copy_(coder.decode(encoded, part.shape, part.dtype))
        if step < ranks - 1:
            following = parts[(rank - step - 1) % ranks].numel()
            encoded = _hop(encoded, following, group, coder.codec)


def _hop(
    encoded: torch.Tensor, elements: int, group: dist.ProcessGroup, codec: Codec
) -> torch.Tensor:
    """Send to the next rank, and return the previous rank's encoding of so many elements."""
    size = encoded_bytes(codec, elements)
    if not has_fixed_size(codec):
        own = torch.tensor([len(encoded)], device=encoded.device)
        size = int(_exchange(own, torch.empty_like(own), group))
    return _exchange(encoded, encoded.new_empty(size), group)


def _exchange(given: torch.Tensor, got: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    rank, ranks = group.rank(), group.size()
    both = [
        dist.P2POp(dist.isend, given, group=group, group_peer=(rank + 1) % ranks),
        dist.P2POp(dist.irecv, got, group=group, group_peer=(rank - 1) % ranks),
    ]
    for request in dist.batch_isend_irecv(both):
        request.wait()
    return got
