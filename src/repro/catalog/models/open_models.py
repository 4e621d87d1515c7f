"""Models with open weights, to predict and, where they name a testbed shape, to train
(`params/open_models.yaml`)."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repro.catalog.reading import Entry, choose, read_yaml
from repro.paths import PARAMS


class DecoderShape(Entry):
    """The dimensions of a decoder of today: no biases, RMSNorm, rotary embeddings.

    `heads` share `kv_heads` keys and values of `head_dim`. A gated MLP has three matrices. Where
    there are `experts`, every layer is a mixture of them, each `expert_ffn` wide, beside a shared
    one. Every second layer looks back at `window` tokens only, where there is one. The output's
    table is one of its own. Some dimensions are also called as those of a `Shape` are.
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

    @property
    def hidden_size(self) -> int:
        """`hidden`."""
        return self.hidden

    @property
    def sequence_length(self) -> int:
        """`seq`."""
        return self.seq

    @property
    def decoder_sequence_length(self) -> None:
        """None: there is one sequence."""
        return None

    @property
    def vocabulary_size(self) -> int:
        """`vocab`."""
        return self.vocab

    def count(self, experts: int) -> int:
        """Parameters, with so many experts in each layer."""
        h, matrices = self.hidden, 3 if self.gated_mlp else 2
        attention = 2 * (self.heads + self.kv_heads) * self.head_dim
        width = self.ffn + self.shared_expert_ffn + experts * self.expert_ffn
        layer = h * (attention + matrices * width + self.experts + 2)
        return self.layers * layer + (2 * self.vocab + 1) * h


class OpenModel(Entry):
    """One model, and what its authors say that it has: of all parameters a token meets the active
    ones.

    `published_as` are its other names in measurements. `testbed` is what the testbed trains for it;
    without one it is predicted only. Its experts are spread over `expert_parallel` data-parallel
    ranks, or as many of them as divide a job's.
    """

    label: str
    published_as: tuple[str, ...] = ()
    parameters: PositiveFloat
    active_parameters: PositiveFloat | None = None
    shape: DecoderShape
    testbed: DecoderShape | None = None
    expert_parallel: PositiveInt = 1
    source: str

    @model_validator(mode="after")
    def _alike(self) -> "OpenModel":
        if self.testbed is None:
            return self
        for shape in (self.shape, self.testbed):
            if shape.experts % self.expert_parallel:
                raise ValueError(
                    f"expert_parallel {self.expert_parallel} does not divide {shape.experts} "
                    "experts"
                )
            if shape.window:
                raise ValueError(f"window {shape.window}: layers of the testbed look at all tokens")
        if bool(self.shape.experts) != bool(self.testbed.experts):
            raise ValueError("shape and testbed: both have experts, or neither")
        return self

    @property
    def family(self) -> Literal["gpt"]:
        """Whose data and loss it has."""
        return "gpt"

    def full_size(self, pipeline: bool) -> DecoderShape:
        """What is predicted, and trained on real nodes; there is no other one for pipelines."""
        assert not pipeline
        return self.shape

    def testbed_size(self, pipeline: bool) -> DecoderShape:
        """What the testbed trains for it."""
        assert self.testbed is not None and not pipeline
        return self.testbed


def read_open_models() -> dict[str, OpenModel]:
    """All of them by name, in the order of the file."""
    models: dict[str, OpenModel] = read_yaml(PARAMS / "open_models.yaml", dict[str, OpenModel])
    return models


def open_model(name: str) -> OpenModel:
    """One by name; an unknown name is a `ReproError` that lists the known ones."""
    return choose("model", name, read_open_models())
