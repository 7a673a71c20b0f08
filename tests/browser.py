"""A real browser for tests of pages: Chromium over its debugging pipe, nothing else to install."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
]
LIMIT = 30.0  # seconds for anything: a browser that hangs fails the test, not the run


def find() -> str | None:
    """The path of a Chromium, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for path in map(shutil.which, names) if path), None)


class Browser:
    """One page of one browser; a context manager that leaves no process behind.

    errors: what the console, exceptions and the browser's log said of the page opened last.
    requests: what that page asked for, apart from itself and data: addresses.
    """

    def __init__(self, path: str) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._page, self._loaded, self._id = "", False, 0
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # The child's ends are moved up first, so that neither is 3 or 4 and overwritten below.
        ends = [os.pipe(), os.pipe()]
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (ends[0][0], ends[1][1])]
        os.close(ends[0][0])
        os.close(ends[1][1])
        self._write, self._read = ends[0][1], ends[1][0]

        def plug() -> None:  # in the child: the browser reads commands at 3 and answers at 4
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        arguments = ["--remote-debugging-pipe", f"--user-data-dir={self._folder.name}"]
        self._process = subprocess.Popen(
            [path, *FLAGS, *arguments, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,  # else 3 and 4 would be closed; Python's own are not inherited anyway
            preexec_fn=plug,
            start_new_session=True,
        )
        for fd in theirs:
            os.close(fd)
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._session: str | None = None
        try:
            target = self.send("Target.createTarget", url="about:blank")["targetId"]
            attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
            self.size(1280, 900)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and all its helpers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(LIMIT)
        with contextlib.suppress(OSError):
            os.close(self._write)
        self._folder.cleanup()

    # Messages.

    def _listen(self) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while part := os.read(self._read, 1 << 16):
                *whole, rest = (rest + part).split(b"\0")
                for message in whole:
                    self._answers.put(json.loads(message))
        self._answers.put(None)
        os.close(self._read)

    def _next(self, until: float, what: str) -> dict[str, Any]:
        try:
            message = self._answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"the browser did not answer {what} within {LIMIT:g} s") from None
        if message is None:
            raise ConnectionError(f"the browser ended during {what}")
        if "method" in message:
            self._note(message["method"], message["params"])
        return message

    def _note(self, event: str, said: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(one.get("value", one)) for one in said["args"]))
        elif event == "Log.entryAdded":
            self.errors.append(said["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            url = said["request"]["url"]
            if not url.startswith("data:") and url.split("#")[0] != self._page:
                self.requests.append(url)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the browser's protocol and its answer."""
        self._id += 1
        message: dict[str, Any] = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        until = time.monotonic() + LIMIT
        while (answer := self._next(until, method)).get("id") != self._id:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    # What a reader does.

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file as a reader would, and wait until it is there."""
        self._navigate("about:blank")
        self.errors.clear()
        self.requests.clear()
        self._page = path.resolve().as_uri()
        self._navigate(self._page + fragment)
        self.settle()

    def _navigate(self, url: str) -> None:
        self._loaded = False
        answer = self.send("Page.navigate", url=url)
        if "errorText" in answer:
            raise RuntimeError(f"{url}: {answer['errorText']}")
        self._until_loaded()

    def _until_loaded(self) -> None:
        until = time.monotonic() + LIMIT
        while not self._loaded:
            self._next(until, "loading")

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression (of a promise: what it comes to)."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise AssertionError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """The text of each element that matches."""
        found: list[str] = self.js(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)"
        )
        return found

    def count(self, selector: str) -> int:
        return int(self.js(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        until = time.monotonic() + LIMIT
        while not self.js(condition):
            if time.monotonic() > until:
                raise TimeoutError(f"never true: {condition}")
            time.sleep(0.02)

    def _centre(self, selector: str) -> tuple[float, float]:
        found = self.js(
            "(one => { if (!one) return null;"
            "one.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});"
            "const box = one.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        if found is None:
            raise AssertionError(f"nothing on the page is {selector}")
        self.settle()
        return found[0], found[1]

    def point(self, selector: str) -> None:
        """Move the mouse to the middle of an element."""
        x, y = self._centre(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def click(self, selector: str) -> None:
        """A real mouse click in the middle of an element that stays on the page."""
        self._click(selector)
        self.settle()

    def follow(self, selector: str) -> None:
        """A click on a link to another page, and wait until that is there.

        Nothing is asked of the page in between: the answer would be lost with it.
        """
        self._loaded = False
        self._click(selector)
        self._until_loaded()
        self.settle()

    def _click(self, selector: str) -> None:
        x, y = self._centre(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press and release a key ("Escape", "ArrowRight", "Enter")."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)
        self.settle()

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select, as its change event tells the page."""
        self.js(
            "((one, value) => { one.value = value;"
            "one.dispatchEvent(new Event('change', {bubbles: true})); })"
            f"(document.querySelector({json.dumps(selector)}), {json.dumps(value)})"
        )
        self.settle()

    def size(self, width: int, height: int, scale: float = 1) -> None:
        """The window's inside, in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def dark(self, on: bool = True) -> None:
        """What the reader's system prefers."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.send("Emulation.setEmulatedMedia", features=[feature])
        self.settle()

    def screenshot(self, path: Path, whole: bool = False) -> Path:
        """The window (or the whole page) as a PNG."""
        picture = self.send(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole)
        )
        path.write_bytes(base64.b64decode(picture["data"]))
        return path

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        return {
            "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        }
