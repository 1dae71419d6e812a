"""JSON on standard output, as all commands with ``--json`` print it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from gswarm_tui.printing import cells


def print_json(value: Any, out: TextIO | None = None) -> None:
    """Print a value as indented JSON; a terminal gets ASCII, which has no escapes of its own."""
    out = out or sys.stdout
    print(json.dumps(value, indent=2, ensure_ascii=out.isatty(), allow_nan=False), file=out)


def utc(at: float | None) -> str | None:
    """Return a Unix time as text in UTC, as in exports."""
    return None if at is None else cells.exact(datetime.fromtimestamp(at, UTC))


def with_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its times, ``now`` and names that end in ``_at``, as text in UTC."""
    return {key: utc(value) if key == "now" or key.endswith("_at") else value for key, value in row.items()}
