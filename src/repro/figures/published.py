"""Published values that figures show, by the ids of claims."""

from repro.catalog.studies.collectives import select_sweep
from repro.claims.published import read_claims
from repro.errors import NotRunHere
from repro.predict.explore.experiments.collective_sweeps import published_sweep

# Lowest and highest mean rate of a NIC over the models, by experiment and protocol.
_NIC_RANGES = {
    "strong_scaling": {
        "rdma": ("C006", "C007"),
        "ipoib": ("C008", "C009"),
        "tcp": ("C010", "C011"),
    },
    "weak_scaling": {"rdma": ("C022", "C023"), "ipoib": ("C024", "C025"), "tcp": ("C026", "C027")},
}
# Communication fraction at the most GPUs, by experiment and protocol.
_SHARES = {
    "strong_scaling": {"rdma": "C003", "ipoib": "C004", "tcp": "C005"},
    "weak_scaling": {"rdma": "C019", "ipoib": "C020", "tcp": "C021"},
    "cluster_b": {"fabric": "C113", "rdma": "C113"},
}
# GPT-350M: milliseconds of both collectives by GPUs, and the communication fraction on 8.
_COLLECTIVES = {4: ("C123", "C124"), 8: ("C127",)}
_GPT350M_SHARE = {8: "C131"}
# Lower bounds of the communication fraction in pipelines, by global batch.
_PIPELINE_FLOORS = {64: "C109", 128: "C110"}
_LARGEST_BATCH = "C112"
_PARTITION_GAIN = "C142"
# Gains of TFLOPS and of samples per second, which are equal for a fixed model.
_COMPRESSION_GAINS = {"naive": ("C146", "C147"), "hybrid": ("C148", "C149")}


def nic_ranges_gbps(experiment: str) -> dict[str, tuple[float, float]]:
    """Return the lowest and highest of the models' mean rates at a NIC, by protocol."""
    values = _values()
    return {
        protocol: (values[low], values[high])
        for protocol, (low, high) in _NIC_RANGES.get(experiment, {}).items()
    }


def shares_percent(experiment: str) -> dict[str, float]:
    """Return the communication fraction on the most GPUs in percent, by protocol."""
    values = _values()
    return {protocol: values[claim] for protocol, claim in _SHARES.get(experiment, {}).items()}


def collectives_ms() -> list[tuple[int, float]]:
    """Return GPUs and milliseconds of GPT-350M's collectives; a range is two marks."""
    values = _values()
    return [(gpus, values[claim]) for gpus, claims in _COLLECTIVES.items() for claim in claims]


def gpt350m_shares_percent() -> list[tuple[int, float]]:
    """Return GPUs and GPT-350M's communication fraction in percent."""
    values = _values()
    return [(gpus, values[claim]) for gpus, claim in _GPT350M_SHARE.items()]


def batch_statements(pipeline: bool) -> dict[int, str]:
    """Return what the paper states about figure 6, by global batch."""
    values = _values()
    if not pipeline:
        return {int(values[_LARGEST_BATCH]): "last of GPT-2-Large"}
    return {batch: f"at least {values[claim]:g}" for batch, claim in _PIPELINE_FLOORS.items()}


def partition_gain() -> float:
    """Return the published throughput of three levels over that of ZeRO++."""
    return _values()[_PARTITION_GAIN]


def compression_gains_percent() -> dict[str, tuple[float, ...]]:
    """Return the two published gains of each compression scheme."""
    values = _values()
    return {name: tuple(map(values.__getitem__, ids)) for name, ids in _COMPRESSION_GAINS.items()}


def published_busbw(cluster: str, collective: str, gpus: int) -> list[tuple[int, float]]:
    """Return sizes in bytes and bus bandwidths in GB/s of a cluster's published table."""
    try:
        table = published_sweep(select_sweep(cluster, "paper"))
        own = table["full_scale_busbw_GBps"].sel(collective=collective, gpus=gpus, layout="world")
    except (NotRunHere, KeyError):
        return []
    busbw = own.isel(source=0, protocol=0, in_place=0).dropna("size_bytes")
    return list(zip(busbw["size_bytes"].values.tolist(), busbw.values.tolist(), strict=True))


def _values() -> dict[str, float]:
    return {claim.id: claim.value for claim in read_claims() if claim.value is not None}
