"""The bundle for a bug report: the report and the newest log in a .tar.gz, without names."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from gswarm_tui.doctor.placeholders import Placeholders

MOST_LOG_BYTES = 256 * 1024
REPORT, LOG = "doctor.json", "gswarm-tui.log"


def write_bundle(file: Path, report: dict[str, Any], log: Path, placeholders: Placeholders) -> list[str]:
    """Write the bundle and return the names of its files. Raises OSError."""
    shown = json.dumps(placeholders.hide_all(report), indent=2, ensure_ascii=False)
    parts = {REPORT: f"{shown}\n"}
    if text := _newest(log):
        parts[LOG] = "\n".join(map(placeholders.hide, text.split("\n")))
    with tarfile.open(file, mode="w:gz", format=tarfile.USTAR_FORMAT) as tar:
        for name, part in parts.items():
            data = part.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"gswarm-tui-doctor/{name}")
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return list(parts)


def _newest(log: Path) -> str:
    """Return the whole lines at the end of a log; empty if there is none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - MOST_LOG_BYTES))
            data = file.read()
    except OSError:
        return ""
    if size > MOST_LOG_BYTES:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")
