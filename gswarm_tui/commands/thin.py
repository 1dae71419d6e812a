"""``gswarm-tui thin``: remove the samples of old recordings, and keep their figures."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_tui.commands.runs import load_runs
from gswarm_tui.common.errors import UserError, print_notice, printable
from gswarm_tui.common.paths import working_folder
from gswarm_tui.common.quantities import file_size, plural
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing.progress import Progress
from gswarm_tui.runs.choosing import parse_since
from gswarm_tui.runs.line import RUN_PREFIX, RUNNING, RunLine
from gswarm_tui.store.errors import StoreError


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Thin recordings; return 1 if one of those chosen failed. Raises UserError, StoreError."""
    from gswarm_tui.common.processes import cleaning_up
    from gswarm_tui.store.recording.thinning import removable_bytes, thin

    parser = CommandParser(
        "thin",
        "[FOLDER ...] --older 90d|DATE [--yes]",
        "Remove the samples of old recordings below folders (default: this one). Figures, sums by minute, "
        "sessions, findings, events, marks and profiles stay; plot, replay and diagnose need samples.",
        database=False,
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="folder, or a recording")
    text = "thin recordings that ended so long ago, or before a date"
    parser.add_argument("--older", required=True, metavar="90d|DATE", help=text)
    parser.add_argument("--yes", "-y", action="store_true", help="thin without asking")
    arguments = parser.read(args)
    before = parse_since(arguments.older, "--older")
    places = [path.expanduser() for path in arguments.folders] or [working_folder()]
    files: dict[Path, list[RunLine]] = {}
    for line in load_runs(places, environ, copies=True):
        files.setdefault(Path(line.path), []).append(line)
    chosen: dict[Path, int] = {}
    for path, lines in sorted(files.items()):
        newest = max(line.started_at + line.seconds for line in lines)
        if path.name.startswith(RUN_PREFIX) or newest >= before or all(line.thinned for line in lines):
            continue
        try:
            if any(line.state == RUNNING for line in lines):
                raise StoreError(f"{path} is still recorded")
            if 20 * (size := removable_bytes(path)) < path.stat().st_size:
                raise StoreError(f"{path} would hardly get smaller")
            chosen[path] = size
        except StoreError as error:
            print_notice(f"skipped: {error}")
    if not chosen:
        print_notice(f"no recording below {', '.join(map(str, places))} to thin.")
        return 0
    for path, size in chosen.items():
        print(printable(f"{path}: about {file_size(size)} of {file_size(path.stat().st_size)}"))
    what = f"Remove the samples of {plural(len(chosen), 'file')}, about {file_size(sum(chosen.values()))}"
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UserError(f"{what}? Repeat the command with --yes, as nobody can be asked here.")
        print(f"{what}? They can't be restored. [y/N] ", end="", flush=True)
        # At Ctrl-D the line is empty, which means no.
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return 0
    freed, failed = 0, False
    with cleaning_up(), Progress("thinning") as progress:
        for done, path in enumerate(chosen):
            progress.report(done / len(chosen))
            try:
                freed += thin(path, time.time())
            except StoreError as error:
                failed = True
                print_notice(f"skipped: {error}")
    print(f"freed {file_size(freed)}")
    return int(failed)
