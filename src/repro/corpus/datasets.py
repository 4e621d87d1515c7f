"""Megatron's training and validation datasets over the tokenized corpus."""

from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from megatron.core.datasets.bert_dataset import (
    BERTMaskedWordPieceDataset,
    BERTMaskedWordPieceDatasetConfig,
)
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.megatron_dataset import MegatronDataset
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDatasetConfig
from megatron.core.datasets.utils import Split

from repro.catalog.models.papers import Family
from repro.corpus.indices import Documents, build_indices, cache_key
from repro.corpus.t5 import MASKING_PROBABILITY, T5SpanDataset, decoder_tokens_needed
from repro.corpus.tokenizer import LocalTokenizer
from repro.errors import ReproError

_CLASSES: dict[Family, tuple[type[MegatronDataset], type[Any]]] = {
    "gpt": (GPTDataset, GPTDatasetConfig),
    "bert": (BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig),
    "t5": (T5SpanDataset, T5MaskedWordPieceDatasetConfig),
}
# As Megatron-LM's pretrain_gpt.py, pretrain_bert.py and pretrain_t5.py set them; but GPT's causal
# mask is left to the model, for a copy of it in every sample is the dearest part of a batch.
_MASKED = {
    "masking_probability": MASKING_PROBABILITY,
    "short_sequence_probability": 0.1,
    "masking_do_full_word": True,
    "masking_do_permutation": False,
    "masking_use_longer_ngrams": False,
}
_SETTINGS: dict[Family, dict[str, Any]] = {
    "gpt": {
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
    },
    "bert": {
        **_MASKED,
        "masking_max_ngram": 3,
        "masking_use_geometric_distribution": False,
        "classification_head": True,
    },
    "t5": {**_MASKED, "masking_max_ngram": 10, "masking_use_geometric_distribution": True},
}
# BERT's next-sentence task needs two sentences of one document.
_MIN_SENTENCES: dict[Family, int] = {"gpt": 1, "bert": 2, "t5": 1}
_SHORTEST_SEQUENCE = 16


def build_datasets(
    family: Family,
    data_dir: Path,
    *,
    sequence_length: int,
    decoder_sequence_length: int | None = None,
    train_samples: int,
    valid_samples: int,
    seed: int,
    split: str,
    cache_dir: Path,
) -> tuple[MegatronDataset, MegatronDataset]:
    """Build the datasets on this rank; every rank of the default process group must call it.

    Rank 0 builds the sample indices in a temporary folder and renames it, so a cache is complete
    or absent even when two jobs share it; the other ranks wait in Megatron's own barriers and map
    the files. A later call with the same arguments over the same corpus only maps them. Without
    an initialised process group this process is rank 0; called so before the ranks start, it
    spares them the work. Megatron's C++ helpers come compiled in its wheel; nothing is compiled.

    Parameters
    ----------
    family
        Which model family.
    data_dir
        Holds `tokenizers/{family}.json` and `datasets/{family}.bin` and `.idx`.
    sequence_length
        Tokens in a sample; in T5's encoder.
    decoder_sequence_length
        Tokens in T5's decoder; None for the others.
    train_samples, valid_samples
        Samples wanted; documents are repeated as often as it takes, and there may be more.
    seed
        Shuffles and masks.
    split
        Weights of training and validation, e.g. `"95,5"`.
    cache_dir
        Holds the sample indices; all ranks must see it.

    Returns
    -------
    tuple of MegatronDataset
        Training and validation.

    Raises
    ------
    ReproError
        A file is missing, an argument out of range, or a split without usable documents.
    """
    _check_lengths(family, sequence_length, decoder_sequence_length)
    _check_range("train_samples", train_samples, 1)
    _check_range("valid_samples", valid_samples, 1)
    _check_range("seed", seed, 1)
    if split.count(",") != 1:
        # Megatron would build a test split, and without end if it gets no document.
        raise ReproError(f"split is {split!r}; it must be two weights (training, validation)")
    prefix = _existing_prefix(family, data_dir)
    tokenizer = LocalTokenizer(data_dir / "tokenizers" / f"{family}.json")
    lengths = {} if family != "t5" else {"sequence_length_decoder": decoder_sequence_length}
    arguments = {
        "random_seed": seed,
        "sequence_length": sequence_length,
        "blend": ([str(prefix)], None),
        "split": split,
        **lengths,
        **_SETTINGS[family],
    }
    sizes = [train_samples, valid_samples, 0]
    cache = cache_dir / f"{family}-{cache_key(arguments, sizes, prefix, tokenizer)}"
    dataset, configuration = _CLASSES[family]
    config = configuration(**arguments, tokenizer=tokenizer, path_to_cache=str(cache))
    documents = _documents(family, dataset, config, prefix)
    rank = dist.get_rank() if dist.is_initialized() else 0
    if rank == 0 and not cache.is_dir():
        build_indices(dataset, config, prefix, documents, sizes, cache)
    train, valid, _ = BlendedMegatronDatasetBuilder(dataset, sizes, lambda: True, config).build()
    return train, valid


def _check_lengths(family: Family, sequence: int, decoder: int | None) -> None:
    _check_range("sequence_length", sequence, _SHORTEST_SEQUENCE)
    if family == "t5":
        needed = decoder_tokens_needed(sequence)
        if decoder is None or decoder < needed:
            raise ReproError(
                f"decoder_sequence_length is {decoder}; with sequence_length {sequence} t5 needs "
                f"{needed} or more"
            )
    elif decoder is not None:
        raise ReproError(f"decoder_sequence_length is {decoder}; {family} has no decoder: drop it")


def _check_range(name: str, value: int, low: int) -> None:
    high = int(np.iinfo(np.int32).max)  # what Megatron's C++ helpers count in
    if not low <= value <= high:
        raise ReproError(f"{name} is {value}; it must be from {low} to {high}")


def _existing_prefix(family: Family, data_dir: Path) -> Path:
    prefix = (data_dir / "datasets" / family).resolve()
    for suffix in (".bin", ".idx"):
        path = prefix.with_name(family + suffix)
        if not path.is_file():
            raise ReproError(f"{path}: no such file; make it with `repro corpus dataset {family}`")
    return prefix


def _documents(
    family: Family, dataset: type[MegatronDataset], config: Any, prefix: Path
) -> list[Documents]:
    """Give the documents of both splits as Megatron divides them, refusing a useless split.

    Over a split without one usable document Megatron's helpers search for samples for ever.
    """
    corpus = dataset.build_low_level_dataset(str(prefix), config)
    total = dataset.numel_low_level_dataset(corpus)
    sentences = np.diff(corpus.document_indices)
    found = []
    for split in (Split.train, Split.valid):
        low, high = (round(bound * float(total)) for bound in config.split_matrix[split.value])
        if not (sentences[low:high] >= _MIN_SENTENCES[family]).any():
            raise ReproError(
                f"{prefix}: split {config.split} of {total} documents leaves "
                f"none that {family} can use for {split.name}; change split in params/corpus.yaml "
                f"or use a larger dump"
            )
        found.append(np.arange(low, high, dtype=np.int32))
    return found
