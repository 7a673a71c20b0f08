"""How a run goes, on the screen: cells done, the current one, the time left."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from headlab.cli.app import err, out
from headlab.cli.printing import new_table, print_table
from headlab.cli.progress import Lines, is_drawn, percentage
from headlab.studies.cells import Cell, short
from headlab.studies.planning import Planned
from headlab.studies.running import Listener
from headlab.wording import count, in_words

if TYPE_CHECKING:
    from headlab.store import Run


class Interruptible(Listener):
    """Ends at Ctrl-C for sure: Python drops the interrupt where it falls into a callback of its
    own (a weak reference's, a finaliser's), so it is looked at again with every step."""

    def __enter__(self) -> Self:
        self._asked = False
        self._before_us = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before_us)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        raise KeyboardInterrupt

    def _look(self) -> None:
        if self._asked:
            raise KeyboardInterrupt

    def started(self, cell: Cell) -> None:
        self._look()

    def advanced(self, pairs: int) -> None:
        self._look()

    def ended(self, cell: Cell, seconds: float, reason: str | None = None) -> None:
        self._look()

    def graded(self, share: float) -> None:
        self._look()

    def reporting(self) -> None:
        self._look()


class Display(Interruptible):
    """One bar over all cells, by the time they are expected to take, and a line for each done;
    without a terminal, lines instead of the bar."""

    def __init__(self, run: Run, planned: list[Planned]):
        self._planned = {each.cell.id: each for each in planned}
        self._cells = len(run.cells)
        self._todo = [each for each in planned if not run.has(each.cell)]
        self._done = self._cells - len(self._todo)
        self._before = 0.0  # expected seconds of the cells that have ended
        self._pairs = 0
        self._cell: Cell | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            percentage(),
            TimeRemainingColumn(),
            console=err,
            transient=True,
            speed_estimate_period=600,
        )
        total = sum(self._seconds(each.cell) for each in self._todo)
        self._task = self._bar.add_task("", total=total or None)
        self._lines = None if is_drawn() else Lines("", total)
        known = [each.seconds for each in self._todo if each.seconds is not None]
        if known:
            unknown = len(self._todo) - len(known)
            more = f", and {unknown} whose time is not known" if unknown else ""
            err.print(
                f"{count(len(known), 'cell')}, about {in_words(sum(known))} here{more}",
                highlight=False,
            )

    def __enter__(self) -> Self:
        if self._lines is None:
            self._bar.start()
        else:
            self._lines.__enter__()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lines is None:
            self._bar.stop()
        else:
            self._lines.__exit__()
        super().__exit__(kind, error, trace)

    def loading(self, model: str) -> None:
        self._say(f"loading {short(model)}")

    def started(self, cell: Cell) -> None:
        super().started(cell)
        self._cell, self._pairs = cell, 0
        self._say(cell.says)

    def advanced(self, pairs: int) -> None:
        super().advanced(pairs)
        assert self._cell is not None
        self._pairs += pairs
        expected = self._planned[self._cell.id].pairs or 1
        share = min(1.0, self._pairs / expected)
        self._move(self._before + share * self._seconds(self._cell))

    def ended(self, cell: Cell, seconds: float, reason: str | None = None) -> None:
        super().ended(cell, seconds, reason)
        self._done += 1
        self._before += self._seconds(cell)
        self._move(self._before)
        self._say("")
        what = f"{in_words(seconds)}" if reason is None else f"failed: {reason}"
        self._bar.console.print(
            escape(f"{self._done}/{self._cells}  {cell.says}  {what}"),
            highlight=False,
            soft_wrap=True,
        )

    def graded(self, share: float) -> None:
        super().graded(share)
        self._say(f"grading the texts, {100 * share:.0f} %")

    def reporting(self) -> None:
        super().reporting()
        self._say("drawing figures, writing the report")

    def _say(self, text: str) -> None:
        text = f"{self._done}/{self._cells} cells  {text}"
        self._bar.update(self._task, description=escape(text))
        if self._lines is not None:
            self._lines.what = text

    def _move(self, seconds: float) -> None:
        """Of those that all cells are expected to take."""
        self._bar.update(self._task, completed=seconds)
        if self._lines is not None:
            self._lines.done = seconds

    def _seconds(self, cell: Cell) -> float:
        return self._planned[cell.id].seconds or 1.0


def print_plan(planned: list[Planned]) -> None:
    table = new_table("model", "task", "method", "seed", "time", "memory")
    for each in planned:
        cell = each.cell
        spent = "unknown" if each.seconds is None else in_words(each.seconds)
        memory = "unknown" if each.memory is None else f"{each.memory / 1e9:.1f} GB"
        table.add_row(
            escape(short(cell.model)),
            escape(short(cell.task)),
            cell.method,
            str(cell.seed),
            spent,
            memory,
        )
    print_table(table)
    known = [each for each in planned if each.seconds is not None]
    total = count(len(planned), "cell")
    if known:
        seconds = sum(each.seconds or 0 for each in known)
        peak = max(each.memory or 0 for each in known)
        total += f", about {in_words(seconds)} on this machine, {peak / 1e9:.1f} GB at the peak"
    if len(known) < len(planned):
        total += f"; {len(planned) - len(known)} could not be estimated"
    out.print(f"\n{total}", highlight=False)
    for reason in dict.fromkeys(each.reason for each in planned if each.reason):
        out.print(escape(reason), highlight=False, soft_wrap=True, style="dim")
