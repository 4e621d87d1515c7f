"""What mixtures of experts communicate, from their shapes alone: gradients by group, exchanges."""

from repro.catalog.models.open_models import DecoderShape

# A token's hidden state goes to each of its experts and back, and so do the gradients of both.
_EXCHANGES = 4
# With it goes the weight of its expert, and that one's gradient, both in fp32.
_WEIGHTS, _WEIGHT_BYTES = 2, 4


def held_parameters(shape: DecoderShape, expert_parallel: int) -> tuple[int, int]:
    """Parameters that a rank has in common with all data-parallel ranks, and those of its experts,
    which every `expert_parallel`-th rank has."""
    common = shape.count(0)
    return common, (shape.count(shape.experts) - common) // expert_parallel


def exchanged_bytes(
    shape: DecoderShape, sequences: float, expert_parallel: int, element_bytes: int
) -> float:
    """What a rank sends to others in the all-to-alls of an iteration of so many sequences.

    Of its tokens' k choices of an expert, (e-1)/e fall on other ranks of a group of e, where they
    are even: 4 h elements each, L layers, and the choices' weights.
    """
    choices = shape.layers * shape.experts_per_token * sequences * shape.seq
    each = _EXCHANGES * shape.hidden * element_bytes + _WEIGHTS * _WEIGHT_BYTES
    return choices * (expert_parallel - 1) / expert_parallel * each


def ring_and_exchange_bytes(
    shape: DecoderShape, sequences: float, expert_parallel: int, element_bytes: int
) -> float:
    """Half of what a rank of many sends in an iteration: all gradients that it holds, which rings
    send twice, and half of its exchanges. Of a dense model these are its gradients."""
    gradients = element_bytes * sum(held_parameters(shape, expert_parallel))
    return gradients + exchanged_bytes(shape, sequences, expert_parallel, element_bytes) / 2
