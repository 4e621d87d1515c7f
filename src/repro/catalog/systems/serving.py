"""Serving software: its kernels and its costs (`params/serving.yaml`)."""

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, read_params


class ServingCosts(Entry):
    """Costs of a serving software in addition to kernels that were measured alone.

    Attributes
    ----------
    gap_s
        Time between a kernel and the next one, which depends on it.
    arrival_s
        Skew between the ranks that start a collective, per doubling of their number.
    hop_s
        Time of one message between nodes.
    step_s
        Time of each forward pass for scheduling, inputs and host synchronization.
    sequence_s
        Time per sequence that gets a token, for sampling and bookkeeping.
    products
        Factor on the measured time of single matmul kernels.
    reading
        Fraction of the memory rate at which a decoding kernel of its own reads caches.
    at_once_s
        Time to start a one-shot all-reduce, in which each rank reads the others' parts, with its
        two barriers.
    traffic
        Factor on the bytes that fused element-wise kernels move.
    experts
        Factor on matmuls of experts, whose tokens are uneven, in addition to `products`.
    fp4
        Factor on matmuls of 4-bit operands, in addition to `products`.
    routing_s
        Time of a mixture of experts to sort, gather and scatter tokens.
    collectives
        Factor on the measured time of single collectives.
    straggling, apart
        Fractions of a pass that ranks wait for the slowest one, per doubling of their number: those
        that divide a tensor, and groups with sequences of their own that share experts.
    relay_s
        Time per sequence that gets a token in which hosts of pipeline stages pass it on, per
        doubling of their number.
    """

    gap_s: NonNegativeFloat
    arrival_s: NonNegativeFloat
    hop_s: PositiveFloat = 1e-5
    step_s: NonNegativeFloat
    sequence_s: NonNegativeFloat
    products: PositiveFloat = 1.0
    reading: PositiveFloat = 0.8
    at_once_s: NonNegativeFloat = 6e-6
    traffic: PositiveFloat = 1.0
    experts: PositiveFloat = 1.0
    fp4: PositiveFloat = 1.0
    routing_s: NonNegativeFloat = 0.0
    collectives: PositiveFloat = 1.0
    straggling: NonNegativeFloat = 0.0
    apart: NonNegativeFloat = 0.0
    relay_s: NonNegativeFloat = 0.0


class ServingStack(Entry):
    """Serving software.

    `sets` are parts of the names of published sets that ran on it; `models` (layers x hidden size)
    restricts them if given. `elementwise` counts the kernels of a layer other than matmuls,
    attention and collectives. `casts` counts those that only cast a matmul's inputs to below half
    precision. With `stores_scores`, the prompt's attention writes its scores to memory.

    With `own_decoding`, a kernel of its own reads caches; otherwise the measured kernels do. If
    that leaves each sequence's head of keys to one multiprocessor, a head takes `head_s` and is
    read at `head_gbytes_per_s`, however few heads there are; with `splits_unshared`, only heads
    that queries share. With `reduces_at_once`, small all-reduces are one kernel, otherwise NCCL's.
    With `gathers_tokens`, all ranks that share experts gather the tokens of all, otherwise each
    token is sent to its experts. Releases from `spreads_experts_since` on reach a mixture's
    throughput with attention on each GPU and experts spread over all of them (DEP). A pass has at
    most `pass_tokens` tokens, and `most_sequences` run at once. With `reserves`, a sequence starts
    when there is memory for its whole answer; otherwise its cache grows. With `steady_pipeline`,
    batches follow each other through the pipeline stages; otherwise each token of all sequences
    waits for the previous one. A cache is allocated in pages of `page_tokens`, 1 if it is
    contiguous. A tenth of the memory stays free: of the memory that weights leave with
    `spares_rest`, otherwise of all memory. Missing `costs` are calibrated
    (`params/serving_fit.yaml`), or those of the software that it is `like`.
    """

    label: str
    sets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    elementwise: PositiveInt
    casts: NonNegativeInt = 0
    stores_scores: bool = False
    own_decoding: bool = False
    head_s: NonNegativeFloat = 0.0
    head_gbytes_per_s: PositiveFloat | None = None
    splits_unshared: bool = False
    reduces_at_once: bool = False
    gathers_tokens: bool = False
    spreads_experts_since: PositiveFloat | None = None
    pass_tokens: PositiveInt
    most_sequences: PositiveInt = 1 << 20
    reserves: bool = True
    steady_pipeline: bool = True
    page_tokens: PositiveInt = 1
    spares_rest: bool = False
    costs: ServingCosts | None = None
    like: str = ""
    source: str


def read_serving_stacks() -> dict[str, ServingStack]:
    """Read all serving software by name, in the order of the file."""
    stacks: dict[str, ServingStack] = read_params("serving.yaml", dict[str, ServingStack])
    return stacks


def serving_stack_of(set_name: str, model: str = "") -> str:
    """Return the name of the software that a published set of a model ran on.

    `model` is layers x hidden size. If no software claims the set, it is the first of the file.
    """
    stacks = read_serving_stacks()
    matches = (
        name
        for name, stack in stacks.items()
        if any(part in set_name for part in stack.sets)
        and (model in stack.models or not stack.models)
    )
    return next(matches, next(iter(stacks)))
