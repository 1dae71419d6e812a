"""Five simulated users find what they look for, at three terminal sizes."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.locales import NoLocalesError
from tests.terminal import InTerminal
from tests.walks.users import SIZES, WALKS
from tests.walks.walker import Walker


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.__name__)
async def test_user_sees_what_matters_at_each_step(
    walk: Callable[[Walker], Awaitable[None]], size: tuple[int, int], tmp_path: Path
) -> None:
    try:
        await walk(Walker(size, tmp_path))
    except NoLocalesError as missing:
        pytest.skip(str(missing))


def test_job_owner_takes_plot_report_and_figures_home_from_a_real_terminal(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gswarm_tui", "--demo", "2x4"]
    with InTerminal(command, size=(80, 24), folder=tmp_path) as terminal:
        terminal.wait_for("nodes 2/2")
        for keys, shown in (
            ("s", "start session"),
            ("train\tstart\r", "● train"),
            ("x", "undo"),
            ("u", "● train"),
            ("x", "undo"),
            ("S", "○ train"),
            ("\r", "coverage"),
            ("P", "train.html"),
            ("f", "nodes 2/2"),
            ("s", "start session"),
            ("eval\r", "● eval"),
            ("q", "quit?"),
            ("y", "next: gswarm-tui summary"),
        ):
            terminal.press(keys)
            terminal.wait_for(shown)
        assert terminal.process.wait(30) == 0
        closing = terminal.screen()
    assert re.search(r"\b8 GPUs: .* \d+ %, worst .*sim0\d:\d", closing)
    assert (tmp_path / "train.pdf").read_bytes().startswith(b"%PDF")
    assert "train" in (tmp_path / "train.html").read_text(encoding="utf-8")
