"""One progress bar over all cases of an experiment."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, NoReturn

from tqdm import tqdm

from repro.launch.cases import Case
from repro.launch.messages import Work
from repro.train.records import TrainingRun


@dataclass
class Bar(Generic[Work]):
    """Steps done of each case, on a bar; a case may be reported on more than once."""

    _bar: "tqdm[NoReturn]"
    _done: dict[str, int] = field(default_factory=dict)

    def report(self, case: Case[Work], steps: int) -> None:
        """Show that so many steps of a case are done."""
        self._bar.set_postfix_str(case.label)
        self._bar.update(steps - self._done.get(case.label, 0))
        self._done[case.label] = steps

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
