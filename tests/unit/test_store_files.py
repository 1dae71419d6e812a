from __future__ import annotations

from datetime import datetime
from pathlib import Path

from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS, PROCESS_METRICS
from gswarm_tui.store.recording.files import default_paths
from tests.unit.store_recording import query, record

NOW = datetime(2026, 11, 21, 9, 30, 59)  # noqa: DTZ001


def test_default_file_is_named_after_the_job_or_the_minute() -> None:
    assert next(default_paths(Path("/data"), NOW, "4711")) == Path("/data/gswarm-job4711.duckdb")
    assert next(default_paths(Path("/data"), NOW)) == Path("/data/gswarm-20261121-0930.duckdb")


def test_further_default_names_are_numbered() -> None:
    names = default_paths(Path("/data"), NOW, "4711")
    assert [next(names).name for _ in range(3)] == [
        "gswarm-job4711.duckdb",
        "gswarm-job4711-2.duckdb",
        "gswarm-job4711-3.duckdb",
    ]


def test_every_metric_has_its_column_with_its_type_and_unit(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    record(path, [])
    for table, metrics in (
        ("gpu_samples", GPU_METRICS),
        ("host_samples", HOST_METRICS),
        ("process_samples", PROCESS_METRICS),
    ):
        columns = {
            name: (kind, comment)
            for name, kind, comment in query(
                path,
                f"SELECT column_name, data_type, comment FROM duckdb_columns() WHERE table_name = '{table}'",
            )
        }
        for metric in metrics:
            kind, comment = columns[metric.name]
            assert kind == metric.sql
            rounded = ", rounded: whole from 100, one digit after the point from 10, else two"
            digits = rounded if kind == "FLOAT" else ""
            unit = f" [{metric.unit}]" if metric.unit else ""
            assert comment == f"{metric.meaning}{unit}{digits}; NULL where not measured"


def test_every_table_view_and_column_has_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    record(path, [])
    bare = query(
        path,
        "SELECT table_name FROM duckdb_tables() WHERE comment IS NULL "
        "UNION ALL SELECT view_name FROM duckdb_views() WHERE comment IS NULL AND NOT internal "
        "UNION ALL SELECT column_name FROM duckdb_columns() WHERE comment IS NULL AND NOT internal "
        "AND table_name NOT LIKE 'profile\\_%' ESCAPE '\\'",  # they get theirs with the first profile
    )
    assert bare == []
