"""Reports are received whole or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from gswarm_tui.options.profile_options import parse_profile
from gswarm_tui.profiling import slurm_commands
from gswarm_tui.profiling.login_node import profile_there, receive
from gswarm_tui.profiling.profile_run import is_of_step
from gswarm_tui.profiling.shims import write_shims
from gswarm_tui.profiling.slurm_commands import ProfileError, kept

NAME = "gpu01-rank3-job7.nsys-rep"
CONTENT = bytes(range(256)) * 5000


async def fetch(home: Path, most: int = len(CONTENT), name: str = NAME) -> Path:
    """Receive the report from a stream that breaks off after so many bytes; return its path."""
    stream = asyncio.StreamReader()
    stream.feed_data(CONTENT[:most])
    stream.feed_eof()
    return await receive(stream, home, name, len(CONTENT))


async def test_a_second_report_of_a_name_gets_a_number(tmp_path: Path) -> None:
    for name in (NAME, "gpu01-rank3-job7-2.nsys-rep"):
        path = await fetch(tmp_path)
        assert (path.name, path.read_bytes()) == (name, CONTENT)


@pytest.mark.parametrize("name", [f"../{NAME}", f"/../{NAME}", f"/tmp/{NAME}"])
async def test_a_report_stays_in_the_folder_whatever_its_name(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert await fetch(home, name=name) == home / NAME
    assert list(tmp_path.iterdir()) == [home]


async def test_transfer_that_breaks_off_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"fetching gpu01-rank3-job7.nsys-rep broke off"):
        await fetch(tmp_path, most=1000)
    assert list(tmp_path.iterdir()) == []


async def test_full_disk_ends_the_transfer_in_one_sentence(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        with pytest.raises(ProfileError) as failed:
            await fetch(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (
        str(failed.value)
        == f"{tmp_path}: File too large while fetching {NAME}; the partial copy was removed."
    )
    assert list(tmp_path.iterdir()) == []


STARTED = {"job": "7", "nodes": ["gpu01"]}


@pytest.mark.parametrize(
    "lines",
    [
        [{"job": 7, "nodes": 1}],
        [STARTED, {"output": 10**12}],
        [STARTED, {"output": -1}],
        [STARTED, {"status": 0, "folder": "/f", "reports": [["gpu02-rank3-job7.nsys-rep", 1, 1]]}],
        [STARTED, {"status": 0, "folder": "/f", "reports": [["gpu01-rank3-job7.sh", 1, 1]]}],
        [STARTED, {"status": 0, "folder": "/f", "reports": [[NAME, 1e400, 1]]}],
        [STARTED, {"status": 0, "folder": "/f", "reports": [[NAME, 1, 10**30]]}],
        ["x" * (1 << 25)],
    ],
    ids=["job", "endless", "negative", "another node", "no report", "infinite", "time", "long line"],
)
async def test_what_a_login_node_sends_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    (tmp_path / "sent").write_text("".join(json.dumps(line) + "\n" for line in lines) + "x" * 5000)
    ssh = 'for word; do :; done; word=${word##*--relay=}; printf %.16s "$word"; cat "${0%/*}/sent"'
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n{ssh}\n")
    (tmp_path / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    home = tmp_path / "home"
    home.mkdir()
    options = parse_profile(["--jump=login", "--job=7", f"--output={home}", "--", "true"], {})
    with pytest.raises(ProfileError, match=r"^login sent no valid profile; run the command on "):
        await profile_there(options, lambda _job: contextlib.nullcontext())
    assert [path for path in home.iterdir() if path.name != NAME] == []


def test_only_files_of_the_step_s_nodes_are_taken(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    (tmp_path / "gpu01-rank4-job7.nsys-rep").symlink_to(tmp_path / NAME)
    (tmp_path / "gpu02-rank5-job7.nsys-rep").touch()
    (tmp_path / f"gpu01-rank{'9' * 200}-job7.nsys-rep").touch()
    assert [path.name for path in tmp_path.iterdir() if is_of_step(path, ("gpu01",))] == [NAME]


async def test_a_command_that_ignores_sigterm_and_prints_without_end_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slurm_commands, "END_S", 0.1)
    async with asyncio.timeout(20), kept(["sh", "-c", "trap '' TERM; yes"], grace_s=0) as command:
        await command.read()
    assert await command.wait() == -9


def test_shims_refuse_a_folder_of_others_or_in_which_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shims(tmp_path / "own")
    (tmp_path / "own").chmod(0o777)
    with pytest.raises(ProfileError, match="others can write there"):
        write_shims(tmp_path / "own")
    monkeypatch.setattr(os, "geteuid", lambda: 1 + (tmp_path / "own").stat().st_uid)
    with pytest.raises(ProfileError, match="belongs to another user"):
        write_shims(tmp_path / "own")
