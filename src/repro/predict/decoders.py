"""Decoders as arrays with a row for each model: what training and serving have in common."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from repro.catalog.models.open_models import DecoderShape
from repro.predict.workload import Array


@dataclass(frozen=True)
class Decoders:
    """Rows of models; float arrays of one length, named as the fields of `DecoderShape`.

    `ffn` is 0 where all layers are mixtures of experts, but for `dense_layers` of them.
    """

    layers: Array
    hidden: Array
    ffn: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    value_dim: Array
    kv_rank: Array
    query_rank: Array
    rope_dim: Array
    gated_mlp: Array
    experts: Array
    experts_per_token: Array
    expert_ffn: Array
    shared_expert_ffn: Array
    dense_layers: Array
    dense_ffn: Array
    window: Array
    windowed: Array
    vocab: Array
    tied: Array
    sinks: Array
    mtp_layers: Array

    @property
    def mixture(self) -> Array:
        """1 where layers are mixtures of experts."""
        is_one: Array = np.minimum(self.experts, 1.0)
        return is_one

    def rows(self, chosen: slice | Array) -> Self:
        """Some of the rows."""
        kept: dict[str, Any] = {one.name: getattr(self, one.name)[chosen] for one in fields(self)}
        return replace(self, **kept)


MODEL = tuple(one.name for one in fields(Decoders))


def model_columns(shape: DecoderShape) -> dict[str, float]:
    """Return the fields of `Decoders` of one model."""
    columns = {name: float(getattr(shape, name)) for name in MODEL}
    return columns | ({"ffn": 0.0} if shape.experts else {})
