"""Study of compressed collectives at full scale: GPT-NeoX-20B on Lassen, and when coding pays.

An encoding changes the bytes of a group's collectives and adds the time of coding
(`repro.predict.network.collectives`); everything else of the step is the performance model's.
A collective that moves V bytes over each rank's link takes V / B plain and kept V / B + C encoded,
with C seconds of coding, so that encoding saves time on links slower than (1 - kept) V / C.
"""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
import xarray as xr

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
from repro.catalog.systems.gpus import Gpu, gpu
from repro.catalog.systems.protocols import protocol
from repro.predict.calibration.interval import DEVIATIONS, LEVEL, draw_parameters
from repro.predict.memory import WIDTHS
from repro.predict.network.collectives import Encoding, Encodings, coded_bytes, ring_bytes_per_s
from repro.predict.network.machine import Machine, machine, strided
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.iteration import Phases, predict_phases
from repro.predict.step.memory import FRAMEWORK_BYTES, memory
from repro.predict.workload import Array, Plan, Workload, valid, workload
from repro.studies.hierarchical_zero.predicted import faster_links

NONE, NAIVE, HYBRID = "none", "naive", "hybrid"
# Bytes per second of the map, and its points along either axis.
_SLOWEST, _FASTEST, _POINTS = 1e8, 1e12, 81
# Fields of a setting that belong to the plan; the others belong to its messages.
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
    """Return a codec's encoding at a rate on a GPU that takes `slower` times as long as stated."""
    encode_s, decode_s = codec.seconds_per_value(bits, device)
    return Encoding(
        kept=bits / (8 * FULL_ELEMENT_BYTES),
        encode_s_per_byte=slower * encode_s / FULL_ELEMENT_BYTES,
        decode_s_per_byte=slower * decode_s / FULL_ELEMENT_BYTES,
        call_s=slower * call_s,
    )


@dataclass(frozen=True)
class Compressed:
    """The study's model on a machine, whose parameters may be draws.

    `slower` is the factor on the codec's stated time.
    """

    study: CompressedTraining
    shape: Shape
    where: Machine
    parameters: Parameters
    slower: Array | float

    def encodings(self, scheme: str, setting: Setting) -> Encodings:
        """Return a scheme's encodings; an unknown scheme is a `ReproError`."""
        aggressive, mild = setting.aggressive_bits, setting.mild_bits
        rates = {NONE: (None, None), NAIVE: (aggressive, aggressive), HYBRID: (mild, aggressive)}
        codec = self.study.codecs[self.study.codec]

        def encoded(bits: float | None) -> Encoding:
            if bits is None:
                return Encoding(kept=setting.message_bits / (8 * FULL_ELEMENT_BYTES))
            own = encoding(codec, bits, self.where.gpu, self.parameters.kernel_s, self.slower)
            return replace(own, every_hop=setting.every_hop, pipelined=setting.pipelined)

        rest, gradients = (encoded(bits) for bits in choose("scheme", scheme, rates))
        return Encodings(rest, rest, gradients, rest)

    def plans(self, columns: Setting | pd.DataFrame) -> Workload:
        """Return a setting's plan, or those of rows that have its fields."""
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
        """Return which plans divide and fit in the memory of the first stage."""
        held = memory(w, widths=WIDTHS["half gradients"], dropout=False).total + FRAMEWORK_BYTES
        return np.asarray(valid(w) & (held <= self.where.gpu.memory_bytes))

    def phases(self, w: Workload, scheme: str, setting: Setting) -> Phases:
        """Predict phases of plans in a scheme.

        GPT-NeoX-20B's logits have their own weights (its 20B.yml): embeddings are not synchronised.
        """
        there = faster_links(self.where, setting.link_ratio)
        found = predict_phases(w, there, self.parameters, self.encodings(scheme, setting))
        return replace(found, embedding_sync=np.zeros(1))

    def gain_pct(self, w: Workload, scheme: str, setting: Setting) -> Array:
        """Predict by how many percent a scheme is faster than none."""
        plain, own = (self.phases(w, name, setting).iteration_time_s for name in (NONE, scheme))
        return np.asarray(100 * (plain / own - 1))


def compressed(parameters: Parameters | None = None, transport: str | None = None) -> Compressed:
    """Return the study on its cluster, or with a protocol's rate between nodes.

    Parameters
    ----------
    parameters
        By default the cluster's calibrated ones; with draws, the codec's throughput is drawn too.
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
    """Predict a scheme's gain in the base setting, for each draw of the parameters."""
    one = compressed(parameters)
    setting = one.study.base
    return one.gain_pct(one.plans(setting), scheme, setting)


def predict_compressed() -> pd.DataFrame:
    """Predict every scheme in the base setting, on the cluster's network and with each protocol.

    Returns
    -------
    DataFrame
        `link`, `scheme`, `tflops_per_gpu` of the model's operations, `gain_pct` over none with its
        90 % interval `low` to `high`; seconds of an iteration by part: `computing`, `bubble and
        stragglers`, `tensor`, `pipeline`, `gradients` and `parameters` on the wire, and `coding`.
    """
    study = read_compressed_training()
    entry, setting = cluster(study.cluster), study.base
    drawn_parameters = draw_parameters(calibration(entry.calibration), entry)
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
        ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
        low, high = np.quantile(drawn.gain_pct(w, scheme, setting), ends)
        flops = training_flops("gpt", known.shape, setting.global_batch_size)
        rows.append(
            {
                "link": _link_label(study, transport),
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


def _link_label(study: CompressedTraining, transport: str | None) -> str:
    return protocol(transport).label if transport else study.cluster.capitalize()


def sweep_gains() -> pd.DataFrame:
    """Predict the gains of naive and hybrid for everything that the abstract leaves open.

    Returns
    -------
    DataFrame
        The fields of `Setting`, and `naive` and `hybrid` in percent, without plans that do not fit
        memory and mild rates that save nothing.
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


def break_even_table() -> pd.DataFrame:
    """Return the bus bandwidth above which compressing a large all-reduce costs time.

    Returns
    -------
    DataFrame
        `codec`, `bits` of a value on the wire, `gpu`, `gbps` with its interval `low` to `high`; 0
        if values are not shortened.
    """
    study = read_compressed_training()
    rows = []
    for codec in study.codecs.values():
        for bits, device in product(codec.rates, map(gpu, study.break_even_gpus)):
            own = encoding(codec, bits, device)
            saved = max(1 - bits / (8 * FULL_ELEMENT_BYTES), 0)
            gbps = 8e-9 * saved * coding_rate_bytes_per_s(own)
            ends = {"low": gbps / codec.within, "high": gbps * codec.within}
            row = {"codec": codec.label, "bits": bits, "gpu": device.label, "gbps": gbps}
            rows.append(row | ends)
    return pd.DataFrame(rows)


def coding_rate_bytes_per_s(one: Encoding) -> float:
    """Return bytes per second of encoding and decoding, one after the other."""
    return float(1 / (one.encode_s_per_byte + one.decode_s_per_byte))


def coding_by_hops(ranks: tuple[int, ...] = (2, 4, 8, 24, 192)) -> pd.DataFrame:
    """Count bytes that a rank encodes and decodes per byte of a ring all-reduce, by ranks (rows).

    Either every hop encodes, or gathered values are encoded once.
    """
    n, size = np.array(ranks, dtype=float), np.ones(len(ranks))
    columns: dict[str, Array] = {}
    for name, every_hop in (("every hop", True), ("gathered once", False)):
        encoded, decoded, _ = coded_bytes("all_reduce", size, n, every_hop)
        columns |= {f"encoded, {name}": encoded, f"decoded, {name}": decoded}
    return pd.DataFrame(columns, index=pd.Index(ranks, name="ranks"))


def speed_up_map(kept: float) -> xr.DataArray:
    """Return a collective's speed-up by encoding, over rates of coding and bus bandwidths.

    Both axes, (coding, link), are in GB/s of plain values.
    """
    rates = np.geomspace(_SLOWEST, _FASTEST, _POINTS)
    coding, link = rates[:, None], rates[None, :]
    times = (1 / link) / (kept / link + 1 / coding)
    axes = {"coding": 1e-9 * rates, "link": 1e-9 * rates}
    return xr.DataArray(times, axes, dims=("coding", "link"))


def ring_rates_gbytes_per_s() -> dict[str, float]:
    """Return the rates of a rank's rings in the base plan, by label of the links.

    They are those of tensor parallelism inside a node, and those of gradients between nodes on the
    cluster's own network and with each protocol.
    """
    known = compressed()
    study, base = known.study, known.study.base
    tensor, one = np.array([float(base.tensor_parallel)]), np.ones(1)
    replicas = study.gpus / (tensor * base.pipeline_parallel)
    groups = {"NVLink": strided(tensor, one, known.where)}
    for name in (None, *study.protocols):
        where = compressed(None, name).where
        groups[_link_label(study, name)] = strided(replicas, tensor, where)
    return {
        label: 1e-9 * float(ring_bytes_per_s(group, known.parameters)[0])
        for label, group in groups.items()
    }
