"""Chromium without a window, driven by the DevTools protocol; pages show what ``gswarm-tui web`` draws."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.terminal import PATIENCE_S, Screen

KEYS = {"enter": (13, "\r"), "escape": (27, "\x1b"), "down": (40, ""), "right": (39, "")}
NAMES = {"enter": "Enter", "escape": "Escape", "down": "ArrowDown", "right": "ArrowRight"}
_MOST_MESSAGE = 64 * 1024 * 1024


class Page:
    """A tab; ``requested`` has the addresses of all that it loaded, ``messages`` what its console printed.

    ``screen`` shows what the web server sent to the page's terminal, once it is known how large that is.
    """

    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send
        self.requested: list[str] = []
        self.messages: list[str] = []
        self.sockets = 0
        self._drawn = 0
        self.size = (0, 0)
        self.screen = Screen(80, 24)

    async def send(self, method: str, **values: Any) -> dict[str, Any]:
        """Send a command of the DevTools protocol; return its result."""
        result: dict[str, Any] = await self._send(method, values)
        return result

    def take(self, method: str, values: dict[str, Any]) -> None:
        """Take an event of the DevTools protocol."""
        match method:
            case "Network.requestWillBeSent":
                self.requested.append(values["request"]["url"])
            case "Network.webSocketCreated":
                self.requested.append(values["url"])
                self.sockets += 1
                found = re.search(r"width=(\d+)&height=(\d+)", values["url"])
                if found is not None:
                    self._begin(int(found[1]), int(found[2]))
            case "Network.webSocketFrameSent":
                found = re.search(
                    r'"resize",\{"width":(\d+),"height":(\d+)', values["response"]["payloadData"]
                )
                if found is not None and (int(found[1]), int(found[2])) != self.size:
                    self._begin(int(found[1]), int(found[2]))
            case "Network.webSocketFrameReceived" if values["response"]["opcode"] == 2:
                self.screen.write(base64.b64decode(values["response"]["payloadData"]))
                self._drawn += 1
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.messages.append(str(values))

    def _begin(self, columns: int, rows: int) -> None:
        self.size = columns, rows
        self.screen = Screen(columns, rows)

    async def open(self, address: str) -> None:
        """Go to an address."""
        await self.send("Page.navigate", url=address)

    async def evaluate(self, script: str) -> Any:
        """Return the value of a script's last expression."""
        result = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return result["result"].get("value")

    async def press(self, key: str) -> None:
        """Press and release a key: a character, or one of ``KEYS``."""
        code, text = KEYS[key] if key in KEYS else (ord(key.upper()), key)
        pressed = {"key": NAMES.get(key, key), "windowsVirtualKeyCode": code, "text": text}
        await self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **pressed)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **pressed)

    async def click(self, x: float, y: float) -> None:
        """Click at a point of the page."""
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def click_text(self, text: str) -> None:
        """Click on the middle of a text that the terminal shows."""
        lines = self.screen.text().split("\n")
        row, line = next((at, line) for at, line in enumerate(lines) if text in line)
        left, top, wide, high = await self.evaluate(
            "(box => [box.x, box.y, box.width, box.height])"
            "(document.querySelector('.xterm-screen').getBoundingClientRect())"
        )
        columns, rows = self.size
        await self.click(
            left + wide * (line.index(text) + len(text) / 2) / columns, top + high * (row + 0.5) / rows
        )

    async def resize(self, width: int, height: int) -> None:
        """Change the size of the window in CSS pixels."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=0,
            mobile=False,
        )

    async def shows(self, text: str) -> None:
        """Wait until the terminal shows a text."""
        drawn = -1

        def is_shown() -> bool:
            nonlocal drawn
            if self._drawn == drawn:  # reading the screen costs more than waiting
                return False
            drawn = self._drawn
            return text in self.screen.text()

        await until(is_shown, lambda: f"{text!r} isn't on\n{self.screen.text()}")

    async def says(self, text: str) -> None:
        """Wait until the page itself says a text, beside the terminal."""
        deadline, said = asyncio.get_running_loop().time() + PATIENCE_S, ""
        while text not in said:
            assert asyncio.get_running_loop().time() < deadline, f"{text!r} isn't in {said!r}"
            await asyncio.sleep(0.05)
            with suppress(RuntimeError):  # a page that loads has none yet
                said = await self.evaluate("document.body.innerText") or ""

    async def picture(self) -> bytes:
        """Return a picture of the page as PNG."""
        return base64.b64decode((await self.send("Page.captureScreenshot", format="png"))["data"])


async def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, what()
        await asyncio.sleep(0.02)


class Chromium:
    """A running Chromium."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}

    async def receive(self) -> None:
        """Take replies and events."""
        async for message in self._socket:
            received = message.json()
            if "id" in received:
                waiting = self._waiting.pop(received["id"])
                if "error" in received:
                    waiting.set_exception(RuntimeError(received["error"]["message"]))
                elif not waiting.cancelled():
                    waiting.set_result(received["result"])
            elif received.get("sessionId") in self._pages:
                self._pages[received["sessionId"]].take(received["method"], received["params"])

    async def send(self, method: str, values: dict[str, Any], session: str = "") -> dict[str, Any]:
        """Send a command; return its result."""
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        target = {"sessionId": session} if session else {}
        await self._socket.send_json({"id": number, "method": method, "params": values, **target})
        return await asyncio.wait_for(self._waiting[number], PATIENCE_S)

    async def page(self, width: int = 1200, height: int = 800, *, private: bool = False) -> Page:
        """Open a tab; a ``private`` one shares no cookies."""
        context = await self.send("Target.createBrowserContext", {}) if private else {}
        target = await self.send("Target.createTarget", {"url": "about:blank", **context})
        found = await self.send("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        session = found["sessionId"]

        async def send(method: str, values: dict[str, Any]) -> dict[str, Any]:
            return await self.send(method, values, session)

        page = self._pages[session] = Page(send)
        for domain in ("Page", "Network", "Runtime", "Log"):
            await page.send(f"{domain}.enable")
        await page.resize(width, height)
        return page


@asynccontextmanager
async def chromium(folder: Path, *words: str) -> AsyncIterator[Chromium]:
    """Run Chromium with a profile in a folder."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "tests of gswarm-tui web need chromium: apt-get install chromium"
    options = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run"]
    options += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    options += ["--hide-scrollbars", "--disable-dev-shm-usage", *["--no-sandbox"] * (os.geteuid() == 0)]
    process = await asyncio.create_subprocess_exec(
        program, *options, *words, "about:blank", stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (found := re.search(rb"listening on (ws://\S+)", await process.stderr.readline())) is None:
                assert process.returncode is None, "Chromium ended"
        draining = asyncio.create_task(process.stderr.read())
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(found[1].decode(), max_msg_size=_MOST_MESSAGE) as socket,
        ):
            browser = Chromium(socket)
            receiving = asyncio.create_task(browser.receive())
            try:
                yield browser
            finally:
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
        draining.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
