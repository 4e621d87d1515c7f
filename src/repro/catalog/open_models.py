"""Models with open weights, which `repro what-if` asks about (`params/open_models.yaml`)."""

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, choose, read_yaml
from repro.paths import PARAMS


class DecoderShape(Entry):
    """The dimensions of a decoder of today: no biases, RMSNorm, rotary embeddings.

    `heads` share `kv_heads` keys and values of `head_dim`. A gated MLP has three matrices. Where
    there are `experts`, every layer is a mixture of them, each `expert_ffn` wide, beside a shared
    one. Every second layer looks back at `window` tokens only, where there is one. The output's
    table is one of its own.
    """

    layers: PositiveInt
    hidden: PositiveInt
    ffn: NonNegativeInt = 0
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    gated_mlp: bool
    experts: NonNegativeInt = 0
    experts_per_token: NonNegativeInt = 0
    expert_ffn: NonNegativeInt = 0
    shared_expert_ffn: NonNegativeInt = 0
    window: NonNegativeInt = 0
    seq: PositiveInt
    vocab: PositiveInt

    def count(self, experts: int) -> int:
        """Parameters, with so many experts in each layer."""
        h, matrices = self.hidden, 3 if self.gated_mlp else 2
        attention = 2 * (self.heads + self.kv_heads) * self.head_dim
        width = self.ffn + self.shared_expert_ffn + experts * self.expert_ffn
        layer = h * (attention + matrices * width + self.experts + 2)
        return self.layers * layer + (2 * self.vocab + 1) * h


class OpenModel(Entry):
    """One model, and what its authors say that it has: of all parameters a token meets the active
    ones."""

    label: str
    parameters: PositiveFloat
    active_parameters: PositiveFloat | None = None
    shape: DecoderShape
    source: str


def read_open_models() -> dict[str, OpenModel]:
    """All of them by name, in the order of the file."""
    models: dict[str, OpenModel] = read_yaml(PARAMS / "open_models.yaml", dict[str, OpenModel])
    return models


def open_model(name: str) -> OpenModel:
    """One by name; an unknown name is a `ReproError` that lists the known ones."""
    return choose("model", name, read_open_models())
