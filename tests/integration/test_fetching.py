"""Reports are fetched with a checksum; a transfer that breaks goes on, and a failed one leaves no file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gswarm_tui.profiling import fetching
from gswarm_tui.profiling.fetching import Fetcher, RemoteReport, check_room
from gswarm_tui.profiling.slurm_host import ProfileError, ThisMachine

CONTENT = bytes(range(256)) * 5000


@pytest.fixture
def report(tmp_path: Path) -> RemoteReport:
    """Return a report on a node, which is this machine."""
    path = tmp_path / "gpu01-rank3-job7.nsys-rep"
    path.write_bytes(CONTENT)
    return RemoteReport("gpu01", str(path), len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder for reports; retries don't wait."""
    monkeypatch.setattr(fetching, "_PAUSE_S", 0)
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


async def fetch(report: RemoteReport, home: Path, most: int = len(CONTENT)) -> tuple[Path, list[float]]:
    """Fetch a report through a command that breaks off after so many bytes."""
    shares: list[float] = []

    def words(offset: int) -> list[str]:
        return ["sh", "-c", f"tail -c +{offset + 1} '{report.path}' | head -c {most}"]

    path = await Fetcher(home, report.size, shares.append).fetch(ThisMachine(), report, words)
    return path, shares


async def test_broken_transfer_goes_on_where_it_was(report: RemoteReport, home: Path) -> None:
    path, shares = await fetch(report, home, most=len(CONTENT) // 2 - 1)
    assert path.name == "gpu01-rank3-job7.nsys-rep"
    assert path.read_bytes() == CONTENT
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


def test_reports_that_do_not_fit_are_refused_before_the_transfer(home: Path) -> None:
    wanted = r"home has .* free, and the reports take 1,152,922 TB; free some space"
    with pytest.raises(ProfileError, match=wanted):
        check_room(home, 1 << 60)
