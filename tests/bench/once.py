"""Time of ``gswarm-tui once --json`` on real sshd servers here, beside parallel OpenSSH clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from tests.bench.fanout import parallel_ssh, ssh_servers
from tests.bench.figures import BenchOptions, Figure

SECONDS_A_SSH = 2.0
"""Goal: at most this many times a plain parallel ssh."""


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure whole commands in turns, with few and with many nodes."""
    rounds = options.count(3, 1)
    with ExitStack() as stack:
        config, names = ssh_servers(stack, options.folder, options.count(64, 2))
        _once(config, names)  # puts the agent into the home that the nodes share
        for nodes in (2,) if options.smoke else (4, 16, 64):
            some = names[:nodes]
            took: list[tuple[float, float, float]] = [
                (
                    _once(config, some),
                    parallel_ssh(config, some, "echo", "there"),
                    parallel_ssh(config, some),
                )
                for _ in range(rounds)
            ]
            ours, plain, script = map(median, zip(*took, strict=True))
            what = f"once --json of {nodes} sshd"
            yield Figure(
                what, ours, "s", SECONDS_A_SSH * plain, limit="ssh … echo, all at once", beside=plain
            )
            peer = "ssh … python3 -c 'import nvitop, msgpack', all at once"
            yield Figure(
                f"{what}, beside a script", ours, "s", SECONDS_A_SSH * script, limit=peer, beside=script
            )


def _once(config: Path, names: Sequence[str]) -> float:
    """Return the seconds of one command, which has to show all nodes."""
    command = [sys.executable, "-m", "gswarm_tui", "once", "--json", "--ssh-config", str(config)]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--nodes", *names],
        env={**os.environ, "XDG_STATE_HOME": str(config.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.monotonic() - began
    states = [node["state"] for node in json.loads(done.stdout)["nodes"]]
    if states != ["live"] * len(names):
        raise RuntimeError(f"once showed {states}: {done.stderr}")
    return took
