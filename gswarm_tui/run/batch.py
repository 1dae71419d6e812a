"""Parent process of a recorder: runs the command, restarts the recorder, ends both in order.

It stays small, as it must survive when memory runs out, and has no threads, as it forks.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gswarm_tui.common.errors import NO_PROCESS, UserError, lacks_processes, print_notice, printable
from gswarm_tui.common.processes import own_command
from gswarm_tui.common.quantities import duration
from gswarm_tui.control.messages import encode
from gswarm_tui.control.registry import Listening, parent_folders
from gswarm_tui.options.server_options import ServerSettings, server_words
from gswarm_tui.run.headless import STOPPED, Headless, OpenRecording, RecorderStart
from gswarm_tui.slurm.jobs import Slurm

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals at which the command is expected to end, and after ``GRACE_S`` the recording."""
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""Signals for the command alone, such as Slurm's notice ahead of the time limit."""
GRACE_S = 10.0
"""The recording is closed this long after such a signal even if the command runs on, since Slurm kills all
processes of a job after 30 s (``KillWait``)."""
LATE_S = 1.0
"""Slurm signals the processes of a job one after another, children first: a command may end at a signal
that its recorder gets this much later."""
RESTART_S, LONGEST_RESTART_S = 1.0, 60.0
"""Pause before a recorder that died is restarted; it doubles with each death, up to the longest."""
HEALTHY_S = 300.0
"""After a recorder has lived for this long, the next pause is the shortest again."""
CLIENT_CLOSES_S = 5.0
"""Longest wait until a client has read why its recorder can't start."""
NOT_EXECUTABLE = 126
_AWAITED = (*ENDING, *PASSED_ON, signal.SIGCHLD)


@dataclass
class BatchRun:
    """Runs a recorder, and below it a command, until both have ended.

    It owns the folder at whose socket clients wait while the recorder is restarted. ``recorder`` records in
    a process of its own. ``recording`` is one to resume, None to start one. ``command`` is empty if only
    signals and clients end the recording; it gets this process's umask, and the environment that ``arm``
    returns for the recording. ``name`` is the command's in notices, its own if empty. ``needs_recording`` is
    whether it gets SIGTERM when the recording ends before it. ``first`` is the connection of the client that
    started the recorder.
    """

    recorder: Headless
    command: Sequence[str] = ()
    arm: Callable[[OpenRecording], Mapping[str, str]] = lambda _recording: os.environ
    recording: OpenRecording | None = None
    name: str = ""
    needs_recording: bool = False
    first: socket.socket | None = None
    exit_status: int = 0
    _listening: Listening = field(init=False)
    _umask: int = 0o077
    _pid: int = 0
    _end: int = -1
    _command: subprocess.Popen[bytes] | None = None
    # Popen warns when an object is deleted whose process still runs, so the server's is kept.
    _server: subprocess.Popen[bytes] | None = None
    _pause_s: float = RESTART_S
    _started_at: float = 0.0
    _restart_at: float | None = None
    _why_restarted: str = ""
    _ends_at: float | None = None
    _reason: str = ""
    _began: float = 0.0

    def run(self) -> int:
        """Record and run the command; return its exit status, without a command that of the recording."""
        self._umask = os.umask(0o077)
        os.umask(self._umask | 0o077)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, a child's end isn't reported
        try:
            self._listening = Listening.open(parent_folders(os.environ))
        except OSError as error:
            self._report_failure(
                f"the recorder can't listen: {error}; set XDG_RUNTIME_DIR to a folder of yours"
            )
            return 1
        try:
            status = self._start_recorder("")
            if status or self.recording is None:
                return status or 1
            if (server := self.recorder.options.server) is not None:
                self._start_server(server, self.recording.uid)
            if self.command:
                self._start_command(mask, self.arm(self.recording))
            while self._pid or self._command is not None or self._restart_at is not None:
                self._handle(self._next_signal())
            return self.exit_status
        finally:
            self._listening.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _next_signal(self) -> signal.struct_siginfo | None:
        """Wait for a signal, or until something is due; return None then."""
        due = [at for at in (self._ends_at, self._restart_at) if at is not None]
        if not due:
            return signal.sigwaitinfo(_AWAITED)
        return signal.sigtimedwait(_AWAITED, max(0.0, min(due) - time.monotonic()))

    def _handle(self, received: signal.struct_siginfo | None) -> None:
        if received is None:
            now = time.monotonic()
            if self._ends_at is not None and now >= self._ends_at:
                self._ends_at = None
                self._end_recorder(self._reason)
            if self._restart_at is not None and now >= self._restart_at:
                self._restart_recorder()
            return
        number = received.si_signo
        if number == signal.SIGCHLD:
            self._reap_command()
            self._reap_recorder()
            return
        why, job = "", self.recorder.plan.job
        if number == signal.SIGTERM and self._ends_at is None and job is not None:
            why = Slurm().why_ending(job.label)
        reason = f"received {signal.Signals(number).name}" + (f": {why}" if why else "")
        if self._command is None:
            self._ends_at = None
            self._end_recorder(reason)
            return
        if not _sent_to_all(received, why):
            self._command.send_signal(number)
        if number in ENDING and self._ends_at is None:
            self._ends_at = time.monotonic() + GRACE_S
            self._reason = reason
            print_notice(reason)

    def _start_recorder(self, why_resumed: str) -> int:
        """Fork the recorder and wait until its recording is open; return its exit status if it fails to."""
        opened_read, opened_write = os.pipe()
        end_read, end_write = os.pipe()
        sys.stdout.flush()
        try:
            pid = os.fork()
        except OSError:
            for descriptor in (opened_read, opened_write, end_read, end_write):
                os.close(descriptor)
            print_notice(f"the recorder can't be started: {NO_PROCESS}")
            return 1
        if pid == 0:
            os.close(opened_read)
            os.close(end_write)
            self._be_recorder(why_resumed, opened_write, end_read)
        os.close(opened_write)
        os.close(end_read)
        self._pid, self._end, self._started_at = pid, end_write, time.monotonic()
        if self.first is not None:  # of the first recorder only, as a client reconnects after its death
            self.first.close()
            self.first = None
        with os.fdopen(opened_read, "rb") as pipe:
            uid, _, path = pipe.read().partition(b"\0")
        if uid:
            self.recording = OpenRecording(uid.decode(), Path(os.fsdecode(path)) if path else None)
            return 0
        _, status = os.waitpid(pid, 0)
        self._forget_recorder()
        return os.waitstatus_to_exitcode(status)

    def _be_recorder(self, why_resumed: str, opened_write: int, end: int) -> None:
        """Run the recorder in this process, which ends with it. Only ``end`` and SIGKILL end it."""
        status = 1
        try:
            os.setpgid(0, 0)  # a terminal's Ctrl-C is for the command
            for number in (*ENDING, *PASSED_ON):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED)
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, 0)

            def opened(recording: OpenRecording) -> None:
                os.write(opened_write, recording.uid.encode() + b"\0" + os.fsencode(recording.path or ""))
                os.close(opened_write)

            resumed = self.recording
            start = RecorderStart(resumed, why_resumed, opened, end, self._listening, self.first)
            status = self.recorder.record(start)
        except UserError as error:
            self._report_failure(str(error))
            status = error.exit_status
        except Exception as error:
            what = f"internal error of the recorder: {type(error).__name__}: {error}"
            self._report_failure(f"the recorder failed: {NO_PROCESS}" if lacks_processes(error) else what)
        finally:
            sys.stdout.flush()
            os._exit(status)

    def _report_failure(self, why: str) -> None:
        """Print why the recorder can't start, and tell the client that started it."""
        print_notice(why)
        if self.first is not None:
            # A socket that is closed with unread bytes resets the connection, and the client would lose the
            # sentence, so this reads until the client has closed its end.
            with suppress(OSError):
                self.first.settimeout(CLIENT_CLOSES_S)
                self.first.sendall(encode({"error": why.removesuffix(".")}))
                self.first.shutdown(socket.SHUT_WR)
                while self.first.recv(4096):
                    pass

    def _start_server(self, settings: ServerSettings, uid: str) -> None:
        """Start an HTTP server, which ends with the recording. It isn't restarted."""
        # This process has no threads, so preexec_fn is safe.
        self._server = subprocess.Popen(
            own_command("serve", uid, "--beside", *server_words(settings)),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _AWAITED),  # noqa: PLW1509
        )

    def _start_command(self, mask: set[signal.Signals | int], environ: Mapping[str, str]) -> None:
        """Start the command as if there were no recorder."""

        def prepare() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.umask(self._umask)

        self._began, self.name = time.monotonic(), self.name or Path(self.command[0]).name
        try:
            # This process has no threads, so preexec_fn is safe.
            self._command = subprocess.Popen(self.command, env=environ, preexec_fn=prepare)  # noqa: PLW1509
        except OSError as error:
            self.exit_status = NOT_EXECUTABLE
            reason = f"{self.command[0]} can't be executed: {error.strerror}"
            print_notice(reason)
            self._end_recorder(reason)

    def _reap_command(self) -> None:
        if self._command is None or (status := self._command.poll()) is None:
            return
        self.exit_status = status if status >= 0 else 128 - status
        if self.exit_status and not self._reason:
            late = signal.sigtimedwait(ENDING, LATE_S)
            if late is not None:
                self._handle(late)
        self._command = None
        how = _outcome(status)
        if status - 128 in set(signal.Signals):  # from srun and shells, whose command was killed
            how += f" ({_describe_signal(status - 128)})"
        ended = f"{self.name} {how} after {duration(time.monotonic() - self._began)}"
        print_notice(ended)
        self._end_recorder(f"{self._reason}; {ended}" if self._reason else ended)

    def _end_recorder(self, reason: str) -> None:
        if self._restart_at is not None:
            self._restart_at = None
            print_notice(f"the recording wasn't closed, as its recorder had died; {self._advice()}")
            self.exit_status = self.exit_status or int(not self.command)
        if self._end >= 0:
            with suppress(BrokenPipeError):
                os.write(self._end, printable(reason).encode()[:4096])
            os.close(self._end)
            self._end = -1

    def _forget_recorder(self) -> None:
        if self._end >= 0:
            os.close(self._end)
        self._pid, self._end = 0, -1

    def _reap_recorder(self) -> None:
        """Restart the recorder if it died by itself; not if this process or a command ended it."""
        pid, status = os.waitpid(self._pid, os.WNOHANG) if self._pid else (0, 0)
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        stopped = code > 0 and code & STOPPED
        was_ended = stopped or self._end < 0
        self._forget_recorder()
        if stopped:
            code &= ~STOPPED
            if self._command is not None and not self._end_in_need():
                print_notice(f"{self.name} continues without a recording")
        if was_ended:
            if code < 0 and self.recording is not None:
                print_notice(f"the recorder {_outcome(code)} while it closed the recording; {self._advice()}")
            if not self.command:
                self.exit_status = code if code >= 0 else 128 - code
            return
        if time.monotonic() - self._started_at > HEALTHY_S:
            self._pause_s = RESTART_S
        self._why_restarted = _outcome(code)
        self._restart_at = time.monotonic() + self._pause_s
        print_notice(f"the recorder {self._why_restarted}; restarting it in {self._pause_s:.0f} s")
        self._pause_s = min(2 * self._pause_s, LONGEST_RESTART_S)

    def _restart_recorder(self) -> None:
        """Start the recorder again; give up if the recording can't be opened."""
        self._restart_at = None
        if (code := self._start_recorder(self._why_restarted)) < 0:
            self._restart_at = time.monotonic() + self._pause_s
            self._why_restarted += f", and {_outcome(code)} while it resumed the recording"
            self._pause_s = min(2 * self._pause_s, LONGEST_RESTART_S)
        elif code > 0:  # it has printed why it can't resume
            print_notice(f"the recorder isn't restarted: it {self._why_restarted}; {self._advice()}")
            self._end_in_need()
            if not self.command:
                self.exit_status = 1

    def _end_in_need(self) -> bool:
        """End a command that needs the recording; return whether it does."""
        if self.needs_recording and self._command is not None:
            self._command.send_signal(signal.SIGTERM)
        return self.needs_recording

    def _advice(self) -> str:
        if self.recording is None or self.recording.path is None:
            return "nothing was recorded"
        file = shlex.quote(str(self.recording.path))
        return (
            f"`gswarm-tui recover {self.recording.uid[:8]} --finish --db {file}` fetches what is left on the "
            "nodes and closes the recording"
        )


def _sent_to_all(received: signal.struct_siginfo, why: str) -> bool:
    """Return whether the command got this signal, too: from a terminal, or from Slurm, which ends the job."""
    if received.si_code > 0:  # from the kernel: a closed terminal signals its session leader alone
        return received.si_signo != signal.SIGHUP or os.getsid(0) != os.getpid()
    try:
        sender = Path(f"/proc/{received.si_pid}/comm").read_text()
    except OSError:
        return False
    return bool(why) and sender.startswith("slurmstepd")


def _outcome(code: int) -> str:
    """Return how a process with this exit code ended; a negative one is a signal's."""
    return f"was killed by {_describe_signal(-code)}" if code < 0 else f"ended with status {code}"


def _describe_signal(number: int) -> str:
    known = number in set(signal.Signals)  # real-time signals have no names
    name = signal.Signals(number).name if known else f"signal {number}"
    return name + (", as happens when memory runs out" if number == signal.SIGKILL else "")
