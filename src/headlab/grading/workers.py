"""Worker processes with a time limit for each item: one that never ends costs only itself."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headlab.errors import HeadlabError

TIMED_OUT = "timed out"
FAILED = "failed"
_STARTING = 120.0  # seconds a worker may take to import its packages on a busy machine

Reply = dict[str, Any] | str  # what the worker says, or TIMED_OUT or FAILED


def run_all(
    program: Path,
    items: Sequence[dict[str, Any]],
    seconds: float,
    workers: int,
    progress: Callable[[int], None] | None = None,
) -> list[Reply]:
    """The replies of `program` to the items, in their order. One thread tends one process."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Reply] | BaseException] = queue.SimpleQueue()
    for place in range(len(items)):
        todo.put(place)
    tended = [_Worker(program) for _ in range(min(workers, len(items)))]
    threads = [
        threading.Thread(target=_tend, args=(worker, items, seconds, todo, done), daemon=True)
        for worker in tended
    ]
    replies: list[Reply] = [FAILED] * len(items)
    try:
        for thread in threads:
            thread.start()
        for _ in items:
            answered = done.get()
            if isinstance(answered, BaseException):
                raise answered
            replies[answered[0]] = answered[1]
            if progress:
                progress(1)
    finally:
        for worker in tended:
            worker.end()
    return replies


def _tend(
    worker: _Worker,
    items: Sequence[dict[str, Any]],
    seconds: float,
    todo: queue.SimpleQueue[int],
    done: queue.SimpleQueue[tuple[int, Reply] | BaseException],
) -> None:
    try:
        while not worker.ended:
            place = todo.get_nowait()
            done.put((place, worker.ask(items[place], seconds)))
    except queue.Empty:
        worker.end()
    except BaseException as error:  # the main thread raises it
        done.put(error)


class _Worker:
    """One process, started at its first item and again after each it did not survive."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.process: subprocess.Popen[str] | None = None
        self.ended = False
        self._lock = threading.Lock()  # no process is started while the worker is being ended

    def ask(self, item: dict[str, Any], seconds: float) -> Reply:
        process = self.process or self._start()
        line = json.dumps({**item, "seconds": seconds})  # ASCII: one line whatever the text
        said, late = _exchange(process, line + "\n", seconds)
        answered = said.endswith("}\n")
        if late or not answered:  # late may be one that has just answered: its next item is not
            process.kill()
            process.wait()
            self.process = None
        if answered:
            return json.loads(said)
        return TIMED_OUT if late else FAILED

    def _start(self) -> subprocess.Popen[str]:
        with self._lock:
            if self.ended:
                raise queue.Empty
            # -P: the program's own folder must not hide modules of the standard library.
            self.process = process = subprocess.Popen(
                [sys.executable, "-P", str(self.program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        if _exchange(process, "", _STARTING) != ("ready\n", False) and not self.ended:
            self.end()
            raise HeadlabError(
                f"a worker process does not start; python {self.program} shows the reason"
            )
        return process

    def end(self) -> None:
        with self._lock:
            self.ended = True
            process = self.process  # its thread may just be giving it up
        if process is not None:
            process.kill()
            process.wait()


def _exchange(process: subprocess.Popen[str], line: str, seconds: float) -> tuple[str, bool]:
    """The line that answers, "" or a part of it where the process died, and whether time was up
    and the process ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    said = ""
    with contextlib.suppress(OSError, ValueError):
        process.stdin.write(line)
        process.stdin.flush()
        said = process.stdout.readline()
    timer.cancel()
    timer.join()  # it has fired, or never will
    return said, late.is_set()
