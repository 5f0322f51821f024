"""A browser that is told what to do over a pipe, by Chromium's DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
SECONDS = 120.0
# Above 3 and 4, which are the browser's own ends.
_FIRST_FREE = 10


class Browser:
    """One page of a headless Chromium; use it as a context."""

    def __init__(self, program: str, profile: Any) -> None:
        theirs_in, ours_out = self._pipe()
        ours_in, theirs_out = self._pipe()
        self._read, self._write = ours_in, ours_out
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            pass_fds=(3, 4),
            preexec_fn=lambda: (os.dup2(theirs_in, 3), os.dup2(theirs_out, 4)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._left = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        attached = self.tell("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM", "Network"):
            self.tell(f"{domain}.enable")

    @staticmethod
    def _pipe() -> tuple[int, int]:
        ends = []
        for end in os.pipe():
            ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE))
            os.close(end)
        return ends[0], ends[1]

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        self.tell("Browser.close")
        self._process.wait(30)
        os.close(self._read)
        os.close(self._write)

    def tell(self, method: str, **parameters: Any) -> Any:
        """Give a command and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self.events.append(found)

    def _receive(self) -> Any:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], end - time.monotonic())
            assert ready, "the browser says nothing"
            part = os.read(self._read, 2**20)
            assert part, "the browser is gone"
            self._left += part
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def look(self, *, width: int, dark: bool = False, height: int = 900) -> None:
        """Show pages as on a screen of this width."""
        phone = width < 600
        self.tell(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Open a page and wait until it is there."""
        self.tell("Page.navigate", url=address)
        self.wait_for(
            "document.readyState === 'complete' && location.href !== 'about:blank'"
        )

    def evaluate(self, code: str) -> Any:
        """Evaluate JavaScript in the page; a promise is waited for."""
        found = self.tell(
            "Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until something is true of the page."""
        end = time.monotonic() + SECONDS
        while not self.evaluate(f"!!({condition})"):
            assert time.monotonic() < end, f"never: {condition}"
            time.sleep(0.05)

    def choose_file(self, selector: str, path: Any) -> None:
        """Choose a file as a person would."""
        root = self.tell("DOM.getDocument")["root"]["nodeId"]
        node = self.tell("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.tell("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def press(self, x: float, y: float) -> None:
        """Press the mouse somewhere."""
        for kind in ("mousePressed", "mouseReleased"):
            self.tell(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    def write(self, text: str) -> None:
        """Write into what has the focus."""
        self.tell("Input.insertText", text=text)

    def photograph(self, *, whole: bool = True) -> bytes:
        """Take a picture of the page, all of it or what is seen."""
        found = self.tell(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        return base64.b64decode(found["data"])

    def list_wrongs(self) -> list[str]:
        """List what the page complained of since it was opened."""
        self.evaluate("0")
        wrongs = []
        for event in self.events:
            told = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                wrongs.append(str(told["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded":
                wrongs.append(told["entry"]["text"])
        return wrongs

    def list_requests(self) -> list[str]:
        """List the addresses that the page asked."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
