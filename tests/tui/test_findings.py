"""Findings on the screens: the header's line, marks in the heatmap, the list, and the page of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gswarm_agent.probes.gpus.simulated import hot_gpu
from gswarm_tui.fleet.events import FindingChanged, FleetExamined
from gswarm_tui.fleet.findings import Evidence, Finding, holding
from gswarm_tui.insight.rule import LOCAL, Rule
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.tui.app import GswarmApp
from tests.integration.plot_recording import recorded
from tests.tui.conftest import app_on, line_with, screen_text, shows
from tests.tui.deck import Deck
from tests.tui.scene import BEGINNING, Scene, scene

Matches = Callable[[GswarmApp, str], None]
SIZES = [(80, 24), (100, 30), (120, 40), (200, 60)]
ADVICE = "Leave gpu03 out and tell the site to check the cooling of gpu03:5"
HOT = Finding(
    "1",
    "thermal",
    "waste",
    "gpu03",
    5,
    21,
    ("gpu03",),
    BEGINNING + 110,
    None,
    0.31,
    "gpu03:5 · rank 21 · clock 1,215 MHz for 2 min, the other 31 at 1,965 · heat 71 % of that time · "
    f"≈ 11 % of the run so far · l{ADVICE[1:]}",
    (
        Evidence("sm_clock_mhz", 1215, 1965, "MHz"),
        Evidence("throttle_thermal_pct", 71, None, "%"),
        Evidence("temp_c", 88, 61, "°C"),
    ),
    ADVICE,
    "Omnistat, DCGM; 10 % is our own threshold",
)
ODD = replace(
    HOT,
    finding_id="2",
    kind="odd_node",
    severity="note",
    node="gpu02",
    gpu=None,
    rank=None,
    nodes=("gpu02",),
    gpu_hours=0.0,
    sentence="gpu02 · driver 570.86.15 for 2 min, the other 3 have 570.86.16 · tell the site",
    evidence=(Evidence("cpu_pct", 12.3, 80, "%"),),
)
RULE = Rule(
    "thermal",
    "Heat holds a GPU's clock down",
    "waste",
    LOCAL,
    ("util_pct", "sm_clock_mhz"),
    "60 s",
    "thermal throttling in more than 10 % of busy time, in 90 % of the steps",
    HOT.source,
    ADVICE,
    "A GPU that overheats lowers its clock. In lock-step all others wait for it.",
    "The clock is no lower than that of its peers, or the job is no slower: then it is a note.",
    "A room that is warm for all GPUs alike slows all of them, and no one is the culprit.",
    lambda _window: (),
)
LEDGER = {"working": 810.0, "waiting": 100.0, "starting": 80.0, "throttled": 10.0}


def found(*findings: Finding) -> Scene:
    """Return four nodes of which rules found something."""
    made = scene(4, 8, 240)
    for finding in findings:
        made.hub.publish(FindingChanged(made.time, finding))
    causes = {name: bytes([0, 0, 0, 1, 1, 5, 7, 255]) for name in made.names}
    missing = {"sm_active_pct": list(made.names), "ports": ["gpu03"]}
    made.hub.publish(FleetExamined(made.time, LEDGER, causes, missing))
    return made.recording()


@pytest.mark.parametrize("size", SIZES)
async def test_findings_match_their_pictures(
    size: tuple[int, int], matches_picture: Matches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gswarm_tui.tui.screens.findings.RULES", (RULE, replace(RULE, kind="hang")))
    monkeypatch.setattr("gswarm_tui.tui.screens.findings.BY_KIND", {"thermal": RULE})
    app = app_on(found(HOT, ODD, replace(HOT, finding_id="3", until=BEGINNING + 200)))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for name, key in (("found", ""), ("findings", "exclamation_mark"), ("finding", "enter")):
            await (pilot.press(key) if key else pilot.pause())
            await pilot.pause()
            matches_picture(app, f"{name}-{size[0]}x{size[1]}")


async def test_first_finding_is_in_the_header_and_its_gpus_are_marked() -> None:
    made = found(HOT)
    app = app_on(made)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.pause()
        header = line_with(app, "▲ gpu03:5 ·")
        assert "clock 1,215 MHz for 2 min" in header, "how long and the signal come before the rest"
        assert "≈ 11 % of the run so far" in header
        assert line_with(app, " gpu03 !").count("!") == 2, "a sign at its node and its GPU"
        await pilot.press("n")
        assert app.fleet_screen.heatmap.at == ("gpu03", 5)
        made.hub.publish(FindingChanged(made.time, replace(HOT, until=made.time)))
        made.hub.publish(FindingChanged(made.time, replace(ODD, finding_id="8")))
        of_node = replace(ODD, kind="swap")
        made.hub.publish(FindingChanged(made.time, of_node))
        app.update_view()
        await pilot.pause()
        assert line_with(app, " · gpu02 · driver")
        assert line_with(app, " gpu02 !").count("!") == 9, "all GPUs of a whole node"
        made.hub.publish(FindingChanged(made.time, replace(of_node, dismissed=True)))
        app.update_view()
        await pilot.pause()
        assert "! why" not in screen_text(app), "no line without a finding"
        assert not any(" gpu0" in line and "!" in line for line in screen_text(app).splitlines())


async def test_list_counts_what_it_does_not_show_and_says_what_was_watched() -> None:
    lost = replace(HOT, finding_id="9", kind="gpu_lost", severity="fault", gpu=1, sentence="gpu03:1 · lost")
    more = [replace(HOT, finding_id=f"m{n}", node="gpu04", gpu=n) for n in range(3)]
    app = app_on(found(*more, ODD, lost))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("exclamation_mark")
        await pilot.pause()
        assert "5 findings" in screen_text(app)
        lines = screen_text(app).splitlines()
        assert lines[1].startswith("▸ ╳ "), "faults come first"
        assert "gpu03:1 · lost" in lines[1]
        assert "gpu02 · driver" not in screen_text(app)
        assert "1 waste (thermal), 1 note (odd_node) more; z lists all" in screen_text(app)
        assert "working 81 %, waiting for others 10 %, starting 8 %, throttled 1 %" in line_with(
            app, "GPU time"
        )
        assert "SM active (all nodes); ports (gpu03)" in line_with(app, "not measured")
        assert "14:04:00, 0 s ago" in line_with(app, "last look")
        await pilot.press("z")
        await pilot.pause()
        assert "gpu02 · driver" in screen_text(app)


async def test_finding_is_dismissed_and_comes_back_by_the_same_key() -> None:
    made = found(HOT)
    app = app_on(made)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("exclamation_mark", "enter", "d")
        await shows(app, pilot, "gpu03:5  Heat holds a GPU's clock down  dismissed")
        assert made.fleet.findings["1"].dismissed
        await pilot.press("escape", "escape")
        assert "! why" not in screen_text(app)
        await pilot.press("exclamation_mark")
        await pilot.pause()
        assert "ended or dismissed: 1 waste (thermal); z lists all" in screen_text(app)
        assert "Only dismissed findings hold now." in screen_text(app)
        await pilot.press("z", "d")
        await shows(app, pilot, "1 finding ")
        assert not made.fleet.findings["1"].dismissed


async def test_page_shows_curves_the_rule_and_the_way_to_the_gpu() -> None:
    app = app_on(found(HOT, ODD))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("exclamation_mark", "enter")
        await pilot.pause()
        text = screen_text(app)
        assert "gpu03:5 · SM clock" in text
        assert "median of 3 peers · SM clock" in text, "those in its slot"
        assert line_with(app, " peers  ").count("[") == 1
        assert "#SBATCH --exclude=gpu03" in text
        assert line_with(app, " evidence  ").endswith("SM clock 1,215 MHz (peers 1,965)")
        await pilot.press("enter")
        await pilot.pause()
        assert app.front.SCREEN == "gpu"
        assert " gpu03:5 · rank 21  ● live" in screen_text(app)
        await pilot.press("exclamation_mark", "down", "enter", "enter")
        await pilot.pause()
        assert app.front.SCREEN == "node"


async def test_gpus_are_coloured_by_cause_with_a_letter_each() -> None:
    app = app_on(found())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("c")
        await pilot.pause()
        assert line_with(app, " gpu01  ").split()[2:10] == ["W", "W", "W", "a", "a", "T", ".", "–"]
        legend = line_with(app, "cause of time now")
        assert "W  working 12" in legend
        assert "a  waiting 8" in legend
        await pilot.press("3")
        await pilot.pause()
        assert "power W" in screen_text(app), "a metric's key shows the metric again"


async def test_demo_is_quiet_but_for_one_hot_gpu_which_the_screen_names_by_minute_four() -> None:
    made = Scene(4, 8).connect().watch().advance(115)
    assert [one.kind for one in made.fleet.findings.values()] == ["starting"]
    node, gpu = hot_gpu(1, 4, 8)
    made.advance(120)
    app = app_on(made.recording())
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert line_with(app, f"▲ {made.names[node]}:{gpu} · rank {8 * node + gpu} · clock 1,5")
        assert [one.kind for one in holding(made.fleet.findings.values())] == ["thermal"]


async def test_finding_of_a_recording_is_dismissed_and_opens_at_its_time(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    made, recorder = recorded(path, 2, 2, seed=1)
    made.advance(30)
    at = made.time - 10
    made.hub.publish(FindingChanged(made.time, replace(HOT, node="gpu02", nodes=("gpu02",), gpu=1, since=at)))
    made.advance(30)
    recorder.close(made.time)
    with closing(FileSource(path)) as source:
        deck = Deck(source, end=65)
        async with deck.app.run_test(size=(120, 40), notifications=True) as pilot:
            await deck.settle(pilot)
            deck.player.seek(made.time - 2)
            await deck.settle(pilot)
            await deck.press(pilot, "c")
            assert line_with(deck.app, "cause of time is kept for no past time")
            await deck.press(pilot, "exclamation_mark", "enter", "d")
            async with asyncio.timeout(30):
                while "dismissed" not in screen_text(deck.app).splitlines()[0]:
                    await pilot.pause(0.05)
                    await deck.settle(pilot)
            await deck.press(pilot, "enter")
            await deck.settle(pilot)
            assert deck.app.front.SCREEN == "gpu"
            assert deck.player.wanted == at
        kept = source.query("SELECT dismissed FROM findings").rows()
        assert kept == [(True,)]
