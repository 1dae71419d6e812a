"""Release: the changelog has an entry, and packages contain the program and no private files."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from gswarm_agent import __version__
from tests.docs.generated import ROOT


def test_changelog_has_an_entry_for_the_version() -> None:
    assert f"\n## [{__version__}] - " in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive, built as a release builds them."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_packages_are_valid_for_an_index(packages: Path) -> None:
    twine = [sys.executable, "-m", "twine", "check", "--strict"]
    checked = subprocess.run([*twine, *packages.iterdir()], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_wheel_holds_program_and_agent(packages: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {
        "gswarm_tui/cli.py",
        "gswarm_tui/py.typed",
        "gswarm_tui/SKILL.md",
        "gswarm_agent/wire.py",
    } <= names
    assert {name.split("/")[0] for name in names} == {
        "gswarm_agent",
        "gswarm_tui",
        f"gswarm_tui-{__version__}.dist-info",
    }


def test_source_archive_contains_the_files_that_its_tests_need(packages: Path) -> None:
    (source,) = packages.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"README.md", "SECURITY.md", "zensical.toml", "docs/index.md", "tests/conftest.py"}
    assert wanted <= names
