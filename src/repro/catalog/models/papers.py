"""Language models of the papers, at full size and at testbed size (`params/models.yaml`)."""

from typing import Any, Literal

from pydantic import PositiveInt, model_validator

from repro.catalog.reading import Entry, choose, read_params

Family = Literal["gpt", "bert", "t5"]


class Shape(Entry):
    """Dimensions of a transformer.

    `layers` counts decoder blocks for gpt, encoder blocks for bert, and blocks of *each* stack for
    t5. `ffn_hidden_size` is the width between the MLP's two matrices, by default four times the
    hidden size. `vocabulary_size` is the padded size of the embedding table. Sequence lengths are
    in tokens; only t5 has a separate decoder sequence.
    """

    layers: PositiveInt
    hidden_size: PositiveInt
    ffn_hidden_size: PositiveInt
    attention_heads: PositiveInt
    sequence_length: PositiveInt
    decoder_sequence_length: PositiveInt | None = None
    vocabulary_size: PositiveInt

    @model_validator(mode="before")
    @classmethod
    def _default_ffn(cls, given: dict[str, Any]) -> dict[str, Any]:
        hidden_size = given.get("hidden_size")
        default = {"ffn_hidden_size": 4 * hidden_size} if isinstance(hidden_size, int) else {}
        return {**default, **given}

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> "Shape":
        if self.hidden_size % self.attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of "
                f"attention_heads {self.attention_heads}; fix: change one of them"
            )
        return self


class Model(Entry):
    """Model of the papers: its name in figures, its family and its shapes.

    The papers trained `full`, and `pipeline` in pipelines if that is set. The testbed trains
    `testbed` and `testbed_pipeline` instead.
    """

    label: str
    family: Family
    published_parameters: PositiveInt
    source: str
    full: Shape
    pipeline: Shape | None = None
    testbed: Shape
    testbed_pipeline: Shape

    def full_size(self, pipeline: bool) -> Shape:
        """Return the shape that the papers trained, in pipelines or with data parallelism."""
        return self.pipeline or self.full if pipeline else self.full

    def testbed_size(self, pipeline: bool) -> Shape:
        """Return the shape that the testbed trains instead."""
        return self.testbed_pipeline if pipeline else self.testbed

    @model_validator(mode="after")
    def _decoder_sequence_only_for_t5(self) -> "Model":
        for shape in (self.full, self.testbed, self.testbed_pipeline):
            if (self.family == "t5") != (shape.decoder_sequence_length is not None):
                raise ValueError(
                    f"family {self.family} with decoder_sequence_length "
                    f"{shape.decoder_sequence_length}; fix: set it for t5 only"
                )
        return self


def read_models() -> dict[str, Model]:
    """Read all models by name, in the order of the file."""
    models: dict[str, Model] = read_params("models.yaml", dict[str, Model])
    return models


def model(name: str) -> Model:
    """Return a model by name; an unknown name is a `ReproError` that lists the choices.

    Examples
    --------
    >>> model("gpt2-large").full.layers
    36
    """
    return choose("model", name, read_models())
