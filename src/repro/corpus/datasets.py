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
from repro.corpus.indexed import check_indexed
from repro.corpus.indices import Documents, build_indices, cache_key
from repro.corpus.t5 import MASKING_PROBABILITY, T5SpanDataset, decoder_tokens_needed
from repro.corpus.tokenizer import LocalTokenizer
from repro.errors import ReproError

_CLASSES: dict[Family, tuple[type[MegatronDataset], type[Any]]] = {
    "gpt": (GPTDataset, GPTDatasetConfig),
    "bert": (BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig),
    "t5": (T5SpanDataset, T5MaskedWordPieceDatasetConfig),
}
# Values of Megatron-LM's pretrain_gpt.py, pretrain_bert.py and pretrain_t5.py, except for GPT's
# causal mask: the model makes it, because a copy in each sample is the most expensive part of a
# batch.
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
    """Build the datasets on this rank; each rank of the default process group must call it.

    Rank 0 builds the sample indices in a temporary folder and renames it. A cache is therefore
    complete or absent, even if two jobs share it. The other ranks wait in Megatron's barriers and
    map the files. A later call with the same arguments and corpus only maps them.

    Without an initialised process group this process is rank 0; a call before the ranks start
    saves them the work. Megatron's wheel contains its compiled C++ helpers; nothing is compiled.

    Parameters
    ----------
    family
        The model family.
    data_dir
        Folder with `tokenizers/{family}.json`, `datasets/{family}.bin` and `.idx`.
    sequence_length
        Tokens per sample (T5: per encoder input).
    decoder_sequence_length
        Tokens per decoder input of T5; None for the other families.
    train_samples, valid_samples
        Minimum numbers of samples; documents are repeated to reach them.
    seed
        Seed of shuffling and masking.
    split
        Weights of training and validation, e.g. `"95,5"`.
    cache_dir
        Folder of the sample indices; all ranks must see it.

    Returns
    -------
    tuple of MegatronDataset
        Training and validation dataset.

    Raises
    ------
    ReproError
        A file is missing, an argument is out of range, or a split has no usable document.
    """
    _check_lengths(family, sequence_length, decoder_sequence_length)
    _check_range("train_samples", train_samples, 1)
    _check_range("valid_samples", valid_samples, 1)
    _check_range("seed", seed, 1)
    if split.count(",") != 1:
        # Megatron would build a test split, and loop forever if that has no document.
        raise ReproError(
            f"split is {split!r}; it must be two weights (training, validation); fix: set split "
            f"in params/corpus.yaml to two weights such as '95,5'"
        )
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
    if not cache.is_dir():
        check_indexed(prefix)
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
                f"at least {needed}"
            )
    elif decoder is not None:
        raise ReproError(
            f"decoder_sequence_length is {decoder}; {family} has no decoder; fix: omit it"
        )


def _check_range(name: str, value: int, low: int) -> None:
    high = int(np.iinfo(np.int32).max)  # Megatron's C++ helpers count in int32
    if not low <= value <= high:
        raise ReproError(f"{name} is {value}; it must be from {low} to {high}")


def _existing_prefix(family: Family, data_dir: Path) -> Path:
    prefix = (data_dir / "datasets" / family).resolve()
    for suffix in (".bin", ".idx"):
        path = prefix.with_name(family + suffix)
        if not path.is_file():
            raise ReproError(f"{path}: no such file; fix: run `repro corpus dataset {family}`")
    return prefix


def _documents(
    family: Family, dataset: type[MegatronDataset], config: Any, prefix: Path
) -> list[Documents]:
    """Return the documents of both splits, divided as Megatron does.

    A split without a usable document is refused: Megatron's helpers would search it forever.
    """
    corpus = dataset.build_low_level_dataset(str(prefix), config)
    total = dataset.numel_low_level_dataset(corpus)
    sentences = np.diff(corpus.document_indices)
    found = []
    for split in (Split.train, Split.valid):
        low, high = (round(bound * float(total)) for bound in config.split_matrix[split.value])
        if not (sentences[low:high] >= _MIN_SENTENCES[family]).any():
            raise ReproError(
                f"{prefix}: split {config.split} of {total} documents leaves none that {family} "
                f"can use for {split.name}; fix: change split in params/corpus.yaml or use a "
                f"larger dump"
            )
        found.append(np.arange(low, high, dtype=np.int32))
    return found
