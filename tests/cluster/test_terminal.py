"""The tmux terminal of end-to-end tests."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.cluster.running import wait_until
from tests.cluster.terminal import Terminal

ENV = {"PATH": os.environ["PATH"], "HOME": "/", "PS1": "ready> ", "LANG": "C.UTF-8"}
SHELL = ["bash", "--norc", "--noprofile"]


def test_terminal_shows_input_and_output(machine: None) -> None:
    with Terminal(SHELL, env=ENV, size=(60, 10)) as terminal:
        terminal.wait_for("ready>")
        terminal.type("stty size; echo $((6*7))'; é'")
        screen = terminal.wait_for(re.compile(r"^42; é$", re.MULTILINE))
        assert "10 60" in screen
        assert len(screen.splitlines()) == 10
        terminal.type("clear")
        terminal.wait_gone("42")


def test_terminal_sends_keys_and_returns_the_exit_status(machine: None) -> None:
    with Terminal("read -rsn1 key; echo got $key; exit 3", env=ENV) as terminal:
        terminal.press("q")
        assert terminal.exit_status() == 3
        assert "got q" in terminal.screen()
    with Terminal("kill -TERM $$", env=ENV) as terminal:
        assert terminal.exit_status() == 128 + 15


def test_terminal_resize_reaches_the_command(machine: None) -> None:
    with Terminal(SHELL, env=ENV) as terminal:
        terminal.wait_for("ready>")
        terminal.type("trap 'stty size' WINCH; echo trap''ped")
        terminal.wait_for("trapped")
        terminal.resize(80, 24)
        terminal.wait_for("24 80")


def test_failed_wait_shows_the_screen(machine: None) -> None:
    with Terminal("echo something else; sleep 60", env=ENV) as terminal:
        terminal.wait_for("something else")
        with pytest.raises(
            AssertionError, match=r"(?s)'nothing' did not appear within 0.1 s.*something else"
        ):
            terminal.wait_for("nothing", timeout=0.1)
    too_late = pytest.raises(AssertionError, match=r"(?s)before the command ended.*the end")
    with Terminal("echo the end; read line", env=ENV) as terminal:
        terminal.wait_for("the end")  # tmux can lose what a command that ends at once has written
        terminal.press("Enter")
        with too_late:
            terminal.wait_for("nothing")


def test_terminal_returns_colours(machine: None) -> None:
    with Terminal(r"printf '\033[38;2;1;2;3mblue\n'; sleep 60", env=ENV) as terminal:
        terminal.wait_for("blue")
        assert "\033[38;2;1;2;3mblue" in terminal.screen(colours=True)
        assert "\033" not in terminal.screen()


def test_closing_the_terminal_hangs_up_its_command_only(machine: None, tmp_path: Path) -> None:
    hung_up = tmp_path / "hung-up"
    with Terminal(SHELL, env=ENV) as other:
        with Terminal(
            f"trap 'touch {hung_up}; exit' HUP; echo trapped; while :; do read; done", env=ENV
        ) as terminal:
            terminal.wait_for("trapped")
        wait_until(hung_up.exists, "the command's notice of the hang-up")
        other.wait_for("ready>")
