"""Profile through a login node: this program runs itself there, and the reports come here.

The arguments are the first line of its input, as JSON, so that other users of the login node don't see them.
Its output is the command's, between two marks with a line of JSON each; the reports follow the second one.
The line "done" on its input lets it remove the reports there. If its input ends before, so does the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from gswarm_tui.common.errors import print_notice
from gswarm_tui.common.paths import cache_folder
from gswarm_tui.common.processes import own_command_there
from gswarm_tui.common.quantities import file_size
from gswarm_tui.launch.ssh import SshSettings
from gswarm_tui.options.profile_options import ProfileOptions
from gswarm_tui.profiling.fetching import RemoteReport, check_room, receive
from gswarm_tui.profiling.profile_run import ProfileResult, ProfileRun, share_of
from gswarm_tui.profiling.slurm_commands import ProfileError
from gswarm_tui.slurm.jobs import Job

DONE = b"done\n"
END_S = 60.0
"""Longest wait for the end of the command there: Slurm kills a step's processes by then."""
_CHUNK = 1 << 18
# ssh ignores Ctrl-C, which ends this program, and then the command there.
_SSH = ("sh", "-c", 'trap "" INT; exec "$@"', "gswarm-tui", "ssh", "-T")
_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")


def _mark(token: str) -> bytes:
    return f"\0gswarm-profile {token} ".encode()


# Here


async def profile_there(
    options: ProfileOptions,
    say: Callable[[str], None],
    progress: Callable[[float], None],
    observing: Callable[[Job], AbstractContextManager[None]],
) -> ProfileResult:
    """Profile through the login node ``options.run.jump``. Raises ProfileError."""
    token, login = secrets.token_hex(8), options.run.jump or ""
    check_room(options.output)
    settings = SshSettings(config=str(options.run.ssh_config or ""), jump=login)
    ssh = shlex.split(settings.jump_host_command(own_command_there("profile", f"--relay={token}")))
    process = await asyncio.create_subprocess_exec(
        *_SSH, *_ALIVE, *ssh[1:], stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None  # noqa: S101
    assert process.stdout is not None  # noqa: S101
    process.stdin.write(json.dumps(_arguments(options)).encode() + b"\n")
    stream, folder = MarkedStream(process.stdout, _mark(token)), ""
    try:
        started = await stream.after_mark(lambda _noise: None)
        with observing(Job("", started["job"], tuple(started["nodes"]))):
            ended = await stream.after_mark(_pass_on)
        folder = ended["folder"]
        result = ProfileResult(ended["status"], started["job"])
        reports = [RemoteReport(**report) for report in ended["reports"]]
        if reports:
            check_room(options.output, sum(report.size for report in reports))
        add = share_of(reports, progress)
        for report in reports:
            path = await receive(report, options.output, stream.read, add)
            say(f"fetched {path} ({file_size(report.size)})")
            result.reports.append((path, report))
        process.stdin.write(DONE)
        return result
    except EOFError:  # the program there has printed why, or ssh
        return ProfileResult(await process.wait() or 1, "")
    except ProfileError as error:
        where = f" The reports stay on {login} in {folder}." if folder else ""
        raise ProfileError(f"{error}{where}") from None
    finally:
        process.stdin.close()
        with contextlib.suppress(TimeoutError, ProcessLookupError):
            try:
                await asyncio.wait_for(_ended(process, stream), END_S)
            except TimeoutError:
                process.kill()
                raise


async def _ended(process: asyncio.subprocess.Process, stream: MarkedStream) -> None:
    while await stream.read(_CHUNK):
        pass
    await process.wait()


def _arguments(options: ProfileOptions) -> list[str]:
    values = {
        "tool": options.tool,
        "job": options.job,
        "salloc": shlex.join(options.salloc) if options.job is None else None,
        "ranks": ",".join(map(str, options.ranks)),
        "ntasks": options.ntasks,
        "delay": options.delay_s,
        "duration": options.duration_s,
        "tool-options": shlex.join(options.tool_options),
        "setup": options.run.setup,
    }
    return [*(f"--{name}={value}" for name, value in values.items() if value), "--", *options.command]


def _pass_on(data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


class MarkedStream:
    """The output of the program on the login node."""

    def __init__(self, reader: asyncio.StreamReader, mark: bytes) -> None:
        self._reader = reader
        self._mark = mark
        self._rest = b""

    async def read(self, most: int) -> bytes:
        """Return the next bytes, empty at the end."""
        if not self._rest:
            return await self._reader.read(min(most, _CHUNK))
        data, self._rest = self._rest[:most], self._rest[most:]
        return data

    async def after_mark(self, take: Callable[[bytes], None]) -> dict[str, Any]:
        """Pass what comes before the next mark to ``take``; return the JSON object after it.

        Raises EOFError if no mark comes.
        """
        before = await self._until(self._mark, take)
        take(before)
        line = b""

        def add(data: bytes) -> None:
            nonlocal line
            line += data

        add(await self._until(b"\n", add))
        values: dict[str, Any] = json.loads(line)
        return values

    async def _until(self, end: bytes, take: Callable[[bytes], None]) -> bytes:
        """Return what is left before ``end``, after ``take`` got all before that can't be a part of it."""
        data = b""
        while end not in data:
            if not (piece := await self.read(_CHUNK)):
                take(data)
                raise EOFError
            data += piece
            if end not in data:
                kept = data.rfind(end[:1], max(0, len(data) - len(end)))
                take(data if kept < 0 else data[:kept])
                data = b"" if kept < 0 else data[kept:]
        before, _, rest = data.partition(end)
        self._rest = rest + self._rest
        return before


# There


def read_arguments() -> list[str]:
    """Return the arguments that the other program sends."""
    words: list[str] = json.loads(sys.stdin.buffer.readline())
    return words


async def serve_profile(
    options: ProfileOptions, token: str, observing: Callable[[Job], AbstractContextManager[None]]
) -> int:
    """Profile here for the program at the other end, and send it the reports. Raises ProfileError."""
    parent = cache_folder() / "profiles"
    _name_unfetched(parent)
    folder = parent / f"{datetime.now().astimezone():%Y-%m-%d-%H%M%S}-{os.getpid()}"
    folder.mkdir(mode=0o700, parents=True)

    @contextlib.contextmanager
    def marked(job: Job) -> Iterator[None]:
        _send(_mark(token), {"job": job.label, "nodes": job.nodes})
        with observing(job):
            yield

    run = ProfileRun(options._replace(output=folder), print_notice, lambda _share: None, marked)
    task, done = asyncio.current_task(), asyncio.Event()

    def read_input() -> None:
        if os.read(0, len(DONE)) == DONE:
            done.set()
        elif task is not None:  # the other end is gone
            asyncio.get_running_loop().remove_reader(0)
            task.cancel()

    asyncio.get_running_loop().add_reader(0, read_input)
    try:
        result = await run.run()
        reports = [asdict(report) for _, report in result.reports]
        ended = {"status": result.status, "folder": str(folder), "reports": reports}
        await asyncio.to_thread(_send, _mark(token), ended, [path for path, _ in result.reports])
        await done.wait()
        shutil.rmtree(folder)
        return result.status
    finally:
        with contextlib.suppress(OSError):  # reports that weren't fetched stay
            folder.rmdir()


def _send(mark: bytes, values: dict[str, Any], files: Sequence[Path] = ()) -> None:
    sys.stdout.buffer.write(mark + json.dumps(values).encode() + b"\n")
    for path in files:
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _name_unfetched(parent: Path) -> None:
    """Print a line for each folder of reports that a profile left here."""
    for folder in sorted(parent.glob("*")):
        if size := sum(path.stat().st_size for path in folder.glob("*") if path.is_file()):
            print_notice(
                f"{socket.gethostname()} has {file_size(size)} of reports of another profile in {folder}; if "
                "that no longer runs, copy them with scp, and remove the folder"
            )
