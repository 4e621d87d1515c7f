"""Megatron's T5 dataset, with every sample made to fit its decoder."""

import math
from typing import Any

from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset

MASKING_PROBABILITY = 0.15
# Mean span of the T5 paper (arXiv 1910.10683, section 3.1.4); whole words of up to ten, as Megatron
# masks them, are longer, so this is a lower bound on the mean and an upper bound on the sentinels.
_MEAN_SPAN_TOKENS = 3


def decoder_tokens_needed(sequence_length: int) -> int:
    """Give the shortest decoder that holds the masked part of a typical full sample.

    Parameters
    ----------
    sequence_length
        Length of the encoder, in tokens.

    Returns
    -------
    int
        The masked tokens, a sentinel for each span of three, and [BOS]; 103 for 512.
    """
    masked = int(MASKING_PROBABILITY * (sequence_length - 2))
    return 1 + masked + math.ceil(masked / _MEAN_SPAN_TOKENS)


class T5SpanDataset(T5MaskedWordPieceDataset):  # type: ignore[misc]
    """Megatron's T5 dataset, except for the rare sample that Megatron refuses.

    The number of spans is drawn at random. Where the masked tokens and one sentinel a span do not
    fit the decoder, or the sentinels run out, Megatron's dataset raises, in the middle of a
    training run. This one leaves the shortest spans unmasked until the sample fits.
    """

    def _create_masked_lm_predictions(
        self, token_ids: list[int], target_sequence_length: int, numpy_random_state: Any
    ) -> tuple[list[int], list[int], list[int], list[int], list[tuple[list[int], list[int]]]]:
        masked, positions, labels, boundaries, spans = super()._create_masked_lm_predictions(
            token_ids, target_sequence_length, numpy_random_state
        )
        sentinels = len(self.config.tokenizer.additional_special_tokens_ids)
        while (
            len(spans) > sentinels or _decoder_tokens(spans) > self.config.sequence_length_decoder
        ):
            indices, tokens = min(spans, key=lambda span: len(span[1]))
            for index, token in zip(indices, tokens, strict=True):
                masked[index] = token
            spans.remove((indices, tokens))
        # T5 uses the spans alone; positions and labels are BERT's.
        return masked, positions, labels, boundaries, spans


def _decoder_tokens(spans: list[tuple[list[int], list[int]]]) -> int:
    return 1 + sum(1 + len(tokens) for _, tokens in spans)
