"""Codec of the largest numbers only, with their places (Aji and Heafield, EMNLP 2017)."""

from dataclasses import dataclass

import torch

from repro.catalog.parallel.encoded_volumes import top_k_count
from repro.train.compression.interface import Coding


@dataclass(frozen=True)
class TopK(Coding):
    """Codec of a fraction `share` of the numbers, at least one; the others become zero."""

    share: float

    def error_bound(self, values: torch.Tensor) -> torch.Tensor:  # noqa: D102, as in `Coding`
        magnitudes = values.abs()
        least = magnitudes.topk(top_k_count(self.share, len(values))).values[-1]
        return torch.minimum(magnitudes, least)

    def _encode(self, flat: torch.Tensor) -> torch.Tensor:
        places = flat.abs().topk(top_k_count(self.share, len(flat)), sorted=False).indices
        return torch.cat([places.int().view(torch.uint8), flat[places].view(torch.uint8)])

    def _decode(self, encoded: torch.Tensor, elements: int) -> torch.Tensor:
        half = len(encoded) // 2
        places = encoded[:half].clone().view(torch.int32).long()
        numbers = torch.zeros(elements, device=encoded.device)
        numbers[places] = encoded[half:].clone().view(torch.float32)
        return numbers
