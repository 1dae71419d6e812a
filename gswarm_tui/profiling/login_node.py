"""Profile through a login node: this program runs itself there, and the reports come here.

The arguments are the first line of its input, as JSON, so that other users of the login node don't see them.
Its output begins with a mark, because a login shell may print something before. Then it is lines of JSON: on
the nodes, on pieces of the command's output, which follow their line, and on the end, with the reports after
it. The line "done" on its input lets it remove the reports there. If its input ends before, so does the
command.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

from gswarm_tui.common.errors import print_notice
from gswarm_tui.common.paths import cache_folder
from gswarm_tui.common.processes import own_command_there
from gswarm_tui.common.quantities import file_size
from gswarm_tui.launch.ssh import SshSettings
from gswarm_tui.options.profile_options import ProfileOptions
from gswarm_tui.profiling.importing import SUFFIXES
from gswarm_tui.profiling.profile_run import ProfileResult, free_path, node_and_rank, run_profile
from gswarm_tui.profiling.slurm_commands import END_S, ProfileError
from gswarm_tui.slurm.hosts import expand
from gswarm_tui.slurm.jobs import Job

DONE = b"done\n"
_CHUNK = 1 << 18
_LONGEST_LINE = 1 << 24
"""Bytes of a line of JSON, which lists all nodes or all reports; asyncio's limit is 64 KiB."""
# ssh ignores Ctrl-C, which ends this program, and then the command there.
_SSH = ("sh", "-c", 'trap "" INT; exec "$@"', "gswarm-tui", "ssh", "-T")
_ALIVE = ("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")


# Here


async def profile_there(
    options: ProfileOptions, observing: Callable[[Job], AbstractContextManager[None]]
) -> ProfileResult:
    """Profile through the login node ``options.run.jump``. Raises ProfileError."""
    token, login = secrets.token_hex(8), options.run.jump or ""
    settings = SshSettings(config=str(options.run.ssh_config or ""), jump=login)
    ssh = shlex.split(settings.jump_host_command(own_command_there("profile", f"--relay={token}")))
    process = await asyncio.create_subprocess_exec(
        *_SSH, *_ALIVE, *ssh[1:],
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LONGEST_LINE,
    )  # fmt: skip
    assert process.stdin is not None  # noqa: S101
    assert process.stdout is not None  # noqa: S101
    process.stdin.write(json.dumps(_arguments(options)).encode() + b"\n")
    stream, folder = process.stdout, ""
    try:
        await stream.readuntil(token.encode())
        started = json.loads(await stream.readuntil(b"\n"))
        label, nodes = str(started["job"]), expand(map(str, started["nodes"]), login)
        with observing(Job("", label, nodes)):
            while "output" in (ended := json.loads(await stream.readuntil(b"\n"))):
                if (size := int(ended["output"])) > _CHUNK:
                    raise ValueError(size)
                # Reading what is buffered doesn't suspend this task, and a signal would wait.
                await asyncio.sleep(0)
                data = await stream.readexactly(size)
                with contextlib.suppress(BrokenPipeError):
                    sys.stdout.buffer.write(data)
                    sys.stdout.buffer.flush()
        folder = str(ended["folder"])
        result = ProfileResult(int(ended["status"]), label, [])
        for name, size, changed_s in ended["reports"]:
            if node_and_rank(name)[0] not in nodes or Path(name).suffix not in SUFFIXES:
                raise ValueError(name)
            print_notice(f"fetching {name} ({file_size(int(size))})")
            path = await receive(stream, options.output, name, size)
            os.utime(path, (changed_s, changed_s))  # for reports of ncu without times
            result.reports.append(path)
        process.stdin.write(DONE)
        return result
    except EOFError:  # the program there has printed why, or ssh
        return ProfileResult(await process.wait() or 1, "", [])
    except (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, asyncio.LimitOverrunError):
        raise ProfileError(f"{login} sent no valid profile; run the command on {login} itself.") from None
    except ProfileError as error:
        raise ProfileError(f"{error} The reports stay on {login} in {folder}.") from None
    finally:
        process.stdin.close()
        with contextlib.suppress(TimeoutError, ProcessLookupError):
            try:
                await asyncio.wait_for(_ended(process, stream), END_S)
            except TimeoutError:
                process.kill()
                raise


async def _ended(process: asyncio.subprocess.Process, stream: asyncio.StreamReader) -> None:
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


async def receive(stream: asyncio.StreamReader, folder: Path, name: str, size: int) -> Path:
    """Write a report into a folder, under its name or with a number after it; return its path.

    Raises ProfileError.
    """
    # The login node sends the report's name, which could lead to another folder.
    name = Path(name).name
    part = folder / f".{name}.{secrets.token_hex(4)}.part"
    left = size
    try:
        with part.open("xb") as file:
            while left and (data := await stream.read(min(left, _CHUNK))):
                file.write(data)
                left -= len(data)
        if left:
            raise ProfileError(f"fetching {name} broke off.")
        return part.rename(free_path(folder, name))
    except OSError as error:
        raise ProfileError(
            f"{folder}: {error.strerror} while fetching {name}; the partial copy was removed."
        ) from None
    finally:
        part.unlink(missing_ok=True)


# There


def read_arguments() -> list[str]:
    """Return the arguments that the other program sends."""
    words: list[str] = json.loads(sys.stdin.buffer.readline())
    return words


async def serve_profile(
    options: ProfileOptions, token: str, observing: Callable[[Job], AbstractContextManager[None]]
) -> int:
    """Profile here for the program at the other end, and send it the reports. Raises ProfileError."""
    began = datetime.now().astimezone()
    folder = cache_folder() / "profiles" / f"{began:%Y-%m-%d-%H%M%S}-{os.getpid()}"
    folder.mkdir(mode=0o700, parents=True)
    output = sys.stdout.buffer

    def send(values: dict[str, Any], data: bytes = b"") -> None:
        output.write(json.dumps(values).encode() + b"\n" + data)
        output.flush()

    @contextlib.contextmanager
    def marked(job: Job) -> Iterator[None]:
        output.write(token.encode())
        send({"job": job.label, "nodes": job.nodes})
        with observing(job):
            yield

    def send_reports(result: ProfileResult) -> None:
        facts = [(path.name, path.stat().st_size, int(path.stat().st_mtime)) for path in result.reports]
        send({"status": result.status, "folder": str(folder), "reports": facts})
        for path in result.reports:
            with path.open("rb") as file:
                shutil.copyfileobj(file, output)
        output.flush()

    task, done = asyncio.current_task(), asyncio.Event()

    def read_input() -> None:
        # The input ends right after "done": what is left to do here isn't cancelled by that.
        asyncio.get_running_loop().remove_reader(0)
        if os.read(0, len(DONE)) == DONE:
            done.set()
        elif task is not None:  # the other end is gone
            task.cancel()

    asyncio.get_running_loop().add_reader(0, read_input)
    try:
        result = await run_profile(
            options._replace(output=folder), marked, lambda data: send({"output": len(data)}, data)
        )
        await asyncio.to_thread(send_reports, result)
        await done.wait()
        shutil.rmtree(folder)
        return result.status
    finally:
        with contextlib.suppress(OSError):  # reports that weren't fetched stay
            folder.rmdir()
