"""``gswarm-tui nodes``: list the nodes of a running gswarm-tui, their state and their GPUs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gswarm_tui.commands.head_choice import choose_head, head_parser
from gswarm_tui.common.quantities import DASH, duration, percent, used_of, watts
from gswarm_tui.printing.json_output import print_json

_NAMES = ("node", "state", "GPUs", "util", "power", "memory", "last sample", "lost frames", "reason")
_RIGHT = frozenset(range(2, 8))


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print a row for each node. Raises UserError."""
    parser = head_parser(
        "nodes",
        "[options]",
        "List the nodes of a running gswarm-tui: state and reason, the means of their GPUs, the age of "
        "their last sample.",
    )
    arguments = parser.read(args)
    nodes = choose_head(arguments, environ).request({"want": "nodes"})["nodes"]
    if arguments.json:
        print_json(nodes)
    else:
        from gswarm_tui.printing.table import show

        show(_NAMES, map(_cells, nodes), sys.stdout, right=_RIGHT)
    return 0


def _cells(node: Mapping[str, Any]) -> list[str]:
    return [
        node["node"],
        node["state"],
        f"{node['gpus']:,}",
        percent(node["mean_util_pct"]),
        watts(node["power_w"]),
        used_of(node["mem_used_mib"], node["mem_total_mib"]),
        DASH if node["age_s"] is None else duration(node["age_s"]),
        f"{node['lost_frames']:,}",
        node["reason"] or "",
    ]
