"""Recordings of every released version stay readable and writable: tests/data/recordings keeps one of each.

A release adds its own (docs/contributing/releasing.md): ``gswarm-tui record --demo 2x2 -- sleep 4``.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import duckdb
import pytest

from gswarm_agent import __version__
from gswarm_tui.cli import main
from gswarm_tui.store.sql.schema import SCHEMA_VERSION
from tests.kineto_standin import write_trace
from tests.unit.store_recording import query

KEPT = sorted((Path(__file__).parents[1] / "data" / "recordings").glob("*.duckdb.gz"))


def test_this_version_is_kept() -> None:
    assert f"{__version__}.duckdb.gz" in [path.name for path in KEPT]


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.name.removesuffix(".duckdb.gz"))
def test_a_recording_of_each_version_is_read_exported_and_extended(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = tmp_path / "run.duckdb"
    db.write_bytes(gzip.decompress(kept.read_bytes()))
    assert main(["summary", "--db", str(db), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["node"] for row in rows if row["scope"] == "node"} == {"sim01", "sim02"}
    assert all(row["energy_j"] > 0 and row["util_mean_pct"] > 0 for row in rows if row["scope"] == "node")
    for (view,) in query(db, "SELECT DISTINCT view_name FROM duckdb_views() WHERE NOT internal"):
        assert main(["sql", "--db", str(db), f"SELECT * FROM {view} LIMIT 1"]) == 0
    for words in (
        ("export", "--format", "parquet", "-o", str(tmp_path / "tables")),
        ("report", "-o", str(tmp_path / "r.html")),
    ):
        assert main([*words, "--db", str(db)]) == 0
    # An import brings the file to this version's tables.
    assert main(["import", str(write_trace(tmp_path / "trace.json")), "--db", str(db)]) == 0
    with duckdb.connect(str(db), read_only=True) as file:
        assert file.execute("SELECT DISTINCT schema_version FROM recordings").fetchall() == [
            (SCHEMA_VERSION,)
        ]
