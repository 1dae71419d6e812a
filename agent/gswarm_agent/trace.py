"""Folder and pipes on a node through which traces and stacks of a job's processes can be requested later.

``gswarm-tui record`` puts these places into the environment of its command, on all nodes alike, so they
depend on the user and the recording only.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress

from gswarm_agent.folder import Folder, open_private, problems_of, tops

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

PIPES_IN, PIPE_PREFIX = "/tmp", "gswarm-nccl-"  # noqa: S108  # exists in every container, too
"""Folder of PyTorch's pipes ``gswarm-nccl-TOKEN-RANK.pipe``, and the beginning of their names.

If PyTorch can't make its pipe, the process dies. So the folder is one that exists everywhere, and the token
is random: another user who knew it could take the name.
"""
ENDPOINT = "dynolog"
"""Kineto's name of the socket to which PyTorch processes send their requests."""
_SOCKETS = "kineto-"
_STARTS_S = 60.0
_ALLOW_TRACER = "import ctypes; ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1))"  # PR_SET_PTRACER


def socket_folder(recording: str) -> str:
    """Return the path of the recording's folder for Kineto's sockets and traces.

    Kineto appends 53 characters to it, and an address has room for 107.
    """
    return f"{tops()[0]}/{_SOCKETS}{recording[:8]}"


def obstacles(recording: str, proc: str = "/proc") -> Dict[str, str]:
    """Make the socket folder; return why traces or stacks are unavailable on this node, as capabilities."""
    found = {"traces": make_socket_folder(recording), "stacks": _why_no_stacks(proc)}
    if not found["traces"]:
        with suppress(OSError):  # left by an agent that was killed
            os.unlink(f"{socket_folder(recording)}/{ENDPOINT}")  # noqa: PTH108
    return {what: why for what, why in found.items() if why}


def make_socket_folder(recording: str) -> str:
    """Make the recording's socket folder; return why it can't be private, empty if it is."""
    path = socket_folder(recording)
    top, _, name = path.rpartition("/")
    try:
        Folder(top, name, create=True).close()
    except OSError as error:
        return next(iter(problems_of([top, path])), f"{path}: {error.strerror}")
    return ""


def _why_no_stacks(proc: str) -> str:
    """Return why the kernel's Yama module keeps a process from reading the stacks of its siblings."""
    try:
        with open(f"{proc}/sys/kernel/yama/ptrace_scope") as file:  # noqa: PTH123  # pathlib is slow to import
            scope = int(file.read())
    except (OSError, ValueError):
        return ""
    if scope == 0 or (os.geteuid() == 0 and scope < 3):
        return ""
    if scope == 1:
        return f"ptrace_scope is 1; to allow stacks, run this in your program: {_ALLOW_TRACER}"
    return f"ptrace_scope is {scope}, which only an administrator can change"


def remove_forgotten(ended: str = "") -> None:
    """Remove socket folders without a recording on this node, and pipes of processes that have ended.

    A new folder stays, except the ``ended`` recording's: there may be no agent yet.
    """
    try:
        top = open_private(tops()[0])
    except OSError:
        return
    names = os.listdir(top)  # noqa: PTH208
    recordings = {name[:8] for name in names if "@" in name}
    for name in names:
        recording = name[len(_SOCKETS) :]
        if name.startswith(_SOCKETS) and recording not in recordings:
            _remove_sockets(top, name, min_age_s=0.0 if recording == ended[:8] else _STARTS_S)
    os.close(top)
    for name in os.listdir(PIPES_IN):  # noqa: PTH208
        if name.startswith(PIPE_PREFIX) and name.endswith(".pipe"):
            _remove_pipe(f"{PIPES_IN}/{name}")


def _remove_sockets(top: int, name: str, min_age_s: float) -> None:
    """Remove a socket folder of this age; one that holds other files stays."""
    try:
        if time.time() - os.stat(name, dir_fd=top).st_mtime < min_age_s:
            return
        folder = open_private(name, top)
        for entry in os.listdir(folder):  # noqa: PTH208
            if stat.S_ISSOCK(os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(entry, dir_fd=folder)
        os.close(folder)
        os.rmdir(name, dir_fd=top)
    except OSError:
        pass


def _remove_pipe(path: str) -> None:
    """Remove a pipe of this user's that no process reads; PyTorch opens a new one at once."""
    try:
        status = os.lstat(path)
        is_old = time.time() - status.st_mtime > _STARTS_S
        if not (stat.S_ISFIFO(status.st_mode) and status.st_uid == os.geteuid() and is_old):
            return
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ENXIO:
            os.unlink(path)  # noqa: PTH108
