"""``export --format wandb``: the offline run that wandb's own messages read back."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gswarm_tui.cli import main
from gswarm_tui.exchange import tracked_run
from gswarm_tui.fleet.events import Event, SessionStarted, SessionStopped
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, introduced, record

pytest.importorskip("wandb")
BLOCK = 32768


def messages(path: Path) -> Iterator[Any]:
    """Yield the messages of an offline run, which lie in LevelDB's log format after seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        size, part = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if part in (1, 4):
            message = Record()
            message.ParseFromString(whole)
            yield message
            whole = b""


def history_of(read: Iterable[Any]) -> list[dict[str, Any]]:
    return [
        {"/".join(item.nested_key): json.loads(item.value_json) for item in one.history.item}
        for one in read
        if one.WhichOneof("record_type") == "history"
    ]


def test_a_session_is_an_offline_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_RUN_ID", "job")
    events: list[Event] = [introduced("gpu03"), introduced("gpu04")]
    for seq in range(1, 41):
        for name in ("gpu03", "gpu04"):
            rows = [gpu_row(util_pct=2 * seq, power_w=300), gpu_row(util_pct=None)]
            events.append(arrived(seq, rows, name, ts=T0 + seq))
    events += [
        SessionStarted("1", T0 + 10, "train", T0 + 10),
        SessionStopped("1", T0 + 40, T0 + 40),
    ]
    record(tmp_path / "run.duckdb", events, INFO, ended_at=T0 + 41)
    with monkeypatch.context() as full:

        def write(*_args: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(Path, "write_bytes", write)
        assert main(["export", "train", "--format", "wandb"]) == 1
        assert "train.wandb can't be written: No space left" in capsys.readouterr().err
        assert [each.name for each in tmp_path.iterdir()] == ["run.duckdb"]
    assert main(["export", "train", "--format", "wandb"]) == 0
    assert "nothing was sent" in capsys.readouterr().err
    monkeypatch.setattr(tracked_run, "MOST_POINTS", 2)
    assert main(["export", "train", "--format", "wandb", "-o", "short.wandb"]) == 0
    (file,) = (tmp_path / "short.wandb" / "wandb").glob("offline-run-*/*.wandb")
    assert [row["time_s"] for row in history_of(messages(file))] == [20, 40]
    assert main(["export", "train", "--format", "wandb", "-o", "short.wandb", "--force"]) == 0
    (file,) = (tmp_path / "train.wandb" / "wandb").glob("offline-run-*/*.wandb")
    read = list(messages(file))
    (run,) = [one.run for one in read if one.WhichOneof("record_type") == "run"]
    assert run.display_name == "train"
    assert "gswarm-tui" in run.tags
    assert run.run_id != "job"
    config = {one.key: json.loads(one.value_json) for one in run.config.update}
    assert config["nodes"] == ["gpu03", "gpu04"]
    assert config["started_at"] == "2027-01-15T08:00:10Z"
    history = history_of(read)
    assert [row["gpu03/0.util_pct"] for row in history] == [31, 51, 71]
    assert [row["_timestamp"] for row in history] == [T0 + 20, T0 + 30, T0 + 40]
    assert [row["_step"] for row in history] == [0, 1, 2]
    assert "gpu03/1.util_pct" not in history[0]
    figures = {
        item.key or "/".join(item.nested_key): item.value_json
        for one in read
        if one.WhichOneof("record_type") == "summary"
        for item in one.summary.update
    }
    assert float(figures["util_mean_pct"]) == pytest.approx(51)
