"""How far a command is: a bar on a terminal, plain lines everywhere else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from headlab.cli.app import err
from headlab.wording import in_words

_TENTH = 0.1  # of the work between two lines,
_SOONEST = 3.0  # but not so often that a short command fills the log,
_LATEST = 30.0  # nor so seldom that a long one looks dead (seconds)
_LOOK = 1.0


class Lines:
    """Says how far the work is, in lines of plain text: a log has no bars.

    A line comes with each tenth of the work, and after half a minute without one.
    """

    def __init__(self, what: str, total: float):
        self.what, self.total, self.done = what, total, 0.0
        self._start: tuple[float, float] | None = None  # when first looked at, and how far it was
        self._said_at, self._said = time.monotonic(), 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def advance(self, done: float) -> None:
        self.done += done

    def _watch(self) -> None:
        while not self._over.wait(_LOOK):
            line = self.line(time.monotonic())
            if line is not None:
                err.print(escape(line), highlight=False, soft_wrap=True)

    def line(self, now: float) -> str | None:
        """What there is to say at this moment, if anything."""
        share = min(1.0, self.done / self.total) if self.total else 0.0
        if self._start is None:  # what a resumed fit brings along was not done now
            self._start = now, share
        quiet_for = now - self._said_at
        due = share - self._said >= _TENTH - 1e-9 and quiet_for >= _SOONEST
        if not due and quiet_for < _LATEST:
            return None
        self._said_at = now
        self._said = _TENTH * int(share / _TENTH + 1e-9)
        begun, before = self._start
        left = (now - begun) * (1 - share) / (share - before) if share > before else None
        about = "" if left is None else f", about {in_words(round(left))} left"
        return f"{self.what}: {100 * share:.0f} %{about}"


def is_drawn() -> bool:
    """Whether a bar can be drawn where status goes."""
    return err.is_terminal and not err.is_dumb_terminal


@contextmanager
def progress(what: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """How far the work is, with the time left; gives the function that moves it on."""
    if quiet:
        yield lambda done: None
    elif is_drawn():
        columns = TextColumn("{task.description}"), BarColumn(), percentage(), TimeRemainingColumn()
        with Progress(*columns, console=err, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.advance(task, done)
    else:
        with Lines(what, total) as lines:
            yield lines.advance


def percentage() -> TextColumn:
    return TextColumn("{task.percentage:3.0f} %")


def status(text: str, quiet: bool) -> AbstractContextManager[Any]:
    """What is being done, where nothing can be counted."""
    if quiet:
        return nullcontext()
    return err.status(escape(text)) if is_drawn() else _said_if_long(text)


@contextmanager
def _said_if_long(text: str) -> Iterator[None]:
    def say() -> None:
        err.print(escape(text), highlight=False, soft_wrap=True)

    timer = threading.Timer(_SOONEST, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
