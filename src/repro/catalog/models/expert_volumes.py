"""Communication volumes of mixtures of experts, computed from their shapes."""

from repro.catalog.models.open_models import DecoderShape

# Each hidden state is sent to each of its experts and back, and so are both gradients.
_TRANSFERS = 4
# The router's weight of the expert, and its gradient, are sent along in fp32.
_WEIGHTS, _WEIGHT_BYTES = 2, 4


def held_parameters(shape: DecoderShape, expert_parallel: int) -> tuple[int, int]:
    """Count a rank's parameters: replicated on all data-parallel ranks, and of its experts.

    Every `expert_parallel`-th rank holds the same experts.
    """
    common = shape.count(0)
    return common, (shape.count(shape.experts) - common) // expert_parallel


def all_to_all_bytes(
    shape: DecoderShape, sequences: float, expert_parallel: int, element_bytes: int
) -> float:
    """Return the bytes that a rank sends to others in the all-to-alls of an iteration.

    With even routing, (e-1)/e of its tokens' choices of k experts are on other ranks of a group of
    e. In each of L layers, a choice moves 4 h elements and its router weight.
    """
    choices = shape.layers * shape.experts_per_token * sequences * shape.seq
    each = _TRANSFERS * shape.hidden * element_bytes + _WEIGHTS * _WEIGHT_BYTES
    return choices * (expert_parallel - 1) / expert_parallel * each


def ring_and_all_to_all_bytes(
    shape: DecoderShape, sequences: float, expert_parallel: int, element_bytes: int
) -> float:
    """Return half of the bytes that a rank among many sends in an iteration.

    These are its gradients, which a ring all-reduce sends twice, and half of its all-to-alls.
    """
    gradients = element_bytes * sum(held_parameters(shape, expert_parallel))
    return gradients + all_to_all_bytes(shape, sequences, expert_parallel, element_bytes) / 2
