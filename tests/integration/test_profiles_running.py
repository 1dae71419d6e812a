"""Import of reports into a recording that runs: through its recorder, beside its samples."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import duckdb
import numpy as np
import pytest

from gswarm_tui.control.client import running_heads
from gswarm_tui.control.intents import RecorderError
from gswarm_tui.control.profiles import SentProfile
from gswarm_tui.profiling.importing import import_report
from gswarm_tui.profiling.nsys_export import NsysExport
from gswarm_tui.profiling.nsys_facts import read_facts
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.recording.database import Database
from gswarm_tui.store.sql.schema import PROFILE_API_EVENTS
from tests.integration.test_control import RunningHead, environ, path, running
from tests.nsys_standin import write_standin
from tests.unit.store_recording import arrived, gpu_row, query

__all__ = ["environ", "path", "running"]
KERNELS = 100_000


async def test_a_report_is_imported_into_a_running_recording_beside_its_samples(
    running: RunningHead, path: Path, environ: Mapping[str, str], tmp_path: Path
) -> None:
    report = write_standin(tmp_path / "standin.sqlite", kernels=KERNELS)
    importing = asyncio.create_task(asyncio.to_thread(import_report, report, path, environ, node="n1"))
    assert running.recorder is not None
    for seq in range(4, 40):
        running.recorder.submit([arrived(seq, [gpu_row(util_pct=seq)] * 2)])
        await asyncio.sleep(0)
    done = await importing
    assert (done.profile_id, done.notices) == (1, ())
    with pytest.raises(StoreError, match=r"is in .* already, as profile 1"):
        await asyncio.to_thread(import_report, report, path, environ)
    await running.committed(3 * 39)
    await running.close()
    assert query(path, "SELECT kernels, node, gpu_index FROM profile_gpus") == [(KERNELS, "n1", None)]
    assert query(path, "SELECT sum(calls)::BIGINT FROM profile_kernel_sum") == [(KERNELS,)]
    assert query(path, "SELECT count(*) FROM gpu_samples") == [(2 * 39,)]


async def test_an_import_whose_command_is_killed_leaves_nothing(
    running: RunningHead, path: Path, environ: Mapping[str, str], tmp_path: Path
) -> None:
    facts = read_facts(NsysExport(write_standin(tmp_path / "standin.sqlite"), "standin"), "standin.sqlite")

    def begin_and_go() -> None:
        (head,) = running_heads(environ)
        sent = SentProfile(head, facts)
        (name,) = sent.name_ids(["cudaLaunchKernel"])
        sent.add(PROFILE_API_EVENTS, {"start_ns": np.arange(5), "name_id": np.full(5, name)})
        sent.name_ids(["another"])  # the reply comes when the rows are written
        sent.close()

    await asyncio.to_thread(begin_and_go)
    await asyncio.to_thread(import_report, tmp_path / "standin.sqlite", path, environ)
    await running.close()
    assert query(path, "SELECT profile_id, count(*) FROM profile_api_events GROUP BY ALL") == [(2, 6)]
    assert query(path, "SELECT profile_id FROM profiles") == [(2,)]


async def test_an_import_into_a_recording_that_ends_fails_in_a_sentence(
    running: RunningHead, path: Path, environ: Mapping[str, str], tmp_path: Path
) -> None:
    facts = read_facts(NsysExport(write_standin(tmp_path / "standin.sqlite"), "standin"), "standin.sqlite")
    (head,) = await asyncio.to_thread(running_heads, environ)
    sent = await asyncio.to_thread(SentProfile, head, facts)
    await running.close()
    with pytest.raises(RecorderError, match="ended before it replied; run the command again"):
        await asyncio.to_thread(sent.name_ids, ["cudaLaunchKernel"])
    sent.close()
    assert query(path, "SELECT count(*) FROM profiles") == [(0,)]


async def test_an_import_that_fails_in_the_recorder_says_so(
    running: RunningHead, environ: Mapping[str, str], tmp_path: Path
) -> None:
    facts = read_facts(NsysExport(write_standin(tmp_path / "standin.sqlite"), "standin"), "standin.sqlite")
    (head,) = await asyncio.to_thread(running_heads, environ)
    sent = await asyncio.to_thread(SentProfile, head, facts)
    invalid = {"table": PROFILE_API_EVENTS.name, "columns": {"start_ns": ["no type", b"", None]}}
    with pytest.raises(StoreError, match=r"failed to reply \(TypeError\)"):
        await asyncio.to_thread(sent._request, invalid)
    sent.close()
    await running.close()


def test_rows_that_a_killed_recorder_left_are_removed_when_the_file_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    Database(path).close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO profile_kernel_events (profile_id) SELECT 1 FROM range(10)")
    Database(path).close()
    assert query(path, "SELECT count(*) FROM profile_kernel_events") == [(0,)]
