"""The software that serves models: what it launches and waits for (`params/serving.yaml`)."""

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from repro.catalog.reading import Entry, read_yaml
from repro.paths import PARAMS


class ServingCosts(Entry):
    """What a software costs beside the kernels that were measured alone.

    gap_s
        Between a kernel and the next one, which waits for it.
    arrival_s
        How far apart the ranks of a collective start it, for each doubling of them.
    hop_s
        One message between nodes.
    step_s
        Each forward pass: its schedule, its inputs, what the host waits for.
    sequence_s
        Each sequence that gets a token: choosing it among the vocabulary, and keeping books.
    products
        Time of products, of what single kernels were measured to take.
    reading
        Part of the memory's rate at which an attention of its own reads caches.
    at_once_s
        An all-reduce in which each rank reads the others' parts: its start and two barriers.
    traffic
        Element-wise bytes, of what fused kernels move.
    """

    gap_s: NonNegativeFloat
    arrival_s: NonNegativeFloat
    hop_s: PositiveFloat
    step_s: NonNegativeFloat
    sequence_s: NonNegativeFloat
    products: PositiveFloat = 1.0
    reading: PositiveFloat = 0.8
    at_once_s: NonNegativeFloat = 6e-6
    traffic: PositiveFloat = 1.0


class ServingStack(Entry):
    """One software.

    `sets` are parts of names of published sets that ran on it, of which `models` (layers x hidden
    size) where it names some. `elementwise` counts its kernels of a layer beside products,
    attention and collectives, and `casts` those which only cast what its products take in where
    these are below half precision. With `stores_scores` the prompt's attention writes its scores to
    memory; with `own_decoding` caches are read by a kernel of its own, else by those that were
    measured. Where that leaves each sequence's head of keys to one multiprocessor, a head takes
    `head_s` and is read at `head_gbytes_per_s`, however few there are; with `splits_unshared` only
    those that queries share. With `reduces_at_once` small all-reduces are one kernel, else NCCL's.
    A pass has `pass_tokens` tokens at most; with `steady_pipeline` batches follow each other
    through the stages of a pipeline, else each token of all sequences waits for the one before. A
    cache is handed out in pages of `page_tokens`, 1 where it is contiguous; a tenth of the memory
    is spared, with `spares_rest` of what weights leave of it, else of all.
    `costs` that are missing are calibrated ones (`params/serving_fit.yaml`).
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
    pass_tokens: PositiveInt
    steady_pipeline: bool = True
    page_tokens: PositiveInt = 1
    spares_rest: bool = False
    costs: ServingCosts | None = None
    source: str


def read_serving_stacks() -> dict[str, ServingStack]:
    """All of them by name, in the order of the file."""
    stacks: dict[str, ServingStack] = read_yaml(PARAMS / "serving.yaml", dict[str, ServingStack])
    return stacks


def serving_stack_of(set_name: str, model: str = "") -> str:
    """The name of the software that a published set of a model (layers x hidden size) ran on; the
    first where none claims it."""
    known = read_serving_stacks()
    claiming = (
        name
        for name, one in known.items()
        if any(part in set_name for part in one.sets) and (model in one.models or not one.models)
    )
    return next(claiming, next(iter(known)))
