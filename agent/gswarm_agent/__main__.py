"""The agent's command line: commands that the head runs, and ``mark`` for people.

``attach`` connects to the agent of ``--recording`` on this node, and starts it if needed; ``--node`` is
the head's name for this node. The agent continues ``--linger`` seconds without a head; it keeps
``--memory-mib`` of frames in memory and ``--spool-mib`` of them in ``--folder``. With ``--hold`` the command
stays until the agent has ended, as a Slurm step must; with ``--only-left`` the agent only delivers frames
that were left on the node; with ``--armed`` it makes the folder in which traces can be requested.

``stream`` sends frames to the head on standard streams, without a recording. ``status`` and ``check`` print
JSON after the wire's first line: recordings with an agent or frames here; this node's Python, folder and
rights. ``ask`` is the agent's own child, which asks the job by one ``--step``. ``simulate`` serves many
simulated nodes; ``--simulate`` lets one agent measure a simulated node.
"""

from __future__ import annotations

import os
import sys

from gswarm_agent import __version__

TYPE_CHECKING = False  # that of typing takes as long to import as all that joins an agent
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from socket import socket

    from gswarm_agent.folder import Folder
    from gswarm_agent.probes.base import Probe

USAGE = """usage: python -m gswarm_agent mark NAME [--value KEY=VALUE] ...
       python -m gswarm_agent attach|stream|status|check|simulate ...   (gswarm-tui runs these)
"""


class OptionError(Exception):
    """Raised for an invalid command line; the message gives the reason."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    arguments: list[str] = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"gswarm-agent {__version__}")
        return 0
    command = arguments[0] if arguments else ""
    if command == "mark":
        return _mark(arguments[1:])
    if command not in _COMMANDS:
        return _usage_error(f"unknown command {command!r}" if command else "a command is missing")
    allowed, run = _COMMANDS[command]
    try:
        options = _parse(command, arguments[1:], allowed)
        return run(options)
    except OptionError as error:
        return _usage_error(str(error))


def _usage_error(problem: str) -> int:
    print(f"gswarm-agent: {problem}\n{USAGE}", end="", file=sys.stderr)
    return 2


def _parse(command: str, arguments: list[str], allowed: str) -> dict[str, str]:
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name = rest.pop(0)
        if name not in allowed.split() or (name not in _FLAGS and not rest):
            raise OptionError(f"{command}: invalid option or missing value in {' '.join(arguments)!r}")
        options[name] = "" if name in _FLAGS else rest.pop(0)
    return options


def _probe_maker(options: dict[str, str]) -> Callable[[], Probe]:
    if "--simulate" not in options:
        return _node_probe
    from gswarm_agent.simulated import SimulatedNode, parse_simulation

    simulation = parse_simulation(options["--simulate"])
    return lambda: SimulatedNode(simulation)


def _stream(options: dict[str, str]) -> int:
    make_probe = _probe_maker(options)
    limits = _limits(options)
    from gswarm_agent.server import stream

    return stream(make_probe, **limits)


def _attach(options: dict[str, str]) -> int:
    from gswarm_agent.attach import attach

    folder_name = _folder_name("attach", options)
    make_probe = _probe_maker(options)
    limits = _limits(options)

    def serve(folder: Folder, listener: socket) -> None:
        from gswarm_agent import server

        probe = None if "--only-left" in options else make_probe
        server.serve(folder, listener, probe, armed="--armed" in options, **limits)

    return attach(folder_name, options.get("--folder", ""), serve, "--hold" in options)


def _folder_name(command: str, options: dict[str, str]) -> str:
    from gswarm_agent.folder import is_plain, name_of

    recording = options.get("--recording", "")
    node = options.get("--node", "") or os.uname().nodename
    if not (is_plain(recording) and is_plain(node)):
        raise OptionError(
            f"{command} needs --recording UID, with letters, digits and ._:- only, as in --node"
        )
    return name_of(recording, node)


def _limits(options: dict[str, str]) -> dict[str, float]:
    return {_LIMITS[name]: _number(name, options[name]) for name in _LIMITS if name in options}


def _number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 < number < 1e9:
        raise OptionError(f"{name} takes a number above 0, not {text!r}")
    return number


def _status(options: dict[str, str]) -> int:
    from gswarm_agent.attach import status

    return _print_json(status(options.get("--recording", ""), options.get("--folder", "")))


def _check(_options: dict[str, str]) -> int:
    from gswarm_agent.checks import check

    return _print_json(check())


def _print_json(found: object) -> int:
    import json

    from gswarm_agent.wire import MAGIC

    sys.stdout.write(MAGIC.decode())
    print(json.dumps(found))
    return 0


def _mark(arguments: list[str]) -> int:
    import argparse

    from gswarm_agent.mark import MarkError, send, values_of

    parser = argparse.ArgumentParser(
        "gswarm-agent mark", description="Set a mark in each recording that has an agent of yours here."
    )
    parser.add_argument("name", metavar="NAME", help="name of the mark, in quotes if it has spaces")
    parser.add_argument("--value", action="append", default=[], metavar="KEY=VALUE", help="number or text")
    parser.add_argument("--folder", default="", help="the agents' folder (default: /var/tmp or /tmp)")
    options = parser.parse_args(arguments)
    try:
        marked = send(options.name, values_of(options.value, os.environ), top=options.folder)
    except MarkError as error:
        parser.error(str(error))
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


def _ask(options: dict[str, str]) -> int:
    from gswarm_agent.asking.steps import run

    return run(options.get("--step", ""))


def _node_probe() -> Probe:
    from gswarm_agent.probes.node import NodeProbe

    return NodeProbe()


_FLAGS = ("--hold", "--only-left", "--armed")
_LIMITS = {"--linger": "linger", "--memory-mib": "memory_mib", "--spool-mib": "spool_mib"}
_COMMANDS: dict[str, tuple[str, Callable[[dict[str, str]], int]]] = {
    "attach": (
        "--recording --node --linger --memory-mib --spool-mib --folder --hold --only-left --armed --simulate",
        _attach,
    ),
    "stream": ("--memory-mib --simulate", _stream),
    "status": ("--recording --folder", _status),
    "check": ("", _check),
    "ask": ("--step", _ask),
    "simulate": ("", _simulate),
}


if __name__ == "__main__":
    sys.exit(main())
