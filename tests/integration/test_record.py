"""``gswarm-tui record``: recording without a screen, around a command or until a signal."""

from __future__ import annotations

import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gswarm_tui.cli import main
from gswarm_tui.run.build import user_name
from gswarm_tui.runs import catalogue
from tests.integration.heads import eventually, nothing_left
from tests.terminal import PATIENCE_S
from tests.unit.store_recording import query
from tests.unit.test_former_runs import RUN

UNTIL_INPUT_ENDS = ("sh", "-c", "echo ready; cat; exit 3")


class Running:
    """A ``gswarm-tui record`` with pipes; ``lines`` are those of its standard error so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def output_line(self) -> str:
        """Return the next line that the command prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def wait_for(self, words: str) -> None:
        """Read standard error until a line contains ``words``."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if words in line:
                return
        raise AssertionError(f"never printed: {words}\n{''.join(self.lines)}")

    def end(self, text: str = "") -> tuple[int, str]:
        """End the command's input and wait; return the exit status and what the command printed last."""
        out, rest = self.process.communicate(text, timeout=PATIENCE_S)
        self.lines += rest.splitlines(keepends=True)
        return self.process.returncode, out

    def recorder(self) -> int:
        """Return the pid of the recorder's process, once the command isn't a copy of ``record`` any more."""
        pid, recorders = self.process.pid, list[int]()

        def found() -> bool:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            recorders[:] = (
                int(one) for one in children if "gswarm_tui" in Path(f"/proc/{one}/cmdline").read_text()
            )
            return len(recorders) == 1

        eventually(found, "only the recorder")
        return recorders[0]


@contextmanager
def record(folder: Path, *words: str) -> Iterator[Running]:
    """Run ``gswarm-tui record`` in a folder that is also its home; kill it at the end."""
    environ = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder), "PYTHONUTF8": "1"}
    environ.pop("DUCKDB_JE_MALLOC_CONF", None)  # set in this process by commands that ran in it
    process = subprocess.Popen(
        [sys.executable, "-m", "gswarm_tui", "record", "--db", "run.duckdb", *words],
        cwd=folder,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


def run_beside(folder: Path, *words: str) -> int:
    """Run a command on the recording of ``record``, and return its exit status."""
    return main([*words, "--db", str(folder / "run.duckdb")])


def ended_recordings(folder: Path) -> list[tuple[bool]]:
    return query(folder / "run.duckdb", "SELECT ended_at IS NOT NULL FROM recordings")


def reasons(folder: Path) -> list[tuple[str]]:
    """Return why each recording ended."""
    return query(folder / "run.duckdb", "SELECT message FROM events WHERE kind = 'recording_ended'")


def test_a_note_on_gpu_time_and_findings_follows_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GSWARM_TUI_RULES_SPEED", "20")
    with record(tmp_path, "--demo", "2x4", "--interval", "0.2", "--", "sleep", "3") as running:
        assert running.end() == (0, "")
    *_, note = "".join(running.lines).rpartition("\nGPU time")
    lines = note.splitlines()
    assert 2 <= len(lines) <= 10
    assert {"evidence", "findings"} & {line.split()[0] for line in lines}


def test_session_lasts_as_long_as_the_command(tmp_path: Path) -> None:
    with record(tmp_path, "--demo", "2x4", "--name", "train", "--", *UNTIL_INPUT_ENDS) as running:
        running.wait_for("2 nodes send data, 8 GPUs")
        assert running.output_line() == "ready\n"
        assert running.end("the command's own words\n") == (3, "the command's own words\n")
    text = "".join(running.lines)
    assert "recording 2 nodes (sim[01-02]) into " in text
    assert "gswarm-tui: sh ended with status 3 after " in text
    assert "2 nodes · 8 GPUs" in text, "the summary of the session"
    ((name, whole),) = query(
        tmp_path / "run.duckdb",
        "SELECT name, started_at <= first AND ended_at > first "
        "FROM sessions, (SELECT min(ts) AS first FROM gpu_samples)",
    )
    assert (name, whole) == ("train", True)
    assert query(
        tmp_path / "run.duckdb", "SELECT message[:22] FROM events WHERE kind = 'recording_ended'"
    ) == [("sh ended with status 3",)]


ARMED = {
    "KINETO_IPC_SOCKET_DIR",
    "KINETO_LOG_LEVEL",
    "KINETO_ONDEMAND_TRACE_DIR",
    "KINETO_USE_DAEMON",
}
SHOW_ARMED = (
    "import os, pathlib, sys\n"
    "for name in sorted(os.environ):\n"
    "    if name.startswith('KINETO_'): print(name, os.environ[name])\n"
    "print('-', oct(pathlib.Path(os.environ.get('KINETO_IPC_SOCKET_DIR', '/')).stat().st_mode))\n"
)
SHOW_KEPT = (
    "import signal\n"
    "print(oct(os.umask(0)), signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    "print('DUCKDB_JE_MALLOC_CONF' in os.environ)\n"
    "print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL, sys.argv[1:])\n"
)


def test_command_keeps_what_it_had_and_is_armed_by_variables_that_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "3")
    script = SHOW_ARMED + SHOW_KEPT
    before = os.umask(0o027)
    try:
        with record(
            tmp_path, "--demo", "1x1", "--", sys.executable, "-c", script, "a b", "$x", "--", ""
        ) as running:
            status, out = running.end()
    finally:
        os.umask(before)
    assert status == 0
    armed, kept = out.splitlines()[:-3], out.splitlines()[-3:]
    assert kept == ["0o27 set()", "False", "True ['a b', '$x', '--', '']"]
    assert (tmp_path / "run.duckdb").stat().st_mode & 0o077 == 0
    shown = dict(line.split(maxsplit=1) for line in armed)
    assert shown.pop("-") == "0o40700", "the socket folder is private"
    assert shown.keys() == ARMED
    assert shown["KINETO_LOG_LEVEL"] == "3"
    (printed,) = (line for line in running.lines if "KINETO" in line)
    assert printed == (
        "gswarm-tui: set for traces and hangs: KINETO_IPC_SOCKET_DIR, KINETO_ONDEMAND_TRACE_DIR, "
        "KINETO_USE_DAEMON, TORCH_NCCL_DEBUG_INFO_PIPE_FILE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE, "
        "TORCH_NCCL_TRACE_BUFFER_SIZE; "
        "kept yours: KINETO_LOG_LEVEL\n"
    )
    assert not Path(shown["KINETO_IPC_SOCKET_DIR"]).exists(), "nobody needs it any more"


def test_unarmed_command_keeps_its_environment_and_the_status_of_a_killed_step_is_explained(
    tmp_path: Path,
) -> None:
    script = f"{shlex.join([sys.executable, '-c', SHOW_ARMED])}; sh -c 'kill -9 $$'; exit $?"
    with record(tmp_path, "--no-arm", "--demo", "1x1", "--", "sh", "-c", script) as running:
        status, out = running.end()
    text = "".join(running.lines)
    assert {line.split()[0] for line in out.splitlines()} & ARMED == set()
    assert out.splitlines()[-1].startswith("- 0o"), "it ran"
    assert "gswarm-tui: set " not in text
    assert status == 137
    assert "gswarm-tui: sh ended with status 137 (SIGKILL, as happens when memory runs out) after " in text


def test_signals_reach_the_command_and_after_term_the_recording_is_closed_before_it_ends(
    tmp_path: Path,
) -> None:
    script = (
        "trap 'echo checkpoint' USR1; trap 'echo saving' TERM; echo ready; read a; read b; read c; exit 4"
    )
    with record(tmp_path, "--demo", "1x1", "--", "bash", "-c", script) as running:
        assert running.output_line() == "ready\n"
        running.process.send_signal(signal.SIGUSR1)
        assert running.output_line() == "checkpoint\n"
        running.wait_for("1 node sends data")
        running.process.send_signal(signal.SIGTERM)
        assert running.output_line() == "saving\n"
        running.wait_for("run.duckdb: ")
        assert ended_recordings(tmp_path) == [(True,)]
        assert running.end("now\n" * 3)[0] == 4
    assert "gswarm-tui: received SIGTERM\n" in running.lines


def test_signal_that_the_command_got_first_is_the_reason(tmp_path: Path) -> None:
    late = "(while kill -0 $$; do sleep 0.01; done 2>/dev/null; kill -TERM $PPID) & exit 3"
    with record(tmp_path, "--demo", "1x1", "--", "sh", "-c", late) as running:
        assert running.end()[0] == 3
    [(why,)] = reasons(tmp_path)
    assert why.startswith("received SIGTERM; sh ended with status 3 after ")


def test_ctrl_c_reaches_the_command_once_and_a_closed_terminal_ends_it_with_its_status(
    tmp_path: Path,
) -> None:
    """The kernel sends SIGHUP to the session's leader alone, and what is printed from then on fails."""
    words = ["record", "--demo", "1x1", "--db", str(tmp_path / "run.duckdb"), "--"]
    script = (
        "trap 'echo interrupted; n=0' INT; trap 'exit 7' HUP; n=9; echo ready; "
        "while :; do sleep 0.1; n=$((n+1)); [ $n != 5 ] || echo over; done"
    )
    terminal, its_end = pty.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", sys.executable, "-m", "gswarm_tui", *words, "sh", "-c", script],
        stdin=its_end, stdout=its_end, stderr=its_end,
    ) as running:  # fmt: skip
        try:
            os.close(its_end)
            shown = b""
            while b"ready" not in shown:
                shown += os.read(terminal, 1 << 16)
            os.write(terminal, b"\x03")
            while b"over" not in shown:
                shown += os.read(terminal, 1 << 16)
            assert shown.count(b"interrupted") == 1
            os.close(terminal)
            assert running.wait(PATIENCE_S) == 7
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert ended_recordings(tmp_path) == [(True,)]


def test_without_a_command_a_signal_ends_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with record(tmp_path, "--demo", "1x1") as running:
        running.wait_for("1 node sends data, 1 GPU")
        running.process.send_signal(signal.SIGUSR1)
        assert running.end() == (0, "")
    assert ended_recordings(tmp_path) == [(True,)]
    assert reasons(tmp_path) == [("received SIGUSR1",)]
    ((line,),) = catalogue.load().values()
    assert (line.path, line.gpus, line.state) == (str(tmp_path / "run.duckdb"), 1, "finished")


def test_a_run_that_is_slower_than_usual_says_so_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    mine = replace(
        RUN, user=user_name(), nodes=("sim01",), gpus=1, marks={"tokens_per_s": 500.0}, name_s=10.0
    )
    catalogue.add(replace(mine, path=f"/{number}", run=f"run-{number}") for number in range(3))
    monkeypatch.setenv("GSWARM_TUI_RULES_SPEED", "20")
    words = ["mark", "end", "--value", "tokens_per_s=400", "--db", str(tmp_path / "run.duckdb")]
    command = shlex.join([sys.executable, "-m", "gswarm_tui", *words])
    (tmp_path / "train.sh").write_text(f"sleep 3; {command} > {os.devnull}")
    words = ["--demo", "1x1", "--interval", "0.2", "--", "sh", str(tmp_path / "train.sh")]
    with record(tmp_path, *words) as running:
        assert running.end() == (0, "")
    ((sentence, until),) = query(
        tmp_path / "run.duckdb", "SELECT sentence, until FROM findings WHERE kind = 'slower_than_usual'"
    )
    assert sentence.startswith("train: tokens_per_s 400, usual tokens_per_s 500 (median of 3 former runs)")
    assert until is None
    assert "usual tokens_per_s 500 (median of 3 former runs)" in " ".join("".join(running.lines).split())


def test_a_catalogue_that_cannot_be_written_is_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with record(tmp_path, "--demo", "1x1") as running:
        running.wait_for("1 node sends data, 1 GPU")
        running.process.send_signal(signal.SIGTERM)
        running.end()
    assert ended_recordings(tmp_path) == [(True,)]
    what = "could not be added to the catalogue of runs"
    assert what not in "".join(running.lines)
    assert what in (tmp_path / "gswarm-tui/gswarm-tui.log").read_text()


def test_killed_recorder_restarts_and_no_sample_is_lost(tmp_path: Path) -> None:
    with (
        nothing_left(tmp_path / "run.duckdb"),
        record(
            tmp_path, "--launcher", "local", "--interval", "0.2", "--name", "train", "--", *UNTIL_INPUT_ENDS
        ) as running,
    ):
        for _ in range(2):
            running.wait_for("1 node sends data")
            os.kill(running.recorder(), signal.SIGKILL)
            running.wait_for("the recorder was killed by SIGKILL")
        running.wait_for("1 node sends data")
        assert running.output_line() == "ready\n"
        assert running.end()[0] == 3
    assert ended_recordings(tmp_path) == [(True,)]
    path = tmp_path / "run.duckdb"
    assert query(path, "SELECT name FROM sessions") == [("train",)]
    assert query(path, "SELECT count(*) FROM events WHERE kind = 'recorder_restarted'") == [(2,)]
    assert query(path, "SELECT frames = last_seq, lost_frames FROM links") == [(True, 0)]
    assert query(path, "SELECT count(*) - count(DISTINCT ts) FROM host_samples") == [(0,)]


def test_recorder_is_restarted_until_its_file_cannot_be_opened(tmp_path: Path) -> None:
    killed_in_the_end = "echo ready; cat; kill -9 $$"
    with record(tmp_path, "--demo", "1x1", "--", "sh", "-c", killed_in_the_end) as running:
        for pause in (1, 2):
            running.wait_for("1 node sends data")
            os.kill(running.recorder(), signal.SIGKILL)
            running.wait_for(f"as happens when memory runs out; restarting it in {pause} s")
        (tmp_path / "run.duckdb").write_text("not a database")
        running.wait_for("the recorder isn't restarted: it was killed by SIGKILL, ")
        assert running.end("still here\n") == (128 + signal.SIGKILL, "ready\nstill here\n")
    killed = "gswarm-tui: sh was killed by SIGKILL, as happens when memory runs out after "
    assert killed in "".join(running.lines), "as a shell reports it"


def test_recorder_closes_the_recording_when_its_parent_is_killed(tmp_path: Path) -> None:
    with record(tmp_path, "--demo", "1x1") as running:
        running.wait_for("1 node sends data")
        running.process.kill()
        running.wait_for("run.duckdb: ")  # the recorder's last line
        running.end()
    assert ended_recordings(tmp_path) == [(True,)]
    why = "the process that had started the recorder was killed"
    assert f"gswarm-tui: {why}\n" in running.lines
    assert reasons(tmp_path) == [(why,)]


def test_report_is_written_at_ctrl_c_and_replaces_only_that_of_a_requeued_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "train.html"
    page.write_text("of the run before")
    words = ("--demo", "1x1", "--interval", "0.2", "--report", "train.html")
    monkeypatch.chdir(tmp_path)
    assert main(["record", "--db", "run.duckdb", *words]) == 2
    refused = "train.html exists; name another file with --report, or replace it"
    assert refused in capsys.readouterr().err
    assert page.read_text() == "of the run before"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with record(tmp_path, *words) as running:
        running.wait_for("1 node sends data")
        running.process.send_signal(signal.SIGINT)
        assert running.end()[0] == 0
    assert page.read_text().startswith("<!doctype html>")
    assert reasons(tmp_path) == [("received SIGINT",)]


def test_large_stacks_leave_memory_for_queries(tmp_path: Path) -> None:
    words = ["record", "--demo", "1x1", "--db", "run.duckdb", "--", "true"]
    large = ["sh", "-c", 'ulimit -s 8388608; exec "$@"', "sh", sys.executable, "-m", "gswarm_tui", *words]
    done = subprocess.run(large, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert query(tmp_path / "run.duckdb", "SELECT count(*) FROM recordings") == [(1,)]


def test_file_that_a_full_disk_did_not_let_begin_is_not_in_the_way_of_the_next_run(tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -f 16; exec "$@"', "sh", sys.executable, "-m", "gswarm_tui", "record"]
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(
        [*limited, "--demo", "1x1", "--db", "run.duckdb", "--", "true"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "can't grow because of a limit on file sizes (ulimit -f).\n" in done.stderr
    assert [*tmp_path.glob("run.duckdb*")] == []


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (["--", "no-such-command"], 127, '"no-such-command": no such command; nothing was run or recorded.'),
        (["--", "/etc/passwd"], 126, '"/etc/passwd" isn\'t an executable file; nothing was run or recorded.'),
        (["--"], 2, "no command after --; remove -- to record until a signal ends the recording."),
        (["sleep", "3"], 2, "write -- before the command: gswarm-tui record -- sleep ..."),
        (
            ["--name", "x", "python", "a.py"],
            2,
            "write -- before the command: gswarm-tui record -- python ...",
        ),
        (["--report", "x.pdf"], 2, "--report: x.pdf doesn't end in .html; name an HTML file."),
        (["--report", "no/x.html"], 2, "no folder no; create it, or name another one with --report."),
        (["--demo", "--job", "1"], 2, "--demo simulates its nodes; remove --job."),
        (["--no-record"], 2, 'unknown option "--no-record"; see --help.'),
    ],
)
def test_invalid_command_lines_get_one_sentence_and_run_nothing(
    words: list[str],
    status: int,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    demo = [] if "--demo" in words or words[0] == "sleep" else ["--demo", "1x1"]
    assert main(["record", *demo, *words]) == status
    assert capsys.readouterr().err == f"gswarm-tui: {problem}\n"
    assert list(tmp_path.iterdir()) == []


def test_recording_that_cannot_be_opened_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.duckdb").write_text("no database")
    with record(tmp_path, "--demo", "1x1", "--", "touch", "ran") as running:
        assert running.end()[0] == 2
    assert not (tmp_path / "ran").exists()
    assert len(running.lines) == 1
    assert "run.duckdb" in running.lines[0]


def test_recording_stop_ends_the_recording_and_not_the_command(tmp_path: Path) -> None:
    with record(tmp_path, "--demo", "2x2", "--", *UNTIL_INPUT_ENDS) as running:
        running.wait_for("2 nodes send data, 4 GPUs")
        assert run_beside(tmp_path, "session", "rename", "sh", "train") == 0
        assert run_beside(tmp_path, "recording", "stop") == 0
        assert ended_recordings(tmp_path) == [(True,)]
        running.wait_for("sh continues without a recording")
        assert running.output_line() == "ready\n"
        assert running.end("goes on\n") == (3, "goes on\n")
        assert run_beside(tmp_path, "recording", "stop") == 3
    text = "".join(running.lines)
    assert "the recording was ended by gswarm-tui recording stop" in text
    assert "restarting" not in text
    assert "gswarm-tui: sh ended with status 3 after " in text
    assert f"\ntrain · {tmp_path}/run.duckdb\n" in text, "the summary of the renamed session"


def test_recording_stop_ends_record_without_a_command(tmp_path: Path) -> None:
    with record(tmp_path, "--demo", "2x2") as running:
        running.wait_for("2 nodes send data, 4 GPUs")
        assert run_beside(tmp_path, "recording", "stop") == 0
        assert running.end()[0] == 0
    assert ended_recordings(tmp_path) == [(True,)]
    assert reasons(tmp_path) == [("the recording was ended by gswarm-tui recording stop",)]
