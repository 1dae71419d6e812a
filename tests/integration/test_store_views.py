"""Views and recipes return the known values of a recording, also with an older DuckDB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gswarm_agent.frame import ProcessSample, Row
from gswarm_tui.cli import main
from gswarm_tui.fleet.events import Event, EventLogged, SessionStarted, SessionStopped
from gswarm_tui.store.sql.recipes import RECIPES, Recipe
from tests.unit.store_recording import T0, arrived, gpu_row, introduced, process_row, query, record

# Second by second, from T0 + 1. The session "train" is from T0 + 1 to T0 + 5: the four in the middle.
_UTIL = ([0, 100, 100, 50, 5, 90], [0, 20, 20, 20, 20, 99])
_POWER = ([60, 700, 700, 500, 100, 650], [None] * 6)
_MEM = ([0, 10_000, 70_000, 70_000, 20_000, 80_000], [5] * 6)
# The second counter starts again before T0 + 3.
_ENERGY = (
    [1_000, 101_000, 301_000, 451_000, 461_000, 999_000],
    [500_000, 510_000, 2_000, 7_000, 10_000, 90_000],
)
_THROTTLE_POWER = ([None, 50, 0, 25, 0, 100], [None] * 6)
_REASONS = ([4] * 6, [0, 0x4, 0x24, 0, 0, 0x80])


def _gpu(gpu: int, second: int) -> Row:
    return gpu_row(
        util_pct=_UTIL[gpu][second],
        power_w=_POWER[gpu][second],
        mem_used_mib=_MEM[gpu][second],
        energy_mj=_ENERGY[gpu][second],
        throttle_power_pct=_THROTTLE_POWER[gpu][second],
        clock_reasons=_REASONS[gpu][second],
    )


def _events() -> list[Event]:
    events: list[Event] = [
        EventLogged(T0, "link_live", "info", "connected", "n1"),
        introduced(),
        SessionStarted("s1", T0 + 2, "train", T0 + 1),
        SessionStarted("s2", T0 + 2.5, "all of it", T0),
    ]
    for second in range(6):
        processes = (
            ProcessSample(
                0, 11, "ada", "train.py", 0, 0, process_row(gpu_memory_mib=60_000 + second, sm_pct=90)
            ),
            ProcessSample(1, 12, "ada", "eval.py", None, None, process_row(gpu_memory_mib=500)),
        )
        gpus = [_gpu(0, second), _gpu(1, second)]
        events.append(arrived(second + 1, gpus, processes=processes if second in (1, 3) else None))
    events.append(EventLogged(T0 + 3, "throttle", "warning", "held down by its temperature", "n1", 1))
    events.append(EventLogged(T0 + 2.5, "mark", "info", "warm", "n1", detail="{}"))
    events.append(EventLogged(T0 + 4.5, "mark", "info", "epoch 1", "n1", detail='{"loss": 0.25}'))
    events.append(SessionStopped("s1", T0 + 6, T0 + 5))
    events.append(SessionStopped("s2", T0 + 10, T0 + 10))
    return events


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "run.duckdb"
    record(path, _events())
    return path


def summary(path: Path, columns: str, where: str = "session = 'train'") -> list[tuple[Any, ...]]:
    return query(path, f"SELECT scope, gpu_index, {columns} FROM session_summary WHERE {where} ORDER BY ALL")


def test_session_summary_has_gpu_node_and_all(recording: Path) -> None:
    util = summary(recording, "samples, util_mean_pct, util_median_pct, util_p95_pct, util_max_pct")
    together = (8, 41.875, 20, 100, 100)
    assert util == [
        ("all", None, *together),
        ("gpu", 0, 4, 63.75, 50, 100, 100),
        ("gpu", 1, 4, 20.0, 20.0, 20.0, 20),
        ("node", None, *together),
    ]


def test_marks_have_their_values_in_columns(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    details = ['{"loss": 0.1, "phase": "warm up", "step": 9}', "{}", None, "not json", '[1, {"a": 2}]']
    marks = [EventLogged(T0 + i, "mark", "info", f"m{i}", "n1", detail=d) for i, d in enumerate(details)]
    others = EventLogged(T0, "link_lost", "error", "gone", "n1", detail='{"loss": 7}')
    record(
        path, [introduced(), *marks, others, EventLogged(T0 + 9, "mark", "info", "here", detail='{"x": 1}')]
    )
    assert query(path, "SELECT epoch(ts), node, mark FROM marks ORDER BY ts") == [
        *((T0 + i, "n1", f"m{i}") for i in range(5)),
        (T0 + 9, None, "here"),
    ]
    assert query(path, "SELECT \"values\" ->> 'phase' FROM marks WHERE mark = 'm0'") == [("warm up",)]
    assert query(path, "SELECT mark, key, value, text FROM mark_values ORDER BY ALL") == [
        ("here", "x", 1.0, None),
        ("m0", "loss", 0.1, None),
        ("m0", "phase", None, "warm up"),
        ("m0", "step", 9.0, None),
    ]


def test_a_summary_without_measurements_is_null_not_zero(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    record(
        path,
        [
            introduced(gpus=1),
            SessionStarted("s", T0, "s", T0),
            *(arrived(i, [gpu_row(pstate=0)]) for i in (1, 2)),
        ],
    )
    columns = "util_mean_pct, busy_s, idle_s, energy_j, throttle_power_s, mem_used_max_mib"
    assert query(path, f"SELECT samples, {columns} FROM session_summary WHERE scope = 'all'") == [
        (2, *[None] * 6)
    ]


def test_the_first_sample_after_a_start_has_no_interval(tmp_path: Path) -> None:
    """After a start or a gap, the time that the first sample covers is unknown."""
    path = tmp_path / "run.duckdb"
    frames = [arrived(1, [gpu_row(util_pct=50)])]
    stopped = SessionStopped("s", T0 + 2, T0 + 2)
    record(path, [introduced(gpus=1), SessionStarted("s", T0, "s", T0), *frames, stopped])
    (what_it_cost,) = [recipe.sql for recipe in RECIPES if recipe.title.startswith("Cost")]
    assert query(path, what_it_cost) == [("s", 1, 2.0, None, None, 0.0)]


def test_a_summary_leaves_out_gpus_that_slurm_gave_to_others(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    event = introduced(gpus=3)
    gpus = tuple(replace(gpu, minor=minor) for gpu, minor in zip(event.hello.gpus, (0, 1, None), strict=True))
    rows = [gpu_row(util_pct=10), gpu_row(util_pct=90, power_w=900), gpu_row(util_pct=30)]
    theirs = (ProcessSample(1, 66, "eve", "theirs.py", None, None, process_row(gpu_memory_mib=9)),)
    frames = [arrived(i, rows, processes=theirs) for i in (1, 2)]
    session = SessionStarted("s", T0, "s", T0)
    event = replace(event, hello=replace(event.hello, gpus=gpus))
    record(path, [event, session, *frames], allocation={"n1": frozenset({0, 2})})
    assert summary(path, "gpus, util_mean_pct, power_max_w", "true") == [
        ("all", None, 2, 20.0, None),
        ("gpu", 0, 1, 10.0, None),
        ("gpu", 2, 1, 30.0, None),
        ("node", None, 2, 20.0, None),
    ]
    assert query(path, "SELECT * FROM session_processes") == []
    for view in ("samples", "session_samples"):
        assert query(path, f"SELECT DISTINCT gpu_index, allocated FROM {view} ORDER BY 1") == [
            (0, True),
            (2, True),
        ]
    assert query(path, "SELECT DISTINCT gpu_index FROM all_samples ORDER BY 1") == [(0,), (1,), (2,)]


def test_marks_follow_those_of_their_rank_and_name(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    frames = [arrived(i, [gpu_row(util_pct=10 * i, energy_mj=1000 * i)]) for i in range(1, 7)]
    marks = [
        EventLogged(T0 + at, "mark", "info", name, "n1", detail=json.dumps({"rank": rank}))
        for at, rank, name in (
            (1, 0, "epoch 1"),
            (1.1, 1, "epoch 1"),
            (2, 0, "saved"),
            (4, 0, "epoch 2"),
            (4.6, 1, "epoch 2"),
            (30, 0, "epoch 3"),
        )
    ]
    record(path, [introduced(gpus=1), *frames, *marks])
    found = query(
        path,
        "SELECT mark, \"values\" ->> 'rank', duration_s, util_mean_pct, energy_j, coverage "
        "FROM mark_intervals ORDER BY ended_at",
    )
    part = pytest.approx((0.9 * 20 + 30 + 40 + 0.6 * 50) / 3.5)
    assert found == [
        ("epoch 2", "0", 3.0, 30.0, 3.0, 1.0),
        ("epoch 2", "1", 3.5, part, pytest.approx(3.5), 1.0),
        ("epoch 3", "0", 26.0, 55.0, 2.0, pytest.approx(2 / 26)),
    ]


def test_session_samples_begin_after_the_start_and_include_the_end(recording: Path) -> None:
    samples = query(
        recording,
        "SELECT session, util_pct FROM session_samples WHERE gpu_index = 0 AND session_id = 1 ORDER BY ts",
    )
    assert samples == [("train", 100), ("train", 100), ("train", 50), ("train", 5)]


def _at(second: float) -> datetime:
    return datetime.fromtimestamp(T0 + second, UTC).replace(tzinfo=None)


_ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "What the rules found, the costliest first": [],
    "GPU-hours lost by kind of finding": [],
    "Mean, p95 and maximum of each GPU in each session": [
        ("train", "n1", 0, 63.75, 100.0, 100, 500.0, 700.0, 70_000),
        ("train", "n1", 1, 20.0, 20.0, 20, None, None, 5),
        ("all of it", "n1", 0, 69.0, 100, 100, 530.0, 700.0, 80_000),
        ("all of it", "n1", 1, 35.8, 99, 99, None, None, 5),
    ],
    "Cost of each session: duration, energy, busy share, measured share": [
        ("train", 2, 4.0, pytest.approx(478 / 3.6e6), 0.875, 1.0),
        ("all of it", 2, 10.0, pytest.approx((998 + 98) / 3.6e6), 0.9, 0.5),
    ],
    "Busiest and least busy GPU of each session": [
        ("train", "n1:0", 63.75, "n1:1", 20.0),
        ("all of it", "n1:0", 69.0, "n1:1", 35.8),
    ],
    "Each session compared to the first: speed-up, scaling efficiency, energy, bubbles": [],  # they overlap
    "Longest bubbles: idle phases of a GPU between two busy ones": [
        ("all of it", "n1", 0, _at(4), 1.0),
    ],
    "Throttled seconds by reason": [
        ("train", "n1", 0, 0.75, 0.0, 0.0),
        ("train", "n1", 1, 2.0, 1.0, 0.0),
        ("all of it", "n1", 0, 1.75, 0.0, 0.0),
        ("all of it", "n1", 1, 2.0, 1.0, 1.0),
    ],
    "Processes with the most GPU memory": [
        ("n1", 0, 11, 0, "ada", "train.py", 60_003, 90.0, _at(2), _at(4)),
        ("n1", 1, 12, None, "ada", "eval.py", 500, None, _at(2), _at(4)),
    ],
    "Time, energy and means of each epoch: from each mark to the next": [],
    "All events": [
        (_at(0), "n1", None, "link_live", "info", "connected"),
        (_at(2.5), "n1", None, "mark", "info", "warm"),
        (_at(3), "n1", 1, "throttle", "warning", "held down by its temperature"),
        (_at(4.5), "n1", None, "mark", "info", "epoch 1"),
    ],
}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_every_recipe_runs_in_the_sql_command(
    recording: Path, capsys: pytest.CaptureFixture[str], recipe: Recipe
) -> None:
    assert main(["sql", recipe.sql, "--db", str(recording), "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    answer = query(recording, recipe.sql)
    assert len(printed) == len(answer)
    assert _ANSWERS.get(recipe.title, answer) == answer
    assert answer or recipe.title in _ANSWERS


@pytest.fixture(scope="session", params=["1.4.4", "1.2.2"])
def older_duckdb(request: pytest.FixtureRequest) -> Path:
    """Return a folder with this version of DuckDB, downloaded once into pytest's cache."""
    folder = request.config.cache.mkdir(f"duckdb-{request.param}")
    if not (folder / "complete").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
        subprocess.run([*pip, "--target", str(folder), f"duckdb=={request.param}"], check=True)
        (folder / "complete").touch()
    return Path(folder)


def test_an_older_duckdb_returns_the_same_results(recording: Path, older_duckdb: Path) -> None:
    code = """
import duckdb, json, sys
connection = duckdb.connect(sys.argv[1], read_only=True)
print(json.dumps([connection.execute(sql).fetchall() for sql in json.loads(sys.argv[2])], default=str))
"""
    queries = [recipe.sql for recipe in RECIPES if recipe.title in _ANSWERS]
    queries.append(
        "SELECT DISTINCT comment FROM duckdb_columns() WHERE column_name = 'power_w' AND comment IS NOT NULL"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(recording), json.dumps(queries)],
        env={**os.environ, "PYTHONPATH": str(older_duckdb)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    now = [query(recording, sql) for sql in queries]
    assert json.loads(run.stdout) == json.loads(json.dumps(now, default=str))


def test_the_docs_query_for_marks_of_requests_summarises_them(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    details = [
        '{"app": "chat", "queue_ms": 10, "processing_ms": 800.5}',
        '{"app": "chat", "queue_ms": 20, "processing_ms": 800.5}',
        '{"app": "search", "queue_ms": 1, "processing_ms": 5}',
    ]
    marks = [EventLogged(T0 + i, "mark", "info", "request", "n1", detail=d) for i, d in enumerate(details)]
    record(path, [introduced(), *marks, EventLogged(T0 + 5, "mark", "info", "epoch 1", "n1", detail="{}")])
    page = (Path(__file__).parents[2] / "docs/guide/sessions-and-marks.md").read_text()
    sql = page.partition("### Marks of requests")[2].partition("```sql\n")[2].partition("```")[0]
    assert query(path, sql) == [("chat", 2, 15.0, 800.5), ("search", 1, 1.0, 5.0)]
