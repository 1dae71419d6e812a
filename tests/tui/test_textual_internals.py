"""Contract with Textual's private parts: a failure names what a new Textual broke and what needs it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual import _compositor
from textual.app import App
from textual.drivers import _writer_thread
from textual.drivers.linux_driver import LinuxDriver
from textual.drivers.web_driver import WebDriver
from textual.events import Key
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import TextArea

import gswarm_tui
from gswarm_tui.server.screen_process import BEGINNING

PACKAGE = Path(gswarm_tui.__file__ or "").parent
HOME = PACKAGE / "tui" / "textual_internals"


def parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's parameters."""
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("owner", "name", "expected", "needed_by"),
    [
        (App, "_display", ["self", "screen", "renderable"], "app.py: only changed cells are written"),
        (LinuxDriver, "_sigtstp_application", ["self", "_"], "driver.py: Ctrl-Z in the event loop"),
        (LinuxDriver, "suspend_application_mode", ["self"], "driver.py: resuming after SIGSTOP"),
        (LinuxDriver, "resume_application_mode", ["self"], "driver.py: resuming after SIGSTOP"),
        (TextArea, "update_suggestion", ["self"], "widgets/editor.py: completion follows the cursor"),
    ],
)
def test_private_method_keeps_its_signature(
    owner: type, name: str, expected: list[str], needed_by: str
) -> None:
    method = getattr(owner, name, None)
    assert method is not None, f"Textual's {owner.__name__}.{name} is gone; {needed_by}"
    assert parameters(method) == expected, f"Textual's {owner.__name__}.{name} changed; {needed_by}"


def test_layout_update_has_the_fields_that_the_compositor_module_reads() -> None:
    update = _compositor.LayoutUpdate([[Strip.blank(3)]], Region(0, 0, 3, 1))
    assert isinstance(update, _compositor.CompositorUpdate), "compositor.py recognises updates by their base"
    assert [list(strips) for strips in update.strips] == [[Strip.blank(3)]], "compositor.py reads .strips"
    assert update.region == Region(0, 0, 3, 1), "compositor.py reads .region"


def test_chops_update_has_the_fields_that_the_compositor_module_reads() -> None:
    update = _compositor.ChopsUpdate([{0: Strip.blank(3)}], [(0, 0, 3)], [[3]])
    assert update.chops == [{0: Strip.blank(3)}], "compositor.py reads .chops by column"
    assert update.spans == [(0, 0, 3)], "compositor.py reads .spans as (line, start, end)"
    assert update.chop_ends == [[3]], "compositor.py reads .chop_ends by line"


async def test_app_displays_updates_of_the_compositor() -> None:
    class Recorder(App[None]):
        updates: list[object]

        def _display(self, screen: Screen[object], renderable: Any) -> None:
            self.updates = [*getattr(self, "updates", []), renderable]

    app = Recorder()
    async with app.run_test(size=(20, 5)) as pilot:
        app.screen.refresh()
        await pilot.pause()
    kinds = {type(update).__name__ for update in app.updates if update is not None}
    known = {"LayoutUpdate", "ChopsUpdate", "InlineUpdate"}
    assert kinds <= known, f"App._display got {kinds - known}, which compositor.py writes without comparing"
    assert kinds & {"LayoutUpdate", "ChopsUpdate"}, "App._display no longer gets the compositor's updates"


def test_linux_driver_keeps_the_attributes_that_the_driver_module_reads() -> None:
    source = inspect.getsource(LinuxDriver)
    assert "self._file = " in source, "LinuxDriver._file is gone; driver.py replaces it by DetachableFile"
    assert "self._must_signal_resume" in source, (
        "LinuxDriver._must_signal_resume is gone; driver.py needs it to tell SIGTSTP from SIGSTOP"
    )
    assert "self._auto_restart" in source, (
        "LinuxDriver._auto_restart is gone; driver.py needs it to leave the terminal to another program"
    )
    assert "WriterThread(self._file)" in source, (
        "LinuxDriver no longer writes to _file in a WriterThread; driver.py keeps that thread alive"
    )
    assert hasattr(_writer_thread, "MAX_QUEUED_WRITES"), "test_driver.py fills the writer's queue"


def test_web_driver_writes_the_packets_that_the_web_server_reads() -> None:
    driver, packets = object.__new__(WebDriver), list[bytes]()
    collect: Any = packets.append
    driver._write = collect
    driver.write("é")
    driver.write_meta({"type": "exit"})
    meta = b'{"type": "exit"}'
    assert packets == [b"D\0\0\0\x02\xc3\xa9", b"M\0\0\0\x10" + meta], (
        "WebDriver writes other packets, or not by _write; screen_process.py reads them"
    )
    assert BEGINNING.strip() in inspect.getsource(WebDriver.start_application_mode).encode(), (
        "WebDriver begins with other bytes; screen_process.py skips all output before them"
    )


def test_web_driver_keeps_the_attributes_that_the_browser_driver_module_reads() -> None:
    source = inspect.getsource(WebDriver)
    for name in ("self._write = ", "self.fileno = ", "self.exit_event = "):
        assert name in source, f"WebDriver has no {name.rstrip(' =')}; browser_driver.py uses it"
    assert "target=self.run_input_thread" in source, "browser_driver.py overrides run_input_thread"


async def test_forwarded_keys_are_marked() -> None:
    assert hasattr(Key("a", "a"), "is_forwarded"), "app.py queues only keys that weren't forwarded yet"


def test_private_names_of_textual_appear_only_in_their_package() -> None:
    private = {"_compositor", "_display", "_driver", "_must_signal_resume", "_auto_restart"}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent == HOME:
            continue
        tree = ast.parse(path.read_text())
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {
            node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        of_textual = {module for module in modules if module.startswith("textual.") and "._" in module}
        assert not (used & private) | of_textual, (
            f"{path.name} uses Textual's private parts; move that to {HOME.name}/"
        )
