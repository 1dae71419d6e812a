"""Recovery after heads killed with SIGKILL, on a real terminal with a real agent."""

from __future__ import annotations

import json
import marshal
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, cast

import duckdb
import pytest

from gswarm_agent.attach import peer
from gswarm_agent.spool import ENDED
from gswarm_tui.cli import main
from gswarm_tui.commands import recover
from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import plural
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    FindingChanged,
    IntervalChanged,
    MetricsChanged,
    SessionStarted,
    SessionStopped,
)
from gswarm_tui.options.arguments import UsageError, parse
from gswarm_tui.run import build, interrupted
from gswarm_tui.run.finish import finish
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.saved_options import restore_options, save_options, write_note
from gswarm_tui.server.tokens import read_tokens, token_path
from gswarm_tui.slurm.jobs import Job
from gswarm_tui.store.recording.recorder import FileWriter
from tests.integration.heads import agents_of, eventually, head, nothing_left, rows
from tests.recorders import kill_recorder
from tests.unit.store_recording import INFO, T0, arrived, finding, gpu_row, introduced, query

GROUPS = ("core", "pcie")
SETTINGS = parse([], {"HOME": "/nowhere"})


def frames_on(path: Path) -> list[int]:
    return [seq for (seq,) in query(path, "SELECT seq FROM host_samples ORDER BY ts")]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "gswarm-run.duckdb"
    with nothing_left(path):
        yield path


def killed_head(path: Path, most: int = 10) -> str:
    """Record more frames of this machine than ``most``, kill the head, and return the recording's uid."""
    words = ("--launcher", "local", "--interval", "0.1", "--db", str(path))
    with head(*words) as running:
        eventually(lambda: rows(running) > most, "frames on disk")
        kill_recorder(path)
    ((uid,),) = query(path, "SELECT uid FROM recordings")
    assert isinstance(uid, str)
    return uid


def test_finishing_after_a_killed_head_loses_and_repeats_no_frame(path: Path) -> None:
    uid = killed_head(path)
    before = len(frames_on(path))
    waiting = agents_of(uid)[0]
    assert isinstance(waiting["pid"], int), "the agent lives on"

    def frames_waiting() -> bool:
        lives = agents_of(uid)[0]["lives"]
        return isinstance(lives, list) and bool(lives) and lives[0]["frames"] > 10

    eventually(frames_waiting, "frames that wait")
    assert path.stat().st_mode & 0o777 == 0o600
    out = subprocess.run(
        [sys.executable, "-m", "gswarm_tui", "recover", uid[:8], "--finish", "--db", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (out.returncode, out.stderr) == (0, "")
    assert f"recording {uid[:8]} is closed" in out.stdout
    seqs = frames_on(path)
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) >= before + 10
    assert query(path, "SELECT count(*) FROM recordings WHERE ended_at IS NULL") == [(0,)]
    assert query(path, "SELECT count(*) FROM host_samples WHERE interval_ms IS NULL") == [(1,)]
    eventually(lambda: agents_of(uid) == [], "the end of all that was left")


def test_recording_of_a_killed_head_is_resumed_and_the_next_run_on_its_file_reports_it(path: Path) -> None:
    uid = killed_head(path)
    with head("--demo", "1x1", "--db", str(path)) as running:
        running.wait_for(f"gswarm-tui recover {uid[:8]}")
    before = len(frames_on(path))
    with head("recover", uid, "--db", str(path)) as running:
        eventually(lambda: rows(running) > before + 20, "more frames on disk")
        os.kill(running.process.pid, signal.SIGTERM)
        running.exit_status()
    mine = "WHERE recording_id = 1"
    seqs = query(path, f"SELECT seq FROM host_samples JOIN nodes USING (node_id) {mine} ORDER BY ts")
    assert seqs == [(n,) for n in range(1, len(seqs) + 1)]
    assert query(path, f"SELECT ended_at IS NULL FROM recordings {mine}") == [(False,)]
    eventually(lambda: agents_of(uid) == [], "the end of all that was left")


def test_finishing_starts_no_sampling_on_a_node_whose_agent_has_ended(path: Path) -> None:
    uid = killed_head(path)
    agent = agents_of(uid)[0]["pid"]
    assert isinstance(agent, int)
    os.kill(agent, signal.SIGTERM)
    eventually(lambda: agents_of(uid)[0]["pid"] is None, "the agent's end")
    (life,) = cast(list[dict[str, int]], agents_of(uid)[0]["lives"])
    before = len(frames_on(path))
    words = [sys.executable, "-m", "gswarm_tui", "recover", uid[:8], "--finish", "--db", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    seqs = frames_on(path)
    assert seqs == list(range(1, len(seqs) + 1))
    assert before < len(seqs) <= before + life["frames"]
    assert query(path, "SELECT count(DISTINCT life) FROM links") == [(1,)]
    eventually(lambda: agents_of(uid) == [], "the end of all that was left")


def finished(path: Path, uid: str, *more: str) -> tuple[int, str]:
    """Run ``recover --finish``; return its exit status and output."""
    words = [sys.executable, "-m", "gswarm_tui", "recover", uid[:8], "--finish", "--db", str(path), *more]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def gaps(path: Path) -> list[str]:
    return [message for (message,) in query(path, "SELECT message FROM events WHERE kind = 'gap'")]


def killed_agent(uid: str) -> None:
    """Kill the agent with SIGKILL, so that its frames in memory are lost."""
    agent = agents_of(uid)[0]["pid"]
    assert isinstance(agent, int)
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: agents_of(uid)[0]["pid"] is None, "the agent's end")


def test_frames_lost_with_a_killed_agent_are_reported_as_a_gap(path: Path) -> None:
    uid = killed_head(path, 3)  # its agent puts on disk what it has 5 s later
    folder = next(Path("/var/tmp").glob(f"gswarm-tui-{os.geteuid()}/{uid}@*"))

    def numbered() -> int:
        (number, _, _) = list(marshal.loads((folder / "tally").read_bytes()).values())[-1]
        return int(number)

    told = numbered()
    eventually(lambda: numbered() > told + 3, "frames that only the agent has")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder / "serve"))
        os.kill(peer(connection)[0], signal.SIGKILL)
    eventually(lambda: agents_of(uid)[0]["pid"] is None, "the agent's end")
    made = numbered()
    status, said = finished(path, uid)
    assert status == 0, said
    assert beyond_the_end(path) == []
    lost = made - len(frames_on(path))
    assert lost > 0
    assert gaps(path) == [f"{plural(lost, 'frame')} {'is' if lost == 1 else 'are'} missing: {ENDED}"]
    assert query(path, "SELECT count(*) FROM recordings WHERE ended_at IS NULL") == [(0,)]
    eventually(lambda: agents_of(uid) == [], "the end of all that was left")


def test_agent_without_any_trace_is_reported_as_a_gap(path: Path) -> None:
    uid = killed_head(path)
    killed_agent(uid)
    shutil.rmtree(next(Path("/var/tmp").glob(f"gswarm-tui-{os.geteuid()}/{uid}@*")))
    status, said = finished(path, uid)
    assert status == 0, said
    assert gaps(path) == [
        "the agent's unsent frames are gone: samples that it took after this, if any, are lost"
    ]
    assert beyond_the_end(path) == []
    # A sample that was less than 5 ms late is kept at the time when it was due.
    sampled = "max(ts) AS due, arg_max(late_ms, ts) AS late FROM host_samples"
    after_due = f"SELECT epoch(e.ts - due) * 1000, late FROM events e, (SELECT {sampled}) WHERE kind = 'gap'"
    ((after_ms, late_ms),) = query(path, after_due)
    assert after_ms == pytest.approx(late_ms if 0 <= late_ms < 5 else 0, abs=1)


def leave(path: Path, uid: str, options: str = "{}", node: str = "n1", more: tuple[Event, ...] = ()) -> None:
    recorder = FileWriter(path, replace(INFO, uid=uid, options=options), lambda _status: None)
    recorder.open()
    recorder.submit([introduced(node, gpus=1), arrived(1, [gpu_row()], node=node), *more])
    recorder.close(None)
    if uid:
        write_note(uid, json.loads(options), "")


def beyond_the_end(path: Path) -> list[tuple[Any, ...]]:
    """Return the rows with times after the end of the recording."""
    of_the_run = (
        "SELECT ts, kind AS what, recording_id FROM events WHERE kind IN ('gap', 'mark') UNION ALL "
        "SELECT coalesce(ended_at, started_at), name, recording_id FROM sessions UNION ALL "
        "SELECT ts, 'sample', recording_id FROM host_samples JOIN nodes USING (node_id)"
    )
    within = f"({of_the_run}) JOIN recordings USING (recording_id)"
    return query(path, f"SELECT what FROM {within} WHERE ts > ended_at")


def test_recording_covers_events_after_its_last_sample(path: Path) -> None:
    later: dict[str, list[Event]] = {
        "mark": [EventLogged(T0 + 1.5, "mark", "info", "epoch 3")],
        "gap": [EventLogged(T0 + 1.5, "gap", "warning", "1 frame is missing", "no/host")],
        "session": [SessionStarted("s", T0 + 1.5, "train", T0 + 1.5)],
        "stopped": [SessionStarted("s", T0 + 1, "train", T0 + 1), SessionStopped("s", T0 + 1.5, T0 + 1.5)],
    }
    options = save_options(SETTINGS, Plan(("no/host",)))
    for uid, events in later.items():
        recorder = FileWriter(path, replace(INFO, uid=uid, options=options), lambda _status: None)
        recorder.open()
        write_note(uid, json.loads(options), "")
        recorder.submit([introduced("no/host", gpus=1), arrived(1, [gpu_row()], node="no/host"), *events])
        recorder.close(None)
    for uid in later:
        assert main(["recover", uid, "--finish", "--db", str(path), "--abandon"]) == 0
    ends = query(path, "SELECT epoch(ended_at) FROM recordings")
    assert ends == [(pytest.approx(T0 + 1.5),)] * len(later)
    assert beyond_the_end(path) == []


AWAY = "no/host: unreachable: 'no/host' isn't a host name\n"


def test_recording_stays_open_for_an_unreachable_node_until_abandoned(path: Path) -> None:
    leave(path, "abd2-0", save_options(SETTINGS, Plan(("no/host",))), "no/host")
    read_tokens("abd2-0")
    unended = "SELECT count(*) FROM recordings WHERE ended_at IS NULL"
    for _ in range(2):
        status, said = finished(path, "abd2-0")
        assert (status, said) == (
            1,
            f"{path}: recording abd2-0 stays open; 0 frames fetched from its nodes\n{AWAY}"
            f"`gswarm-tui recover abd2-0 --finish --db {path}` tries again; "
            "--abandon closes the recording without no/host\n",
        )
        assert query(path, unended) == [(1,)]
    assert token_path("abd2-0").exists()
    status, said = finished(path, "abd2-0", "--abandon")
    assert not token_path("abd2-0").exists()
    assert (status, said) == (
        0,
        f"{path}: recording abd2-0 is closed; 0 frames fetched from its nodes\n{AWAY}",
    )
    assert query(path, unended) == [(0,)]
    told = query(path, "SELECT kind, node, message FROM events JOIN nodes USING (node_id) ORDER BY events.ts")
    reason = "unreachable: 'no/host' isn't a host name"
    waiting = ("waiting", "no/host", f"it may hold frames that couldn't be fetched: {reason}")
    abandoned = f"the recording was closed without frames that it may hold: {reason}"
    assert told == [waiting, waiting, ("abandoned", "no/host", abandoned)]


def test_node_that_never_answered_keeps_no_recording_open(path: Path) -> None:
    leave(path, "abd2-0", save_options(SETTINGS, Plan(("no/host",))))
    assert finished(path, "abd2-0") == (
        0,
        f"{path}: recording abd2-0 is closed; 0 frames fetched from its nodes\n"
        f"{AWAY[:-1]}; it never answered during the recording\n",
    )
    status, said = finished(path, "abd2-0")
    assert (status, "and a closed one needs no recovery" in said) == (2, True)


def test_recording_is_chosen_by_the_start_of_its_id_or_by_number(tmp_path: Path) -> None:
    leave(tmp_path / "gswarm-a.duckdb", "abc1-0")
    leave(tmp_path / "gswarm-b.duckdb", "abd2-0")
    (tmp_path / "gswarm-c.duckdb").write_text("no database")
    with duckdb.connect(str(tmp_path / "songs.duckdb")) as connection:
        connection.execute("CREATE TABLE songs (title VARCHAR)")
    found, unreadable = interrupted.find(tmp_path, None)
    assert [one.interrupted.uid for one in found] == ["abc1-0", "abd2-0"]
    assert len(unreadable) == 1
    assert interrupted.choose(found, unreadable, "abd").path.name == "gswarm-b.duckdb"
    with pytest.raises(UserError, match="2 interrupted recordings match"):
        interrupted.choose(found, unreadable, "ab")
    with pytest.raises(UserError, match="no interrupted recording here has the ID"):
        interrupted.choose(found, unreadable, "x")
    only, _ = interrupted.find(tmp_path, tmp_path / "gswarm-a.duckdb")
    assert interrupted.choose(only, [], "1").interrupted.uid == "abc1-0"
    usual, _ = interrupted.find(tmp_path / "..", None, tmp_path / "gswarm-b.duckdb")
    assert [one.interrupted.uid for one in usual] == ["abd2-0"]


async def test_recording_of_an_older_version_can_be_closed(tmp_path: Path) -> None:
    path = tmp_path / "gswarm-a.duckdb"
    leave(path, "", more=(FindingChanged(T0 + 1, finding(since=T0)),))
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "ALTER TABLE recordings DROP COLUMN uid; ALTER TABLE recordings DROP COLUMN options"
        )
    ((one,), _) = interrupted.find(tmp_path, None)
    out = StringIO()
    assert await finish(one, SETTINGS, out) == 0
    assert "recording 1 is closed; 0 frames" in out.getvalue()
    assert query(path, "SELECT ended_at > started_at FROM recordings") == [(True,)]
    # A finding that held at the interruption ends with the last sample.
    assert query(path, "SELECT epoch(until), sentence FROM findings") == [(T0 + 1, finding().sentence)]
    assert query(path, "SELECT kind FROM events WHERE kind LIKE 'finding%'") == [("finding_end",)]


def test_list_names_recordings_and_what_was_skipped(tmp_path: Path) -> None:
    leave(tmp_path / "gswarm-a.duckdb", "")
    leave(tmp_path / "gswarm-b.duckdb", "abd2-0", save_options(SETTINGS, Plan(("no/host",))))
    out = StringIO()
    assert interrupted.show(*interrupted.find(tmp_path, None), out, tmp_path) == 0
    assert [line.split()[0] for line in out.getvalue().splitlines()[:2]] == ["1", "abd2-0"]
    out = StringIO()
    interrupted.show([], [], out, Path("run.duckdb"))
    assert out.getvalue() == "nothing to recover in run.duckdb; --db names another file\n"
    out = StringIO()
    interrupted.show([], ["run.duckdb is in use"], out, Path("run.duckdb"))
    assert out.getvalue().splitlines() == [
        "skipped: run.duckdb is in use",
        "otherwise nothing to recover in run.duckdb; --db names another file",
    ]


def test_saved_options_are_restored() -> None:
    words = "--nodes gpu[01-02] --user ada --jump hop --interval 0.5 --setup true --agent-python python3.9"
    words += " --linger 2d --spool-mib 512"
    options = parse(words.split(), {})
    groups = {"gpu01": 0, "gpu02": 1}
    job = Job("4711", "4711_3", ("gpu01", "gpu02"), cluster="tiny", het_groups=groups, gpus_in_total=True)
    plan = Plan(("gpu01", "gpu02"), job, {"gpu01": frozenset({0, 3})})
    saved = json.loads(save_options(options, plan))
    again, planned = restore_options(saved, SETTINGS, options.setup or "")
    assert again == options._replace(nodes=None)
    assert planned == plan


def test_resumed_run_keeps_the_last_interval_and_metric_groups(tmp_path: Path) -> None:
    options, plan = parse(["--interval", "1"], {}), Plan(("n1",))
    fleet = build.build_hub(options, plan).fleet
    changes = [fleet.apply(IntervalChanged(T0 + at, ms)) for at, ms in ((3, 500), (5, 2000))]
    changes += [fleet.apply(MetricsChanged(T0 + at, groups)) for at, groups in ((4, ("core",)), (6, GROUPS))]
    info = replace(INFO, uid="abc1", options=save_options(options, plan))
    recorder = FileWriter(tmp_path / "run.duckdb", info, lambda _status: None)
    recorder.open()
    recorder.submit([introduced(), *chain.from_iterable(changes)])
    assert recorder.close(None).error == ""
    write_note("abc1", json.loads(info.options or ""), "")
    ((one,), _) = interrupted.find(tmp_path, None)
    hub = build.build_hub(*one.restore(SETTINGS))
    assert hub.fleet.interval_ms == 2000
    assert hub.fleet.nodes["n1"].interval_ms == 2000
    assert hub.fleet.metrics == GROUPS


def test_resumed_recording_reads_no_hardware_counters(path: Path) -> None:
    nodes = (socket.gethostname(),)
    job = Job("4711", "4711", nodes, exclusive=True)
    options = save_options(parse(["--launcher", "local"], {}), Plan(nodes, job))
    recorder = FileWriter(path, replace(INFO, uid="e4d0", options=options), lambda _status: None)
    recorder.open()
    groups = ("core", "counters")
    fleet = build.build_hub(SETTINGS, Plan(nodes)).fleet
    recorder.submit([introduced(nodes[0]), *fleet.apply(MetricsChanged(T0 + 1, groups))])
    recorder.close(None)
    write_note("e4d0", json.loads(options), "")
    with head("recover", "e4d0", "--db", str(path)) as running:
        running.wait_for("1/1")
        os.kill(running.process.pid, signal.SIGTERM)
        running.exit_status()
    counters = query(path, "SELECT message FROM events WHERE kind = 'counters' AND message LIKE 'count%'")
    off = query(path, "SELECT message FROM events WHERE message = 'metrics: counters switched off'")
    refusals = query(
        path, "SELECT message FROM events WHERE message LIKE 'hardware counters count all users%'"
    )
    assert (len(counters), len(off), len(refusals)) == (0, 1, 1)


VALID = json.loads(save_options(SETTINGS, Plan(("a",))))


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"launcher": "rsh"},
        VALID | {"demo": 3},
        VALID | {"demo": [10**9, 8]},
        VALID | {"user": "-oProxyCommand=x"},
        VALID | {"jump": "a b"},
        VALID | {"linger_s": 10**12},
        VALID | {"job": ["1; x", "1", None]},
    ],
)
def test_invalid_saved_options_are_refused(kept: dict[str, object]) -> None:
    with pytest.raises(UserError, match="its nodes can't be reached"):
        restore_options(kept, SETTINGS, None)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--finish", "--finish needs the ID"),
        ("--trust", "need the ID of a recording"),
        ("--user ada", "need the ID of a recording"),
        ("a --launcher rsh", '--launcher: "rsh" isn\'t a launcher'),
        ("a --abandon", "--abandon closes a recording, so it needs --finish"),
        ("a b", 'unexpected argument "b"'),
        ("run.duckdb", 'takes an ID; name the file "run.duckdb" with --db'),
        ("--db /", '--db: "/" is a folder; name a file in it'),
        ("--finnish", "unknown option"),
        ("--db /nowhere.duckdb", "--db: there is no file"),
    ],
)
def test_invalid_recover_command_line_is_refused(words: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        recover.run(words.split(), {})


@pytest.mark.parametrize("words", [["recover"], ["recover", "abc"]])
def test_named_file_of_another_program_is_refused(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "songs.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE songs (title VARCHAR)")
    assert main([*words, "--db", str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"gswarm-tui: {path} isn't a recording of gswarm-tui; name one with --db.\n"
