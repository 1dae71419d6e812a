"""The SSH configuration of hosts, as the user's own ``ssh -G`` prints it.

docs/decisions/004-ssh-configuration.md says why, and what is left to asyncssh.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import asyncssh

from gswarm_tui.launch.base import LaunchError, LaunchStep, Retry, clean
from gswarm_tui.launch.process import ProcessChannel
from gswarm_tui.launch.ssh.asyncssh_internals import read_options

ANSWER_S = 15.0
_CALLS_AT_ONCE = 4
_LINE = re.compile(r'\s*"?(\w+)"?[\s=]*([^#]*)')
_WORD = re.compile(r'[^\s",!]+')
# ``ssh -G`` prints these as they are written, so that a token in them doesn't tell hosts apart.
_NOT_EXPANDED = {
    *("certificatefile", "controlpath", "identityfile"),
    *("knownhostscommand", "localcommand", "proxycommand"),
}
# These are in effect already, or have none here; asyncssh would refuse some of their values.
_LEFT_OUT = re.compile("host|canonical.*|forwardagent|proxycommand|pubkeyauth.*|rekeylimit|remotecommand")

Printed = dict[str, list[str]]
"""The values of each option that ``ssh -G`` prints; "host" is the host that it was called for."""


class SshConfiguration:
    """Options of hosts, by ``ssh -G``; hosts that the configuration doesn't tell apart share a call.

    Answers are kept for the run. Where there is no ``ssh``, asyncssh reads ``files``.
    """

    def __init__(self, config: str, files: Sequence[str]) -> None:
        self._ssh = shutil.which("ssh")
        self._options = ["-F", config] if config else []
        self._files = files
        self._calls = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._answers: dict[object, asyncio.Task[Printed]] = {}
        self._patterns: frozenset[str] | None = None

    async def read(self, host: str, user: str, port: int) -> tuple[asyncssh.SSHClientConnectionOptions, str]:
        """Return a host's options, without keys, and the host keys that its ``KnownHostsCommand`` prints.

        Raises LaunchError, OSError, ValueError.
        """
        if self._ssh is None:
            # In a thread, because ``Match exec`` may run a slow command.
            return await asyncio.to_thread(read_options, host, self._files, user, port), ""
        if not self._answers:
            self._patterns = patterns(self._files)
        login = [*(("-l", user) if user else ()), *(("-p", str(port)) if port else ())]
        asked = [
            self._ask((user, port, self._group(host)), *self._options, *login, host),
            self._ask("defaults", "-F", "/dev/null", host),
        ]
        printed, defaults = [await asyncio.shield(answer) for answer in asked]
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

    def _group(self, host: str) -> object:
        """Return the same value for hosts that the configuration doesn't tell apart."""
        # ssh tells capitals apart in Host, and not in HostName.
        if self._patterns is None or host in self._patterns or host != host.lower():
            return host
        return frozenset(one for one in self._patterns if fnmatch.fnmatchcase(host, one))

    def _ask(self, key: object, *words: str) -> asyncio.Task[Printed]:
        if key not in self._answers:
            self._answers[key] = asyncio.create_task(self._call(key, *words))
        return self._answers[key]

    async def _call(self, key: object, *words: str) -> Printed:
        """Return what ``ssh -G`` prints; a failed call isn't kept. Raises LaunchError."""
        command = f"ssh -G {shlex.join(words)}"
        async with self._calls:
            output, why = await _output([self._ssh or "", "-TG", *words])
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
        return printed | {"host": [words[-1]]}


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


def patterns(files: Sequence[str]) -> frozenset[str] | None:
    """Return the names and patterns by which configuration files tell hosts apart; None for other means.

    ``Match final all``, as in Red Hat's system file, holds for every host.
    """
    found = set[str]()
    waiting = [Path(path) for path in files]
    for path in waiting:
        base = path.parent if path.is_relative_to("/etc/ssh") else Path("~/.ssh").expanduser()
        text = path.read_text("utf-8", "replace") if path.is_file() and os.access(path, os.R_OK) else ""
        for line in filter(None, map(_LINE.match, text.splitlines())):
            name, words = line[1].lower(), _WORD.findall(line[2])
            if name in {"host", "hostname"}:
                found.update(word.lower() for word in words)
            elif name == "include":
                for included in (base / Path(word).expanduser() for word in words):
                    more = Path(included.anchor).glob(str(included.relative_to(included.anchor)))
                    waiting += [one for one in more if one not in waiting]
            if (
                ("%" in line.string and name not in _NOT_EXPANDED)
                # Quoted spaces aren't read here, nor variables, which newer versions of ssh expand.
                or (name == "include" and re.search(r"""["'$\\]""", line.string))
                or name == "canonicalizehostname"
                or (name == "match" and not {"final", "all"}.issuperset(words))
            ):
                return None
    return frozenset(found)


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
    name = printed["hostname"][0]
    if name.lower() == printed["host"][0].lower():
        # Hosts share a call, so what ssh printed may be the name of another host that has no HostName either.
        name = host
    port, alias = printed["port"][0], printed.get("hostkeyalias", [""])[0]
    known_as = alias or (name if port == "22" else f"[{name}]:{port}")
    # ssh expands %f, %K and %t to NONE when it needs the known keys before it has the host's.
    of_keys = {"H": known_as, "I": "HOSTNAME", **dict.fromkeys("fKt", "NONE")}
    jump = printed.get("proxyjump", [""])[0]
    of_host = {"h": name, "j": jump, "k": alias or host, "n": host, "p": port, "r": printed["user"][0]}
    return {"%": "%", **of_host, **of_keys}


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    return re.sub("%(.)", lambda found: tokens.get(found[1], found[0]), text)
