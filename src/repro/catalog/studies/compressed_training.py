"""Study of compressed collectives at full scale (`params/compressed_training.yaml`)."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, choose, read_params
from repro.catalog.systems.gpus import Gpu, gpu


class Throughput(Entry):
    """Throughput of a codec at one rate, in 1e9 bytes of plain values per second."""

    encode_gbytes_per_s: PositiveFloat
    decode_gbytes_per_s: PositiveFloat


class GpuCodec(Entry):
    """Throughput of a codec on one GPU, as stated by its `source`.

    Attributes
    ----------
    gpu
        The GPU, an entry of `params/gpus.yaml`.
    value_bits
        Bits of a plain value whose bytes the throughput counts.
    rates
        Throughput by bits per value on the wire.
    scales_with
        Field of a GPU's data sheet that the throughput is proportional to.
    within
        Factor, up or down, within which 90 % of throughputs are assumed to lie.
    """

    label: str
    gpu: str
    value_bits: PositiveInt
    rates: dict[PositiveFloat, Throughput]
    scales_with: Literal["multiprocessors", "memory_gbytes_per_s"]
    within: Annotated[float, Field(ge=1)]
    source: str

    def seconds_per_value(self, bits: float, device: Gpu) -> tuple[float, float]:
        """Return seconds to encode and decode a value; an unknown rate is a `ReproError`."""
        by_rate = {f"{rate:g}": value for rate, value in self.rates.items()}
        throughput = choose(f"rate of {self.label}", f"{bits:g}", by_rate)
        measured, target = (getattr(each, self.scales_with) for each in (gpu(self.gpu), device))
        size = 1e-9 * self.value_bits / 8 * measured / target
        return size / throughput.encode_gbytes_per_s, size / throughput.decode_gbytes_per_s


class Setting(Entry):
    """Parallel layout of a model, and compression of its messages.

    Attributes
    ----------
    message_bits
        Bits per plain value.
    aggressive_bits, mild_bits
        Bits per encoded value.
    every_hop
        Whether a ring re-encodes parts that it forwards unchanged.
    pipelined
        Whether encoding and decoding overlap with the transfer of other bytes.
    link_ratio
        Factor on the cluster's rate between nodes.
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
    """Parameters of the study: one of the `codecs`, a model of `params/hierarchical_zero.yaml`."""

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
    """Read the parameters of the study."""
    value: CompressedTraining = read_params("compressed_training.yaml", CompressedTraining)
    return value
