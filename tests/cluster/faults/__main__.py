"""Runs the fault suite and prints its table: `python -m tests.cluster.faults [--long] [--seed N]`."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired

from tests.cluster.cluster import Cluster
from tests.cluster.faults.suite import LONG, NODES, NOTES, PARTS, SHORT, Row, Suite, table
from tests.cluster.running import ClusterError


def main() -> int:
    """Run the suite; return 1 if a promise is broken."""
    options = _parser().parse_args()
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    lengths = LONG if options.long else SHORT
    if options.minutes is not None:
        lengths = replace(lengths, at_random=options.minutes * 60)
    parts: Sequence[str] = options.only or tuple(PARTS)
    rows: list[Row] = []
    whole = False
    folder = Path(tempfile.mkdtemp(prefix="gswarm-faults-"))
    try:
        with Cluster.up(len(NODES), 2) as cluster, cluster.entered():
            suite = Suite(cluster, folder, lengths, seed)
            for part in parts:
                for row in PARTS[part](suite):
                    rows.append(row)
                    print(f"{row.fault}: {'; '.join(row.problems) or 'as promised'}", flush=True)
        whole = True
    except (ClusterError, AssertionError, TimeoutExpired) as error:
        print(f"the suite broke off: {error}", file=sys.stderr)
    if rows:
        print(f"\n{table(rows)}\n\n{NOTES}")
        if kept := sorted(path.name for path in folder.glob("*.duckdb")):
            print(f"recordings are in {folder}: {', '.join(kept)}")
        if "random" in parts:
            print(f"--seed {seed} repeats the random part")
    return 0 if whole and not any(row.problems for row in rows) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.faults", description=__doc__)
    parser.add_argument("--long", action="store_true", help="faults of a minute, and five minutes at random")
    parser.add_argument("--minutes", type=float, help="how long the random part takes")
    parser.add_argument("--seed", type=int, help="of the random part (default: another one each time)")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part of the suite (default: all)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
