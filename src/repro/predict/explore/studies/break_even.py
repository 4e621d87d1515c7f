"""On which networks compression pays: closed forms by codec, rate and GPU, and a map.

A collective that moves V bytes over each rank's link takes V / B plain and kept V / B + C encoded,
with C for coding. Encoded it is faster on links slower than (1 - kept) V / C; if coding goes on
while others' bytes are on the wire, than V / C.
"""

import numpy as np
import pandas as pd
import xarray as xr

from repro.catalog.studies.compressed_training import read_compressed_training
from repro.catalog.systems.gpus import gpu
from repro.catalog.systems.protocols import protocol
from repro.collectives.definitions import bus_factor
from repro.predict.explore.studies.compressed_training import compressed, encoding
from repro.predict.network.collectives import Encoding, coded_bytes, ring_bytes_per_s
from repro.predict.network.machine import strided
from repro.predict.workload import Array

# Of the map, in bytes a second.
_SLOWEST, _FASTEST, _POINTS = 1e8, 1e12, 81


def break_even_bytes_per_s(one: Encoding, operation: str, size_bytes: Array, ranks: Array) -> Array:
    """The bus bandwidth of plain values in half precision above which coding costs time.

    0 where nothing is saved at any.
    """
    name = "send_recv" if operation == "message" else operation
    moved = bus_factor(name, ranks) * size_bytes
    saved = np.maximum(1.0 - one.kept, 0.0)
    if one.pipelined:
        saved = np.sign(saved)
    return np.asarray(saved * moved / one.coding_s(operation, size_bytes, ranks))


def break_even_table() -> pd.DataFrame:
    """Every codec of the study at every rate on several GPUs, for large ring all-reduces.

    Returns
    -------
    DataFrame
        `codec`, `bits` of a value on the wire, `gpu`, `gbps` of bus bandwidth above which
        compression costs time, and the interval from `low` to `high`.
    """
    study = read_compressed_training()
    rows = []
    for codec in study.codecs.values():
        for bits in codec.rates:
            for device in map(gpu, study.break_even_gpus):
                own = encoding(codec, bits, device)
                size, two = np.array([1e9]), np.array([2.0])
                rate = break_even_bytes_per_s(own, "all_reduce", size, two)[0]
                gbps = 8e-9 * float(rate)
                ends = {"low": gbps / codec.within, "high": gbps * codec.within}
                row = {"codec": codec.label, "bits": bits, "gpu": device.label, "gbps": gbps}
                rows.append(row | ends)
    return pd.DataFrame(rows)


def coding_by_hops(ranks: tuple[int, ...] = (2, 4, 8, 24, 192)) -> pd.DataFrame:
    """Bytes that a rank encodes and decodes for each byte of a ring all-reduce, by ranks (rows):
    where every hop encodes, and where what is gathered is encoded once."""
    n, size = np.array(ranks, dtype=float), np.ones(len(ranks))
    columns: dict[str, Array] = {}
    for name, every_hop in (("every hop", True), ("gathered once", False)):
        encoded, decoded, _ = coded_bytes("all_reduce", size, n, every_hop)
        columns |= {f"encoded, {name}": encoded, f"decoded, {name}": decoded}
    return pd.DataFrame(columns, index=pd.Index(ranks, name="ranks"))


def coding_rate_bytes_per_s(one: Encoding) -> float:
    """Of encoding and decoding one after the other."""
    return float(1 / (one.encode_s_per_byte + one.decode_s_per_byte))


def speed_up_map(kept: float) -> xr.DataArray:
    """How many times as fast a collective is encoded, over bus bandwidths and rates of coding
    (coding, link), both in GB/s of plain values."""
    rates = np.geomspace(_SLOWEST, _FASTEST, _POINTS)
    coding, link = rates[:, None], rates[None, :]
    times = (1 / link) / (kept / link + 1 / coding)
    axes = {"coding": 1e-9 * rates, "link": 1e-9 * rates}
    return xr.DataArray(times, axes, dims=("coding", "link"))


def ring_rates_gbytes_per_s() -> dict[str, float]:
    """What a rank's rings get of the base plan's links, by link: of tensor parallelism in a node,
    and of gradients between nodes, on the cluster's own network and with each protocol."""
    known = compressed()
    study, base = known.study, known.study.base
    tensor, one = np.array([float(base.tensor_parallel)]), np.ones(1)
    replicas = study.gpus / (tensor * base.pipeline_parallel)
    inside = strided(tensor, one, known.where)
    found = {"NVLink": ring_bytes_per_s(inside, known.parameters)}
    for name in (None, *study.protocols):
        label = protocol(name).label if name else study.cluster.capitalize()
        where = compressed(None, name).where
        found[label] = ring_bytes_per_s(strided(replicas, tensor, where), known.parameters)
    return {label: 1e-9 * float(rate[0]) for label, rate in found.items()}
