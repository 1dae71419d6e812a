"""Reports are fetched with a checksum; a transfer that breaks continues, and a failed one leaves no file."""

from __future__ import annotations

import errno
import fcntl
import getpass
import hashlib
import os
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from gswarm_tui.launch.ssh.launcher import SshSettings
from gswarm_tui.launch.ssh.login import LoginNode
from gswarm_tui.profiling import fetching
from gswarm_tui.profiling.fetching import Fetcher, RemoteReport, check_room, left_behind
from gswarm_tui.profiling.slurm_host import LoginHost, ProfileError, ThisMachine
from tests.integration.sshd import running

CONTENT = bytes(range(256)) * 5000


@pytest.fixture
def report(tmp_path: Path) -> RemoteReport:
    """Return a report on a node, which is this machine."""
    path = tmp_path / "gpu01-rank3-job7.nsys-rep"
    path.write_bytes(CONTENT)
    return RemoteReport("gpu01", str(path), len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), 1_700_000_000)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder for reports; retries don't wait."""
    monkeypatch.setattr(fetching, "_PAUSE_S", 0)
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


async def fetch(report: RemoteReport, home: Path, most: int = len(CONTENT)) -> tuple[Path, list[float]]:
    """Fetch a report through a step that breaks off after so many bytes."""
    shares: list[float] = []
    step = ["sh", "-c", f'"$@" | head -c {most}', "step"]
    fetcher = Fetcher(home, report.size, shares.append)
    path = await fetcher.fetch(ThisMachine(), report, report.path, step)
    return path, shares


async def test_broken_transfer_goes_on_where_it_was(report: RemoteReport, home: Path) -> None:
    path, shares = await fetch(report, home, most=len(CONTENT) // 2 - 1)
    assert path.name == "gpu01-rank3-job7.nsys-rep"
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mtime == 1_700_000_000
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert report.rank == 3


async def test_second_report_of_a_rank_gets_a_number(report: RemoteReport, home: Path) -> None:
    names = [(await fetch(report, home))[0].name for _ in range(2)]
    assert names == ["gpu01-rank3-job7.nsys-rep", "gpu01-rank3-job7-2.nsys-rep"]


async def test_transfer_that_never_completes_leaves_no_file(report: RemoteReport, home: Path) -> None:
    with pytest.raises(ProfileError, match=r"gpu01: fetching gpu01-rank3-job7.nsys-rep broke off"):
        await fetch(report, home, most=1000)
    assert list(home.iterdir()) == []


async def test_damaged_report_leaves_no_file(report: RemoteReport, home: Path) -> None:
    Path(report.path).write_bytes(CONTENT[::-1])
    with pytest.raises(ProfileError, match=r"gpu01-rank3-job7.nsys-rep arrived damaged"):
        await fetch(report, home)
    assert list(home.iterdir()) == []


async def test_full_disk_ends_the_transfer_in_one_sentence(report: RemoteReport, home: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        with pytest.raises(ProfileError) as failed:
            await fetch(report, home)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(failed.value) == (
        f"{home}: File too large while fetching gpu01-rank3-job7.nsys-rep; the partial copy was removed."
    )
    assert list(home.iterdir()) == []


async def test_parts_of_killed_transfers_are_removed_where_files_need_a_name(
    report: RemoteReport, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_CREAT | os.O_EXCL)  # as on NFS
    killed, under_way = (home / f".gswarm-profile-{name}.part" for name in ("killed", "running"))
    killed.write_bytes(b"half")
    with under_way.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        path, _ = await fetch(report, home)
    assert path.read_bytes() == CONTENT
    assert sorted(home.iterdir()) == sorted([under_way, path])


async def test_reports_come_to_a_file_system_without_locks(
    report: RemoteReport, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "O_TMPFILE", os.O_CREAT | os.O_EXCL)  # as on Lustre
    monkeypatch.setattr(fcntl, "flock", refuse)
    path, _ = await fetch(report, home)
    assert path.read_bytes() == CONTENT
    assert list(home.iterdir()) == [path]


async def test_lines_about_reports_on_the_login_node_fetch_and_remove_them_as_they_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, home, keys = (tmp_path / name for name in ("ada's cache [1]", "my home", "keys"))
    folder = cache / "gswarm-tui" / "profiles" / "job7-0a"
    for made in (folder, home, keys):
        made.mkdir(parents=True)
    (folder / "gpu01-rank0-job7.nsys-rep").write_bytes(CONTENT)
    monkeypatch.chdir(home)
    with running(keys, SetEnv=f'"XDG_CACHE_HOME={cache}"') as server:
        config = shutil.copy(server.config("  StrictHostKeyChecking yes"), home / "my config")
        server.trust()
        jump = f"{getpass.getuser()}@127.0.0.1:{server.port}"
        login = LoginHost(LoginNode(SshSettings(config=str(config), jump=jump)))
        try:
            (sentence,) = await left_behind(login)
            assert sentence.startswith(f"{jump} has 1.")
            assert " MB of reports of another gswarm-tui profile. If that no longer runs, fetch " in sentence
            for command in sentence.split("`")[1::2]:
                subprocess.run(["bash", "-c", command], check=True, timeout=60)
            assert await left_behind(login) == []
        finally:
            await login.close()
    assert (home / "job7-0a" / "gpu01-rank0-job7.nsys-rep").read_bytes() == CONTENT
    assert not folder.exists()


def test_reports_that_do_not_fit_are_refused_before_the_transfer(home: Path) -> None:
    wanted = r"home has .* free, and the reports take 1,152,922 TB; free some space"
    with pytest.raises(ProfileError, match=wanted):
        check_room(home, 1 << 60)
