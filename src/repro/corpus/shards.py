"""Resumable work on shards in many processes, which several jobs can divide between them."""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from repro.atomic import replace_text, replacing
from repro.errors import ReproError
from repro.processes import map_in_order, process_pool

Item = TypeVar("Item")

_IN_FLIGHT_PER_WORKER = 2
_MAX_NAMED = 1000


@dataclass(frozen=True)
class Share:
    """The shards of one job: every `jobs`-th shard, starting with number `job`."""

    job: int = 0
    jobs: int = 1

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Parse `"3/16"`: the fourth of 16 jobs, numbered as the tasks of a Slurm array."""
        job, _, jobs = text.partition("/")
        if not (job.isdecimal() and jobs.isdecimal() and int(job) < int(jobs)):
            raise ReproError(
                f"share is {text!r}; it must be JOB/JOBS, from 0/16 to 15/16 for 16 jobs"
            )
        return cls(int(job), int(jobs))


ALL_SHARDS = Share()
"""Share of a job that does all shards."""


@dataclass(frozen=True)
class Tally:
    """Counts of one shard.

    Attributes
    ----------
    counts
        Counts by name, which can be added over shards.
    named
        Lines about single pages, in corpus order.
    """

    counts: Counter[str]
    named: list[str]


def shard_folder(target: Path, identity: Mapping[str, str | int]) -> Path:
    """Return the folder of `target`'s shards, named by a digest of all inputs of their bytes."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return target.with_name(f"{target.name}.parts-{digest[:12]}")


def run_shards(
    work: Callable[[Item, Path], Tally],
    items: Iterable[tuple[Item, int]],
    folder: Path,
    *,
    workers: int,
    share: Share,
    total_bytes: int,
    label: str,
) -> list[Path] | None:
    """Do the unfinished shards of a share.

    Parameters
    ----------
    work
        Function that makes a shard's files from an item; their names start with the given path.
        It runs in another process, and must always make the same files.
    items
        Input of each shard, and the byte of the whole input at which it ends.
    folder
        Folder of the shards. A shard is finished when its tally (`.json`) is there.
    workers
        Number of processes.
    share
        The shards to do.
    total_bytes, label
        Total and label of the progress bar.

    Returns
    -------
    list of Path, or None
        Paths of all shards in order, without suffixes. None if this is one share of several: only
        a job that does all shards concatenates them, because two would overwrite each other.

    Raises
    ------
    ReproError
        A worker died. Exceptions of `work` are raised unchanged.
    """
    shards: list[Path] = []
    bar = tqdm(total=total_bytes, unit="B", unit_scale=True, desc=label, disable=None)

    def unfinished() -> Iterator[tuple[Path, Item, int]]:
        before = 0
        for number, (item, end) in enumerate(items):
            shards.append(folder / f"{number:06d}")
            size, before = end - before, end
            if number % share.jobs != share.job or _tally_file(shards[-1]).exists():
                if not bar.disable:
                    bar.initial += size  # skipped, so it must not count for the rate
                bar.update(size)
            else:
                yield shards[-1], item, size

    with bar, process_pool(workers) as pool:
        try:
            in_flight = _IN_FLIGHT_PER_WORKER * workers
            run = partial(_run_shard, work)
            for size in map_in_order(pool, run, unfinished(), in_flight=in_flight):
                bar.update(size)
        except BrokenProcessPool:
            raise ReproError(
                f"{folder}: a worker died, most often for lack of memory; fix: set workers in "
                f"params/corpus.yaml below {workers} and run again (finished shards are kept)"
            ) from None
    return shards if share.jobs == 1 else None


def _run_shard(work: Callable[[Item, Path], Tally], task: tuple[Path, Item, int]) -> int:
    shard, item, size = task
    tally = work(item, shard)
    replace_text(_tally_file(shard), json.dumps({"counts": tally.counts, "named": tally.named}))
    return size


def _tally_file(shard: Path) -> Path:
    return shard.with_name(shard.name + ".json")


def sum_tallies(shards: Sequence[Path]) -> Tally:
    """Add up the tallies of shards, with at most a thousand lines about single pages."""
    counts: Counter[str] = Counter()
    named: list[str] = []
    for shard in shards:
        tally = json.loads(_tally_file(shard).read_text(encoding="utf-8"))
        counts.update(tally["counts"])
        named += tally["named"][: _MAX_NAMED - len(named)]
    return Tally(counts, named)


def concatenate(shards: Sequence[Path], suffix: str, target: Path) -> None:
    """Concatenate the shards' files with a suffix to `target`, which is complete or absent."""
    joined = shards[0].with_name("joined" + suffix)
    with replacing(joined) as temporary, temporary.open("wb") as file:
        for shard in shards:
            with shard.with_name(shard.name + suffix).open("rb") as source:
                shutil.copyfileobj(source, file)
    os.replace(joined, target)


def remove_shards(target: Path) -> None:
    """Remove the shards of `target`, including those of other inputs or parameters."""
    for folder in target.parent.glob(f"{target.name}.parts-*"):
        # Tallies are removed first: a process killed here leaves no incomplete finished shard.
        for tally in folder.glob("*.json"):
            tally.unlink()
        shutil.rmtree(folder)
