"""All runs of this user, for command and screen: those below folders, running ones, and known ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gswarm_tui.common.paths import working_folder
from gswarm_tui.control import registry
from gswarm_tui.control.client import Head, running_heads
from gswarm_tui.runs.finding_runs import Report, find_runs
from gswarm_tui.runs.line import RUN_PREFIX, RunLine
from gswarm_tui.store.errors import FileInUseError
from gswarm_tui.store.querying.results import QuerySource


def collect(
    places: Sequence[Path],
    environ: Mapping[str, str],
    report: Report = lambda _found, _read, _of: None,
    *,
    copies: bool = False,
) -> tuple[list[RunLine], list[str]]:
    """Return the runs below folders, else all that are known and those here, and what couldn't be read.

    With ``copies``, a run has a line for each file that has it. Raises UserError.
    """
    skipped: list[str] = []

    def skip(path: Path, why: str) -> None:
        reason = why.removeprefix(str(path)).strip()
        # What to do instead, such as --db, is for commands that read one file.
        skipped.append(f"{path}: {reason.partition('; ')[0]}")

    heads = {head.path.absolute(): head for head in running_heads(environ) if head.path is not None}
    found = find_runs(
        places or [working_folder(), *heads],
        opener(list(heads.values())),
        skip,
        running=heads.keys(),
        known_too=not places,
        copies=copies,
        report=report,
    )
    return found, skipped


def opener(heads: Sequence[Head]) -> Callable[[Path], QuerySource]:
    """Return a function that opens a recording, through its recorder while it is written, or a dataset's run.

    It raises StoreError.
    """

    def opened(path: Path) -> QuerySource:
        from gswarm_tui.control.recorder_source import RecorderSource
        from gswarm_tui.runs.reading import TABLES
        from gswarm_tui.store.querying.file_source import FileSource
        from gswarm_tui.store.transfer.dataset_source import DatasetSource

        if path.name.startswith(RUN_PREFIX):
            return DatasetSource(path, TABLES)
        for head in heads:
            if head.records(path):
                if head.hangs:
                    raise FileInUseError(head.describe_hang())
                return RecorderSource.of_head(head, path)
        try:
            return FileSource(path, for_people=False, tables=TABLES)
        except FileInUseError as error:
            raise FileInUseError(registry.describe_remote_writer(path) or str(error)) from None

    return opened
