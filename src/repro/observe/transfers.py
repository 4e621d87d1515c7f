"""What ranks communicated: their collectives and messages, one by one."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from repro.errors import ReproError

# What process groups are for, by the beginning of Megatron-Core's description of them; the longest
# that fits counts.
_ROLES = {
    "default_pg": "world",
    "TENSOR_MODEL_PARALLEL": "tensor",
    "PIPELINE_MODEL_PARALLEL": "pipeline",
    "DATA_PARALLEL": "data",
    "INTRA_PARTIAL_DATA_PARALLEL": "data",
    # Of `repro.train.partition`, and of the second copies that FSDP2 makes groups for.
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
# No rank can leave one of these before all ranks have come to it.
_MEETINGS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")


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
        What its process group is for, one of `ROLES`.
    ranks
        The group's global ranks.
    size_bytes
        By nccl-tests' definition: the larger of what the rank gives and gets.
    dtype
        torch's name of the elements' type.
    phase
        The phase of the iteration in which it was called, one of `repro.catalog.phases.PHASES`.
    asynchronous
        Whether the caller went on before it was over.
    peer
        Global rank at the message's other end; -1 for a collective.
    start_s, end_s
        When it was called, and when its caller had waited for it, on the monotonic clock; on a GPU,
        when the stream that computes came to either. NaN if nobody waited for it in Python.
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
    """What a process group is for, by its description.

    Between two stages, Megatron-Core sends one of the two directions through the group of all
    ranks, so that the directions do not wait for each other: messages there are a pipeline's.
    """
    if description == "default_pg" and operation in MESSAGES:
        return "pipeline"
    fits = [beginning for beginning in _ROLES if description.startswith(beginning)]
    return _ROLES[max(fits, key=len)] if fits else "other"


def check_clocks(by_rank: Sequence[Sequence[Transfer]]) -> None:
    """See that the ranks' times are on one clock: all come to a collective before one leaves it.

    Parameters
    ----------
    by_rank
        What each global rank called, in order.

    Raises
    ------
    ReproError
        A rank left a collective before another one came to it.
    """
    seen: Counter[tuple[int, str, tuple[int, ...], int]] = Counter()
    met: dict[tuple[object, ...], list[tuple[float, float, int]]] = defaultdict(list)
    for rank, transfers in enumerate(by_rank):
        for one in transfers:
            if one.operation in _MEETINGS and one.end_s == one.end_s:
                call = (one.iteration, one.operation, one.ranks, rank)
                met[*call[:3], seen[call]].append((one.start_s, one.end_s, rank))
                seen[call] += 1
    for (_, operation, *_), times in met.items():
        last_s, _, late = max(times)
        first_s, early = min((end, rank) for _, end, rank in times)
        if first_s < last_s:
            raise ReproError(
                f"rank {early} left {operation} {last_s - first_s:.6f} s before rank {late} came "
                "to it: their clocks are not aligned; measure the ranks' offsets again"
            )
