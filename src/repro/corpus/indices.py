"""The sample indices that Megatron keeps on disk: named by their content, written whole."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import megatron.core
import numpy as np
import torch.distributed as dist
from megatron.core.datasets.megatron_dataset import MegatronDataset
from megatron.core.datasets.utils import Split

from repro.atomic import temporary_sibling
from repro.corpus.tokenizer import LocalTokenizer

Documents = np.ndarray[Any, np.dtype[np.int32]]
"""Numbers of the documents of one split."""

_FINGERPRINT_BYTES = 1 << 20


def cache_key(
    arguments: Mapping[str, Any], sizes: Sequence[int], prefix: Path, tokenizer: LocalTokenizer
) -> str:
    """Name the folder of the indices after all that they depend on.

    Megatron's own names have the corpus's path but not its content, and would serve the indices of
    a corpus that has since been replaced.

    Parameters
    ----------
    arguments
        Of the dataset's configuration; without the tokenizer and the cache.
    sizes
        Samples wanted of each split.
    prefix
        The tokenized corpus.
    tokenizer
        Its tokenizer.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    description = {
        **arguments,
        "sizes": sizes,
        "corpus": _fingerprint(prefix.with_name(prefix.name + ".idx")),
        "tokenizer": tokenizer.sha256,
        "megatron": megatron.core.__version__,
    }
    text = json.dumps(description, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _fingerprint(path: Path) -> str:
    # The .idx of the full Wikipedia has 2 GB, and every rank comes here: its ends and size suffice,
    # since they hold the counts, the first articles' lengths and the last articles' positions.
    digest = hashlib.sha256()
    size = path.stat().st_size
    with path.open("rb") as file:
        digest.update(file.read(_FINGERPRINT_BYTES))
        file.seek(max(0, size - _FINGERPRINT_BYTES))
        digest.update(file.read())
    return f"{size}-{digest.hexdigest()}"


def build_indices(
    dataset: type[MegatronDataset],
    config: Any,
    prefix: Path,
    documents: Sequence[Documents],
    sizes: Sequence[int],
    cache: Path,
) -> None:
    """Build the indices of both splits into `cache`, which appears complete or not at all.

    Parameters
    ----------
    dataset
        The class of the datasets.
    config
        Their configuration.
    prefix
        The tokenized corpus.
    documents
        The documents of training and validation.
    sizes
        Samples wanted of each.
    cache
        The folder to make; another job may make it at the same time.
    """
    temporary = temporary_sibling(cache)
    local = replace(config, path_to_cache=str(temporary))
    corpus = dataset.build_low_level_dataset(str(prefix), local)
    try:
        with _process_group():
            for split in (Split.train, Split.valid):
                number = split.value
                dataset(corpus, str(prefix), documents[number], sizes[number], split, local)
        os.rename(temporary, cache)
    except OSError:
        if not cache.is_dir():  # else another job was faster, and its indices are the same
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _process_group() -> Iterator[None]:
    """Be a group of one where there is none: Megatron's masked datasets ask for their rank."""
    if dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()
