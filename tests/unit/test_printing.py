"""Output of query results in a terminal, a pipe and files."""

from __future__ import annotations

import argparse
import csv
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.common.errors import UserError
from gswarm_tui.printing import cells, formats
from gswarm_tui.printing.formats import OutputOptions
from gswarm_tui.printing.progress import Progress
from gswarm_tui.printing.table import show
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import Result

NOON = datetime(2027, 1, 15, 12)  # noqa: DTZ001 (as the database has it)


PLAIN = OutputOptions()
InTerminal = Callable[..., list[str]]


class TtyStream(io.StringIO):
    """Text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def answer(columns: dict[str, str], *rows: Sequence[Any]) -> Result:
    """Return a result with columns of these types."""
    return Result(list(columns), list(columns.values()), iter([[tuple(row) for row in rows]]))


@pytest.fixture
def in_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> InTerminal:
    """Print a result in a terminal of 40×12 without colour and return the lines."""
    for name, value in {"COLUMNS": "40", "LINES": "12", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)

    def lines(what: Result, form: OutputOptions = PLAIN) -> list[str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        formats.write(what, form)
        return capsys.readouterr().out.splitlines()

    return lines


def printed(capsys: pytest.CaptureFixture[str], what: Result, form: str = "table") -> list[str]:
    formats.write(what, OutputOptions(form))
    return capsys.readouterr().out.splitlines()


def test_table_aligns_numbers_with_equal_decimals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = {"node": "VARCHAR", "n": "BIGINT", "mean": "DOUBLE", "ts": "TIMESTAMP", "none": "INTEGER"}
    rows = [
        ("gpu01", 5, 97.30000305175781, NOON, None),
        ("n2", 12345, 2 / 3, NOON + timedelta(hours=1), None),
    ]
    assert printed(capsys, answer(columns, *rows)) == [
        "node       n    mean  ts                   none",
        "───────────────────────────────────────────────",
        "gpu01      5  97.300  2027-01-15 12:00:00     –",
        "n2     12345   0.667  2027-01-15 13:00:00     –",
    ]


@pytest.mark.parametrize(
    ("kind", "values", "shown"),
    [
        ("DOUBLE", [1.0, 2.0], ["1", "2"]),
        ("DOUBLE", [97.3, 2 / 3], ["97.300", "0.667"]),
        ("DOUBLE", [254.01, 128.68], ["254.01", "128.68"]),
        ("DOUBLE", [123456.789], ["123456.8"]),
        ("DOUBLE", [0.5, 0.000001234], ["0.5", "1.23e-06"]),
        ("DOUBLE", [1.5, 1e-9, None], ["1.5", "1e-09", "–"]),
        ("DOUBLE", [float("nan"), float("inf"), 1.25], ["nan", "inf", "1.25"]),
        ("DOUBLE", [1e300], ["1e+300"]),
        ("FLOAT", [97.30000305175781], ["97.3"]),
        ("DECIMAL(6,2)", [Decimal("12.30")], ["12.3"]),
        ("TIMESTAMP", [NOON, None], ["2027-01-15 12:00:00", "–"]),
        (
            "TIMESTAMP",
            [NOON, NOON + timedelta(milliseconds=5)],
            ["2027-01-15 12:00:00.000", "2027-01-15 12:00:00.005"],
        ),
        ("DATE", [date(2027, 1, 15)], ["2027-01-15"]),
        ("BOOLEAN", [True, False], ["true", "false"]),
        ("VARCHAR", ["a\x1b[31mb\n", ""], ["a\\x1b[31mb\\n", ""]),
        ("INTEGER[]", [[1, None]], ["[1, NULL]"]),
        ("STRUCT(a VARCHAR)", [{"a": "it's"}], ["{'a': 'it''s'}"]),
        ("BLOB", [b"a\x00"], ["\\x61\\x00"]),
        ("DOUBLE", [], []),
    ],
)
def test_values_are_formatted_for_people(kind: str, values: list[Any], shown: list[str]) -> None:
    write = cells.writer(kind, values)
    assert [write(value) for value in values] == shown


def test_long_texts_are_cut_before_columns_are_hidden(in_terminal: InTerminal) -> None:
    columns = {"node": "VARCHAR", "command": "VARCHAR", "gpu": "INTEGER"}
    assert in_terminal(answer(columns, ("n1", "python train.py --lr 0.1 --epochs 100", 7))) == [
        "node  command                        gpu",
        "────────────────────────────────────────",
        "n1    python train.py --lr 0.1 --e…    7",
    ]


def test_more_rows_than_fit_are_counted(in_terminal: InTerminal) -> None:
    rows = [(index,) for index in range(12_000)]
    lines = in_terminal(answer({"i": "INTEGER"}, *rows))
    assert lines[-1] == "… 11,976 more rows; --all shows them"
    assert len(lines) == 2 + 24 + 1


def test_all_shows_all_rows(in_terminal: InTerminal) -> None:
    lines = in_terminal(
        answer({"i": "INTEGER"}, *[(index,) for index in range(12_000)]), OutputOptions(every=True)
    )
    assert lines[-1] == "11999"


def test_a_pipe_gets_every_row_and_column(capsys: pytest.CaptureFixture[str]) -> None:
    columns = {f"column_{index}": "VARCHAR" for index in range(50)}
    lines = printed(capsys, answer(columns, *[["x" * 30] * 50] * 200))
    assert len(lines) == 202
    assert len(lines[2].split()) == 50


def test_control_characters_are_escaped() -> None:
    terminal = io.StringIO()
    show(["a\x1b]0;x\x07"], [["b\x9b31m"]], terminal)
    assert not set(terminal.getvalue()) & {"\x1b", "\x07", "\x9b"}


def test_csv_distinguishes_null_from_empty_text(capsys: pytest.CaptureFixture[str]) -> None:
    what = answer(
        {"a": "VARCHAR", 'b"': "VARCHAR", "f": "FLOAT"}, ("x,y", None, 97.30000305175781), ("", 'q"', None)
    )
    assert printed(capsys, what, "csv") == ['a,"b""",f', '"x,y",,97.3', '"","q""",']


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))


@given(rows=st.lists(st.tuples(TEXTS, st.floats(allow_nan=False)), min_size=1, max_size=5))
def test_csv_is_read_back_unchanged(rows: list[tuple[str, float]]) -> None:
    out = io.StringIO()
    formats._write_csv(
        answer({"text": "VARCHAR", "number": "DOUBLE"}, *rows), out, formats.OutputOptions("csv")
    )
    read = list(csv.reader(io.StringIO(out.getvalue(), newline="")))[1:]
    assert [(text, float(number)) for text, number in read] == rows


def test_json_is_a_valid_list_of_objects(capsys: pytest.CaptureFixture[str]) -> None:
    columns = {
        "n": "BIGINT",
        "f": "DOUBLE",
        "s": "FLOAT",
        "t": "TIMESTAMP",
        "l": "DATE[]",
        "d": "DECIMAL(4,2)",
    }
    rows = [
        (1, float("nan"), 0.10000000149011612, NOON, [date(2027, 1, 15)], Decimal("1.50")),
        (2, None, None, None, None, None),
    ]
    assert json.loads("\n".join(printed(capsys, answer(columns, *rows), "json"))) == [
        {"n": 1, "f": None, "s": 0.1, "t": "2027-01-15T12:00:00.000000Z", "l": ["2027-01-15"], "d": 1.5},
        {"n": 2, "f": None, "s": None, "t": None, "l": None, "d": None},
    ]
    assert json.loads("\n".join(printed(capsys, answer(columns), "json"))) == []


def test_parquet_keeps_the_types_of_the_result(tmp_path: Path) -> None:
    sql = """SELECT i::SMALLINT AS i, i / 3 AS f, (i / 3)::FLOAT AS s, 'x' || i AS t, NULL::INTEGER AS n,
        [i, NULL] AS l, {'a': i} AS st, TIMESTAMP '2027-01-15 12:00:00.123456' AS ts,
        1.50::DECIMAL(4, 2) AS d, 'a'::ENUM('a') AS e, 1 AS x, 2 AS X, 3 AS "a ""b" FROM range(5000) r(i)"""
    connection = duckdb.connect()
    found = connection.execute(sql)
    names, types = [c[0] for c in found.description or ()], [str(c[1]) for c in found.description or ()]
    expected = found.fetchall()
    path = tmp_path / "a'b.parquet"
    formats.write(
        Result(names, types, iter([expected[:3000], expected[3000:]])), OutputOptions("parquet", path)
    )
    read = duckdb.read_parquet(str(path))
    zone = types.index("TIMESTAMP")
    at = expected[0][zone].replace(tzinfo=UTC)
    assert read.fetchall() == [(*row[:zone], at, *row[zone + 1 :]) for row in expected]
    assert read.columns[-3:] == ["x", "X_1", 'a "b']
    types[zone] = "TIMESTAMP WITH TIME ZONE"
    assert [str(kind) for kind in read.types[:9]] == types[:9]
    connection.close()


def wanted(*words: str) -> OutputOptions:
    parser = argparse.ArgumentParser()
    formats.add_options(parser)
    return formats.parse_output_options(parser.parse_args(words))


@pytest.mark.parametrize(
    ("words", "form"),
    [
        ((), OutputOptions()),
        (("--all",), OutputOptions(every=True)),
        (("-o", "-"), OutputOptions()),
        (("-o", "x.CSV"), OutputOptions("csv", Path("x.CSV"))),
        (("-o", "x.md", "--force"), OutputOptions("markdown", Path("x.md"), force=True)),
        (("-o", "x.dat", "--format", "json"), OutputOptions("json", Path("x.dat"))),
        (("-o", "x.parquet"), OutputOptions("parquet", Path("x.parquet"))),
    ],
)
def test_format_is_chosen_by_flag_or_suffix(words: tuple[str, ...], form: OutputOptions) -> None:
    assert wanted(*words) == form


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--format", "cvs"), '--format: "cvs" isn\'t a format; perhaps you meant csv.'),
        (("--format", "xlsx"), "it is one of table, csv, json, markdown, parquet."),
        (("-o", "x.dat"), "x.dat has no known suffix; choose its format with --format."),
        (("--format", "parquet"), "Parquet can't be printed; name a file with -o."),
    ],
)
def test_unknown_format_raises_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        wanted(*words)
    assert sentence in str(caught.value)


def test_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    def broken() -> Any:
        yield [(1,)]
        raise StoreError("the disk went away")

    path = tmp_path / "x.csv"
    with pytest.raises(StoreError):
        formats.write(Result(["a"], ["INTEGER"], broken()), OutputOptions("csv", path))
    assert list(tmp_path.iterdir()) == []
    formats.write(answer({"a": "INTEGER"}, (1,)), OutputOptions("csv", path))
    assert path.read_text() == "a\n1\n"
    assert [file.name for file in tmp_path.iterdir()] == ["x.csv"]
    with pytest.raises(StoreError, match="can't be written: No such file"):
        formats.write(answer({"a": "INTEGER"}), OutputOptions("csv", tmp_path / "none" / "x.csv"))


def until(out: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in out.getvalue():
        assert time.monotonic() < deadline, out.getvalue()
        time.sleep(0.01)


def test_progress_is_shown_in_a_terminal_and_removed() -> None:
    out = TtyStream()
    with Progress("reading", out=out, after_s=0.0) as progress:
        until(out, "reading … 0 s")
        progress.report(0.42)
        until(out, "reading … 42%")
    assert out.getvalue().endswith("\r\x1b[K")


def test_notices_that_cannot_be_written_change_no_exit_status() -> None:
    words = (
        "import sys; from gswarm_tui.common.errors import print_notice; "
        "print_notice('one'); print_notice('two'); sys.exit(7)"
    )
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", words], stderr=full, check=False).returncode == 7
