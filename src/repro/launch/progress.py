"""One progress bar over all cases of an experiment."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, NoReturn

from tqdm import tqdm

from repro.launch.cases import Case
from repro.launch.messages import Work
from repro.progress import clear_progress
from repro.train.records import TrainingRun


@dataclass
class Bar(Generic[Work]):
    """Steps done of each case, on a bar; cases may be reported on more than once."""

    _bar: "tqdm[NoReturn]"
    _done: dict[str, int] = field(default_factory=dict)

    def report(self, cases: Sequence[Case[Work]], steps: int, words: str = "") -> None:
        """Show that so many steps of cases that take turns are done, and what else goes on."""
        if not cases:
            return
        protocols = "+".join(case.protocol for case in cases)
        label = cases[0].label.replace(cases[0].protocol, protocols, 1)
        self._bar.set_postfix_str(f"{label}{', ' if words else ''}{words}")
        self._bar.update(steps - self._done.get(label, 0))
        self._done[label] = steps

    def say(self, words: str) -> None:
        """Show what is waited for."""
        self._bar.set_postfix_str(words)


@contextmanager
def progress(cases: Sequence[Case[Work]], title: str) -> Iterator[Bar[Work]]:
    """A bar as long as the context lasts."""
    training = bool(cases) and isinstance(cases[0].order.run, TrainingRun)
    unit = "it" if training else "case"
    bar: tqdm[NoReturn] = tqdm(total=sum(case.steps for case in cases), desc=title, unit=unit)
    with bar:
        yield Bar(bar)
    clear_progress()
