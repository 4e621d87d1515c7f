"""Compressed collectives at full scale (`params/compressed_training.yaml`)."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, choose, read_yaml
from repro.catalog.systems.gpus import Gpu, gpu
from repro.paths import PARAMS


class Throughput(Entry):
    """Of a codec at one rate, in 1e9 bytes of plain values a second."""

    encode_gbytes_per_s: PositiveFloat
    decode_gbytes_per_s: PositiveFloat


class GpuCodec(Entry):
    """A codec by its throughput on one GPU, as found in its `source`.

    Attributes
    ----------
    gpu
        Which one, of `params/gpus.yaml`.
    value_bits
        Of a plain value that the throughput counts.
    rates
        By bits of a value on the wire.
    scales_with
        The field of a GPU's data sheet that throughput is in proportion to.
    within
        The factor, either way, that 90 % of throughputs are taken to lie within.
    """

    label: str
    gpu: str
    value_bits: PositiveInt
    rates: dict[PositiveFloat, Throughput]
    scales_with: Literal["multiprocessors", "memory_gbytes_per_s"]
    within: Annotated[float, Field(ge=1)]
    source: str

    def seconds_per_value(self, bits: float, device: Gpu) -> tuple[float, float]:
        """Encoding and decoding of one value on a GPU; a rate that the codec does not have is a
        `ReproError` that lists the known ones."""
        known = {f"{rate:g}": found for rate, found in self.rates.items()}
        at = choose(f"rate of {self.label}", f"{bits:g}", known)
        own, other = (getattr(one, self.scales_with) for one in (gpu(self.gpu), device))
        size = 1e-9 * self.value_bits / 8 * own / other
        return size / at.encode_gbytes_per_s, size / at.decode_gbytes_per_s


class Setting(Entry):
    """How a model is trained and its messages are compressed.

    Attributes
    ----------
    message_bits
        Of a plain value.
    aggressive_bits, mild_bits
        Of an encoded value.
    every_hop
        Whether a ring encodes again what it hands on unchanged.
    pipelined
        Whether encoding and decoding go on while others' bytes are on the wire.
    link_ratio
        Times the cluster's rate between nodes.
    """

    tensor_parallel: PositiveInt
    pipeline_parallel: PositiveInt
    micro_batch_size: PositiveInt
    global_batch_size: PositiveInt
    overlap_gradient_sync: bool
    message_bits: Literal[16, 32]
    aggressive_bits: PositiveFloat
    mild_bits: PositiveFloat
    every_hop: bool
    pipelined: bool
    link_ratio: PositiveFloat


class Sweeps(Entry):
    """Values of each field of `Setting`."""

    tensor_parallel: tuple[PositiveInt, ...]
    pipeline_parallel: tuple[PositiveInt, ...]
    micro_batch_size: tuple[PositiveInt, ...]
    global_batch_size: tuple[PositiveInt, ...]
    overlap_gradient_sync: tuple[bool, ...]
    message_bits: tuple[Literal[16, 32], ...]
    aggressive_bits: tuple[PositiveFloat, ...]
    mild_bits: tuple[PositiveFloat, ...]
    every_hop: tuple[bool, ...]
    pipelined: tuple[bool, ...]
    link_ratio: tuple[PositiveFloat, ...]


class CompressedTraining(Entry):
    """All of it: one of the `codecs` for a model of `params/hierarchical_zero.yaml`."""

    title: str
    source: str
    cluster: str
    gpus: PositiveInt
    model: str
    codec: str
    codecs: dict[str, GpuCodec]
    base: Setting
    sweeps: Sweeps
    protocols: tuple[str, ...]
    break_even_gpus: tuple[str, ...]


def read_compressed_training() -> CompressedTraining:
    """The study's parameters."""
    value: CompressedTraining = read_yaml(PARAMS / "compressed_training.yaml", CompressedTraining)
    return value
