"""Open-weight models, predicted or, with a testbed shape, trained (`params/open_models.yaml`)."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repro.catalog.models.layers import count_parameters, decoder_layer
from repro.catalog.reading import Entry, choose, read_params


class DecoderShape(Entry):
    """Dimensions of a modern decoder: no biases, RMSNorm, rotary embeddings.

    `heads` query heads use `kv_heads` heads of keys and values, each `head_dim` wide. A gated MLP
    has three matrices. With `experts`, every layer has that many experts, each `expert_ffn` wide,
    and a shared expert. With `window`, every second layer attends to the last `window` tokens only.
    Input and output embeddings are separate tables. Some dimensions have aliases with the names of
    `Shape`.
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
        """Alias of `hidden`."""
        return self.hidden

    @property
    def sequence_length(self) -> int:
        """Alias of `seq`."""
        return self.seq

    @property
    def decoder_sequence_length(self) -> None:
        """None, because there is only one sequence."""
        return None

    @property
    def vocabulary_size(self) -> int:
        """Alias of `vocab`."""
        return self.vocab

    def count(self, experts: int) -> int:
        """Count the parameters with this many experts in each layer."""
        layer: int = count_parameters(decoder_layer(self), experts) + 2 * self.hidden
        return self.layers * layer + (2 * self.vocab + 1) * self.hidden


class OpenModel(Entry):
    """Open-weight model, with the parameter counts that its authors state.

    Each token uses the `active_parameters`. `published_as` lists the model's other names in
    measurements. The testbed trains `testbed` for it; a model without one is only predicted.
    Experts are sharded across `expert_parallel` data-parallel ranks, or as many of them as divide a
    job's.
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
    def _check_testbed(self) -> "OpenModel":
        if self.testbed is None:
            return self
        for shape in (self.shape, self.testbed):
            if shape.experts % self.expert_parallel:
                raise ValueError(
                    f"expert_parallel {self.expert_parallel} does not divide {shape.experts} "
                    "experts; fix: choose a divisor"
                )
            if shape.window:
                raise ValueError(
                    f"window {shape.window}: not in testbed layers; fix: remove testbed"
                )
        if bool(self.shape.experts) != bool(self.testbed.experts):
            raise ValueError(
                f"shape has {self.shape.experts} experts, testbed {self.testbed.experts}; "
                "fix: give experts to both or to neither"
            )
        return self

    @property
    def family(self) -> Literal["gpt"]:
        """Family whose data and loss the model uses."""
        return "gpt"

    def full_size(self, pipeline: bool) -> DecoderShape:
        """Return the shape that is predicted, and trained on real nodes; pipelines have none."""
        assert not pipeline
        return self.shape

    def testbed_size(self, pipeline: bool) -> DecoderShape:
        """Return the shape that the testbed trains for the model."""
        assert self.testbed is not None and not pipeline
        return self.testbed


def read_open_models() -> dict[str, OpenModel]:
    """Read all open-weight models by name, in the order of the file."""
    models: dict[str, OpenModel] = read_params("open_models.yaml", dict[str, OpenModel])
    return models


def open_model(name: str) -> OpenModel:
    """Return a model by name; an unknown name is a `ReproError` that lists the choices."""
    return choose("model", name, read_open_models())
