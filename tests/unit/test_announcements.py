"""Findings that are sent to a command: what, how often, and what happens if that fails."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from gswarm_tui.fleet.events import FindingChanged
from gswarm_tui.run import announcements
from gswarm_tui.run.announcements import Announcements
from tests.unit.store_recording import T0, finding


class Sent:
    """Findings that are sent, and the reasons for which some weren't."""

    def __init__(self, command: str) -> None:
        self.failures: list[str] = []
        self._announcements = Announcements(command, {"job": "4711"}, self.failures.append)

    def send(self, *found: FindingChanged) -> None:
        self._announcements.submit(found)

    def close(self) -> list[str]:
        self._announcements.close()
        return self.failures


def test_a_command_gets_what_costs_something_once_an_hour(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sent = Sent(f"cat >> {shlex.quote(str(out))}; echo >> {shlex.quote(str(out))}")
    sent.send(FindingChanged(T0, finding(1, severity="note")))
    for minutes in (0, 5, 61):  # it stays, and closes and comes back
        sent.send(FindingChanged(T0 + 60 * minutes, finding(2)))
        sent.send(FindingChanged(T0 + 60 * minutes + 1, finding(2, until=T0)))
    sent.send(FindingChanged(T0 + 60, finding(3, kind="hang", severity="fault", node=None, gpu=None)))
    sent.send(FindingChanged(T0 + 60, finding(4, gpu=2, dismissed=True)))
    assert sent.close() == []
    messages = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(one["finding"]["kind"], one["job"]) for one in messages] == [
        ("thermal", "4711"),
        ("thermal", "4711"),
        ("hang", "4711"),
    ]
    assert messages[0]["text"] == f"gswarm-tui: waste: {finding().sentence}"
    assert messages[0]["finding"]["since"] == "2027-01-15T08:00:10.000000Z"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 3", "the command ended with status 3"),
        ("sleep 600 & wait", "the command took longer than 0.3 s"),
    ],
)
def test_a_failure_is_reported_once(monkeypatch: pytest.MonkeyPatch, command: str, reason: str) -> None:
    monkeypatch.setattr(announcements, "LIMIT_S", 0.3)
    sent = Sent(command)
    sent.send(FindingChanged(T0, finding(gpu=1)))
    sent.send(FindingChanged(T0, finding(gpu=2)))
    assert sent.close() == [f"a finding wasn't sent by --on-finding: {reason}"]
