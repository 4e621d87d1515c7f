"""Compressed collectives at full scale: GPT-NeoX-20B on Lassen, naive and hybrid.

Without an encoding the step is the performance model's; an encoding changes the bytes of the
groups' collectives and adds what coding takes (`repro.predict.network.encoding`).
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd

from repro.catalog.models.papers import Shape
from repro.catalog.models.volumes import FULL_ELEMENT_BYTES, training_flops
from repro.catalog.reading import choose
from repro.catalog.studies.compressed_training import (
    CompressedTraining,
    GpuCodec,
    Setting,
    read_compressed_training,
)
from repro.catalog.studies.partitions import read_partition_study
from repro.catalog.systems.clusters import cluster
from repro.catalog.systems.gpus import Gpu
from repro.catalog.systems.protocols import protocol
from repro.predict.calibration.interval import DEVIATIONS, LEVEL, draw_parameters
from repro.predict.explore.studies.partitions import faster_links
from repro.predict.memory import WIDTHS
from repro.predict.network.encoding import Encoding, Encodings
from repro.predict.network.machine import Machine, machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.iteration import Phases, predict_phases
from repro.predict.step.memory import FRAMEWORK_BYTES, memory
from repro.predict.workload import Array, Plan, Workload, valid, workload

NONE, NAIVE, HYBRID = "none", "naive", "hybrid"
# Fields of a setting that are a plan's; the others are of what is communicated.
_PLAN = (
    *("tensor_parallel", "pipeline_parallel", "micro_batch_size", "global_batch_size"),
    "overlap_gradient_sync",
)
_PARTS = {
    "computing": ("forward_compute", "backward_compute", "recompute", "optimizer", "other"),
    "bubble and stragglers": ("pipeline_bubble", "straggler_wait"),
    "tensor": ("tensor_parallel",),
    "pipeline": ("forward_receive",),
    "gradients": ("gradient_sync",),
    "parameters": ("parameter_all_gather",),
}


def encoding(
    codec: GpuCodec,
    bits: float,
    device: Gpu,
    call_s: Array | float = 0.0,
    slower: Array | float = 1.0,
) -> Encoding:
    """Of values at a codec's rate on a GPU, which takes `slower` times as long as stated."""
    encode_s, decode_s = codec.seconds_per_value(bits, device)
    return Encoding(
        kept=bits / (8 * FULL_ELEMENT_BYTES),
        encode_s_per_byte=slower * encode_s / FULL_ELEMENT_BYTES,
        decode_s_per_byte=slower * decode_s / FULL_ELEMENT_BYTES,
        call_s=slower * call_s,
    )


@dataclass(frozen=True)
class Compressed:
    """The study's model on a machine, by calibrated parameters or draws of them; `slower` is what
    its codec takes, times what is stated."""

    study: CompressedTraining
    shape: Shape
    where: Machine
    parameters: Parameters
    slower: Array | float

    def encodings(self, scheme: str, setting: Setting) -> Encodings:
        """How a scheme's values travel; an unknown scheme is a `ReproError`."""
        aggressive, mild = setting.aggressive_bits, setting.mild_bits
        rates = {NONE: (None, None), NAIVE: (aggressive, aggressive), HYBRID: (mild, aggressive)}
        rest, gradients = (
            self._encoding(bits, setting) for bits in choose("scheme", scheme, rates)
        )
        return Encodings(rest, rest, gradients, rest)

    def _encoding(self, bits: float | None, setting: Setting) -> Encoding:
        if bits is None:
            return Encoding(kept=setting.message_bits / (8 * FULL_ELEMENT_BYTES))
        codec = choose("codec", self.study.codec, self.study.codecs)
        found = encoding(codec, bits, self.where.gpu, self.parameters.kernel_s, self.slower)
        return replace(found, every_hop=setting.every_hop, pipelined=setting.pipelined)

    def plans(self, columns: Setting | pd.DataFrame) -> Workload:
        """A setting's plan, or those of rows that have its fields."""
        fields = {name: np.asarray(getattr(columns, name)) for name in _PLAN}
        ranks = fields["tensor_parallel"] * fields["pipeline_parallel"]
        plan = Plan(
            data_parallel=self.study.gpus / ranks,
            recompute="full",
            distributed_optimizer=True,
            **fields,
        )
        return workload("gpt", self.shape, plan).flat()[0]

    def fits(self, w: Workload) -> Array:
        """Which plans divide, and have memory enough on the first stage."""
        held = memory(w, widths=WIDTHS["half gradients"], dropout=False).total + FRAMEWORK_BYTES
        return np.asarray(valid(w) & (held <= self.where.gpu.memory_bytes))

    def phases(self, w: Workload, scheme: str, setting: Setting) -> Phases:
        """Of plans in a scheme. GPT-NeoX-20B's logits have weights of their own (its 20B.yml): no
        embeddings are synchronised."""
        there = faster_links(self.where, setting.link_ratio)
        found = predict_phases(w, there, self.parameters, self.encodings(scheme, setting))
        return replace(found, embedding_sync=np.zeros(1))

    def gain_pct(self, w: Workload, scheme: str, setting: Setting) -> Array:
        """How much faster a scheme is than none."""
        plain, own = (self.phases(w, name, setting).iteration_time_s for name in (NONE, scheme))
        return np.asarray(100 * (plain / own - 1))


def compressed(parameters: Parameters | None = None, transport: str | None = None) -> Compressed:
    """The study on its cluster, or with a protocol's rate between nodes.

    Parameters
    ----------
    parameters
        By default the cluster's calibrated ones. With draws of them, the codec's throughput is
        drawn too.
    """
    study = read_compressed_training()
    entry = cluster(study.cluster)
    known = parameters or calibration(entry.calibration).parameters
    where = machine(entry, known, protocol(transport) if transport else None)
    shape = read_partition_study().models[study.model].shape
    deviation = np.log(study.codecs[study.codec].within) / DEVIATIONS
    drawn = np.random.default_rng(0).standard_normal(np.shape(known.gemm_efficiency))
    slower = np.exp(deviation * drawn) if np.ndim(known.gemm_efficiency) else 1.0
    return Compressed(study, shape, where, known, slower)


def base_gain_pct(scheme: str, parameters: Parameters | None = None) -> Array:
    """In the base setting, a value for each draw of the parameters."""
    one = compressed(parameters)
    setting = one.study.base
    return one.gain_pct(one.plans(setting), scheme, setting)


def predict_compressed() -> pd.DataFrame:
    """Every scheme in the base setting, on the cluster's own network and with each protocol.

    Returns
    -------
    DataFrame
        `link`, `scheme`, `tflops_per_gpu` of the model's operations, `gain_pct` over none with
        `low` and `high`; seconds of an iteration by part: `computing`, `bubble and stragglers`,
        what `tensor`, `pipeline`, `gradients` and `parameters` are on the wire, and `coding`.
    """
    study = read_compressed_training()
    entry, setting = cluster(study.cluster), study.base
    drawn_parameters = draw_parameters(calibration(entry.calibration), entry)
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    rows = []
    for transport, scheme in product((None, *study.protocols), (NONE, NAIVE, HYBRID)):
        known, drawn = compressed(None, transport), compressed(drawn_parameters, transport)
        w = known.plans(setting)
        time_s = float(known.phases(w, scheme, setting).iteration_time_s[0])
        free = replace(known, slower=0.0).phases(w, scheme, setting)
        parts = {
            part: float(sum(np.ravel(getattr(free, name))[0] for name in names))
            for part, names in _PARTS.items()
        }
        low, high = np.quantile(drawn.gain_pct(w, scheme, setting), ends)
        flops = training_flops("gpt", known.shape, setting.global_batch_size)
        rows.append(
            {
                "link": protocol(transport).label if transport else study.cluster.capitalize(),
                "scheme": scheme,
                "tflops_per_gpu": 1e-12 * flops / study.gpus / time_s,
                "gain_pct": float(known.gain_pct(w, scheme, setting)[0]),
                "low": low,
                "high": high,
                **parts,
                "coding": time_s - sum(parts.values()),
            }
        )
    return pd.DataFrame(rows)


def sweep_gains() -> pd.DataFrame:
    """What naive and hybrid gain for everything that the abstract leaves open.

    Returns
    -------
    DataFrame
        The fields of `Setting`, and `naive` and `hybrid` in percent; plans whose memory is not
        enough are left out, and mild rates that save nothing.
    """
    one = compressed()
    axes = one.study.sweeps
    rest = [name for name in Setting.model_fields if name not in _PLAN]
    grid = product(*(getattr(axes, name) for name in _PLAN))
    every = pd.DataFrame(grid, columns=list(_PLAN))
    plans = every[one.fits(one.plans(every))]
    w = one.plans(plans)
    tables = []
    for values in product(*(getattr(axes, name) for name in rest)):
        changed = dict(zip(rest, values, strict=True))
        setting = one.study.base.model_copy(update=changed)
        if setting.mild_bits < setting.message_bits:
            gains = {name: one.gain_pct(w, name, setting) for name in (NAIVE, HYBRID)}
            tables.append(plans.assign(**changed, **gains))
    return pd.concat(tables, ignore_index=True)
