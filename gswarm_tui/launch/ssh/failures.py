"""Explains failed SSH connections: the reason in one clause, and what the user can do."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path

import asyncssh

from gswarm_tui.launch.base import LaunchError, LaunchStep, Retry, clean
from gswarm_tui.launch.ssh.asyncssh_internals import is_about_host_key, is_revoked, needs_passphrase
from gswarm_tui.launch.ssh.attempt import DEFAULT_KEYS, Attempt

_ERRNO = re.compile(r"\[Errno (\d+)\]")


def explain(error: Exception, attempt: Attempt) -> LaunchError:
    """Explain an error that ended a connection attempt."""
    host = attempt.host
    files = attempt.known_hosts_files
    known = _short(files[0]) if files else "known_hosts"
    match error:
        case asyncssh.HostKeyNotVerifiable() if is_revoked(error):
            remedy = "contact the cluster's administrators"
            return LaunchError(
                f"its host key is revoked in {known}", remedy, Retry.SLOWLY, LaunchStep.HOST_KEY
            )
        case asyncssh.HostKeyNotVerifiable() if not attempt.host_is_known:
            remedy = f"run `{attempt.command}` once to check and accept it"
            return LaunchError(f"its host key is not in {known}", remedy, Retry.SLOWLY, LaunchStep.HOST_KEY)
        case asyncssh.HostKeyNotVerifiable() | asyncssh.KeyExchangeFailed() if is_about_host_key(error):
            remedy = f"if this change is expected, run `ssh-keygen -R {host}`, then `{attempt.command}` once"
            return LaunchError(
                f"its host key is not the one in {known}", remedy, Retry.SLOWLY, LaunchStep.HOST_KEY
            )
        case socket.gaierror():
            remedy = "check it for a typo"
            if not attempt.is_jump_host:
                remedy += "; a node of a Slurm job is also reached with `--launcher srun`"
            return LaunchError("its name does not resolve", remedy, Retry.SLOWLY, LaunchStep.NAME)
        case TimeoutError():
            return LaunchError(
                "it did not answer in time", f"try `{attempt.command}`", step=LaunchStep.CONNECT
            )
        case asyncssh.ChannelOpenError() if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
            reason = "the jump host's SSH server forbids connections through it"
            return LaunchError(reason, "run gswarm-tui on the jump host", Retry.SLOWLY, LaunchStep.CONNECT)
        case asyncssh.ChannelOpenError():
            reason = clean(f"the jump host can't reach it: {error.reason}")
            return LaunchError(reason, f"try `{attempt.command}`", step=LaunchStep.CONNECT)
        case asyncssh.Error() if "Too many authentication failures" in error.reason:
            remedy = "add IdentityFile and `IdentitiesOnly yes` for it to your SSH configuration"
            reason = "it hung up after several keys: your ssh-agent holds too many"
            return LaunchError(reason, remedy, Retry.SLOWLY, LaunchStep.LOGIN)
        case asyncssh.Error():
            message = clean(attempt.banner) or error.reason
            return LaunchError(
                clean(f"the connection broke: {message}"), f"try `{attempt.command}`", step=LaunchStep.CONNECT
            )
        case OSError():
            return LaunchError(_explain_os(error), f"try `{attempt.command}`", step=LaunchStep.CONNECT)
        case _:
            remedy = "correct the SSH configuration or key named there"
            return LaunchError(
                clean(f"SSH can't be set up: {error}"), remedy, Retry.SLOWLY, LaunchStep.CONNECT
            )


def explain_refusal(attempt: Attempt) -> LaunchError:
    """Explain why a host may have refused the user."""
    user = attempt.options.username if attempt.options else ""
    reason = f"it refuses the user {user}"
    if banner := clean(attempt.banner):
        reason += f": {banner}"
    remedy = f"try `{attempt.command}`; many clusters let you in only while your job runs there"
    if locked := [path for path in attempt.files("IdentityFile", DEFAULT_KEYS) if _is_encrypted(path)]:
        reason += f" (the key {_short(locked[0])} has a passphrase, so only an ssh-agent can offer it)"
        remedy = f"run `ssh-add` if your ssh-agent lacks the key; else {remedy}"
    if attempt.wants_password:
        reason += " without a password or code"
        remedy += (
            f"; gswarm-tui types none: if ssh asks for one, set up a key with `ssh-copy-id {attempt.host}`, "
            "or run gswarm-tui on a login node"
        )
    return LaunchError(clean(reason), remedy, Retry.SLOWLY, LaunchStep.LOGIN)


def _short(path: Path) -> str:
    """Shorten the home folder to ``~``."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _is_encrypted(path: Path) -> bool:
    try:
        asyncssh.read_private_key(path)
    except ValueError as error:
        return needs_passphrase(error)
    except OSError:
        return False
    return False


def _explain_os(error: OSError) -> str:
    # After several addresses failed, only the text of asyncio's error has their error numbers.
    if error.filename:
        return clean(f"SSH can't be set up: {error.filename}: {error.strerror}")
    numbers = [error.errno] if error.errno else [int(n) for n in _ERRNO.findall(str(error))]
    if errno.ECONNREFUSED in numbers:
        return "it refuses connections: nothing listens on its SSH port"
    return clean(f"it can't be reached: {os.strerror(numbers[0]) if numbers else error}")
