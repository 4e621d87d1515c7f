"""Records of single collectives and messages of ranks, with the roles of their groups."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from repro.errors import ReproError

# Roles of process groups, by the prefix of Megatron-Core's description; the longest match applies.
_ROLES = {
    "default_pg": "world",
    "TENSOR_MODEL_PARALLEL": "tensor",
    "PIPELINE_MODEL_PARALLEL": "pipeline",
    "DATA_PARALLEL": "data",
    "INTRA_PARTIAL_DATA_PARALLEL": "data",
    # Groups of `repro.train.partition`, and FSDP2's for secondary copies of weights (hpZ).
    "PARTITION": "data",
    "mesh": "data",
    "CONTEXT_PARALLEL": "context",
    "HIERARCHICAL_CONTEXT_PARALLEL": "context",
    "EXPERT": "expert",
    "MODEL_PARALLEL": "optimizer",
    "INTRA_DISTRIBUTED_OPTIMIZER": "optimizer",
    "INTER_DISTRIBUTED_OPTIMIZER": "optimizer",
    "EMBEDDING": "embedding",
    "POSITION_EMBEDDING": "embedding",
}
ROLES = (*dict.fromkeys(_ROLES.values()), "other")
MESSAGES = ("send", "recv")
OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    *MESSAGES,
    "barrier",
)
# No rank can leave one of these before all ranks have entered it.
_SYNCHRONIZING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


@dataclass(frozen=True)
class Transfer:
    """One call of one rank: a collective, or one end of a message.

    Attributes
    ----------
    iteration
        Recorded iteration, from 0.
    operation
        One of `OPERATIONS`.
    role
        Role of its process group, one of `ROLES`.
    ranks
        Global ranks of the group.
    size_bytes
        Size by nccl-tests' definition: the larger of the rank's input and output.
    dtype
        Element type, by torch's name.
    phase
        Phase of the iteration at the call, one of `repro.catalog.phases.PHASES`.
    asynchronous
        Whether the caller continued before the call ended.
    peer
        Global rank at the message's other end; -1 for a collective.
    start_s, end_s
        Times of the call and of the end of the caller's wait, in seconds on the monotonic clock. On
        a GPU, the times when the compute stream reached them. `end_s` is NaN without a wait in
        Python.
    """

    iteration: int
    operation: str
    role: str
    ranks: tuple[int, ...]
    size_bytes: int
    dtype: str
    phase: str
    asynchronous: bool
    peer: int
    start_s: float
    end_s: float


def role_of(description: str, operation: str) -> str:
    """Return the role of a process group from its description.

    Between two stages, Megatron-Core sends one of the two directions through the default group, so
    that the directions do not wait for each other. Messages in that group belong to the pipeline.
    """
    if description == "default_pg" and operation in MESSAGES:
        return "pipeline"
    matches = [prefix for prefix in _ROLES if description.startswith(prefix)]
    return _ROLES[max(matches, key=len)] if matches else "other"


def check_clocks(by_rank: Sequence[Sequence[Transfer]]) -> None:
    """Check that the ranks' times are on one clock: all enter a collective before any leaves it.

    Parameters
    ----------
    by_rank
        Calls of each global rank, in order.

    Raises
    ------
    ReproError
        A rank left a collective before another rank entered it.
    """
    seen: Counter[tuple[int, str, tuple[int, ...], int]] = Counter()
    times_of: dict[tuple[object, ...], list[tuple[float, float, int]]] = defaultdict(list)
    for rank, transfers in enumerate(by_rank):
        for transfer in transfers:
            if transfer.operation in _SYNCHRONIZING and not math.isnan(transfer.end_s):
                call = (transfer.iteration, transfer.operation, transfer.ranks, rank)
                times = (transfer.start_s, transfer.end_s, rank)
                times_of[*call[:3], seen[call]].append(times)
                seen[call] += 1
    for (_, operation, *_), times_by_rank in times_of.items():
        last_s, _, late = max(times_by_rank)
        first_s, early = min((end, rank) for _, end, rank in times_by_rank)
        if first_s < last_s:
            raise ReproError(
                f"rank {early} left {operation} {last_s - first_s:.6f} s before rank {late} "
                "entered it: their clocks are not aligned; fix: run again to measure clock offsets"
            )
