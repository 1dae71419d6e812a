"""Recordings with hostile values, generated from the schema so that they follow it.

``python -m tests.security.crafted`` runs all commands on all of them, the tests one command on each of some.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import re
import resource
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import duckdb

from gswarm_tui.cli import main
from gswarm_tui.commands.replay import open_player
from gswarm_tui.common.errors import UserError, print_notice
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.sql.schema import TABLES, ColumnSchema, TableSchema, literal
from tests.integration.exchange_recording import run
from tests.security.test_names_of_strangers import tricks_in

SECONDS = 45
"""Longest time of a command on a crafted recording."""
FILE = Path("theirs.duckdb")
"""The crafted recording in the working folder."""
_PARTS = 4
"""Files in which a table's harmless values are combined."""

_OF_THE_ENGINE = re.compile(r"\bU?INT(8|16|32|64|128)\b|Overflow|SELECT ")
"""What an error says that names neither the file nor what is wrong with it."""
_PLACES = {"one row": "rowid = 0", "all rows": "true"}
_FAR = ("infinity", "-infinity", "290000-01-01", "0001-01-01")
_TEXTS = {
    "NULL": "NULL",
    "empty": "''",
    "lines": "chr(10) || 'a' || chr(13) || chr(10)",
    "escapes": "chr(27) || ']0;pwned' || chr(7) || chr(155) || '2J'",
    "directions": "'a' || chr(8238) || 'b' || chr(8294) || chr(8233)",
    "HTML": "'</style><script>alert(1)</script>&\"'",
    "formula": "'=cmd()'",
    "NUL": "'a' || chr(0) || 'b' || chr(1) || chr(65535)",
    "20,000 letters": "repeat('é', 20000)",
    "braces": "'{0} %s [bold red]x[/] $(id)'",
    "path": "'../../../../tmp/x'",
    "400 brackets": "repeat('[', 400) || repeat(']', 400)",
    "no JSON": "'{'",
    "JSON number": "'1e999'",
    "JSON list": "'[1, null, {\"new_ms\": []}]'",
    "JSON of wrong types": '\'{"new_ms": 1e999, "nodes": {}, "setup": [], "launcher": 3, "util_pct": 7}\'',
}
_NUMBERS = {
    "FLOAT": ("NULL", "'inf'", "'-inf'", "'nan'", "3.4e38", "-3.4e38", "1e-45", "1e15", "-1e15"),
    "DOUBLE": ("NULL", "'inf'", "'-inf'", "'nan'", "1.7e308", "-1.7e308", "5e-324", "1e15", "-1e15"),
    "SMALLINT": ("NULL", "-32768", "32767", "-1"),
    "INTEGER": ("NULL", "-2147483648", "2147483647", "-1", "0"),
    "BIGINT": ("NULL", "-9223372036854775808", "9223372036854775807", "-1", "0"),
    "UTINYINT": ("NULL", "255", "0"),
    "USMALLINT": ("NULL", "65535", "0"),
    "UINTEGER": ("NULL", "4294967295", "0", "1"),
    "UBIGINT": ("NULL", "18446744073709551615", "0"),
    "BOOLEAN": ("NULL", "true", "false"),
    "TIMESTAMP": ("NULL", "'1970-01-01'", "'1990-01-02'", "'2199-12-30'", "'2200-01-01'"),
    "SMALLINT[]": ("NULL", "[]", "[NULL]", "[-32768, 32767]", "range(1000)"),
    "BIGINT[]": ("NULL", "[]", "[NULL]", "[-9223372036854775808, 9223372036854775807]", "range(1000)"),
}
_LARGEST = {
    "recording_id": 10**6,
    "node_id": 10**6,
    "gpu_id": 10**6,
    "session_id": 10**6,
    "profile_id": 10**6,
    **dict.fromkeys(("name_id", "short_name_id"), 10**7),
    **dict.fromkeys(("start_ns", "duration_ns"), 10**17),
    "gpu_index": 9_999,
    "energy_used_ms": 10**13,
    "samples": 10**9,
    "bubbles": 10**9,
    **dict.fromkeys(
        ("util_us", "power_us", "idle_before_us", "idle_after_us", "bubble_us", "bubble_longest_us"), 10**15
    ),
}
_LONGEST = {"command": 8 * 2**20, "options": 8 * 2**20, "capabilities": 16 * 2**20}
_MOST_BRACKETS = {"detail": 500, "messages": 500, "options": 100_000, "capabilities": 10_000}
_MOST_ROWS = {
    "recordings": 10**5,
    "nodes": 10**5,
    "gpus": 10**6,
    "sessions": 10**5,
    "links": 10**6,
    "profiles": 10**5,
}
_REQUIRED = {
    "recordings": {"started_at"},
    "nodes": {"recording_id", "node"},
    "gpus": {"node_id", "gpu_index"},
    "sessions": {"recording_id", "name", "started_at"},
    "events": {"kind", "message"},
}
"""Columns without NULL beside those that the schema declares so, and the keys."""

_PROFILE = (
    "profiles SELECT 1, recording_id, 1, 'n1', 3, 'nsys', '2022.4', 'r.nsys-rep', 'd', started_at, "
    "started_at, started_at + INTERVAL 9 SECOND, 0.5, '[\"a message\"]' FROM usual.recordings",
    "profile_names VALUES (1, 'matmul(float*)'), (2, 'matmul'), (3, 'cudaMemcpy_v3020')",
    "profile_api_events SELECT 1, 1000 * i, 500, 3, 0, 42, 43, i FROM range(5) t(i)",
    "profile_kernel_events SELECT 1, 1000 * i, 500, 1, 2, 1, 0, 7, 42, i, 2, 1, 1, 64, 1, 1 "
    "FROM range(5) t(i)",
    "profile_memory_events SELECT 1, 1000 * i, 500, 3, 4096, 1, 0, 7, 42, i FROM range(5) t(i)",
    "profile_range_events SELECT 1, 1000 * i, 500, 2, 'PushPop', 42, 43 FROM range(5) t(i)",
    "trace_op_events SELECT 1, 1000 * i, 500, 2, 'cpu_op', 42, 43, i FROM range(5) t(i)",
    "trace_kernel_events SELECT 1, 1000 * i, 500, 1, 'communication', 0, 7, i, 'all_reduce', 'world', i, 8 "
    "FROM range(5) t(i)",
    "profile_metric_values SELECT 1, i, 1, 'sm__cycles', 'cycle', 9.5, 'n/a' FROM range(5) t(i)",
)
"""Rows of a profile, which the recorder doesn't write by itself."""

_SOME_OF_PROFILES = (
    "profiles.profile_id",
    "profiles.zero_at",
    "profiles.messages",
    "profiles with",
    "profile_kernel_events.profile_id",
    "profile_kernel_events.start_ns",
    "profile_memory_events.duration_ns",
    "profile_range_events.style",
    "trace_kernel_events.profile_id",
)


@dataclass(frozen=True)
class Crafted:
    """A recording that no recorder writes. One to be refused has the ``refusal`` that follows its name."""

    name: str
    statements: tuple[str, ...]
    refusal: str = ""


class Workshop:
    """Makes crafted recordings of a valid one. Its files have small blocks, so that a copy is quick."""

    def __init__(self, folder: Path) -> None:
        self._valid, usual = folder / "valid", run(folder / "usual")
        self._connection = duckdb.connect()
        self._connection.execute(f"ATTACH {literal(str(self._valid))} AS theirs (BLOCK_SIZE 16384)")
        self._connection.execute(f"ATTACH {literal(str(usual))} AS usual (READ_ONLY)")
        for table in TABLES:
            self._connection.execute(f"CREATE TABLE theirs.{table.name} AS FROM usual.{table.name}")
        # Summaries read the sums of a minute only from two minutes after the start of a session.
        self._connection.execute("UPDATE theirs.sessions SET ended_at = ended_at + INTERVAL 4 MINUTE")
        self._connection.execute("UPDATE theirs.gpu_minutes SET minute = minute + INTERVAL 3 MINUTE")
        for row in _PROFILE:
            self._connection.execute(f"INSERT INTO theirs.{row}")
        self._connection.execute("DETACH theirs")
        self._connection.execute("DETACH usual")

    def make(self, case: Crafted, path: Path) -> None:
        """Write a crafted recording, in place of another one."""
        shutil.copyfile(self._valid, path)
        self._connection.execute(f"ATTACH {literal(str(path.absolute()))} AS theirs")
        self._connection.execute("USE theirs")
        try:
            for statement in case.statements:
                self._connection.execute(statement)
        finally:
            self._connection.execute("USE memory")
            self._connection.execute("DETACH theirs")

    def close(self) -> None:
        """Close the database that writes the files."""
        self._connection.close()


def all_recordings() -> Iterator[Crafted]:
    """Each hostile value of each column, in one row and in all rows, and rows that disagree."""
    yield from refused()
    for table in TABLES:
        for column in table.columns:
            for label, value in _harmless(table, column).items():
                for place in _PLACES:
                    name = f"{table.name}.{column.name} {label} in {place}"
                    yield Crafted(name, (_replacement(table, {column: value}, place),))
    yield from disagreeing()


def some_recordings() -> Iterator[Crafted]:
    """Values for which a file is refused, in one row or all; of the harmless ones, several in one file.

    Columns are checked alike: each fourth of a table's that is refused for one reason. Of the tables of
    profiles, which are checked like the others, one column of each kind, and one combination.
    """
    alike: Counter[tuple[str, str]] = Counter()
    for case in refused(in_each_place=False):
        if case.name.startswith(("profile", "trace")):
            if case.name.startswith(_SOME_OF_PROFILES):
                yield case
            continue
        kind = re.split(r"\W", case.name)[0], re.sub(r"\.\w+", "", case.refusal)
        alike[kind] += 1
        if alike[kind] % 4 == 1:
            yield case
    for case in combined():
        if not case.name.startswith(("profile", "trace")) or "values 1 of" in case.name:
            yield case
    yield from disagreeing()


def refused(*, in_each_place: bool = True) -> Iterator[Crafted]:
    """Recordings with a column's type, a value or a number of rows beyond what recorders write.

    Values are in one row and in all rows, or else in turns, texts of megabytes in one row.
    """
    turns = itertools.cycle(_PLACES)
    for table in TABLES:
        for column in table.columns:
            yield _of_another_type(table, column)
            for value, problem in _refused(table, column):
                turn = (
                    "one row" if column.name in _LONGEST and value.startswith("repeat('é'") else next(turns)
                )
                for place in _PLACES if in_each_place else (turn,):
                    yield Crafted(
                        f"{table.name}.{column.name} {value[:30]} in {place}",
                        (_replacement(table, {column: value}, place),),
                        f"{table.name}.{column.name} {problem}",
                    )
        if most := _MOST_ROWS.get(table.name):
            repeated = f"INSERT INTO {table.name} SELECT t.* FROM (FROM {table.name} LIMIT 1) t, range"
            twice = f"{table.name} has two rows of one {', '.join(table.key)}"
            yield Crafted(f"{table.name} with a row twice", (f"{repeated}(1)",), twice)
            yield Crafted(f"{table.name} with too many rows", (f"{repeated}({most})",), "it has ")


def _of_another_type(table: TableSchema, column: ColumnSchema) -> Crafted:
    other = "BIGINT" if column.type != "BIGINT" else "VARCHAR"
    changed = f"TRY_CAST({column.name} AS {other}) AS {column.name}"
    return Crafted(
        f"{table.name}.{column.name} of another type",
        (f"CREATE OR REPLACE TABLE {table.name} AS SELECT * REPLACE ({changed}) FROM {table.name}",),
        f"{table.name}.{column.name} has the type {other}, not {column.type}",
    )


def _refused(table: TableSchema, column: ColumnSchema) -> Iterator[tuple[str, str]]:
    """Yield values of a column for which a recording is refused, and why."""
    name = column.name
    if not _may_be_null(table, column):
        yield "NULL", "is NULL in some rows"
    if (largest := _LARGEST.get(name)) is not None:
        for value in (-1, largest + 1):
            shown = f"[NULL, {value}]" if column.type.endswith("[]") else str(value)
            yield shown, f"has numbers outside 0 to {largest:,}"
    if column.type == "TIMESTAMP":
        for far in _FAR:
            yield f"'{far}'", "has times outside 1970 to 2200"
    if column.type.endswith("[]"):
        yield "range(1001)", "has lists of more than 1,000 numbers"
    if column.type == "VARCHAR":
        longest = _LONGEST.get(name, 2**16)
        yield f"repeat('é', {longest // 2 + 1})", f"has text of more than {longest:,} bytes"
    if (most := _MOST_BRACKETS.get(name)) is not None:
        for opening in ("[", '{"a":'):
            if len(opening) * most < _LONGEST.get(name, 2**16):
                yield f"repeat('{opening}', {most + 1})", "has JSON with too many brackets"


def _may_be_null(table: TableSchema, column: ColumnSchema) -> bool:
    required = column.name in table.key or column.sql.endswith("NOT NULL")
    return not (required or column.name in _REQUIRED.get(table.name, ()))


def _harmless(table: TableSchema, column: ColumnSchema) -> dict[str, str]:
    """Return hostile values of a column, by label, with which a recording is read."""
    values = _TEXTS if column.type == "VARCHAR" else {value: value for value in _NUMBERS[column.type]}
    outside = {value for value, _ in _refused(table, column)}
    if (largest := _LARGEST.get(column.name)) is not None:
        values = {"NULL": "NULL", "0": "0", "largest": str(largest)}
        if column.type.endswith("[]"):
            values |= {"0": "[0]", "largest": f"[{largest}]", "many": "range(1000)"}
    return {label: value for label, value in values.items() if value not in outside}


def combined() -> Iterator[Crafted]:
    """Recordings with harmless hostile values in all columns of a table but its key, in all rows or one."""
    for table in TABLES:
        free = [column for column in table.columns if column.name not in table.key]
        for part in range(_PARTS):
            values = {}
            for at, column in enumerate(free):
                harmless = list(_harmless(table, column).values())
                values[column] = harmless[(part + at * _PARTS) % len(harmless)]
            place = list(_PLACES)[part % len(_PLACES)]
            name = f"{table.name} with values {part + 1} of {_PARTS} in {place}"
            yield Crafted(name, (_replacement(table, values, place),))


def _replacement(table: TableSchema, values: Mapping[ColumnSchema, str], place: str) -> str:
    """Return the statement that sets columns to values."""
    replaced = ", ".join(
        f"(CASE WHEN {_PLACES[place]} THEN ({value})::{column.type} ELSE {column.name} END) AS {column.name}"
        for column, value in values.items()
    )
    return f"CREATE OR REPLACE TABLE {table.name} AS SELECT * REPLACE ({replaced}) FROM {table.name}"


def disagreeing() -> Iterator[Crafted]:
    """Recordings whose rows disagree with each other, and whose tables are incomplete or strange."""
    for table in TABLES:
        yield Crafted(f"{table.name} empty", (f"DELETE FROM {table.name}",))
        if not table.key:
            yield Crafted(f"{table.name} twice", (f"INSERT INTO {table.name} FROM {table.name}",))
    for name, statements in _DISAGREEING.items():
        yield Crafted(name, tuple(statements.split("; ")))


def _event(kind: str, detail: str) -> str:
    """Return the statement that adds an event with a detail."""
    return (
        "INSERT INTO events BY NAME SELECT min(started_at) AS ts, 1 AS recording_id, "
        f"'{kind}' AS kind, 'info' AS severity, 'x' AS message, {detail} AS detail FROM recordings"
    )


_WIDE = "started_at = '1990-01-02', ended_at = '2199-12-30'"
_DISAGREEING = {
    "session ended before it started": "UPDATE sessions SET ended_at = started_at - INTERVAL 1 HOUR",
    "recording ended before it started": "UPDATE recordings SET ended_at = started_at - INTERVAL 1 HOUR",
    "60 sessions of two centuries": (
        "INSERT INTO sessions SELECT s.* REPLACE (100 + i AS session_id) "
        f"FROM (FROM sessions LIMIT 1) s, range(58) r(i); UPDATE sessions SET {_WIDE}"
    ),
    "recording of two centuries": f"UPDATE recordings SET {_WIDE}, interval_ms = 1; DELETE FROM sessions",
    "samples of two centuries": (
        "UPDATE gpu_samples SET ts = '1990-01-02' WHERE rowid = 0; "
        "UPDATE gpu_samples SET ts = '2199-12-30' WHERE rowid = 1; "
        "UPDATE host_samples SET ts = '1990-01-02' WHERE rowid = 0; "
        "UPDATE host_samples SET ts = '2199-12-30' WHERE rowid = 1; "
        f"UPDATE recordings SET {_WIDE}, interval_ms = 1; DELETE FROM sessions"
    ),
    "interval of 1 ms set by an event": _event("interval_changed", "'{\"new_ms\": 1}'"),
    "deep JSON in an interval's event": _event("interval_changed", "repeat('{\"new_ms\":', 499)"),
    "deep JSON in a mark": _event("mark", "repeat('{\"a\":', 499) || '1' || repeat('}', 499)"),
    "mark with numbers out of range": _event(
        "mark", "'{\"loss\": 1e999, \"b\": -1e400, \"c\": ' || repeat('9', 400) || '}'"
    ),
    "50,000 events": (
        "INSERT INTO events SELECT e.* REPLACE ('error' AS severity) "
        "FROM events e, range(50000 // (SELECT count(*) FROM events))"
    ),
    "50,000 marks": (
        "INSERT INTO events SELECT e.* REPLACE (ts + to_milliseconds(i // 5) AS ts, 'mark' AS kind, "
        "'{\"loss\": ' || i || '}' AS detail) FROM (FROM events LIMIT 1) e, range(50000) r(i)"
    ),
    "sessions of all names": (
        "INSERT INTO sessions SELECT 100 + i, 1, chr(i::INTEGER), started_at, ended_at, status, note "
        "FROM (FROM sessions LIMIT 1), range(1, 60) r(i)"
    ),
    "two nodes of one name": "UPDATE nodes SET node = 'n1'",
    "GPUs of one index": "UPDATE gpus SET gpu_index = 0",
    "all samples at one time": "UPDATE gpu_samples SET ts = (SELECT min(ts) FROM gpu_samples)",
    "20,000 samples at one time": (
        "INSERT INTO gpu_samples SELECT s.* FROM (FROM gpu_samples LIMIT 1) s, range(20000)"
    ),
    "1,000 runs of one agent": (
        "INSERT INTO links SELECT node_id, 'again' || i, last_seq, last_ts, frames, lost_frames, reconnects, "
        "clock_offset_s, round_trip_s FROM (FROM links LIMIT 1), range(1000) r(i)"
    ),
    "no version": "UPDATE recordings SET schema_version = NULL",
    "unended recording with options of wrong types": (
        "UPDATE recordings SET ended_at = NULL, "
        'options = \'{"launcher": "ssh", "nodes": "abc", "setup": true}\''
    ),
    "columns missing": "ALTER TABLE gpu_samples DROP COLUMN util_pct; ALTER TABLE gpus DROP COLUMN name",
    "columns of strangers": (
        "ALTER TABLE sessions ADD COLUMN extra STRUCT(a INTEGER[]); ALTER TABLE nodes ADD COLUMN b BLOB"
    ),
    "tables of strangers": "CREATE TABLE rec AS SELECT 1 AS a; CREATE TABLE samples2 AS SELECT 2 AS b",
}

_LINES = {
    "sessions": "sessions --format json",
    "summary": "summary --format json",
    "export": "export -o - --format json",
    "samples": "sql 'FROM samples' --format json",
    "sessions table": "sessions",
    "summary table": "summary",
    "processes": "summary --by process --format json",
    "CSV": "export -o - --format csv --table process",
    "recover": "recover",
    "plot": "plot -o out.svg --force",
    "Parquet": "export --format parquet -o out --force",
    "compare": "compare 1 2",
    "report": "report -o out.html --force",
}
COMMANDS = (*_LINES, "replay")
QUICK = tuple(command for command in COMMANDS if command not in {"compare", "report"})
"""Commands that take less than a second on a small recording."""


def words(command: str) -> list[str]:
    """The arguments of one of the ``COMMANDS`` but replay, on the crafted recording in the working folder."""
    return [*shlex.split(_LINES[command]), "--db", str(FILE)]


def failure(case: Crafted, command: str) -> str:
    """Run a command in this process on the case's file; return what is wrong, empty if it ended as promised.

    It may answer or end with one sentence, after a notice of the session that it chose. Its JSON must be
    valid, its text without control characters.
    """
    out, errors = io.StringIO(), io.StringIO()
    began = time.monotonic()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = _replay() if command == "replay" else main(words(command))
    except Exception as error:  # a traceback
        return f"{type(error).__name__}: {str(error)[:200]!r}"
    if (seconds := time.monotonic() - began) > SECONDS:
        return f"it took {seconds:.0f} s"
    if is_promised(case, status, errors.getvalue()):
        return "" if status else _invalid_output(out.getvalue(), is_json="json" in _LINES.get(command, ""))
    return f"status {status}: {errors.getvalue()!r}"


def is_promised(case: Crafted, status: int, said: str) -> bool:
    """Whether a command on the case's file may end with this status and these words on standard error."""
    if case.refusal:
        return status == 1 and said.startswith(f"gswarm-tui: {FILE} isn't a valid recording: {case.refusal}")
    *notices, error = said.splitlines() or [""]
    choice_only = all(line.startswith("gswarm-tui: ") and "; using the newest, " in line for line in notices)
    one_sentence = error.startswith("gswarm-tui: ") and choice_only and "memory;" not in said
    one_sentence = one_sentence and not _OF_THE_ENGINE.search(error)
    return status == 0 or (status in {1, 2} and one_sentence)


def _invalid_output(text: str, *, is_json: bool) -> str:
    """Return what is wrong with an output, empty if nothing."""
    if is_json:
        try:
            json.loads(text, parse_constant=_refuse)
        except ValueError as error:
            return f"invalid JSON: {error}"
    tricks = tricks_in(text.replace("\r\n", "\n"))
    return f"control characters {tricks!a}" if tricks else ""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _replay() -> int:
    """Open a recording as ``replay`` does, and draw its first and last moment."""
    try:
        with contextlib.closing(FileSource(FILE)) as source:
            player, *_ = open_player(source, "recording 1")
            for at in (player.playhead.start, player.playhead.end):  # it begins to play at the start
                player.source.fleet(at)
            player.source.timeline()
    except UserError as error:
        print_notice(f"{error}.")
        return error.exit_status
    return 0


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Let this process map 4 GiB more than now, and no more: that ends a command without bound."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 4 * 2**30, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def main_all() -> int:
    """Run commands on all crafted recordings; print what fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.crafted", description=__doc__)
    most = len(COMMANDS)
    parser.add_argument("--commands", type=int, default=most, metavar="N", help="on each file run N, in turn")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with this file (default: 0)")
    options = parser.parse_args()
    cases = list(all_recordings())
    failures = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.closing(Workshop(Path())) as workshop,
        limited_memory(),
    ):
        for number, case in enumerate(cases[options.first :], options.first):
            began = time.monotonic()
            workshop.make(case, FILE)
            for at in range(options.commands):
                command = COMMANDS[(number * options.commands + at) % most]
                if found := failure(case, command):
                    failures += 1
                    print(f"{case.name}: {command}: {found}", flush=True)
            print(f"{number + 1} of {len(cases)}: {case.name}: {time.monotonic() - began:.1f} s", flush=True)
    print(f"{len(cases) - options.first} recordings, {options.commands} commands each: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main_all())
