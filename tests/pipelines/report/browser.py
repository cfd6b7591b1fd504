"""A headless Chromium, spoken to over its debugging pipe: no driver, no port, no network."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from select import select
from typing import Any

EXECUTABLE = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
PATIENCE_S = 60
MISSING = "there is no Chromium on this machine; apt-get install chromium"


class Browser:
    """One page. `complaints` are errors of scripts, of the console and of the page's policy, as they come."""

    def __init__(self, profile: Path):
        assert EXECUTABLE is not None
        pipes = (*os.pipe(), *os.pipe())
        to_child, self._write, self._read, from_child = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipes)
        for end in pipes:
            os.close(end)
        options = (
            "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe "
            "--disable-background-networking"
        )
        # The browser reads from descriptor 3 and writes to 4.
        start = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
        )
        command = [
            sys.executable,
            "-c",
            start,
            str(to_child),
            str(from_child),
            EXECUTABLE,
            *options.split(),
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command, pass_fds=(to_child, from_child), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_child)
        os.close(from_child)
        self._buffer, self._n, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self._events: list[str] = []
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """End the browser and its pipes."""
        os.close(self._write)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer; events that come in between are kept."""
        self._n += 1
        message = {"id": self._n, "method": method, "params": params} | ({"sessionId": self._session} if self._session else {})
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._n:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select([self._read], [], [], PATIENCE_S)[0], f"the browser has said nothing for {PATIENCE_S} s"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser ended"
            self._buffer += piece
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        method, params = message.get("method", ""), message.get("params", {})
        self._events.append(method)
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        return message

    def open(self, file: Path) -> None:
        """Load a page, its images included."""
        self._events.clear()
        self.send("Page.navigate", url=file.resolve().as_uri())
        self.wait_for_load()

    def wait_for_load(self) -> None:
        """Until a page has been loaded since the last time."""
        while "Page.loadEventFired" not in self._events:
            self._receive()
        self._events.clear()

    def look(self, width: int, scheme: str = "light", media: str = "screen") -> None:
        """As a screen that is `width` pixels wide, in the "light" or "dark" scheme; or as paper, in the `media` "print"."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme_of = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=media, features=scheme_of)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """One key, such as "Tab" or "Enter"."""
        code = {"Tab": 9, "Enter": 13, "ArrowRight": 39}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)
