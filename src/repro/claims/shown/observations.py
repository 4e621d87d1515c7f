"""Observations: claims grouped by what they state, with the known reason where they fail."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Observation:
    """One published observation and the claims that state it.

    `why` is the known reason why some of them do not reproduce; empty where none is known.
    """

    name: str
    claims: tuple[str, ...]
    why: str = ""


def _about(name: str, claims: str, why: str = "") -> Observation:
    """`claims` are ids and ranges of them: `C001 C044-C047`."""
    found: list[str] = []
    for first, last in re.findall(r"C(\d+)(?:-C(\d+))?", claims):
        found += [f"C{number:03d}" for number in range(int(first), int(last or first) + 1)]
    return Observation(name, tuple(found), why)


OBSERVATIONS = (
    _about("strong scaling: computing", "C001 C002 C044-C047"),
    _about(
        "strong scaling: AllReduce",
        "C003-C005 C048-C052",
        "the published shares over RDMA need slower computing than published A100 runs show; here"
        " two GPUs of a node share a bus with nobody else",
    ),
    _about(
        "strong scaling: NIC utilisation",
        "C006-C012 C036-C038 C053-C060 C066-C069",
        "the published ranges are wider than communication fractions allow; the paper does not say"
        " whether they are averages or bursts",
    ),
    _about(
        "NIC utilisation by model",
        "C013 C014 C042 C061-C065 C086 C087",
        "utilisation follows the communication fraction, not the size of the model",
    ),
    _about("weak scaling: computing", "C015 C016 C070 C071 C080"),
    _about(
        "data parallelism: speed-up by RDMA",
        "C017 C018 C030-C033 C072-C075 C116 C117",
        "the published shares of AllReduce imply other speed-ups than the published ones",
    ),
    _about(
        "weak scaling: AllReduce",
        "C019-C021 C039 C040 C076-C079 C081",
        "the published shares over RDMA need slower computing than published A100 runs show",
    ),
    _about(
        "weak scaling: NIC utilisation",
        "C022-C027 C088-C094",
        "the published ranges are wider than communication fractions allow",
    ),
    _about(
        "weak scaling: NIC utilisation, 8 vs 4 GPUs",
        "C082-C085",
        "from 4 to 8 GPUs a ring moves 1.17 times the bytes, and its time grows as much; tree"
        " algorithms explain a part",
    ),
    _about("pipelines: computing", "C095 C096 C103 C115"),
    _about("pipelines: speed-up by RDMA", "C034 C035 C102 C118 C119"),
    _about(
        "pipelines: forward-receive and embedding-sync timers",
        "C041 C097-C101",
        "both timers hold mostly pipeline fill and drain, which depend on the micro batch size; the"
        " paper does not state it",
    ),
    _about(
        "data parallelism: communication fraction by batch",
        "C028 C029 C104 C105",
        "the fractions at small batches differ by less than the spread of the measurement",
    ),
    _about(
        "pipelines: communication fraction by batch",
        "C107-C110",
        "at a constant micro batch size, a pipeline waits less as the batch grows; no schedule"
        " tried gives the opposite",
    ),
    _about(
        "largest batch that fits",
        "C106 C111 C112",
        "the paper states neither the recomputation policy nor the cluster",
    ),
    _about(
        "cluster B: communication fraction on 16 GPUs",
        "C043 C113 C114 C120",
        "one port of 100 Gbit/s per node is assumed; the published fraction needs a quarter of it",
    ),
    _about(
        "GPT-350M: inside a node",
        "C123-C125 C139 C140",
        "the report's own NCCL table shows twice the bandwidth that the report estimates",
    ),
    _about(
        "GPT-350M: between nodes",
        "C126-C128 C137 C138",
        "the published 11.29 GB/s lacks the factor 7/8 of the report's own formula",
    ),
    _about(
        "GPT-350M: communication fraction and throughput",
        "C129-C134",
        "the report states neither batch nor sequence length; a larger micro batch comes near",
    ),
    _about(
        "sizes, tables and peaks",
        "C121 C122 C135 C136 C141",
        "the report does not state the precision of the system's peak",
    ),
    _about(
        "three levels of ZeRO",
        "C142-C145",
        "1.71x needs four or more micro batches per iteration and at most half of the nominal rate"
        " between nodes; the abstract states neither",
    ),
    _about(
        "compressed collectives",
        "C146-C151",
        "a V100 encodes more slowly than NVLink transfers: the published plan gains at most 9 %;"
        " 22 % needs a quarter of the rate between nodes, fp32 messages, encoding after transfer",
    ),
    _about(
        "communication characteristics of training",
        "C152-C154",
        "stages of such plans exchange megabytes per message, which a link carries at full rate",
    ),
    _about(
        "hardware: from A100 to B200",
        "C155",
        "the paper states neither model, GPU count nor precision; four times as many B200 give 35x",
    ),
    _about("hardware: 12 nm to 1 nm", "C156 C157"),
    _about(
        "a summary compared with its abstract",
        "C158 C159",
        "the abstract that the summary quotes contradicts it",
    ),
    _about(
        "inference on CPUs",
        "C160 C161",
        "neither sockets nor precision are stated; four sockets in bf16, or two in int8, come near",
    ),
    _about(
        "prediction errors of other papers",
        "C162-C164",
        "several GPUs there, single ones here (notebooks/operators.ipynb): no table is sharded",
    ),
)


def observation_of(claim: str) -> Observation:
    """The observation that a claim states.

    Raises
    ------
    KeyError
        The claim is not judged here.
    """
    return _BY_CLAIM[claim]


_BY_CLAIM = {claim: one for one in OBSERVATIONS for claim in one.claims}
