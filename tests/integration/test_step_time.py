"""The step time that a job's traffic shows: on the screen while it runs, and of its recording."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gswarm_tui.cli import main
from gswarm_tui.fleet.events import Event, FleetExamined, FrameArrived, LinkChanged, NodeIntroduced, Phase
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.fleet.totals import totals
from gswarm_tui.insight.live import LiveWatch
from gswarm_tui.insight.pace import pace_text
from gswarm_tui.tui.drawing.fleet_lines import totals_line
from tests.jobs.faults import heat
from tests.jobs.feed import frames, record_job
from tests.jobs.model import T0, USER, Fault, Job

HOT_AT = 900.0
HOT = Fault(heat, HOT_AT, "thermal", 1, 1, 0.25)
JOB = Job(nodes=2, gpus=2, tick_s=1.0, step_s=8.0, seconds=1500.0).with_faults(HOT)


def test_the_screen_shows_the_step_time_and_its_trend_while_a_job_runs() -> None:
    fleet, published = Fleet(JOB.names), list[Event]()
    watch = LiveWatch(fleet, published.append, user=USER)
    for name, hello in JOB.hellos().items():
        fleet.apply(NodeIntroduced(name, T0, hello))
        fleet.apply(LinkChanged(name, T0, Phase.LIVE))
    for event in frames(JOB):
        fleet.apply(event)
        if isinstance(event, FrameArrived) and event.node == JOB.names[-1]:
            watch.observe(event.ts)
    examined = [event for event in published if isinstance(event, FleetExamined)]
    assert examined[5].step_s is None
    assert next(one.step_s for one in examined if one.at > T0 + 600) == pytest.approx(8.1, abs=0.2)
    last = examined[-1]
    text = pace_text(last.step_s, last.step_before_s)
    assert re.fullmatch(r"about 10 s a step, 2\d % slower than 10 min ago", text)
    line = totals_line(totals(fleet, last.at), 1.0, 200, text)
    assert text in "".join(span.text for span in line)


def test_a_recording_shows_how_much_longer_steps_are_since_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.duckdb"
    record_job(path, JOB)
    assert main(["diagnose", "--db", str(path), "--json"]) == 0
    [hot] = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["kind"] == "thermal"]
    assert " · steps about 8.1 → 10 s · " in hot["sentence"]
    assert main(["summary", "--db", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"steps about 10 s a step, 2\d % slower than 10 min ago", printed)
