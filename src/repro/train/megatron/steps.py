"""Forward step of each family: from a batch to the output and its loss function."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional

from repro.catalog.models.papers import Family
from repro.catalog.systems.nodes import Attention

Batch = dict[str, torch.Tensor]
LossFunction = Callable[[Any], tuple[torch.Tensor, dict[str, torch.Tensor]]]
ForwardStep = Callable[[Iterator[Batch], torch.nn.Module], tuple[Any, LossFunction]]
# Masks of T5's encoder, decoder and cross attention.
_Masks = tuple[Any, Any, Any]


def forward_step(family: Family, attention: Attention = "megatron") -> ForwardStep:
    """Return Megatron-Core's `forward_step_func` for a family with this attention."""
    masks = _padding_masks if attention == "transformer-engine" else _pair_masks
    steps: dict[Family, ForwardStep] = {
        "gpt": _gpt_step,
        "bert": _bert_step,
        "t5": partial(_t5_step, masks),
    }
    return steps[family]


def _masked_mean(losses: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    mask = mask.float()
    return (losses.float() * mask).sum() / mask.sum().clamp(min=1)


def _reported(loss: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    # The schedule divides the loss by the number of micro batches in place.
    return loss, {"loss": loss.detach().clone()}


def _gpt_step(batches: Iterator[Batch], model: torch.nn.Module) -> tuple[Any, LossFunction]:
    batch = next(batches)
    length = batch["tokens"].shape[1]
    future = torch.ones(length, length, dtype=torch.bool, device=batch["tokens"].device).triu(1)
    output = model(
        batch["tokens"], batch["position_ids"], future[None, None], labels=batch["labels"]
    )
    return output, lambda losses: _reported(_masked_mean(losses, batch["loss_mask"]))


def _bert_step(batches: Iterator[Batch], model: torch.nn.Module) -> tuple[Any, LossFunction]:
    batch = next(batches)
    output = model(
        batch["text"],
        batch["padding_mask"],
        tokentype_ids=batch["types"],
        lm_labels=batch["labels"],
    )

    def loss(outputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, Batch]:
        masked, order = outputs
        sentence_order = functional.cross_entropy(order.view(-1, 2).float(), batch["is_random"])
        return _reported(_masked_mean(masked, batch["loss_mask"]) + sentence_order)

    return output, loss


def _t5_step(
    masks: Callable[[torch.Tensor, torch.Tensor], _Masks],
    batches: Iterator[Batch],
    model: torch.nn.Module,
) -> tuple[Any, LossFunction]:
    batch = next(batches)
    output = model(
        batch["text_enc"],
        batch["text_dec"],
        *masks(batch["enc_mask"].bool(), batch["dec_mask"].bool()),
        lm_labels=batch["labels"],
    )
    return output, lambda losses: _reported(_masked_mean(losses, batch["loss_mask"]))


def _pair_masks(encoder: torch.Tensor, decoder: torch.Tensor) -> _Masks:
    length = decoder.shape[1]
    past = torch.ones(length, length, dtype=torch.bool, device=decoder.device).tril()
    return (
        _hidden(encoder, encoder),
        ~(~_hidden(decoder, decoder) & past),
        _hidden(decoder, encoder),
    )


def _padding_masks(encoder: torch.Tensor, decoder: torch.Tensor) -> _Masks:
    """Return the masks of Transformer Engine since release 1.10: true where a token is padding.

    Its decoder attends causally and needs no mask; cross attention has masks of queries and keys.
    """
    keys, queries = (~tokens[:, None, None] for tokens in (encoder, decoder))
    return keys, None, (queries, keys)


def _hidden(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return an attention mask (batch, 1, query, key), true where padding hides a key."""
    return ~(queries[:, None, :, None] & keys[:, None, None, :])
