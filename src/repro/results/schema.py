"""Dataset of one configuration's measurements; every experiment is a union of them.

Dimensions
----------
source, model, protocol, gpus
    The configuration, with its total number of GPUs.
global_batch_size or micro_batch_size
    The batch size that an experiment sweeps in addition, in sequences; others have neither.
iteration, rank, phase
    The raw samples: recorded iterations, from 0; ranks; phases in the order of
    `repro.catalog.phases.PHASES`. Times are seconds of the measuring machine.
node, sample
    NIC series: nodes, and samples in time.
span
    Checkpoints and validations, in time.
level
    Levels of the topology, for the check of the emulated links.
adapter
    Real nodes only: their HCA ports, interfaces, and GPUs' NVLink and PCIe, by name.
timer, message, call
    Pipelines only: Megatron's timers of point-to-point calls (`repro.catalog.phases.P2P_TIMERS`);
    the messages of all recorded iterations, in the order they began; and the calls, by rank.
transfer, group
    Runs with a communication log only (`repro.results.communication`): every call of every rank,
    and the process groups.

Where configurations differ in size (ranks, samples), the rest is NaN.
`docs/reference/quantities.md` defines every variable.
"""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from repro.catalog.phases import P2P_TIMERS, PHASES
from repro.catalog.studies.experiments import Swept
from repro.observe.messages import calls_of, pair_messages, wire_time_s
from repro.observe.nic import FloatArray, TrafficDirection
from repro.results.communication import transfer_variables
from repro.results.outcome import Outcome
from repro.train.records import RankRecord

_SPAN_NAME_LENGTH = "U16"
_NUMBERED = ("iteration", "node", "sample", "span", "message", "call", "transfer", "group")


def coordinates(
    model: str,
    protocol: str,
    gpus: int,
    sweep: Swept | None = None,
    value: int | None = None,
    source: str = "testbed",
) -> dict[str, str | int | float]:
    """Return the coordinates of a configuration; `sweep` and `value` are None without a sweep."""
    swept: dict[str, str | int | float] = {sweep: value} if sweep and value is not None else {}
    return {"source": source, "model": model, "protocol": protocol, "gpus": gpus, **swept}


def placed(dataset: xr.Dataset, where: Mapping[str, str | int | float]) -> xr.Dataset:
    """Give a dataset these coordinates, each a dimension of size one."""
    return dataset.assign_coords(where).expand_dims(list(where))


def out_of_memory_dataset() -> xr.Dataset:
    """Return the dataset of a configuration that ran out of memory."""
    return _dataset({"out_of_memory": _fits(1.0)})


def training_dataset(
    outcome: Outcome, time_scale: float = 1.0, rate_scale: float = 1.0
) -> xr.Dataset:
    """Return the dataset of one configuration, without its coordinates.

    Parameters
    ----------
    time_scale, rate_scale
        Testbed seconds and rate that represent one full-scale second and rate
        (`repro.experiments.similarity`), before the slowdown of the ranks is known. Real nodes are
        at full scale.
    """
    records = sorted(outcome.records, key=lambda record: record.rank)
    slowdown_factor = records[0].slowdown_factor
    time_scale, rate_scale = time_scale * slowdown_factor, rate_scale / slowdown_factor
    origin = min(record.start_s[0] for record in records)
    variables = {
        **_iterations(records, origin),
        **_recording(records[0]),
        **_nics(outcome, origin, rate_scale),
        **_rates_over_iterations(outcome, records, rate_scale),
        **_adapters(outcome, records),
        **_spans(records[0], origin),
        **_links(outcome),
        **_speed(outcome),
        **_messages(records, origin),
        "out_of_memory": _fits(0.0),
        "time_scale": ((), time_scale, "testbed seconds per full-scale second", "1"),
        "rate_scale": ((), rate_scale, "testbed rate per full-scale rate", "1"),
        "slowdown_factor": (
            (),
            slowdown_factor,
            "passes over those of one rank alone; links are as slow",
            "1",
        ),
        "fabric_latency_s": ((), outcome.fabric_latency_s, "latency added between nodes", "s"),
        "gradient_bytes": ((), records[0].gradient_bytes, "gradients reduced each iteration", "B"),
        "parameters": ((), records[0].parameters, "parameters of the trained model", "1"),
    }
    dataset = _dataset(variables).assign(transfer_variables(records, origin))
    dataset = dataset.assign_coords(phase=list(PHASES), rank=[one.rank for one in records])
    if outcome.links:
        dataset = dataset.assign_coords(level=[check.level for check in outcome.links])
    if outcome.adapters:
        dataset = dataset.assign_coords(adapter=adapter_names(outcome))
    if "timer" in dataset.dims:
        dataset = dataset.assign_coords(timer=list(P2P_TIMERS))
    # Numbers allow to merge configurations with fewer samples and those with more.
    counted = {dim: range(dataset.sizes[dim]) for dim in _NUMBERED if dim in dataset.dims}
    return dataset.assign_coords(counted).assign_attrs(said(outcome))


def said(outcome: Outcome) -> dict[str, str]:
    """Return an outcome's information other than measurements, as attributes."""
    found: dict[str, str] = {}
    if outcome.ran_on:
        found["ran_on"] = json.dumps(outcome.ran_on)
    if outcome.spent_s:
        found["spent_s"] = json.dumps({k: round(v, 3) for k, v in outcome.spent_s.items()})
    return found


_Variable = tuple[tuple[str, ...], object, str, str]


def _dataset(variables: Mapping[str, _Variable]) -> xr.Dataset:
    return xr.Dataset(
        {
            name: xr.Variable(dims, values, {"long_name": long_name, "units": units})
            for name, (dims, values, long_name, units) in variables.items()
        }
    )


def _fits(value: float) -> _Variable:
    return ((), value, "whether a GPU's memory was not enough", "1")


def _iterations(records: Sequence[RankRecord], origin: float) -> dict[str, _Variable]:
    per_rank, rank = ("iteration", "rank"), ("rank",)
    phases = np.array([[record.phase_time_s[p] for p in PHASES] for record in records])

    def of(field: str) -> FloatArray:
        return np.array([getattr(record, field) for record in records], dtype=float).T

    memory = "most memory that the run took on the rank"
    in_phases = phases.transpose(2, 0, 1)
    return {
        "iteration_time_s": (per_rank, of("iteration_time_s"), "iteration time", "s"),
        "iteration_start_s": (per_rank, of("start_s") - origin, "start of the iteration", "s"),
        "phase_time_s": ((*per_rank, "phase"), in_phases, "time in phase", "s"),
        "loss": (per_rank, of("loss"), "training loss of the rank", "1"),
        "peak_memory_bytes": (rank, of("peak_memory_bytes"), memory, "B"),
        "adam_state_bytes": (rank, of("adam_state_bytes"), "Adam's moments on the rank", "B"),
        "weight_bytes": (rank, of("weight_bytes"), "weights on the rank between iterations", "B"),
    }


def _recording(record: RankRecord) -> dict[str, _Variable]:
    """Return warm-up and discarded iterations, contention, and whether the target was reached."""
    warmup = "iterations before the first recorded one"
    discarded = "iterations in which ranks lacked too much of the machine"
    lacked = "what the rank that lacked most waited for the machine, of the iteration"
    precise = "whether it ended because its mean was precise enough, not at a number of iterations"
    return {
        "warmup_iterations": ((), float(record.warmup), warmup, "1"),
        "discarded_iterations": ((), float(record.discarded), discarded, "1"),
        "reached_target_precision": ((), float(record.reached_target_precision), precise, "1"),
        "contention_fraction": (("iteration",), np.array(record.contention_fraction), lacked, "1"),
    }


def _messages(records: Sequence[RankRecord], origin: float) -> dict[str, _Variable]:
    """Return messages, and Megatron's point-to-point timers with their time in flight."""
    ends = [record.messages for record in records]
    if not any(ends):
        return {}
    found = sorted(pair_messages(ends), key=lambda message: message.start_s)
    calls = calls_of(ends)
    per_timer = ("iteration", "rank", "timer")
    timed = np.array([[record.timer_time_s[t] for t in P2P_TIMERS] for record in records])
    one_by_one = {
        "message": {
            "iteration": ("recorded iteration", "1", [m.iteration for m in found]),
            "sender": ("rank that sent it", "1", [m.sender for m in found]),
            "receiver": ("rank that received it", "1", [m.receiver for m in found]),
            "backward": (
                "0 activations, 1 gradients of them",
                "1",
                [m.direction == "backward" for m in found],
            ),
            "bytes": ("size of the message", "B", [m.size_bytes for m in found]),
            "start_s": ("when both ends were ready", "s", [m.start_s - origin for m in found]),
            "end_s": ("when it had arrived", "s", [m.end_s - origin for m in found]),
        },
        "call": {
            "iteration": ("recorded iteration", "1", [c.iteration for c in calls]),
            "rank": ("rank that made it", "1", [c.rank for c in calls]),
            "start_s": ("when it began", "s", [c.start_s - origin for c in calls]),
            "end_s": ("when it was over", "s", [c.end_s - origin for c in calls]),
        },
    }
    return {
        "p2p_time_s": (per_timer, timed.transpose(2, 0, 1), "time in Megatron's timer", "s"),
        "p2p_wire_s": (
            per_timer,
            wire_time_s(ends, len(records[0].start_s)),
            "of that, time in which a message was under way",
            "s",
        ),
        **{
            f"{dim}_{name}": ((dim,), np.array(values, dtype=float), long_name, units)
            for dim, columns in one_by_one.items()
            for name, (long_name, units, values) in columns.items()
        },
    }


# Prefixes of variables.
_WAYS: dict[TrafficDirection, str] = {"received": "rx", "sent": "tx"}


def _nics(outcome: Outcome, origin: float, rate_scale: float) -> dict[str, _Variable]:
    """Return rates between samples; the time of a rate is the end of its interval."""
    times = np.array(outcome.nics.time_s) - origin
    keep = times[1:] > 0
    dims = ("node", "sample")
    variables: dict[str, _Variable] = {
        "nic_time_s": (("sample",), times[1:][keep], "time of the sample", "s")
    }
    for way, name in _WAYS.items():
        gbps = (np.diff(outcome.nics.counters(way)) * 8e-9 / np.diff(times))[:, keep]
        words = f"rate {way} by the NIC"
        full = f"{words}, full-scale equivalent"
        variables[f"{name}_gbps"] = (dims, gbps, words, "Gbit/s")
        variables[f"{name}_full_scale_gbps"] = (dims, gbps / rate_scale, full, "Gbit/s")
    return variables


def _rates_over_iterations(
    outcome: Outcome, records: Sequence[RankRecord], rate_scale: float
) -> dict[str, _Variable]:
    """Return the bytes of each NIC in each iteration, over the iteration's time."""
    starts, ends = iteration_spans(records)
    return {
        f"{name}_iteration_full_scale_gbps": (
            ("node", "iteration"),
            (outcome.nics.at(way, ends) - outcome.nics.at(way, starts))
            * (8e-9 / (ends - starts) / rate_scale),
            f"mean rate {way} by the NIC in the iteration, full-scale equivalent",
            "Gbit/s",
        )
        for way, name in _WAYS.items()
    }


def _adapters(outcome: Outcome, records: Sequence[RankRecord]) -> dict[str, _Variable]:
    """Return the bytes of each real node's adapters per iteration, NVLink and PCIe included."""
    if not outcome.adapters:
        return {}
    starts, ends = iteration_spans(records)
    names, dims = adapter_names(outcome), ("node", "adapter", "iteration")
    needed = np.array(outcome.min_inter_node_bytes) / len(starts)
    least = "what the node's ranks had to send to other nodes in an iteration, at least"
    variables: dict[str, _Variable] = {"min_inter_node_bytes": (("node",), needed, least, "B")}
    for way in _WAYS:
        found = np.full((len(outcome.adapters), len(names), len(starts)), np.nan)
        for at, node in enumerate(outcome.adapters):
            rows = [names.index(name) for name in node.names]
            found[at, rows] = node.series.at(way, ends) - node.series.at(way, starts)
        words = f"{way} by the adapter in the iteration"
        variables[f"adapter_{way}_bytes"] = (dims, found, words, "B")
    return variables


def adapter_names(outcome: Outcome) -> list[str]:
    """Return the adapters of all nodes by name, in the order of their first appearance."""
    return list(dict.fromkeys(name for node in outcome.adapters for name in node.names))


def iteration_spans(records: Sequence[RankRecord]) -> tuple[FloatArray, FloatArray]:
    """Return when the first rank began each iteration, and when the last one ended it."""
    starts = np.array([record.start_s for record in records])
    ends = starts + np.array([record.iteration_time_s for record in records])
    return starts.min(axis=0), ends.max(axis=0)


def _spans(record: RankRecord, origin: float) -> dict[str, _Variable]:
    spans, dims = record.spans, ("span",)
    names = np.array([span.name for span in spans], dtype=_SPAN_NAME_LENGTH)
    starts = np.array([span.start_s for span in spans], dtype=float) - origin
    ends = np.array([span.end_s for span in spans], dtype=float) - origin
    return {
        "span_name": (dims, names, "what happened", "1"),
        "span_start_s": (dims, starts, "start", "s"),
        "span_end_s": (dims, ends, "end", "s"),
    }


def _speed(outcome: Outcome) -> dict[str, _Variable]:
    """Return the check of the ranks' speed before the run; GPUs have none."""
    if outcome.speed is None:
        return {}
    late = "passes of the slowest rank over their CPU time at the pace, less one"
    ratio = "time of the same passes with all ranks measured over that with one"
    return {
        "throttle_overrun": ((), outcome.speed.late, late, "1"),
        "all_to_one_pass_time": ((), outcome.speed.all_to_one, ratio, "1"),
    }


def _links(outcome: Outcome) -> dict[str, _Variable]:
    """Return the set rates of emulated links, and the rates in their check; real ones have none."""
    if not outcome.links:
        return {}
    checks, dims = outcome.links, ("level",)
    rates = np.array([check.set_gbps for check in checks])
    checked = np.array([check.checked_gbps for check in checks])
    slowest = np.array([min(check.carried_gbps) for check in checks])
    fastest = np.array([max(check.carried_gbps) for check in checks])
    return {
        "link_set_gbps": (dims, rates, "rate the links were set to", "Gbit/s"),
        "link_checked_gbps": (dims, checked, "rate of the links in the check", "Gbit/s"),
        "link_carried_min_gbps": (dims, slowest, "slowest link in the check", "Gbit/s"),
        "link_carried_max_gbps": (dims, fastest, "fastest link in the check", "Gbit/s"),
    }
