"""Starts and stops a test cluster by hand: `python -m tests.cluster up`, `shell`, `status`, `down`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.kinds import Kind
from tests.cluster.running import ClusterError
from tests.cluster.state import PREFIX, State, clear_leftovers


def main() -> int:
    """Run the command; return 1 after one sentence if that fails."""
    options = _parser().parse_args()
    root: Path = options.root
    try:
        if options.action == "up":
            kinds = dict(options.kind)
            cluster = Cluster.up(options.nodes, options.gpus, root, kinds=kinds, own_homes=options.own_home)
            cluster.detach()
            _show(cluster)
        elif options.action == "down":
            clear_leftovers()
            _down(root)
        elif options.action == "status":
            _show(Cluster.attach(root))
        else:
            login = Cluster.attach(root).login
            words = login.words(options.command or ["bash", "--norc"])
            os.execvp(words[0], words)
    except ClusterError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    return 0


def _down(root: Path) -> None:
    try:
        state = State.load(root)
    except FileNotFoundError:
        print(f"no cluster is up in {root}")
        return
    for line in state.clear():
        print(f"ended what still ran on the login node: {line}")


def _show(cluster: Cluster) -> None:
    print(f"cluster in {cluster.root}; `python -m tests.cluster shell` leads to its login node")
    for node in cluster:
        print(f"{node.name:12} {node.address:12} {node.kind:12} {node.gpus} GPUs  init {node.init.pid}")
    print(cluster.run("sinfo --Node --long").stdout, end="")


def _kind(text: str) -> tuple[str, Kind]:
    name, _, kind = text.partition("=")
    if kind not in list(Kind):
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE=KIND with one of {', '.join(Kind)}")
    return name, Kind(kind)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    default = Path(tempfile.gettempdir()) / PREFIX
    parser.add_argument(
        "--root", type=Path, default=default, help="folder of its files (default: %(default)s)"
    )
    actions = parser.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up", help="bring a cluster up")
    up.add_argument("--nodes", type=int, default=4, metavar="N", help="gpu01 to gpuN (default: %(default)s)")
    up.add_argument("--gpus", type=int, default=8, metavar="N", help="of each node (default: %(default)s)")
    add = partial(up.add_argument, action="append", default=[])
    add("--kind", type=_kind, metavar="NODE=KIND", help=", ".join(Kind))
    add("--own-home", metavar="NODE", help="has a home folder of its own")
    actions.add_parser("down", help="take it down, and remove what dead clusters left")
    actions.add_parser("status", help="show its nodes")
    shell = actions.add_parser("shell", help="a shell, or a command, at its login node")
    shell.add_argument("command", nargs=argparse.REMAINDER)
    return parser


if __name__ == "__main__":
    sys.exit(main())
