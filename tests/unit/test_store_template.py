"""The template that new recordings are copied from."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.template import template_file
from tests.unit.store_recording import query, record

CATALOG = (
    "SELECT view_name, sql, comment FROM duckdb_views() WHERE NOT internal ORDER BY ALL",
    "SELECT table_name, sql, comment FROM duckdb_tables() ORDER BY ALL",
    "SELECT table_name, column_name, column_index, data_type, is_nullable, comment FROM duckdb_columns() "
    "WHERE NOT internal ORDER BY ALL",
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gswarm-tui"


def catalog(path: Path) -> list[list[tuple[Any, ...]]]:
    record(path, [])
    return [query(path, sql) for sql in CATALOG]


def test_recording_is_the_same_with_and_without_a_template(cache: Path, tmp_path: Path) -> None:
    cache.parent.write_text("where no folder can be made")
    without = catalog(tmp_path / "without.duckdb")
    cache.parent.unlink()
    made_for_it = catalog(tmp_path / "first.duckdb")
    (template,) = cache.iterdir()
    changed = template.stat().st_mtime_ns
    copied = catalog(tmp_path / "second.duckdb")
    assert without == made_for_it == copied
    assert template.stat().st_mtime_ns == changed


def test_sql_has_the_same_views_with_and_without_a_template(cache: Path, tmp_path: Path) -> None:
    def found() -> list[tuple[Any, ...]]:
        with closing(FileSource(path)) as source:
            return source.query(
                "SELECT table_name, column_name, data_type FROM duckdb_columns() "
                "WHERE NOT internal AND database_name = 'memory' ORDER BY ALL"
            ).rows()

    path = tmp_path / "run.duckdb"
    record(path, [])
    with_template = found()
    (template,) = cache.iterdir()
    template.unlink()
    template.parent.rmdir()
    template.parent.write_text("")
    assert found() == with_template


def test_damaged_template_is_replaced(cache: Path, tmp_path: Path) -> None:
    whole = catalog(tmp_path / "first.duckdb")
    (template,) = cache.iterdir()
    for content in (b"", b"not a database"):
        template.write_bytes(content)
        assert catalog(tmp_path / f"second{len(content)}.duckdb") == whole
        assert catalog(tmp_path / f"third{len(content)}.duckdb") == whole
        assert template.stat().st_size > len(content)


def test_template_that_is_no_private_file_is_replaced(cache: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.duckdb"
    with duckdb.connect(str(foreign)) as connection:
        connection.execute("CREATE TABLE foreign_table AS SELECT 1 AS a")
    template = template_file()
    assert template is not None
    for kind in ("folder", "fifo", "link", "writable by the group"):
        template.unlink()
        if kind == "folder":
            template.mkdir()
        elif kind == "fifo":
            os.mkfifo(template)
        elif kind == "link":
            template.symlink_to(foreign)
        else:
            foreign.replace(template)
            template.chmod(0o664)
        assert template_file() == template, kind
        assert stat.filemode(template.lstat().st_mode) == "-rw-------", kind
        with duckdb.connect(str(template), read_only=True) as connection:
            rows = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        tables = {name for (name,) in rows}
        assert "gpu_samples" in tables, kind
        assert "foreign_table" not in tables, kind


def test_template_of_an_older_version_and_of_a_killed_process_are_removed(
    cache: Path, tmp_path: Path
) -> None:
    (cache / "template-killed").mkdir(parents=True)
    (cache / "template-killed" / "template-0.duckdb").write_text("half")
    (cache / "template-0.duckdb").write_text("old")
    (cache / "agent-0").mkdir()
    record(tmp_path / "run.duckdb", [])
    left = sorted(path.name for path in cache.iterdir())
    assert left[0] == "agent-0"
    assert len(left) == 2
    assert left[1] != "template-0.duckdb"


def test_folder_that_others_can_write_has_no_template(cache: Path, tmp_path: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    record(tmp_path / "run.duckdb", [])
    assert list(cache.iterdir()) == []


def test_changed_views_of_a_file_are_restored(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    whole = catalog(path)
    for change in (
        "CREATE OR REPLACE VIEW samples AS SELECT 1 AS ts",
        "COMMENT ON VIEW samples IS 'something else'",
        "COMMENT ON COLUMN samples.ts IS NULL",
        "DROP VIEW session_summary",
    ):
        with duckdb.connect(str(path)) as connection:
            connection.execute(change)
        assert catalog(path) == whole, change
