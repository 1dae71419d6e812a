"""The agent's commands: ``stream`` for the head, ``once`` for people."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from gswarm_agent import __version__
from gswarm_agent.probes.base import Probe

USAGE = """usage: python -m gswarm_agent COMMAND

  stream [--simulate JSON]   send frames to the head on standard input and output
  once [--simulate JSON]     print one reading of this machine as JSON
  simulate                   serve many simulated nodes to the head, on standard input
  --version                  print the version
"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one command; returns the exit status."""
    arguments: List[str] = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"gswarm-agent {__version__}")
        return 0
    if arguments in (["--help"], ["-h"]):
        print(USAGE, end="")
        return 0
    if arguments == ["simulate"]:
        from gswarm_agent.simulated_host import serve

        return serve()
    try:
        command, make_probe = _parse(arguments)
    except ValueError as error:
        print(f"gswarm-agent: {error}\n{USAGE}", end="", file=sys.stderr)
        return 2
    if command == "once":
        return _once(make_probe())
    from gswarm_agent.stream import stream

    return stream(make_probe, simulated="--simulate" in arguments)


def _parse(arguments: List[str]) -> Tuple[str, Callable[[], Probe]]:
    command = arguments[0] if arguments else ""
    if command not in ("stream", "once"):
        raise ValueError(f"unknown command {command!r}" if command else "a command is missing")
    if len(arguments) == 1:
        return command, _node_probe
    if len(arguments) != 3 or arguments[1] != "--simulate":
        raise ValueError(f"{command} can't read {' '.join(arguments[1:])!r}")
    from gswarm_agent.simulated import SimulatedNode, parse_simulation

    simulation = parse_simulation(arguments[2])
    return command, lambda: SimulatedNode(simulation)


def _node_probe() -> Probe:
    from gswarm_agent.probes.node import NodeProbe

    return NodeProbe()


def _once(probe: Probe) -> int:
    """Read twice, a second apart, because rates need two readings; print the second."""
    import json
    import time
    from dataclasses import asdict

    from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, PROCESS_COLUMNS

    host, gpus, capabilities = probe.facts()
    probe.read(time.monotonic_ns())
    time.sleep(1)
    reading = probe.read(time.monotonic_ns())
    probe.close()

    def named(columns: Sequence[str], row: Optional[Sequence[Any]]) -> Optional[Dict[str, Any]]:
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


if __name__ == "__main__":
    sys.exit(main())
