"""Open-weight models, predicted or, with a testbed shape, trained (`params/open_models.yaml`)."""

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from repro.catalog.models.layers import Linear, Operation, count_parameters, layer_kinds
from repro.catalog.reading import Entry, choose, read_params
from repro.errors import ReproError

# Ends of the names of models whose weights were trained further, of the same dimensions.
# Words of a name that change no size: makers before it, further training and precisions behind it.
_MAKERS = re.compile(r"^(?:meta|nvidia|amd|openai|google)+")
_TUNED = re.compile(
    r"(?:instruct|chat|base|hf|it|v0[123]|bf16|fp16|nvfp4|mxfp4|fp8|fp4|int4|int8|awq|gptq|kv)+$"
)


class DecoderShape(Entry):
    """Dimensions of a modern decoder: RMSNorm, rotary embeddings, an MLP or experts.

    Attributes
    ----------
    heads, kv_heads, head_dim, value_dim
        Heads of queries, and of keys and values that they share; width of a query or key, and of a
        value (default: the same).
    kv_rank, query_rank, rope_dim
        Latent attention: width of the vector that a token's keys and values are computed from, of
        that of its queries (0: computed from the hidden state), and of the rotary part of a key,
        which all heads share. 0 without latent attention.
    gated_mlp
        Whether an MLP has three matrices.
    experts, experts_per_token, expert_ffn, shared_expert_ffn
        Experts of a layer and their width, and the width of all shared experts. 0 for dense models.
    dense_layers, dense_ffn
        Layers of a mixture of experts that have an MLP of this width instead.
    window, windowed
        Tokens that the share `windowed` of the layers attends to; 0 without a window.
    seq, vocab
        Tokens of a sequence, and rows of the embedding table.
    tied
        Whether input and output share the embedding table.
    positions
        Rows of a table of learned position embeddings.
    biases
        Linear layers with biases: none, those of queries, keys and values, or all.
    sinks
        Whether each head has a learned score that no token receives (GPT-OSS).
    mtp_layers
        Layers that predict tokens further ahead (DeepSeek-V3, 2024, section 2.2).

    Some dimensions have aliases with the names of `Shape`.
    """

    layers: PositiveInt
    hidden: PositiveInt
    ffn: NonNegativeInt = 0
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    value_dim: PositiveInt
    kv_rank: NonNegativeInt = 0
    query_rank: NonNegativeInt = 0
    rope_dim: NonNegativeInt = 0
    gated_mlp: bool
    experts: NonNegativeInt = 0
    experts_per_token: NonNegativeInt = 0
    expert_ffn: NonNegativeInt = 0
    shared_expert_ffn: NonNegativeInt = 0
    dense_layers: NonNegativeInt = 0
    dense_ffn: NonNegativeInt = 0
    window: NonNegativeInt = 0
    windowed: float = 0.5
    seq: PositiveInt
    vocab: PositiveInt
    tied: bool = False
    positions: NonNegativeInt = 0
    biases: Literal["none", "qkv", "all"] = "none"
    sinks: bool = False
    mtp_layers: NonNegativeInt = 0

    @model_validator(mode="before")
    @classmethod
    def _default_value_dim(cls, given: Any) -> Any:
        return {"value_dim": given.get("head_dim"), **given} if isinstance(given, dict) else given

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
        """Count the parameters with this many experts in each layer, without further tokens."""
        h = self.hidden
        layers = sum(
            number * (count_parameters(layer, experts) + self._biases(layer, experts) + 2 * h)
            for number, layer in layer_kinds(self)
        )
        tables = (1 if self.tied else 2) * self.vocab + self.positions
        return int(layers) + (tables + 1) * h

    def _biases(self, layer: Sequence[Operation], experts: int) -> int:
        if self.biases == "none":
            return 0
        biased = [one for one in layer if isinstance(one, Linear)]
        if self.biases == "qkv":
            biased = biased[:1]
        return sum(one.outputs * (1 if one.experts is None else experts) for one in biased)


class OpenModel(Entry):
    """Open-weight model, with the parameter counts that its authors state.

    Each token uses the `active_parameters`. `published_as` lists the model's other names in
    measurements. `published_formats` names the weights (formats of serving) that engines load when
    a precision below half is requested, if they differ from it: GPT-OSS's experts are MXFP4 under
    any name; `published` is the precision of the authors' files if it is below half. The testbed
    trains `testbed` for it; a model without one is only predicted. Experts are sharded across
    `expert_parallel` data-parallel ranks, or as many of them as divide a job's.
    """

    label: str
    published_as: tuple[str, ...] = ()
    parameters: PositiveFloat
    active_parameters: PositiveFloat | None = None
    published_formats: dict[str, str] = Field(default_factory=dict)
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


def model_called(name: str) -> OpenModel:
    """Return the open model that `name` spells, as `model_named` does.

    Raises
    ------
    ReproError
        No model of the catalog has this name.
    """
    found = model_named(name)
    if found is None:
        raise ReproError(f"unknown model {name!r}; choose from: {', '.join(read_open_models())}")
    return found


def model_named(name: str) -> OpenModel | None:
    """Return the open model that `name` spells, or None: `meta-llama/Llama-3.3-70B-Instruct`.

    Case, marks, makers, and words for further training and precision are left out.
    """
    plain = plain_name(name.rsplit("/", 1)[-1])
    return _by_plain_name().get(_TUNED.sub("", _MAKERS.sub("", plain)))


def _by_plain_name() -> dict[str, OpenModel]:
    return {
        plain_name(one): entry
        for key, entry in read_open_models().items()
        for one in (key, entry.label, *entry.published_as)
    }


def plain_name(name: str) -> str:
    """Return a name in lower case without marks, as spellings differ."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
