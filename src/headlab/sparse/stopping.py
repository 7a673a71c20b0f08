"""Ctrl-C in the middle of a step: the step is finished first, so that nothing is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Stopped after a step whose state was kept."""

    def __init__(self, step: int):
        super().__init__(step)
        self.step = step


@contextmanager
def asked_to_stop(told: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Within the block a first Ctrl-C asks, which the function given says; a second insists."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False  # nobody can ask here
        return
    asked = []

    def ask(*_: Any) -> None:
        asked.append(True)
        signal.signal(signal.SIGINT, before)
        told("stopping after this step; Ctrl-C again stops at once")

    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
