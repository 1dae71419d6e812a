"""Stacks of this node's ranks: by PyTorch's worker server, py-spy, or the profiler of Python 3.15.

A thread looks at each rank, so that one that hangs in the kernel delays no other.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from gswarm_agent.asking import tool
from gswarm_agent.asking.worker_server import NoAnswerError, find_port, post
from gswarm_agent.probes.procfs import parse_process_stat, parse_process_uid, read_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

    Read = Callable[[int, float], List[str]]
    """Returns the frames of a process's main thread, the innermost first, within these seconds."""

MOST_RANKS, MOST_FRAMES, LONGEST = 256, 128, 256
EVERY_S = 0.2
"""Time between two looks at a rank."""
_AT_ONCE = 16
_SERVER_S, _MOST_TEXT = 1.0, 1 << 20
_SERVER = "or call torch.distributed.debug.start_debug_server() in the job (PyTorch 2.10 and later)"
_YAMA = {
    "1": "lets only its parent read it: have root set 0, call prctl(PR_SET_PTRACER, -1) in the job",
    "2": "lets only root read it: have root set 0",
    "3": "lets nobody read it until the next boot: have root change that",
}


def ask(request: Dict[str, Any]) -> Dict[str, Any]:
    """Return the stacks of the main threads of ``pids``, by pid, or why there are none.

    ``py_spy`` is the path of a program here; else the recorder's own has the SHA-256 ``digest`` and is for
    ``machine``, and the answer ``{"need": digest}`` requests it. Each rank is looked at several times within
    ``again_s``; ``looks`` has its stack each time.
    """
    program, digest, why = request.get("py_spy", ""), request.get("digest", ""), ""
    if program:
        why = _why_unsafe(program)
    elif not digest:
        why = "py-spy is missing: install gswarm-tui[stacks] for the recorder, or set py_spy in its config"
    elif request["machine"] != os.uname().machine:
        why = (
            f"the recorder's py-spy is for {request['machine']}: set py_spy in its config file for this node"
        )
    elif not (program := tool.kept(digest)):
        return {"need": digest}
    again_s, ends_at = float(request.get("again_s", 0)), time.monotonic() + float(request["seconds"])

    def look(pid: int) -> Dict[str, Any]:
        try:
            return _look(pid, _readers(pid, program, why), again_s, ends_at)
        except NoAnswerError as error:
            return {"why": str(error)}

    pids = request["pids"][:MOST_RANKS]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return {"stacks": dict(zip(map(str, pids), threads.map(look, pids)))}


def _why_unsafe(program: str) -> str:
    """Return why a program isn't run, empty if only this user and root can change it."""
    real = os.path.realpath(program)
    try:
        status = os.stat(real)  # noqa: PTH116
    except OSError as error:
        return f"py_spy is {program}, which can't be used: {error.strerror}"
    is_shared = status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022
    while not is_shared and real != "/":
        real = os.path.dirname(real)  # noqa: PTH120
        is_shared = os.stat(real).st_mode & 0o1002 == 0o002  # noqa: PTH116  # open to all, and not sticky
    return f"py_spy is {program}, which isn't run, because others can change {real}" if is_shared else ""


def _look(pid: int, readers: Dict[str, Read], again_s: float, ends_at: float) -> Dict[str, Any]:
    """Look at a process by the first reader that can."""
    why = "there was no time to read it"
    for by, read in readers.items():
        looks: List[List[str]] = []
        starts_at = now = time.monotonic()
        try:
            while now < ends_at and (len(looks) < 1 + (again_s > 0) or now - starts_at < again_s):
                looks.append([frame[-LONGEST:] for frame in read(pid, max(0.1, ends_at - now))[:MOST_FRAMES]])
                now = time.monotonic()
                next_s = min(again_s, EVERY_S * (1 + (now - starts_at) // EVERY_S))
                time.sleep(max(0.0, starts_at + next_s - now))
        except NoAnswerError as error:
            why = str(error)
        except (ValueError, LookupError, TypeError, AttributeError):
            why = f"{by} printed something else than stacks"
        if looks:
            return {"by": by, "looks": looks}
    raise NoAnswerError(why)


def _readers(pid: int, program: str, why: str) -> Dict[str, Read]:
    """Return the ways to read a process, in the order in which they are tried."""
    readers: Dict[str, Read] = {}
    python = ""
    try:
        python = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except PermissionError:
        pass  # py-spy says why
    except OSError:
        raise NoAnswerError("it has ended") from None
    with suppress(NoAnswerError):
        environ = read_start(f"/proc/{pid}/environ", 1 << 20).decode("utf-8", "replace").split("\0")
        port = find_port(pid, dict(one.partition("=")[::2] for one in environ), _SERVER_S)
        if port:
            readers["worker server"] = functools.partial(_by_worker_server, port)
    if not why:
        readers["py-spy"] = functools.partial(_by_py_spy, program)
    if re.search(r"/python3\.(1[5-9]|[2-9]\d)\w?$", python):
        readers["profiling.sampling"] = functools.partial(_by_profiler, python)
    if not readers:
        raise NoAnswerError(why)
    return readers


def _run(command: List[str], pid: int, seconds: float) -> str:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise NoAnswerError("it couldn't be read in time; it may hang in the kernel") from None
    except OSError as error:
        raise NoAnswerError(f"{command[0]} can't be run: {error.strerror}") from None
    if done.returncode:
        raise NoAnswerError(why_refused(done.stderr.decode("utf-8", "replace"), pid))
    return done.stdout.decode("utf-8", "replace")


def _by_worker_server(port: int, _pid: int, seconds: float) -> List[str]:
    text = post(port, "dump_traceback", min(seconds, _SERVER_S), _MOST_TEXT)
    return parse_text(text.decode("utf-8", "replace"))


def _by_py_spy(program: str, pid: int, seconds: float) -> List[str]:
    threads = json.loads(_run([program, "dump", "--json", "--pid", str(pid)], pid, seconds))
    (frames,) = (one["frames"] for one in threads if one["os_thread_id"] == pid)
    # The others don't print a function's class, and all ranks have to look alike.
    return [f"{each['name'].rpartition('.')[2]} ({each['filename']}:{each['line']})" for each in frames]


def _by_profiler(python: str, pid: int, seconds: float) -> List[str]:
    """Read by the sampling profiler, which needs the process's own version of Python."""
    return parse_text(_run([python, "-I", "-m", "profiling.sampling", "dump", str(pid)], pid, seconds))


_HEAD = re.compile(
    r"^ ?(?:Current thread|Thread|Stack dump)\b.*\bmost recent call (first|last)\):$", re.MULTILINE
)
_FRAME = re.compile(r'^  File "(.*)", line (\d+),? in (.*)$', re.MULTILINE)


def parse_text(text: str) -> List[str]:
    """Return the main thread's frames of a dump by faulthandler, where it is the last, or by the profiler."""
    heads = list(_HEAD.finditer(text))
    main = next((head for head in heads if "main thread" in head[0]), heads[-1])
    part = _HEAD.split(text[main.end() :], maxsplit=1)[0]
    frames = [f"{name} ({file}:{line})" for file, line, name in _FRAME.findall(part)]
    return frames if main[1] == "first" else frames[::-1]


def why_refused(stderr: str, pid: int, proc: str = "/proc") -> str:
    """Return why a process couldn't be read, with a remedy, from a program's messages and /proc."""
    if "Failed to find python version" in stderr:
        return "it isn't a Python process"
    if "Check that the process is running" in stderr or "No such process" in stderr:
        return "it has ended"
    with suppress(OSError, ValueError, LookupError):
        if parse_process_stat(read_start(f"{proc}/{pid}/stat")).state in "tT":
            return f"it is stopped by a signal or a debugger; kill -CONT {pid} lets it continue"
        owner = parse_process_uid(read_start(f"{proc}/{pid}/status"))
        if os.stat(f"{proc}/{pid}/environ").st_uid != owner:  # noqa: PTH116
            return f"its program made itself unreadable (PR_SET_DUMPABLE 0): remove that, {_SERVER}"
    if "ermission" not in stderr:
        return f"it couldn't be read: {next(iter(stderr.splitlines()), 'no reason given')[:LONGEST]}"
    scope = read_start(f"{proc}/sys/kernel/yama/ptrace_scope").decode("ascii", "replace").strip()
    if scope in _YAMA:
        return f"kernel.yama.ptrace_scope is {scope}, which {_YAMA[scope]}, {_SERVER}"
    return f"the kernel refuses it, as a container's seccomp profile may: allow SYS_PTRACE there, {_SERVER}"
