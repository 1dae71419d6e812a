"""``gswarm-tui diagnose``: what the rules find in recordings of every kind, as text, JSON and a mail."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gswarm_tui.cli import main
from gswarm_tui.insight.ledger import CAUSES
from tests.jobs.faults import heat
from tests.jobs.feed import record_job
from tests.jobs.model import T0, Fault, Job

HOT_AT = 600.0
JOB = Job(nodes=2, gpus=4, seconds=1500.0).with_faults(Fault(heat, HOT_AT, "thermal", 1, 2, 0.25))
_AT = f"make_timestamp({round(T0)}000000)"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diagnose") / "run.duckdb"
    record_job(path, JOB)
    return path


@pytest.fixture
def recording(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(original, tmp_path))


@pytest.fixture
def run(recording: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def printed(*words: str) -> str:
        assert main(["diagnose", *words]) == 0
        return capsys.readouterr().out

    return printed


def change(path: Path, *statements: str) -> None:
    with duckdb.connect(str(path)) as file:
        for statement in statements:
            file.execute(statement)


def culprits(found: dict[str, Any]) -> list[tuple[str, str, int | None]]:
    return [(one["kind"], one["node"], one["gpu"]) for one in found["findings"] if one["severity"] != "note"]


HOT = [("thermal", "gpu02", 2)]


def test_json_names_the_culprit_with_its_numbers_and_the_ledger_adds_up(run: Callable[..., str]) -> None:
    found = json.loads(run("--json"))
    assert culprits(found) == HOT
    first = found["findings"][0]
    assert {"kind", "severity", "node", "gpu", "rank", "nodes", "since", "until", "gpu_hours"} < set(first)
    assert (first["severity"], first["rank"], first["nodes"], first["until"]) == ("waste", 6, ["gpu02"], None)
    assert first["since"].startswith("2027-01-15T08:1")  # ten minutes after the start, within a minute
    assert first["gpu_hours"] > 0
    clock = next(one for one in first["evidence"] if one["metric"] == "sm_clock_mhz")
    assert clock["value"] < clock["peers"]
    assert clock["unit"] == "MHz"
    assert set(found["ledger"]) == set(CAUSES)
    assert sum(found["ledger"].values()) == pytest.approx(8 * 1500 / 3600, rel=0.01)
    assert found["cannot_tell"] == []


def test_text_says_who_by_which_numbers_what_to_do_and_what_was_watched(run: Callable[..., str]) -> None:
    shown = run()
    assert shown.startswith("recording 1 · run.duckdb\n")
    (where,) = re.findall("GPU time .*", shown)
    assert sum(int(share) for share in re.findall(r"(\d+) %", where)) == 100
    labels = [line.split("  ")[0] for line in shown.splitlines()]
    assert labels.index("waste") < labels.index("evidence") < labels.index("to do") < labels.index("rule")
    assert "gpu02:2 · rank 6 · clock" in shown
    assert "#SBATCH --exclude=gpu02\n" in shown
    assert re.search(r"watched +2 nodes, 8 GPUs", shown)
    assert "last look" in labels
    assert "healthy" not in shown


def test_the_mail_to_the_site_has_all_that_names_the_hardware(run: Callable[..., str]) -> None:
    mail = run("--for-site")
    assert mail.startswith("Subject: gpu02: ")
    for part in ("GPU-gpu02-2", "0000:03:00.0", "job 4711", "2027-01-15 08:1", "UTC", "sm_clock_mhz"):
        assert part in mail
    assert "#SBATCH --exclude=gpu02" in mail


def test_a_session_is_judged_by_the_time_before_it_but_only_for_itself(
    recording: Path, run: Callable[..., str]
) -> None:
    session = (
        "INSERT INTO sessions SELECT {0}, 1, '{1}', {2} + to_seconds({3}), {2} + to_seconds({4}), 'ended', ''"
    )
    change(
        recording,
        session.format(1, "before", _AT, 200, 500),
        session.format(2, "after", _AT, 700, 1000),
    )
    assert culprits(json.loads(run("before", "--json"))) == []
    after = json.loads(run("after", "--json"))
    assert culprits(after) == HOT
    assert sum(after["ledger"].values()) == pytest.approx(8 * 300 / 3600)
    assert culprits(json.loads(run("--json"))) == HOT  # without a name, the whole recording


def test_a_dismissed_finding_is_last_and_says_so(recording: Path, run: Callable[..., str]) -> None:
    change(
        recording,
        "INSERT INTO findings (finding_id, recording_id, kind, severity, node, gpu_index, nodes, since, "
        "sentence, evidence, advice, source, dismissed) SELECT 1, 1, 'thermal', 'waste', 'gpu02', 2, '[]', "
        f"{_AT}, '', '[]', '', '', true",
    )
    assert json.loads(run("--json"))["findings"][-1]["dismissed"]
    assert "clock" not in run().split("more")[0]
    assert "dismissed  gpu02:2" in run("--all")


def test_what_the_job_answered_comes_first_for_the_time_in_which_it_held(
    recording: Path, run: Callable[..., str]
) -> None:
    said = "rank 5 (gpu02:1) is behind, by stacks"
    change(
        recording,
        "INSERT INTO findings SELECT 1, 1, 'rank_behind', 'fault', 'gpu02', 1, 5, '[\"gpu02\"]', "
        f"{_AT} + to_seconds(900), NULL, 0, '{said} · look at it', '[]', 'Look at it', 'the job', false",
        f"INSERT INTO sessions SELECT 1, 1, 'before', {_AT}, {_AT} + to_seconds(800), 'ended', ''",
    )
    assert culprits(json.loads(run("--json"))) == [("rank_behind", "gpu02", 1), *HOT]
    assert re.search(rf"fault +{re.escape(said)}\n", run())
    assert culprits(json.loads(run("before", "--json"))) == HOT


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(("UPDATE gpus SET allocated = NULL", "DROP TABLE findings"), id="without findings"),
        pytest.param(("DELETE FROM process_samples",), id="without processes"),
        pytest.param(
            ("ALTER TABLE gpu_samples DROP temp_margin_c", "ALTER TABLE process_samples DROP cpus_allowed"),
            id="without newer columns",
        ),
        pytest.param(
            (
                "DELETE FROM gpu_samples WHERE epoch(ts)::BIGINT % 20 <> 0",
                "DELETE FROM host_samples WHERE epoch(ts)::BIGINT % 20 <> 0",
                "UPDATE gpu_samples SET interval_ms = 20000",
                "UPDATE host_samples SET interval_ms = 20000",
            ),
            id="interval of 20 s, said to be 5 s at the start",
        ),
        pytest.param(
            (
                "INSERT INTO nodes SELECT * REPLACE (10 AS node_id, 'boot9' AS boot_id) FROM nodes "
                "WHERE node_id = 2",
                "INSERT INTO gpus SELECT * REPLACE (gpu_id + 100 AS gpu_id, 10 AS node_id) FROM gpus "
                "WHERE node_id = 2",
                *(
                    f"UPDATE {table} SET node_id = 10 WHERE node_id = 2 AND ts > {_AT} + to_seconds(400)"
                    for table in ("host_samples", "port_samples", "mount_samples")
                ),
                *(
                    f"UPDATE {table} SET gpu_id = gpu_id + 100 WHERE ts > {_AT} + to_seconds(400) "
                    "AND gpu_id IN (SELECT gpu_id FROM gpus WHERE node_id = 2)"
                    for table in ("gpu_samples", "process_samples")
                ),
            ),
            id="reboot",
        ),
    ],
)
def test_other_recordings_of_the_same_job(
    statements: tuple[str, ...], recording: Path, run: Callable[..., str]
) -> None:
    change(recording, *statements)
    assert culprits(json.loads(run("--json"))) == HOT


def test_an_hour_without_samples_counts_for_a_quarter(recording: Path, run: Callable[..., str]) -> None:
    later = "SET ts = ts + INTERVAL 1 HOUR WHERE ts > " + f"{_AT} + to_seconds(1000)"
    tables = ("gpu_samples", "host_samples", "process_samples", "port_samples", "mount_samples")
    change(recording, *(f"UPDATE {table} {later}" for table in tables))
    change(recording, "UPDATE recordings SET ended_at = ended_at + INTERVAL 1 HOUR")
    found = json.loads(run("--json"))
    assert culprits(found)[0] == HOT[0]
    assert sum(found["ledger"].values()) == pytest.approx(8 * (1500 + 900) / 3600, rel=0.02)


def test_of_several_recordings_the_newest_is_judged_alone(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_job(recording, replace(JOB, faults=(), seconds=400.0))
    assert main(["diagnose", "--json"]) == 0
    out, err = capsys.readouterr()
    assert culprits(json.loads(out)) == []
    assert "2 recordings; using the newest. Others: recording 1." in err
    assert main(["diagnose", "recording 1", "--json"]) == 0
    assert culprits(json.loads(capsys.readouterr().out)) == HOT
