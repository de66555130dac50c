"""A real headless Chromium, driven through its DevTools protocol."""

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import websocket

FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip
SECONDS = 60.0


def chromium():
    """Return the path of a Chromium on this machine, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page; keeps what the console said and what was asked of the network."""

    def __init__(self, profile: Path) -> None:
        # Root may not use Chromium's sandbox; everybody else does.
        sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
        self.process = subprocess.Popen(
            [chromium(), *FLAGS, *sandbox, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self.events, self._number, self.socket = [], 0, None
        try:
            port = self._wait(lambda: (profile / "DevToolsActivePort").read_text().split()[0])
            pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=SECONDS))
            address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
            self.socket = websocket.create_connection(address, timeout=SECONDS)
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.send(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _wait(ask):
        end = time.monotonic() + SECONDS
        while True:
            try:
                if answer := ask():
                    return answer
            except (OSError, IndexError):
                pass
            if time.monotonic() > end:
                raise TimeoutError(f"the browser did not answer in {SECONDS} s")
            time.sleep(0.05)

    def send(self, method, **arguments):
        """Call a method; events that come in between are kept."""
        self._number += 1
        self.socket.send(json.dumps({"id": self._number, "method": method, "params": arguments}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                return message["result"]
            self.events.append(message)

    def evaluate(self, script):
        """Return the value of a JavaScript expression; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, path: Path, plots: int, width=1366, height=768):
        """Open a page at a size and wait until that many plots are drawn."""
        mobile = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        self.events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait(f"document.body && document.body.dataset.drawn == '{plots}'")

    def wait(self, script):
        """Wait until a JavaScript expression is true."""
        self._wait(lambda: self.evaluate(script))

    def click(self, selector):
        """Click the middle of an element with the mouse."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.evaluate(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def screenshot(self, path: Path):
        """Save the whole page as PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        image = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(image))

    @property
    def complaints(self):
        """Errors and warnings of the console and the page since it was opened."""
        found = []
        for event in self.events:
            kind, data = event["method"], event["params"]
            if kind == "Runtime.exceptionThrown":
                found.append(data["exceptionDetails"])
            elif (kind == "Runtime.consoleAPICalled" and data["type"] in ("error", "warning", "assert")) or (
                kind == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning")
            ):
                found.append(data)
        return found

    @property
    def requests(self):
        """Addresses that were asked for since the page was opened, besides what is inside it."""
        sent = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("data:", "blob:"))]

    def close(self):
        """End the browser and everything it started."""
        if self.socket is not None:
            self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
