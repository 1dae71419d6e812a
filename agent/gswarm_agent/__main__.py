"""The agent's commands: ``attach`` and ``stream`` for the head, ``status`` and ``once`` also for people."""

from __future__ import annotations

import os
import sys

from gswarm_agent import __version__

TYPE_CHECKING = False  # that of typing takes as long to import as all that joins an agent
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from socket import socket
    from typing import Any

    from gswarm_agent.folder import Folder
    from gswarm_agent.probes.base import Probe

USAGE = """usage: python -m gswarm_agent COMMAND

  attach --recording UID     join the recording's agent on this node, started if there is none
     --node NAME             what the head calls this node (default: its host name)
     --linger S              how long the agent goes on without a head (default: 86400)
     --memory-mib N          frames kept in memory (default: 16), then
     --spool-mib N           on disk (default: 256)
     --folder PATH           where, on node-local storage (default: /var/tmp or /tmp/gswarm-tui-UID)
     --hold                  stay until the agent that was started has ended, as in a Slurm step
     --only-left             measure nothing where no agent runs: only give what is left
     --simulate JSON         measure a simulated node
  ended --recording UID      say how that agent ended, if it was killed
     --node NAME             as above
     --folder PATH           as above
  stream [--simulate JSON]   send frames to the head on standard input and output, and end with it
  status                     print as JSON which recordings have an agent or frames here
     --recording UID         of one recording
     --folder PATH           as above
     --for-head              begin as the wire does
  mark NAME                  set a mark in each recording that has an agent of yours here
     --value KEY=VALUE       with a number or a text, as often as you like
     --folder PATH           as above
  once [--simulate JSON]     print one reading of this machine as JSON
  simulate                   serve many simulated nodes to the head, on standard input
  --version                  print the version
"""


class OptionError(Exception):
    """A command line that makes no sense; the message says why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments: list[str] = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"gswarm-agent {__version__}")
        return 0
    if arguments in (["--help"], ["-h"]):
        print(USAGE, end="")
        return 0
    command = arguments[0] if arguments else ""
    if command == "mark":
        return _mark(arguments[1:])
    if command not in _COMMANDS:
        return _refuse(f"unknown command {command!r}" if command else "a command is missing")
    allowed, run = _COMMANDS[command]
    try:
        options = _parse(command, arguments[1:], allowed)
        return run(options)
    except OptionError as error:
        return _refuse(str(error))


def _refuse(problem: str) -> int:
    print(f"gswarm-agent: {problem}\n{USAGE}", end="", file=sys.stderr)
    return 2


def _parse(command: str, words: list[str], allowed: str) -> dict[str, str]:
    """Options by their names; those that are followed by a value are the rule."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        name = rest.pop(0)
        if name not in allowed.split() or (name not in _FLAGS and not rest):
            raise OptionError(f"{command} can't read {' '.join(words)!r}")
        options[name] = "" if name in _FLAGS else rest.pop(0)
    return options


def _probe_maker(options: dict[str, str]) -> Callable[[], Probe]:
    if "--simulate" not in options:
        return _node_probe
    from gswarm_agent.simulated import SimulatedNode, parse_simulation

    try:
        simulation = parse_simulation(options["--simulate"])
    except ValueError as error:
        raise OptionError(str(error)) from None
    return lambda: SimulatedNode(simulation)


def _stream(options: dict[str, str]) -> int:
    _hurry()
    make_probe = _probe_maker(options)
    from gswarm_agent.stream import stream

    return stream(make_probe, "--simulate" in options)


def _attach(options: dict[str, str]) -> int:
    from gswarm_agent.attach import attach

    folder_name = _folder_name("attach", options)
    make_probe = _probe_maker(options)
    numbers = {name: _number(name, options[name]) for name in _LIMITS if name in options}

    def serve(folder: Folder, listener: socket) -> None:
        if "--only-left" not in options:  # who measures nothing has no first frame that ends it
            _hurry()
        from gswarm_agent import server

        given = {_LIMITS[name]: number for name, number in numbers.items()}
        limits = server.Limits(**given, only_left="--only-left" in options)
        server.serve(folder, listener, make_probe, "--simulate" in options, limits)

    return attach(folder_name, options.get("--folder", ""), serve, "--hold" in options)


def _ended(options: dict[str, str]) -> int:
    from gswarm_agent.attach import tell_end

    return tell_end(_folder_name("ended", options), options.get("--folder", ""))


def _folder_name(command: str, options: dict[str, str]) -> str:
    from gswarm_agent.folder import is_plain, name_of

    recording = options.get("--recording", "")
    node = options.get("--node", "") or os.uname().nodename
    if not (is_plain(recording) and is_plain(node)):
        raise OptionError(f"{command} needs --recording UID, of letters, digits and ._:- alone, as --node is")
    return name_of(recording, node)


def _hurry() -> None:
    """Look for no garbage before the first frame: what is imported makes many things, and none of that."""
    import gc

    gc.disable()


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 < number < 1e9:
        raise OptionError(f"{name} takes a number above 0, not {text!r}")
    return number


def _status(options: dict[str, str]) -> int:
    import json

    from gswarm_agent.status import status

    found = status(options.get("--recording", ""), options.get("--folder", ""))
    if "--for-head" in options:
        from gswarm_agent.wire import MAGIC

        sys.stdout.write(MAGIC.decode())
    print(json.dumps(found, indent=2))
    return 0


def _mark(words: list[str]) -> int:
    from gswarm_agent.mark import MarkError, send, values_of

    names: list[str] = []
    values: list[str] = []
    folder = ""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("--value", "--folder") and not rest:
            return _refuse(f"mark: {word} needs what comes after it")
        if word == "--value":
            values.append(rest.pop(0))
        elif word == "--folder":
            folder = rest.pop(0)
        else:
            names.append(word)
    if len(names) != 1:
        return _refuse("mark takes one name, in quotes if it has blanks" if names else "mark needs a name")
    try:
        marked = send(names[0], values_of(values, os.environ), top=folder)
    except MarkError as error:
        return _refuse(f"mark: {error}")
    for problem in marked.problems:
        print(f"gswarm-agent: {problem}", file=sys.stderr)
    if marked.recordings:
        print(f"marked in {len(marked.recordings)} recording{'s' * (len(marked.recordings) > 1)}")
    elif not marked.problems:
        print("gswarm-agent: no recording has an agent of yours on this node", file=sys.stderr)
    return 1 if marked.problems or not marked.recordings else 0


def _simulate(_options: dict[str, str]) -> int:
    from gswarm_agent.simulated_host import serve

    return serve()


def _node_probe() -> Probe:
    from gswarm_agent.probes.node import NodeProbe

    return NodeProbe()


def _once(options: dict[str, str]) -> int:
    """Read twice, a second apart, because rates need two readings; print the second."""
    import json
    import time
    from dataclasses import asdict

    from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, PROCESS_COLUMNS

    probe = _probe_maker(options)()
    host, gpus, capabilities = probe.facts()
    probe.read(time.monotonic_ns())
    time.sleep(1)
    reading = probe.read(time.monotonic_ns())
    probe.close()

    def named(columns: Sequence[str], row: Sequence[Any] | None) -> dict[str, Any] | None:
        return None if row is None else dict(zip(columns, row))

    answer = {
        "host": {**asdict(host), **(named(HOST_COLUMNS, reading.host) or {})},
        "gpus": [{**asdict(g), **(named(GPU_COLUMNS, row) or {})} for g, row in zip(gpus, reading.gpus)],
        "processes": [
            {
                "gpu": p.gpu,
                "pid": p.pid,
                "user": p.user,
                "command": p.command,
                **(named(PROCESS_COLUMNS, p.row) or {}),
            }
            for p in reading.processes or ()
        ],
        "not measured": capabilities,
    }
    print(json.dumps(answer, indent=2))
    return 0


_FLAGS = ("--hold", "--only-left", "--for-head")
_LIMITS = {"--linger": "linger", "--memory-mib": "memory_mib", "--spool-mib": "spool_mib"}
_COMMANDS: dict[str, tuple[str, Callable[[dict[str, str]], int]]] = {
    "attach": (
        "--recording --node --linger --memory-mib --spool-mib --folder --hold --only-left --simulate",
        _attach,
    ),
    "ended": ("--recording --node --folder", _ended),
    "stream": ("--simulate", _stream),
    "status": ("--recording --folder --for-head", _status),
    "once": ("--simulate", _once),
    "simulate": ("", _simulate),
}


if __name__ == "__main__":
    sys.exit(main())
