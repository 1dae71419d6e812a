"""Energy of sessions is the same live, in the recording, after resuming and while looking back."""

from __future__ import annotations

from contextlib import closing
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gswarm_tui.fleet.events import Event, FrameArrived, SessionStarted, SessionStopped
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.recorded_source import RecordedSource
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.recorder import FileWriter
from tests.block_rows import rows_of
from tests.unit.store_recording import INFO, T0, arrived, decided, gpu_row, introduced, query

Counters = tuple[int | None, ...]
"""The counter (mJ) of each GPU at a reading, None where it gives none."""

END = T0 + 50
ROUNDING_J = 0.01
"""The summary rounds parts of samples to mJ; the sums must not depend on the order in which threads add."""


def reading(
    seq: int, counters: Counters, life: str = "life1", ts: float | None = None, power_w: float | None = None
) -> FrameArrived:
    rows = [gpu_row(energy_mj=mj, util_pct=50, power_w=power_w) for mj in counters]
    return arrived(seq, rows, life=life, ts=ts)


def live(events: list[Event]) -> Fleet:
    fleet = Fleet(["n1"])
    for event in events:
        fleet.apply(event)
    return fleet


def energies_everywhere(path: Path, events: list[Event]) -> list[dict[str, float]]:
    """Return the joules by session, and in total under "", from each part that computes them."""
    recorder = FileWriter(path, INFO, lambda _status: None)
    recorder.open()
    recorder.submit(decided(events))
    recorder.close(None)
    recorder = FileWriter(path, 1, lambda _status: None)
    recorder.open()
    assert recorder.resumed is not None
    resumed = Fleet([])
    resumed.restore_energy(recorder.resumed.energy_j, recorder.resumed.gpus)
    for session in recorder.resumed.sessions:
        resumed.sessions.restore(session)
    recorder.close(END)
    with closing(FileSource(path)) as source:
        replay = RecordedSource(source, 1)
        sought, played = replay.fleet(END - 1), replay.fleet(T0 + 4.5)
        for event in replay.events(T0 + 4.5, END - 1):
            played.apply(event)
    fleets = live(events), resumed, sought, played
    energies = [
        {"": fleet.energy_j} | {one.name: one.energy_j for one in fleet.sessions.sessions.values()}
        for fleet in fleets
    ]
    view = query(path, "SELECT session, coalesce(energy_j, 0) FROM session_summary WHERE scope = 'all'")
    nothing = {name: 0.0 for name in energies[0] if name}  # the view has no row of a session without samples
    return [*energies, nothing | dict(view)]


def test_energy_over_missing_samples_is_counted() -> None:
    counters: list[Counters] = [(1000, 7000), (None, 8000), (None, 9000), (4000, 9500)]
    fleet = live([introduced(), SessionStarted("s", T0, "s", T0), *map(reading, range(1, 5), counters)])
    assert fleet.energy_j == fleet.sessions.sessions["s"].energy_j == 3 + 2.5


def test_a_late_sample_adds_nothing_to_the_step_around_it() -> None:
    fleet = live([introduced(), introduced(life="life2")])
    for event in (
        reading(1, (1000, 0)),
        reading(1, (4000, 900), "life2", T0 + 4),
        reading(2, (None, 300)),
        reading(3, (2000, None)),
    ):
        fleet.apply(event)
    assert fleet.energy_j == pytest.approx(3 + 0.9)


def test_gpu_energy_is_summed_over_all_machines_of_its_node(tmp_path: Path) -> None:
    """A GPU falls off the bus, the node reboots, and then all GPUs are back."""
    runs: list[tuple[Event, ...]] = [
        (introduced(), reading(1, (1000, 2000)), reading(2, (2000, 3000))),
        (
            introduced(at=T0 + 8.5, life="b", gpus=1),
            reading(1, (9000,), "b", T0 + 9),
            reading(2, (9500,), "b", T0 + 10),
        ),
        (
            introduced(at=T0 + 13, life="c", gpus=1, boot_id="boot2"),
            reading(1, (700,), "c", T0 + 14),
            reading(2, (800,), "c", T0 + 15),
        ),
        (
            introduced(at=T0 + 19, life="d"),
            reading(1, (900, 5000), "d", T0 + 20),
            reading(2, (990, 6000), "d", T0 + 21),
        ),
    ]
    used_j = {0: 12.79, 1.5: 11.79, 8: 1.79 + 2 * 12 / 18 + 1, 12: 0.29 + 2 * 8 / 18 + 1}
    sessions = [SessionStarted(f"from {since}", T0 + since, f"from {since}", T0 + since) for since in used_j]
    events: list[Event] = sorted([*chain(*runs), *sessions], key=lambda event: event.at)
    first, *others = energies_everywhere(tmp_path / "run.duckdb", events)
    expected = {"": 12.79} | {f"from {since}": joules for since, joules in used_j.items()}
    assert first == pytest.approx(expected)
    assert [{"": first[""]} | other for other in others] == [pytest.approx(first, abs=ROUNDING_J)] * 4


def test_energy_continues_in_a_resumed_recording(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    session = SessionStarted("s", T0, "s", T0)
    first: list[Event] = [
        introduced(),
        session,
        reading(1, (1000, 100)),
        reading(2, (None, 300)),
        reading(3, (4000, None)),
    ]
    recorder = FileWriter(path, INFO, lambda _status: None)
    recorder.open()
    recorder.submit(decided(first))
    recorder.close(None)
    rest: list[Event] = [introduced(), reading(4, (4500, None)), reading(5, (5000, 1000))]
    recorder = FileWriter(path, 1, lambda _status: None)
    recorder.open()
    assert recorder.resumed is not None
    fleet = Fleet(["n1"])
    fleet.restore_energy(recorder.resumed.energy_j, recorder.resumed.gpus)
    fleet.sessions.restore(recorder.resumed.sessions[0])
    assert fleet.energy_j == pytest.approx(3.2)
    recorder.submit(decided(rest, fleet))
    recorder.close(END)
    (used,) = query(path, "SELECT energy_j FROM session_summary WHERE scope = 'all'")
    assert (fleet.energy_j,) == (fleet.sessions.sessions["1"].energy_j,) == used == (pytest.approx(4.9),)


def test_the_first_step_of_an_agent_run_counts_by_its_time_in_the_session(tmp_path: Path) -> None:
    before: list[Event] = [introduced(), reading(1, (1000, None)), reading(2, (3000, None))]
    after: list[Event] = [
        introduced(life="life2"),
        reading(1, (7000, None), "life2", T0 + 2.9),
        reading(2, (8000, None), "life2", T0 + 3.9),
    ]
    energies = energies_of(tmp_path, before, after, T0 + 2.5)
    assert energies == [pytest.approx(4 * 0.4 / 0.9 + 1, rel=1e-3)] * 10


def test_a_step_over_missed_ticks_counts_by_its_time_in_the_session(tmp_path: Path) -> None:
    before: list[Event] = [introduced(), reading(1, (1000, None))]
    after: list[Event] = [reading(2, (7000, None), ts=T0 + 6), reading(3, (8000, None), ts=T0 + 7)]
    energies = energies_of(tmp_path, before, after, T0 + 3)
    assert energies == [pytest.approx(6 * 3 / 5 + 1)] * 10


def test_a_session_within_one_step_counts_the_power_and_time_in_it(tmp_path: Path) -> None:
    """A counter is read every 10 s, in which power rises; its growth isn't quite power × time."""
    frames = [
        reading(seq, (mj, mj), power_w=100 if seq <= 5 else 700)
        for seq, mj in enumerate([1000, *[None] * 9, 5_001_000, None], 1)
    ]
    inside = (SessionStarted("s", T0 + 3.5, "s", T0 + 3.5), SessionStopped("s", T0 + 8.25, T0 + 8.25))
    backdated: list[Event] = []
    for name, began, ended in (("before", 0, 3.5), ("within", 3.5, 8.25), ("after", 8.25, 12)):
        backdated.append(SessionStarted(name, T0 + 12, name, T0 + began))
        backdated.append(SessionStopped(name, T0 + 12, T0 + ended))
    events = [introduced(), *frames[:3], inside[0], *frames[3:8], inside[1], *frames[8:], *backdated]
    joules = 2 * 5000 * (1.5 * 100 + 3.25 * 700) / (4 * 100 + 6 * 700)
    for found in energies_everywhere(tmp_path / "run.duckdb", events):
        assert found["s"] == pytest.approx(joules)
        assert found["within"] == pytest.approx(joules)
        assert found["before"] + found["within"] + found["after"] == pytest.approx(2 * 5000)


def energies_of(folder: Path, before: list[Event], after: list[Event], since: float) -> list[float]:
    """Return the joules of two sessions that start between these events: one live, one backdated."""
    live_one, backdated = (SessionStarted(key, at, key, since) for key, at in (("s", since), ("b", END - 10)))
    found = energies_everywhere(folder / "run.duckdb", [*before, live_one, *after, backdated])
    return [energy[name] for name in ("s", "b") for energy in found]


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """Generate silent GPUs, lost and late frames, uneven ticks, counters that restart, backdated sessions."""
    counts = [draw(st.integers(5000, 10**6)) for _ in range(2)]
    frames: list[FrameArrived] = []
    whole: list[FrameArrived] = []
    ts, restarts_at, often = T0, draw(st.integers(2, 20)), draw(st.integers(1, 4))
    # Power that comes after a step was decided doesn't spread it, so late frames have none.
    late = draw(st.booleans())
    power = st.none() if late else st.sampled_from([None, 100, 300, 700])
    for seq in range(1, draw(st.integers(3, 12)) + 1):
        ts = round(ts + draw(st.sampled_from([1, 1, 1.2, 0.9, 1.7])), 1)
        if seq == restarts_at:
            counts = [0, 0]
        counts = [count + draw(st.integers(0, 400)) for count in counts]
        if seq == 1 or draw(st.integers(0, 5)):
            counters = tuple(count if draw(st.integers(0, often)) else None for count in counts)
            frames.append(reading(seq, counters, ts=ts, power_w=draw(power)))
            whole.append(reading(seq, tuple(counts), ts=ts))
    events: list[Event] = [*frames]
    if late:
        until = draw(st.integers(0, len(frames) - 1))
        fewer = frames[until].frame.seq - 1
        newer = [
            arrived(one.frame.seq - fewer, rows_of(one.frame.gpus), life="life2", ts=one.ts)
            # A backdated session counts from the first counter in time: that frame reads all.
            for one in [whole[until], *frames[until + 1 :]]
        ]
        events = [introduced(life="life2"), newer[0], *frames[:until], *newer[1:]]
    for number in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(events)))
        now = max((e.ts for e in events[:at] if isinstance(e, FrameArrived)), default=T0) + 0.25
        since = max(T0, now - draw(st.sampled_from([0, 0, 0.5, 1, 2, 3, 7])))
        events.insert(at, SessionStarted(str(number), now, f"s{number}", since))
        if draw(st.booleans()):
            later = draw(st.integers(at + 1, len(events)))
            now = max((e.ts for e in events[:later] if isinstance(e, FrameArrived)), default=now) + 0.55
            events.insert(later, SessionStopped(str(number), max(now, since), max(now, since)))
    return [introduced(), SessionStarted("all", T0, "whole", T0), *events]


@settings(max_examples=3, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # each is a recording
@given(runs())
def test_energy_is_equal_live_in_the_summary_and_in_replay(events: list[Event]) -> None:
    with TemporaryDirectory() as folder:
        first, *others = energies_everywhere(Path(folder) / "run.duckdb", events)
    assert first[""] == pytest.approx(first["whole"])
    for other in others:
        assert {"": first[""]} | other == {
            name: pytest.approx(used_j, abs=ROUNDING_J) for name, used_j in first.items()
        }
