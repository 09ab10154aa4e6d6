"""A real browser without a window, spoken to over pipes by the protocol of its developer tools.

https://chromedevtools.github.io/devtools-protocol/: JSON with a NUL after each message, commands on the browser's
descriptor 3, answers and events on its 4.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.processes import REPOSITORY

NO_BROWSER = "no browser: put chromium-headless-shell on PATH, or run tests/fetch_browser.sh"
_LIMIT_S = 240.0


def find_browser() -> str | None:
    """The path of a browser: what tests/fetch_browser.sh brought to .cache/browser, else on PATH."""
    fetched = REPOSITORY / ".cache" / "browser" / "bin" / "browser"
    return str(fetched) if fetched.exists() else shutil.which("chromium-headless-shell")


class Page:
    """One page in a browser of its own."""

    def __init__(self, path: Path, profile: Path, width: int = 1200, height: int = 900) -> None:
        """Open the file; returns when it has been loaded and its scripts have run."""
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The two must have the numbers 3 and 4 there, whatever they have here.
        command = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$0" "$@"'
        program = find_browser()
        assert program is not None, NO_BROWSER
        flags = ["--remote-debugging-pipe", f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", command, program, *flags, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        """What the browser told unasked: exceptions, messages of its console, refusals."""
        pages = self.send("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Page.navigate", url=path.as_uri())
        self._until(lambda: any(event["method"] == "Page.loadEventFired" for event in self.events))

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(100)
        os.close(self._write)
        os.close(self._read)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give a command and return what it answers.

        Raises:
            AssertionError: the browser refuses, or has ended.
        """
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answers: list[dict[str, Any]] = []
        self._until(lambda: bool(answers), number, answers)
        assert "error" not in answers[0], answers[0]
        result: dict[str, Any] = answers[0]["result"]
        return result

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to in the page; a promise is waited for."""
        told = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def drawn(self) -> None:
        """Wait until the page has drawn what it wanted to draw."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move, press, release or turn the wheel (mouseMoved, mousePressed, mouseReleased, mouseWheel) there."""
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.drawn()

    def picture(self, path: Path) -> None:
        """Write a PNG of all of it."""
        told = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(told["data"]))

    def complaints(self) -> list[str]:
        """Exceptions of scripts, and what the browser refused to load or run."""
        return [
            json.dumps(event["params"])
            for event in self.events
            if event["method"] == "Runtime.exceptionThrown"
            or (event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"))
        ]

    def requests(self) -> list[str]:
        """All that the page has asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def _until(self, done: Any, number: int = -1, answers: list[dict[str, Any]] | None = None) -> None:
        until = time.monotonic() + _LIMIT_S
        while not done():
            assert time.monotonic() < until, self.events
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            *messages, self._buffer = (self._buffer + data).split(b"\0")
            for message in map(json.loads, messages):
                if "method" in message:
                    self.events.append(message)
                elif message.get("id") == number and answers is not None:
                    answers.append(message)
