"""Fixtures that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.standin import NoCompiler, build


@pytest.fixture(scope="session")
def standin_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the built NVML stand-in: ``lib`` holds the library, ``scenarios`` the files that it reads."""
    folder = tmp_path_factory.mktemp("standin")
    (folder / "scenarios").mkdir()
    try:
        build(folder / "lib", folder / "scenarios")
    except NoCompiler as missing:
        pytest.skip(str(missing))
    return folder


@pytest.fixture(scope="session")
def standin_lib(standin_dir: Path) -> Path:
    """The folder that makes the NVML stand-in this machine's NVML when it is in ``LD_LIBRARY_PATH``."""
    return standin_dir / "lib"
