"""The SSH configuration of hosts, as the user's own ``ssh -G`` prints it.

docs/decisions/004-ssh-configuration.md says why, and what is left to asyncssh.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import asyncssh

from gswarm_tui.launch.base import LaunchError, LaunchStep, Retry, clean
from gswarm_tui.launch.process import ProcessChannel
from gswarm_tui.launch.ssh.asyncssh_internals import read_options

ANSWER_S = 15.0
_CALLS_AT_ONCE = 4
# These are in effect already, or have none here; asyncssh would refuse some of their values.
_LEFT_OUT = re.compile("host|canonical.*|forwardagent|proxycommand|pubkeyauth.*|rekeylimit|remotecommand")

Printed = dict[str, list[str]]
"""The values of each option that ``ssh -G`` prints."""


class SshConfiguration:
    """Options of hosts, by ``ssh -G``, whose answers are kept for the run.

    ``config`` is the file for ``ssh -F``, empty for ssh's own files.
    """

    def __init__(self, config: str) -> None:
        self._options = ["-F", config] if config else []
        self._calls = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._answers: dict[object, asyncio.Task[Printed]] = {}

    async def read(self, host: str, user: str, port: int) -> tuple[asyncssh.SSHClientConnectionOptions, str]:
        """Return a host's options, without keys, and the host keys that its ``KnownHostsCommand`` prints.

        Raises LaunchError, OSError, ValueError.
        """
        login = [*(("-l", user) if user else ()), *(("-p", str(port)) if port else ())]
        asked = [
            self._ask((user, port, host), *self._options, *login, host),
            self._ask("defaults", "-F", "/dev/null", host),
        ]
        # If both fail, one reason is enough; gather takes note of the other.
        printed, defaults = await asyncio.gather(*map(asyncio.shield, asked))
        tokens = _tokens(host, printed)
        keys, command = "", printed.get("knownhostscommand", ["none"])[0]
        if command != "none":
            # As in ssh, no shell runs it, and a failure is no more than a lack of keys.
            with suppress(LaunchError):
                words = [_expand(word, tokens) for word in shlex.split(command)]
                keys = (await _output(words))[0].decode("utf-8", "replace")
        chosen = {name: values for name, values in printed.items() if values != defaults.get(name)}
        with tempfile.NamedTemporaryFile("w", errors="surrogateescape") as file:
            lines = _lines(chosen | {"hostname": [tokens["h"]]}, defaults, tokens)
            file.writelines(f"{option} {shlex.join(words)}\n" for option, words in lines)
            file.flush()
            return read_options(host, [file.name], user, port, _proxy(chosen, tokens)), keys

    def _ask(self, key: object, *words: str) -> asyncio.Task[Printed]:
        if key not in self._answers:
            self._answers[key] = asyncio.create_task(self._call(key, *words))
        return self._answers[key]

    async def _call(self, key: object, *words: str) -> Printed:
        """Return what ``ssh -G`` prints; a failed call isn't kept. Raises LaunchError."""
        command = f"ssh -G {shlex.join(words)}"
        async with self._calls:
            output, why = await _output(["ssh", "-TG", *words])
        if not output:
            self._answers.pop(key, None)
            if why is None:
                reason = f"reading its SSH configuration took more than {ANSWER_S:g} s"
                remedy = f"run `{command}` to see what it waits for"
            else:
                reason = f"your ssh refuses its configuration: {why}".rstrip(": \n")
                remedy = f"correct it until `{command}` works"
            raise LaunchError(clean(reason), remedy, Retry.SLOWLY, LaunchStep.CONNECT)
        printed: Printed = {}
        for line in os.fsdecode(output).splitlines():
            name, _, value = line.partition(" ")
            printed.setdefault(name.lower(), []).append(value)
        return printed


async def _output(command: Sequence[str]) -> tuple[bytes, str | None]:
    """Return what a command prints, and on stderr; nothing and None if it takes longer than ``ANSWER_S``."""
    channel = await ProcessChannel.start(command, subprocess.DEVNULL)
    output = b""
    try:
        async with asyncio.timeout(ANSWER_S):
            while chunk := await channel.read():
                output += chunk
        return output, channel.stderr().decode("utf-8", "replace")
    except TimeoutError:
        return b"", None
    finally:
        await channel.close()


def _proxy(chosen: Printed, tokens: Mapping[str, str]) -> list[str]:
    """Return the ``ProxyCommand`` as words.

    A shell runs it, as in ssh. The shell around that one holds a stderr that stays open and empty, because
    asyncssh reads stderr as data and takes its end for the connection's.
    """
    command = _expand(chosen.get("proxycommand", ["none"])[0], tokens)
    shell = ["/bin/sh", "-c", '"$@" 2>/dev/null; exit', "sh", os.environ.get("SHELL") or "/bin/sh"]
    return [] if command == "none" else [*shell, "-c", f"exec {command}"]


def _lines(chosen: Printed, defaults: Printed, tokens: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield options as asyncssh reads them, with no tokens but those that it expands."""
    for name, values in chosen.items():
        first = values[0]
        match name:
            case "userknownhostsfile" | "globalknownhostsfile":
                # ssh prints paths without quotes, so a space separates two files only where a "/" follows it.
                yield name, re.split(" (?=/)", first)
            case "hostname":
                yield name, [first.replace("%", "%%")]
            case "proxyjump":
                yield name, [_expand(first, tokens)]
            case "certificatefile" | "identityfile":
                # asyncssh expands their other tokens and doesn't know these two.
                known = {token: tokens[token].replace("%", "%%") for token in "jk"}
                yield from ((name, [_expand(value, known)]) for value in values)
            case "setenv":
                # ssh prints a line for each variable, and asyncssh reads only the first line.
                yield name, values
            case "identityagent" if first.startswith("$") or first == "SSH_AUTH_SOCK":
                yield name, [os.environ.get(first.lstrip("$"), "none")]
            case "hostkeyalgorithms" if set(defaults[name][0].split(",")).issubset(first.split(",")):
                # With "+", asyncssh still prefers the algorithms of the host's known keys, as ssh does.
                yield name, [f"+{first}"]
            case _ if not _LEFT_OUT.fullmatch(name):
                yield from ((name, [value]) for value in values)


def _tokens(host: str, printed: Printed) -> dict[str, str]:
    """Return the values of ssh's tokens for a host."""
    name, port, alias = printed["hostname"][0], printed["port"][0], printed.get("hostkeyalias", [""])[0]
    known_as = alias or (name if port == "22" else f"[{name}]:{port}")
    # ssh expands %f, %K and %t to NONE when it needs the known keys before it has the host's.
    of_keys = {"H": known_as, "I": "HOSTNAME", **dict.fromkeys("fKt", "NONE")}
    jump = printed.get("proxyjump", [""])[0]
    of_host = {"h": name, "j": jump, "k": alias or host, "n": host, "p": port, "r": printed["user"][0]}
    return {"%": "%", **of_host, **of_keys}


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    return re.sub("%(.)", lambda found: tokens.get(found[1], found[0]), text)
