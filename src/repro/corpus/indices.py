"""Megatron's sample indices on disk: named by a digest of their inputs, written atomically."""

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
"""Document numbers of one split."""

_FINGERPRINT_BYTES = 1 << 20


def cache_key(
    arguments: Mapping[str, Any], sizes: Sequence[int], prefix: Path, tokenizer: LocalTokenizer
) -> str:
    """Return a digest of all inputs of the indices, which names their folder.

    Megatron's own names depend on the corpus's path but not on its content. A replaced corpus
    would get the indices of its predecessor.

    Parameters
    ----------
    arguments
        Arguments of the dataset's configuration, except the tokenizer and the cache.
    sizes
        Requested number of samples of each split.
    prefix
        Path of the tokenized corpus without suffix.
    tokenizer
        The corpus's tokenizer.

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
    # Only both ends and the size are read, because each rank calls this and the full Wikipedia's
    # .idx has 2 GB. The ends contain the counts, the first lengths and the last positions.
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
    """Build the indices of both splits in `cache`, which is complete or absent.

    Parameters
    ----------
    dataset
        Class of the datasets.
    config
        Configuration of the datasets.
    prefix
        Path of the tokenized corpus without suffix.
    documents
        Documents of training and validation.
    sizes
        Requested number of samples of each split.
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
        if not cache.is_dir():  # else another job has made the same indices
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _process_group() -> Iterator[None]:
    """Make a process group of one rank if there is none: Megatron's masked datasets need a rank."""
    if dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()
