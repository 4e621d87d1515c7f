"""Machines, parameters, plans and measurements that several of these tests start from."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from repro.catalog.models.papers import Family, Shape
from repro.catalog.systems.clusters import cluster
from repro.predict.network.machine import Machine, machine
from repro.predict.parameters import Parameters, calibration
from repro.predict.step.iteration import predict_phases
from repro.predict.tables.training import training_rows
from repro.predict.workload import Array, Plan, Workload, from_columns, workload

# Every size is a multiple of the kernels' tiles, also when split among 2, 4 or 8 GPUs.
GPT = Shape(
    layers=24, hidden_size=1024, attention_heads=16, sequence_length=1024, vocabulary_size=51200
)
CALIBRATED = calibration("a100-megatron").parameters
# Nothing takes time but products, traffic and transfers, at the data sheets' rates.
IDEAL = Parameters(
    gemm_efficiency=1,
    wave_loss=0,
    attention_gemm_efficiency=1,
    logits_gemm_efficiency=1,
    logits_gemm_efficiency_alone=1,
    memory_efficiency=1,
    attention_passes=1,
    kernel_s=0,
    host_layer_s=0,
    host_collective_s=0,
    host_unfused_softmax_s=0,
    host_micro_batch_s=0,
    host_iteration_s=0,
    host_optimizer_layer_s=0,
    collective_efficiency=1,
    ring_ramp=0,
    fabric_efficiency=1,
    collective_latency_s=0,
    latency_exponent=1,
    hop_s=0,
    congestion_exponent=0,
    straggler_fraction=0,
)


def rows(plan: Plan, shape: Shape = GPT, family: Family = "gpt") -> Workload:
    """A flat workload."""
    return workload(family, shape, plan).flat()[0]


def machine_of(name: str, parameters: Parameters = CALIBRATED) -> Machine:
    """A cluster of the catalog."""
    return machine(cluster(name), parameters)


def with_free_links(of: Machine) -> Machine:
    """Infinite bandwidth and no latency on every level."""
    levels = [replace(level, bytes_per_s=np.inf, latency_s=0.0) for level in of.levels]
    return replace(of, levels=tuple(levels))


def with_free_memory(of: Machine) -> Machine:
    """Element-wise work takes no time."""
    return replace(of, gpu=of.gpu.model_copy(update={"memory_gbytes_per_s": np.inf}))


def without_head(w: Workload) -> Workload:
    """No logits: a vocabulary of nothing, which no `Shape` may have."""
    return replace(w, vocabulary_size=np.zeros_like(w.vocabulary_size))


# Among them one with three levels, one with latencies to come from a protocol, one whose rings
# share NICs.
machines = st.sampled_from(["pinnacles", "frontier", "dgx-a100", "dgx-a100-800g"]).map(machine_of)


@st.composite
def workloads(draw: st.DrawFn, most: int = 1, families: tuple[Family, ...] = ()) -> Workload:
    """Flat workloads of up to `most` rows of one family, all of which can run."""
    family = draw(st.sampled_from(families or ("gpt", "bert", "t5")))
    drawn = [_row(draw, family) for _ in range(draw(st.integers(1, most)))]
    return from_columns(family, **{name: [row[name] for row in drawn] for name in drawn[0]})


def _row(draw: st.DrawFn, family: Family) -> dict[str, Any]:
    small, switch = st.integers(1, 4), st.booleans()
    t, d = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 3, 8, 16]))
    p = draw(small)
    v = draw(st.integers(1, 3)) if p > 1 else 1
    b, micro_batches = draw(small), draw(st.integers(1, 6)) * (p if v > 1 else 1)
    heads = t * draw(small)
    hidden_size = heads * draw(st.sampled_from([64, 80, 128]))
    return {
        "layers": p * v * draw(small),
        "hidden_size": hidden_size,
        "ffn_hidden_size": 4 * hidden_size,
        "attention_heads": heads,
        "sequence_length": draw(st.sampled_from([128, 500, 1024])),
        "decoder_sequence_length": 128 if family == "t5" else 0,
        "vocabulary_size": draw(st.sampled_from([1024, 30592, 51200])),
        "global_batch_size": b * d * micro_batches,
        "micro_batch_size": b,
        "data_parallel": d,
        "tensor_parallel": t,
        "pipeline_parallel": p,
        "virtual_stages": v,
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "sequence_parallel": draw(switch),
        "distributed_optimizer": draw(switch),
        "overlap_gradient_sync": draw(switch),
        "gradient_bytes": draw(st.sampled_from([2, 4])),
    }


def measurements(parameters: Parameters) -> pd.DataFrame:
    """What the published tables would say if the model with these parameters were the truth."""
    sizes = [(12, 1024, 16), (24, 2048, 16)]
    splits = [
        (1, 1, 1),
        (1, 1, 16),
        (2, 1, 4),
        (4, 1, 2),
        (8, 1, 1),
        (8, 1, 8),
        (1, 2, 4),
        (2, 4, 2),
    ]
    table = pd.DataFrame(
        [
            {
                **{"id": f"{hidden}-{tp}-{pp}-{dp}-{batch}", "set": f"hidden_{hidden}"},
                **{"gpu": "A100-SXM-80GB", "gpus": tp * pp * dp, "gpus_per_node": 8},
                **{"inter_node_gbps_per_node": 1600, "seq": 1024, "vocab": 51200},
                **{"layers": layers, "hidden": hidden, "heads": heads},
                **{"tp": tp, "pp": pp, "dp": dp, "vpp": 1, "micro_batch": batch},
                **{"global_batch": 4 * batch * dp, "recompute": recompute},
                **{"sequence_parallel": "no", "iteration_time_s": 1.0},
            }
            for layers, hidden, heads in sizes
            for tp, pp, dp in splits
            for batch, recompute in ((1, "full"), (4, "none"))
        ]
    )
    for part in training_rows(table):
        times = predict_phases(part.workload, machine(part.cluster, parameters), parameters)
        table.loc[part.index, "iteration_time_s"] = times.iteration_time_s
    return table


def total(*phases: Array) -> Array:
    """The sum of arrays."""
    return np.sum(phases, axis=0)
