"""Commands that control a running head: their output, their JSON and their exit statuses."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gswarm_agent.metrics import COUNTERS, DEFAULT_GROUPS, HOST, PCIE, PROCESSES
from gswarm_tui.cli import main
from gswarm_tui.common.errors import UserError
from gswarm_tui.control import registry
from gswarm_tui.control.intents import StartSession
from gswarm_tui.fleet.events import LinkChanged, Phase
from gswarm_tui.options.arguments import GSWARM_PROFILER_COMMANDS
from tests.integration.heads import head as in_terminal
from tests.integration.test_control import RunningHead
from tests.tui.client import carry_out
from tests.unit.store_recording import T0, arrived, gpu_row, introduced, query

ONE, TWO = "0f1e2d3c-0000-4000-8000-000000000001", "a1b2c3d4-0000-4000-8000-000000000002"
CONTROLLING = ("status", "nodes", "session", "interval", "metrics", "recording")


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Return an environment without other heads."""
    monkeypatch.setattr(registry, "SHARED", str(tmp_path / "shared"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "run").mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": str(tmp_path)}


@asynccontextmanager
async def head(path: Path | None, environ: Mapping[str, str], uid: str = ONE) -> AsyncIterator[RunningHead]:
    """Run a head with one node of two GPUs that were sampled at T0 + 59; now is T0 + 60."""
    running = RunningHead(path, environ, uid)
    await running.control.start()
    running.hub.publish(introduced(gpus=2))
    running.hub.publish(arrived(59, [gpu_row(util_pct=40), gpu_row(util_pct=80)]))
    running.hub.flush()
    try:
        yield running
    finally:
        running.hub.flush()
        await running.close()


@asynccontextmanager
async def two_heads(
    tmp_path: Path, environ: Mapping[str, str]
) -> AsyncIterator[tuple[RunningHead, RunningHead]]:
    """Run two heads as two processes would: each in a folder of its own."""
    elsewhere = {name: value for name, value in environ.items() if name != "XDG_RUNTIME_DIR"}
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(head(tmp_path / "one.duckdb", environ, ONE))
        two = await stack.enter_async_context(head(tmp_path / "two.duckdb", elsewhere, TWO))
        yield one, two


async def run(environ: Mapping[str, str], *words: str) -> int:
    """Run a command as the command line does; a UserError gives its exit status."""
    command = importlib.import_module(f"gswarm_tui.commands.{words[0]}")
    try:
        return int(await asyncio.to_thread(command.run, words[1:], environ))
    except UserError as error:
        print(f"{str(error).removesuffix('.')}.")
        return error.exit_status


async def run_json(capsys: pytest.CaptureFixture[str], environ: Mapping[str, str], *words: str) -> Any:
    capsys.readouterr()
    assert await run(environ, *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


async def test_sessions_start_stop_and_are_renamed(
    environ: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.duckdb"
    async with head(path, environ):
        for words, printed in (
            (("start",), "started session-1\n"),
            (("start", "train", "--at", "-20s", "--note", "lr 1e-4"), "started train, backdated 20 s\n"),
            (("rename", "session-1", "eval"), "session-1 is now eval\n"),
            (("stop", "--at", "-5s", "train"), "stopped train after 15 s\n"),
            (("stop",), "stopped eval after 0 s\n"),
        ):
            assert await run(environ, "session", *words) == 0
            assert capsys.readouterr().out == printed
    assert query(
        path, "SELECT name, note, epoch(ended_at - started_at) FROM sessions ORDER BY session_id"
    ) == [
        ("eval", "", 0),
        ("train", "lr 1e-4", 15),
    ]


async def test_session_stop_says_that_the_last_sample_is_missing(
    environ: Mapping[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gswarm_tui.control.server.LAST_SAMPLE_S", 0.05)
    async with head(tmp_path / "run.duckdb", environ) as running:
        running.hub.publish(LinkChanged("n1", T0 + 60, Phase.LIVE))
        await run(environ, "session", "start", "train", "--at", "-20s")
        (stopped,) = await run_json(capsys, environ, "session", "stop")
        assert stopped["provisional"] is True
        await run(environ, "session", "start", "eval", "--at", "-20s")
        (stopped,) = await run_json(capsys, environ, "session", "stop", "--at", "-15s")
        assert stopped["provisional"] is False
        for seq, energy_mj in ((60, 1000), (61, None), (62, 2000)):
            row = gpu_row(util_pct=40, energy_mj=energy_mj)
            running.hub.publish(arrived(seq, [row, row], ts=T0 + 59.5 + (seq - 60) / 2))
            await run(environ, "session", "start", f"s{seq}", "--at", "-20s")
            (stopped,) = await run_json(capsys, environ, "session", "stop")
            assert stopped["provisional"] is (seq < 62), "the counter wasn't read since the stop"


async def test_status_shows_recording_nodes_gpus_and_sessions(
    environ: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with head(tmp_path / "run.duckdb", environ):
        await run(environ, "session", "start", "train")
        capsys.readouterr()
        assert await run(environ, "status") == 0
        text = capsys.readouterr().out
        assert text.startswith(f"{tmp_path}/run.duckdb · recording 0f1e2d3c · job 4711\nrunning for 60 s, ")
        for line in (
            "nodes     1 connecting\n",
            "sampling  every 1 s",
            "sessions  train, 0 s · utilisation –\n",
        ):
            assert line in text
        (status,) = await run_json(capsys, environ, "status")
        assert status["answers"] is True
        assert (status["uid"], status["job"], status["pid"]) == (ONE, "job 4711", os.getpid())
        assert status["started_at"] < status["now"]
        assert [session["name"] for session in status["sessions"]] == ["train"]


async def test_nodes_are_listed_with_their_gpus(
    environ: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with head(tmp_path / "run.duckdb", environ):
        assert await run(environ, "nodes") == 0
        names, _, row = capsys.readouterr().out.splitlines()
        assert names.split()[:4] == ["node", "state", "GPUs", "util"]
        assert row.split()[:5] == ["n1", "connecting", "2", "60", "%"]
        (node,) = await run_json(capsys, environ, "nodes")
        assert (node["node"], node["gpus"], node["mean_util_pct"], node["reason"]) == ("n1", 2, 60, None)


async def test_interval_and_metrics_are_shown_and_switched(
    environ: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with head(tmp_path / "run.duckdb", environ) as running:
        assert await run_json(capsys, environ, "interval") == {"interval_ms": 1000}
        assert await run(environ, "interval", "500ms") == 0
        assert capsys.readouterr().out == "sampling every 0.5 s\n"
        assert running.hub.fleet.interval_ms == 500
        switched = await run_json(capsys, environ, "metrics", "-host,-processes")
        on, off = DEFAULT_GROUPS[:-2], (HOST, PROCESSES, COUNTERS)
        assert switched == {**dict.fromkeys(on, True), **dict.fromkeys(off, False)}
        assert await run_json(capsys, environ, "metrics") == switched
        assert await run(environ, "metrics", "+host,-pcie") == 0
        assert running.hub.fleet.metrics == tuple(name for name in (*on, HOST) if name != PCIE)
        changed = running.hub.fleet.event_log[-1]
        assert changed.message == "metrics: pcie switched off; host switched on"


async def test_mark_of_a_past_time_prints_json(
    environ: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.duckdb"
    async with head(path, environ):
        marked = await run_json(capsys, environ, "mark", "epoch 3", "--at", "-10s")
        assert marked == {"name": "epoch 3", "recordings": [ONE]}
    assert query(path, "SELECT mark, epoch(ts) FROM marks") == [("epoch 3", T0 + 50)]
    assert await run(environ, "mark", "epoch 3", "--at", "-10s") == 3
    assert "--at works on the machine that runs gswarm-tui" in capsys.readouterr().out


async def test_recording_stop_waits_until_the_file_is_closed(
    environ: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with head(tmp_path / "run.duckdb", environ) as running:
        stopping = asyncio.create_task(run_json(capsys, environ, "recording", "stop"))
        await asyncio.wait_for(running.end_requested.wait(), 30)
        assert not stopping.done()
        await running.close()
        assert await stopping == {"path": f"{tmp_path}/run.duckdb", "uid": ONE}


def test_recording_stop_quits_the_app(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.duckdb"
    with in_terminal("--demo", "1x1", "--db", str(path)) as running:
        running.wait_for(" rows")
        assert main(["session", "start", "train", "--db", str(path)]) == 0
        running.wait_for("train")
        assert main(["recording", "stop", "--db", str(path)]) == 0
        assert running.exit_status() == 0
        text = " ".join(running.screen().split())
        assert "gswarm-tui: the recording was ended by gswarm-tui recording stop" in text
        assert "1 session" in text
    assert query(path, "SELECT ended_at IS NOT NULL FROM sessions") == [(True,)]


@pytest.mark.parametrize("word", ["0f1e", "one", "one.duckdb", "train"])
async def test_one_of_several_heads_is_chosen(
    environ: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    async with two_heads(tmp_path, environ) as (one, two):
        carry_out(one.hub, StartSession("train"))
        assert await run(environ, "interval", "2", "--recording", word) == 0
        assert (one.hub.fleet.interval_ms, two.hub.fleet.interval_ms) == (2000, 1000)


async def test_commands_that_change_something_name_the_choice_of_heads(
    environ: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with two_heads(tmp_path, environ) as (one, two):
        one.control.label = "job 12"
        assert await run(environ, "session", "stop") == 2
        printed = capsys.readouterr().out
        assert printed.startswith("2 running gswarm-tui processes match; choose one with --recording: ")
        assert f"0f1e2d3c (job 12, {tmp_path}/one.duckdb)" in printed
        for words in ("", "+pcie,core"):
            assert await run(environ, "metrics", words, "--db", str(tmp_path / "two.duckdb")) == 2
            assert "write all groups that are on, as core,pcie, or +pcie,-host" in capsys.readouterr().out
        assert f"a1b2c3d4 (job 4711, {tmp_path}/two.duckdb)" in printed
        assert await run(environ, "interval", "2", "--db", str(tmp_path / "two.duckdb")) == 0
        assert await run(environ, "interval", "3", "--recording", "12") == 0
        assert await run({**environ, "SLURM_JOB_ID": "4711"}, "session", "start", "x") == 0
        two.control.label = "job 4711_3"
        array_task = {"SLURM_JOB_ID": "4714", "SLURM_ARRAY_JOB_ID": "4711", "SLURM_ARRAY_TASK_ID": "3"}
        assert await run({**environ, **array_task}, "session", "start", "y") == 0
        assert (one.hub.fleet.interval_ms, two.hub.fleet.interval_ms) == (3000, 2000)
        assert (len(one.hub.fleet.sessions.running), len(two.hub.fleet.sessions.running)) == (0, 2)
        assert len(await run_json(capsys, environ, "status")) == 2
        assert await run(environ, "status", "--recording", "nope") == 3
        assert 'the recording, job or file name "nope"; running: ' in capsys.readouterr().out


@pytest.mark.parametrize("word", CONTROLLING)
async def test_without_a_running_head_the_status_is_3(
    environ: Mapping[str, str], capsys: pytest.CaptureFixture[str], word: str
) -> None:
    words = {"session": ("stop",), "recording": ("stop",)}.get(word, ())
    assert await run(environ, word, *words) == 3
    assert "is running; run this command on the machine that runs gswarm-tui." in capsys.readouterr().out


async def test_head_on_another_machine_is_named(
    environ: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "run.duckdb"
    path.touch()
    monkeypatch.setattr("socket.gethostname", lambda: "login2")
    registry.leave_note("1", path, ONE, "", ())
    monkeypatch.setattr("socket.gethostname", lambda: "login1")
    assert await run(environ, "status") == 3
    assert "run this command on login2, where one was started" in capsys.readouterr().out
    assert await run(environ, "session", "stop", "--db", str(path)) == 3
    assert f"is being recorded by gswarm-tui on login2, process {os.getpid()}" in capsys.readouterr().out


async def test_head_without_a_recording_refuses_sessions_marks_and_the_end(
    environ: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    async with head(None, environ):
        for words in (("session", "start"), ("session", "stop"), ("recording", "stop")):
            assert await run(environ, *words) == 1
            assert "nothing is recorded; start gswarm-tui without --no-record." in capsys.readouterr().out
        assert await run(environ, "status") == 0
        assert capsys.readouterr().out.startswith("nothing is recorded · job 4711\n")
        assert await run(environ, "interval", "2") == 0


WRONG = (
    (("session",), 2, "the following arguments are required: start|stop|rename."),
    (("session", "begin"), 2, "start|stop|rename: invalid choice: 'begin'"),
    (("session", "start", "my", "run"), 2, "write gswarm-tui session start [NAME]; see --help."),
    (("session", "start", "--", "-x", "--note", "y"), 2, "write gswarm-tui session start [NAME]"),
    (("session", "start", " "), 2, "a session needs a name."),
    (("session", "start", "x" * 201), 2, "can have 200 characters; this one has 201."),
    (("session", "start", "x", "--at", "noon"), 2, '--at: can\'t read "noon" as a time'),
    (("session", "start", "x", "--at", "-3h"), 2, '--at: "-3h" isn\'t in the recording'),
    (("session", "start", "train"), 1, "a session of this name is running: train."),
    (("session", "stop", "tarin"), 1, 'there is no session "tarin"; running: train.'),
    (("session", "stop", "x", "--note", "y"), 2, "--note applies only to session start; remove it."),
    (("session", "rename", "train"), 2, "write gswarm-tui session rename SESSION NEW-NAME; see --help."),
    (
        ("session", "rename", "a", "b", "--at", "-1s"),
        2,
        "--at applies only to session start and session stop; remove it.",
    ),
    (("session", "rename", "a", "b"), 1, 'there is no session "a"; there are train.'),
    (("interval", "3h"), 2, '"3h" isn\'t between 0.1 s and 60 s.'),
    (("interval", "0.01"), 2, '"0.01" isn\'t between 0.1 s and 60 s.'),
    (("metrics", "+gpu"), 2, "isn't a group of metrics"),
    (("metrics", "--", "-core"), 2, "the group core is always on"),
    (("metrics", "+host", "-pcie"), 2, "name all groups to switch in one word"),
    (("recording",), 2, "the following arguments are required: stop."),
    (("recording", "pause"), 2, "stop: invalid choice: 'pause'"),
    (("nodes", "n1"), 2, 'unexpected argument "n1" after gswarm-tui nodes; see --help.'),
    (("status", "--db", "no.duckdb"), 2, "no.duckdb"),
    (("mark", "x", "--at", "noon"), 2, '--at: can\'t read "noon" as a time'),
)


async def test_wrong_input_is_answered_with_one_sentence(
    environ: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with head(tmp_path / "run.duckdb", environ) as running:
        carry_out(running.hub, StartSession("train"))
        for words, status, problem in WRONG:
            assert await run(environ, *words) == status, words
            printed = capsys.readouterr().out
            assert problem in printed
            assert printed.count("\n") == 1, words
            assert [session.name for session in running.hub.fleet.sessions.running] == ["train"], words


@pytest.mark.parametrize("word", GSWARM_PROFILER_COMMANDS)
def test_commands_of_gswarm_profiler_are_answered_with_ours(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word, "--name", "x"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"gswarm-tui: {word} is a command of gswarm-profiler; ")
    assert printed.err.count("\n") == 1
