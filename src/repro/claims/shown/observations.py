"""What the claims are about, an observation each, and why some do not come out."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Observation:
    """What one thing is that was observed, and the claims that state it.

    `why` is why some of them do not reproduce, as far as is known (docs/limitations.md has the
    numbers); empty where nothing is known.
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
        "shares over RDMA would need slower computing than A100 measurements let expect; two GPUs"
        " of a node have the bus alone here",
    ),
    _about(
        "strong scaling: how busy NICs are",
        "C006-C012 C036-C038 C053-C060 C066-C069",
        "the published ranges are wider than shares of the time allow; whether they are averages"
        " or bursts is not stated",
    ),
    _about(
        "which model uses its NIC most",
        "C013 C014 C042 C061-C065 C086 C087",
        "it follows the share of communication, not the model's size",
    ),
    _about("weak scaling: computing", "C015 C016 C070 C071 C080"),
    _about(
        "data parallelism: RDMA's gain",
        "C017 C018 C030-C033 C072-C075 C116 C117",
        "the published shares of AllReduce imply other speed-ups than the published ones",
    ),
    _about(
        "weak scaling: AllReduce",
        "C019-C021 C039 C040 C076-C079 C081",
        "shares over RDMA would need slower computing than A100 measurements let expect",
    ),
    _about(
        "weak scaling: how busy NICs are",
        "C022-C027 C088-C094",
        "the published ranges are wider than shares of the time allow",
    ),
    _about(
        "weak scaling: NICs, 8 against 4",
        "C082-C085",
        "a ring moves 1.17 times the bytes in a time that grows alike; trees explain a part",
    ),
    _about("pipelines: computing", "C095 C096 C103 C115"),
    _about("pipelines: RDMA's gain", "C034 C035 C102 C118 C119"),
    _about(
        "pipelines: both timers",
        "C041 C097-C101",
        "mostly fill and drain, which the micro batch decides, and that is not stated",
    ),
    _about(
        "data parallelism: share by batch",
        "C028 C029 C104 C105",
        "first steps of small batches differ by less than the measurement's spread",
    ),
    _about(
        "pipelines: share by batch",
        "C107-C110",
        "at a constant micro batch a pipeline waits less as the batch grows; no schedule tried"
        " gives the opposite",
    ),
    _about(
        "largest batch that fits",
        "C106 C111 C112",
        "what is recomputed, and on which cluster, is not stated",
    ),
    _about(
        "cluster B: share on 16 GPUs",
        "C043 C113 C114 C120",
        "with one port of 100 Gbit/s a node; the published share needs about a quarter of it",
    ),
    _about(
        "GPT-350M: inside a node",
        "C123-C125 C139 C140",
        "the report's own NCCL table has twice the bandwidth of its estimate",
    ),
    _about(
        "GPT-350M: between nodes",
        "C126-C128 C137 C138",
        "the published 11.29 GB/s lacks the factor 7/8 of the report's own formula",
    ),
    _about(
        "GPT-350M: share and throughput",
        "C129-C134",
        "neither batch nor sequence length is stated; a larger micro batch comes near",
    ),
    _about(
        "sizes, tables and peaks",
        "C121 C122 C135 C136 C141",
        "which precision the system's peak is of is not stated",
    ),
    _about(
        "three levels of ZeRO",
        "C142-C145",
        "1.71 takes four micro batches or more an iteration and at most half of the nominal rate"
        " between nodes; the abstract states neither",
    ),
    _about(
        "compressed collectives",
        "C146-C151",
        "V100 encode more slowly than NVLink carries: the published plan gains 9 % at most, and 22"
        " with a quarter of the rate between nodes, values of 32 bits and coding behind the wire",
    ),
    _about(
        "what training communicates",
        "C152-C154",
        "what stages send each other in such plans are megabytes, which a link carries at its rate",
    ),
    _about(
        "hardware: from A100 to B200",
        "C155",
        "neither model, number of GPUs nor precision is stated; four times as many B200 make 35",
    ),
    _about("hardware: 12 nm to 1 nm", "C156 C157"),
    _about(
        "a summary against its abstract",
        "C158 C159",
        "the abstract that the summary quotes says otherwise",
    ),
    _about(
        "inference on CPUs",
        "C160 C161",
        "neither sockets nor precision are stated; four sockets in bf16 and two in int8 come near",
    ),
    _about(
        "other papers' errors",
        "C162-C164",
        "yardsticks of GPUs; here a CPU's operators and iterations (notebooks/operators.ipynb)",
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
