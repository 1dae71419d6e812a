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
from argparse import ArgumentParser

from gswarm_agent import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence
    from socket import socket

    from gswarm_agent.folder import Folder
    from gswarm_agent.probes.base import Probe

_LIMITS = ("linger", "memory_mib", "spool_mib")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    options = _parser().parse_args(argv)
    status: int = options.run(options)
    return status


def _parser() -> ArgumentParser:
    parser = ArgumentParser("gswarm-agent", description="gswarm-tui runs all commands but mark.")
    parser.add_argument("--version", action="version", version=f"gswarm-agent {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[Namespace], int], *texts: str) -> ArgumentParser:
        """Add a command, and options of it that take any text."""
        made: ArgumentParser = commands.add_parser(name, description=run.__doc__)
        made.set_defaults(run=run)
        for option in texts:
            made.add_argument(option, default="")
        return made

    attach = command("attach", _attach, "--recording", "--node", "--folder", "--simulate")
    for name in _LIMITS:
        attach.add_argument(f"--{name.replace('_', '-')}", type=float)
    for flag in ("--hold", "--only-left", "--armed"):
        attach.add_argument(flag, action="store_true")
    command("stream", _stream, "--simulate")
    command("status", _status, "--recording", "--folder")
    command("check", _check)
    command("ask", _ask, "--step")
    command("simulate", _simulate)
    mark = command("mark", _mark)
    mark.add_argument("name", metavar="NAME", help="name of the mark, in quotes if it has spaces")
    mark.add_argument("--folder", default="", help="the agents' folder (default: /var/tmp or /tmp)")
    mark.add_argument("--value", action="append", default=[], metavar="KEY=VALUE", help="number or text")
    return parser


def _fail(problem: str) -> int:
    print(f"gswarm-agent: {problem}", file=sys.stderr)
    return 2


def _probe_maker(simulation: str) -> Callable[[], Probe]:
    if simulation:
        from gswarm_agent.simulated import SimulatedNode, parse_simulation

        parsed = parse_simulation(simulation)
        return lambda: SimulatedNode(parsed)
    from gswarm_agent.probes.node import NodeProbe

    return NodeProbe


def _stream(options: Namespace) -> int:
    from gswarm_agent.server import stream

    return stream(_probe_maker(options.simulate))


def _attach(options: Namespace) -> int:
    from gswarm_agent.attach import attach
    from gswarm_agent.folder import is_plain, name_of

    node = options.node or os.uname().nodename
    if not (is_plain(options.recording) and is_plain(node)):
        return _fail("attach needs --recording UID, with letters, digits and ._:- only, as in --node")

    def serve(folder: Folder, listener: socket) -> None:
        from gswarm_agent import server

        probe = None if options.only_left else _probe_maker(options.simulate)
        limits = {name: value for name in _LIMITS if (value := getattr(options, name)) is not None}
        server.serve(folder, listener, probe, armed=options.armed, **limits)

    return attach(name_of(options.recording, node), options.folder, serve, options.hold)


def _status(options: Namespace) -> int:
    from gswarm_agent.attach import status

    return _print_json(status(options.recording, options.folder))


def _check(_options: Namespace) -> int:
    from gswarm_agent.checks import check

    return _print_json(check())


def _print_json(found: object) -> int:
    import json

    from gswarm_agent.wire import MAGIC

    sys.stdout.write(MAGIC.decode())
    print(json.dumps(found))
    return 0


def _mark(options: Namespace) -> int:
    """Set a mark in each recording that has an agent of yours here."""
    from gswarm_agent.mark import MarkError, send, values_of

    try:
        marked = send(options.name, values_of(options.value, os.environ), top=options.folder)
    except MarkError as error:
        return _fail(str(error))
    for problem in marked.problems:
        print(f"gswarm-agent: {problem}", file=sys.stderr)
    if marked.recordings:
        print(f"marked in {len(marked.recordings)} recording{'s' * (len(marked.recordings) > 1)}")
    elif not marked.problems:
        print("gswarm-agent: no recording has an agent of yours on this node", file=sys.stderr)
    return 1 if marked.problems or not marked.recordings else 0


def _simulate(_options: Namespace) -> int:
    from gswarm_agent.simulated_host import serve

    return serve()


def _ask(options: Namespace) -> int:
    from gswarm_agent.asking.steps import run

    return run(options.step)


if __name__ == "__main__":
    sys.exit(main())
