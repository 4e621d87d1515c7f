"""Megatron's T5 dataset, with spans limited so that each sample fits the decoder."""

import math
from typing import Any

from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset

MASKING_PROBABILITY = 0.15
# Mean span of the T5 paper (arXiv 1910.10683, section 3.1.4). Megatron masks whole words, up to ten
# at once, so its mean span is longer and it uses fewer sentinels.
_MEAN_SPAN_TOKENS = 3


def decoder_tokens_needed(sequence_length: int) -> int:
    """Return the shortest decoder that holds the masked part of a typical full sample.

    Parameters
    ----------
    sequence_length
        Length of the encoder, in tokens.

    Returns
    -------
    int
        Masked tokens, one sentinel per three of them, and [BOS]; 103 for 512 tokens.
    """
    masked = int(MASKING_PROBABILITY * (sequence_length - 2))
    return 1 + masked + math.ceil(masked / _MEAN_SPAN_TOKENS)


class T5SpanDataset(T5MaskedWordPieceDataset):  # type: ignore[misc]
    """Megatron's T5 dataset that never raises on a sample with too many spans.

    The number of spans is random. Megatron's dataset raises during training if the masked tokens
    and one sentinel per span exceed the decoder, or the sentinels run out. This class unmasks the
    shortest spans until the sample fits.
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
        # T5 uses only the spans; positions and labels are for BERT.
        return masked, positions, labels, boundaries, spans


def _decoder_tokens(spans: list[tuple[list[int], list[int]]]) -> int:
    return 1 + sum(1 + len(tokens) for _, tokens in spans)
