"""Work done shard by shard in many processes: it survives being killed, and jobs can share it."""

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
_MOST_NAMED = 1000


@dataclass(frozen=True)
class Share:
    """Which shards a job does: those whose number divided by `of` leaves `number`."""

    number: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Read `"3/16"`: the fourth of 16 jobs, numbered as the tasks of a Slurm array."""
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal() and int(number) < int(of)):
            raise ReproError(f"share is {text!r}; it must be a job and their number, as 0/16")
        return cls(int(number), int(of))


ALL = Share()
"""One job does everything."""


@dataclass(frozen=True)
class Tally:
    """What was counted.

    Attributes
    ----------
    counts
        Numbers that add up over shards, by name.
    named
        Lines about single pages, in the corpus's order.
    """

    counts: Counter[str]
    named: list[str]


def shard_folder(target: Path, identity: Mapping[str, str | int]) -> Path:
    """Where the shards of `target` wait, named by all that their bytes depend on."""
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
    """Do the shards of a share that are not yet done.

    Parameters
    ----------
    work
        Makes files from an item; their names begin with the path it is given. It is run in another
        process, and must make the same files each time.
    items
        What each shard is made from, and where in the input it ends, in bytes.
    folder
        Where the shards are. A shard is done when `.json` with its tally is there.
    workers
        Number of processes.
    share
        Which shards to do.
    total_bytes, label
        Of the progress bar.

    Returns
    -------
    list of Path, or None
        The beginnings of all shards' names in order; None where this is one share of several, whose
        files only a job that does everything puts together: two would be in each other's way.

    Raises
    ------
    ReproError
        A worker died; what `work` raises is raised here.
    """
    parts: list[Path] = []
    bar = tqdm(total=total_bytes, unit="B", unit_scale=True, desc=label, disable=None)

    def missing() -> Iterator[tuple[Path, Item, int]]:
        before = 0
        for number, (item, end) in enumerate(items):
            parts.append(folder / f"{number:06d}")
            size, before = end - before, end
            if number % share.of != share.number or _record(parts[-1]).exists():
                if not bar.disable:
                    bar.initial += size  # not done now: it says nothing about the rate
                bar.update(size)
            else:
                yield parts[-1], item, size

    with bar, process_pool(workers) as pool:
        try:
            in_flight = _IN_FLIGHT_PER_WORKER * workers
            for size in map_in_order(pool, partial(_do, work), missing(), in_flight=in_flight):
                bar.update(size)
        except BrokenProcessPool:
            raise ReproError(
                f"{folder}: a worker died, most often for lack of memory; run again with "
                f"fewer than {workers} workers in params/corpus.yaml (finished shards are kept)"
            ) from None
    return parts if share.of == 1 else None


def _do(work: Callable[[Item, Path], Tally], task: tuple[Path, Item, int]) -> int:
    part, item, size = task
    tally = work(item, part)
    replace_text(_record(part), json.dumps({"counts": tally.counts, "named": tally.named}))
    return size


def _record(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def total(parts: Sequence[Path]) -> Tally:
    """Add up the tallies of shards; of the lines about single pages, the first thousand."""
    counts: Counter[str] = Counter()
    named: list[str] = []
    for part in parts:
        record = json.loads(_record(part).read_text(encoding="utf-8"))
        counts.update(record["counts"])
        named += record["named"][: _MOST_NAMED - len(named)]
    return Tally(counts, named)


def join(parts: Sequence[Path], suffix: str, target: Path) -> None:
    """Put the shards' files one after another into `target`, which appears whole or not at all."""
    joined = parts[0].with_name("joined" + suffix)
    with replacing(joined) as temporary, temporary.open("wb") as file:
        for part in parts:
            with part.with_name(part.name + suffix).open("rb") as source:
                shutil.copyfileobj(source, file)
    os.replace(joined, target)


def remove_shards(target: Path) -> None:
    """Remove the shards of `target`, also those of other inputs or parameters."""
    for folder in target.parent.glob(f"{target.name}.parts-*"):
        # First what says that they are done: who is killed here leaves some of their files.
        for record in folder.glob("*.json"):
            record.unlink()
        shutil.rmtree(folder)
