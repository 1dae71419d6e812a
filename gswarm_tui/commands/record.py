"""``gswarm-tui record``: record without a screen, for as long as a command runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from gswarm_tui.commands.output_files import check_output_file
from gswarm_tui.common.errors import UserError, print_notice, printable, quote
from gswarm_tui.common.processes import own_command
from gswarm_tui.options.arguments import parse_record

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses, as those of shells."""
_MAIL_COLUMNS = 76
"""Width of the summary where there is no terminal: that of a plain e-mail."""


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Record, run the command, and print the summary; return the command's exit status. Raises UserError."""
    options, chosen = parse_record(args, environ)
    if chosen.command and (status := check_command(chosen.command[0])):
        return status
    from gswarm_tui.fleet.program import program
    from gswarm_tui.fleet.session_texts import MAX_NAME
    from gswarm_tui.run import arming
    from gswarm_tui.run.batch import BatchRun
    from gswarm_tui.run.headless import Headless
    from gswarm_tui.run.plan import resolve_nodes

    plan = resolve_nodes(options, environ)
    if (report := chosen.report) is not None:
        if report.suffix.lower() not in (".html", ".htm"):
            raise UserError(f"--report: {report} doesn't end in .html; name an HTML file.")
        force = chosen.force or environ.get("SLURM_RESTART_COUNT", "0") != "0"  # the job was requeued
        check_output_file(report, force=force, recording=options.db or Path(), option="--report")
    script = program(" ".join(chosen.command)).partition(" ")[0].removesuffix(".py").removesuffix(".sh")
    name = printable(chosen.name or script or (plan.job and plan.job.name) or "recording")[:MAX_NAME]
    headless = Headless(options, plan, ["record", *args], name, runs_command=bool(chosen.command))
    batch = BatchRun(headless, chosen.command)
    if options.arm:
        batch.arm = lambda recording: arming.arm(chosen.command, environ, recording.uid)
    status = batch.run()
    if batch.recording is not None and batch.recording.path is not None:
        uid, path = batch.recording.uid, batch.recording.path
        if options.arm:
            arming.clean_up(uid)
        db = f"--db={path}"
        width = () if sys.stderr.isatty() else (f"--width={_MAIL_COLUMNS}",)
        session = _session(uid, path, name)
        _print("summary", db, *width, "--no-findings", "--", session)
        if note := headless.read_note():
            from gswarm_tui.printing.table import print_labelled

            print(file=sys.stderr)
            print_labelled(note, sys.stderr, None if sys.stderr.isatty() else _MAIL_COLUMNS)
        if report is not None:
            _print("report", db, "-o", str(report), "--force", "--", session)
    return status


def check_command(name: str) -> int:
    """Print why a command can't be run, and return the exit status that shells use for it; 0 if it can."""
    if shutil.which(name) is not None:
        return 0
    if "/" in name and Path(name).exists():
        print_notice(f"{quote(name)} isn't an executable file; nothing was run or recorded.")
        return NOT_EXECUTABLE
    print_notice(f"{quote(name)}: no such command; nothing was run or recorded.")
    return NOT_FOUND


def _session(uid: str, path: Path, name: str) -> str:
    """Return the number of the session that was started first, as it may have another name by now."""
    from gswarm_tui.store.errors import StoreError
    from gswarm_tui.store.querying.file_source import FileSource
    from gswarm_tui.store.querying.results import QueryError

    first = "SELECT min(session_id) FROM sessions JOIN recordings USING (recording_id) WHERE uid = ?"
    try:
        with closing(FileSource(path, for_people=False)) as source:
            ((number,),) = source.query(first, uid).rows()
    except (StoreError, QueryError):
        return name  # the commands that read the file print why they can't
    return name if number is None else str(number)


def _print(*words: str) -> None:
    """Run another command of this program; its output goes to standard error, as all of this one's."""
    subprocess.run(own_command(*words), check=False, stdin=subprocess.DEVNULL, stdout=2)
