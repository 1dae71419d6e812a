"""Zero install: what travels to a node, and what stage 0 does with it there."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gswarm_agent.wire import MAGIC
from gswarm_tui.launch.bundle import Bundle, is_open_to_all, own_bundle, own_folders, own_python

STAGE0 = own_bundle().files["gswarm_agent/stage0.py"].decode()


def pythons() -> list[str]:
    """This Python, and the oldest that the agent has to run on where it is installed."""
    found = [sys.executable, shutil.which("python3.9")]
    return [
        path
        for path in found
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
    ]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "home/.cache"


def start(
    cache: Path,
    *,
    python: str = "",
    bundle: Bundle | None = None,
    folders: Sequence[str] = (),
    **environment: str,
) -> subprocess.CompletedProcess[bytes]:
    """Run stage 0 as on a node: what it says, when the head has the payload ready and then goes away."""
    bundle = bundle or own_bundle()
    tmp = cache.parents[1]
    assert STAGE0.count('"/tmp/') == 1
    return subprocess.run(
        [
            python or sys.executable,
            "-IS",
            "-c",
            STAGE0.replace('"/tmp/', f'"{tmp}/'),
            bundle.bundle_id,
            bundle.package_id,
            "\0".join(folders).encode().hex(),
            "stream",
            "--simulate",
            "{}",
        ],
        input=bundle.payload,
        env={"HOME": str(cache.parent), "PATH": os.environ["PATH"], **environment},
        capture_output=True,
        check=False,
    )


def need(bundle: Bundle | None = None) -> bytes:
    return b"GSWARM-NEED " + (bundle or own_bundle()).bundle_id.encode() + b"\n"


def folder_of(cache: Path) -> Path:
    (folder,) = (cache / "gswarm-tui").iterdir()
    return folder


def test_the_manifest_names_every_file_by_its_hash() -> None:
    bundle = own_bundle()
    lines = [line.split(" ", 2) for line in bundle.manifest.decode().splitlines()]
    assert {name: (hashed, int(size)) for hashed, size, name in lines} == {
        name: (hashlib.sha256(data).hexdigest(), len(data)) for name, data in bundle.files.items()
    }
    assert hashlib.sha256(bundle.manifest).hexdigest() == bundle.bundle_id


def test_what_travels_is_the_agent_and_two_modules_all_of_it_python() -> None:
    names = set(own_bundle().files)
    assert {name.split("/")[0] for name in names} == {"gswarm_agent", "msgpack", "pynvml.py"}
    assert all(name.endswith(".py") for name in names)
    assert "gswarm_agent/probes/node.py" in names
    assert len(own_bundle().payload) < 256 * 1024


def test_another_content_is_another_bundle() -> None:
    own = own_bundle()
    other = Bundle({**own.files, "pynvml.py": own.files["pynvml.py"] + b"#"})
    assert other.bundle_id != own.bundle_id
    assert other.package_id == own.package_id
    changed = Bundle({**own.files, "gswarm_agent/wire.py": b""})
    assert changed.package_id != own.package_id


def test_the_first_start_asks_for_the_bundle_and_the_second_does_not(cache: Path) -> None:
    first, second = start(cache), start(cache)
    assert first.stdout.startswith(need() + MAGIC)
    assert second.stdout.startswith(MAGIC)
    assert first.returncode == second.returncode == 0
    folder = folder_of(cache)
    assert folder.name == f"agent-{own_bundle().bundle_id[:16]}"
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent)} == {0o700}
    assert {(folder / name).stat().st_mode & 0o777 for name in own_bundle().files} == {0o600}
    assert list((folder / "gswarm_agent/__pycache__").glob("wire.*.pyc")), "a second start should be quicker"


@pytest.mark.parametrize("harm", ["truncated", "gone", "changed", "manifest"])
def test_a_copy_that_is_not_whole_is_replaced(cache: Path, harm: str) -> None:
    start(cache)
    folder = folder_of(cache)
    victim = folder / ("MANIFEST" if harm == "manifest" else "gswarm_agent/wire.py")
    whole = victim.read_bytes()
    if harm == "gone":
        victim.unlink()
    else:
        victim.write_bytes(whole[: len(whole) // 2] if harm != "changed" else whole[:-1] + b"#")
    assert start(cache).stdout.startswith(need() + MAGIC)
    assert victim.read_bytes() == whole
    assert not [path for path in folder.rglob("*") if path.name.startswith("wire.py.")]


def test_nodes_that_share_a_home_start_at_the_same_moment(cache: Path) -> None:
    with ThreadPoolExecutor(6) as nodes:
        said = [node.stdout for node in nodes.map(lambda _: start(cache), range(6))]
    assert all(MAGIC in words for words in said)
    assert start(cache).stdout.startswith(MAGIC)


def test_an_environment_of_the_same_content_is_used_as_it_is(cache: Path, tmp_path: Path) -> None:
    shared = tmp_path / "environment"
    for name, data in own_bundle().files.items():
        (shared / name).parent.mkdir(parents=True, exist_ok=True)
        (shared / name).write_bytes(data)
    said = start(cache, folders=[str(shared)])
    assert said.stdout.startswith(MAGIC)
    assert not cache.exists()


def test_nothing_is_run_from_where_another_user_of_a_node_may_have_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head in its machine's /tmp may meet somebody else's files at the same path on a node."""
    scratch = tmp_path / "scratch"
    (scratch / "env/bin").mkdir(parents=True)
    scratch.chmod(0o1777)
    python = scratch / "env/bin/python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr("gswarm_tui.launch.bundle._folder_of", lambda _: scratch / "env")
    assert own_folders.__wrapped__() == ()
    assert own_python() == ""
    assert not is_open_to_all(Path("/usr/bin/python3"))


@pytest.mark.parametrize("lack", ["another agent", "no msgpack", "nothing"])
def test_an_environment_that_is_another_there_is_not_used(cache: Path, tmp_path: Path, lack: str) -> None:
    other = tmp_path / "other environment"
    for name, data in own_bundle().files.items():
        if lack != "nothing" and not (lack == "no msgpack" and name.startswith("msgpack/")):
            (other / name).parent.mkdir(parents=True, exist_ok=True)
            (other / name).write_bytes(data)
    if lack == "another agent":
        (other / "gswarm_agent/wire.py").write_text("raise SystemExit('evil')")
    assert start(cache, folders=[str(other)]).stdout.startswith(need() + MAGIC)


def test_the_users_own_cache_folder_is_respected(cache: Path, tmp_path: Path) -> None:
    start(cache, XDG_CACHE_HOME=str(tmp_path / "else where"))
    assert (tmp_path / "else where/gswarm-tui").is_dir()
    assert not cache.exists()


@pytest.fixture
def fallback(cache: Path) -> Path:
    """The folder that is used when the home can't be."""
    return cache.parents[1] / f"gswarm-tui-{os.geteuid()}"


@pytest.mark.parametrize("trouble", ["a file", "open to others", "a link"])
def test_a_cache_that_cannot_be_trusted_is_passed_over(cache: Path, fallback: Path, trouble: str) -> None:
    cache.mkdir(parents=True)
    ours = cache / "gswarm-tui"
    if trouble == "a file":
        ours.write_text("")
    elif trouble == "open to others":
        ours.mkdir()
        ours.chmod(0o777)
    else:
        (cache / "elsewhere").mkdir()
        ours.symlink_to(cache / "elsewhere")
    assert start(cache).stdout.startswith(need() + MAGIC)
    assert fallback.stat().st_mode & 0o777 == 0o700
    assert not list(cache.rglob("agent-*"))


def test_no_place_at_all_is_told_with_both_reasons(cache: Path, fallback: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "gswarm-tui").write_text("")
    fallback.symlink_to(cache)
    said = start(cache)
    assert said.returncode == 3
    assert said.stdout.decode() == (
        f"GSWARM-FAIL cache {cache}/gswarm-tui: not a private folder of this user; "
        f"{fallback}: not a private folder of this user\n"
    )


@pytest.mark.parametrize("harm", ["a file", "the manifest"])
def test_a_payload_that_does_not_fit_its_id_is_never_run(cache: Path, harm: str) -> None:
    own = own_bundle()
    name = "gswarm_agent/__main__.py"
    other = Bundle({**own.files, name: b"print('evil')" + b" " * (len(own.files[name]) - 13)})
    packed = zlib.compress(
        (own if harm == "a file" else other).manifest
        + b"\0"
        + b"".join(other.files[n] for n in sorted(other.files))
    )
    damaged = replace(own)
    damaged.__dict__["payload"] = len(packed).to_bytes(8, "big") + packed
    said = start(cache, bundle=damaged)
    assert said.returncode == 3
    assert said.stdout.startswith(need() + b"GSWARM-FAIL payload ")
    assert b"evil" not in said.stdout


def test_a_head_that_goes_away_in_the_middle_leaves_nothing_half_written(cache: Path) -> None:
    own = own_bundle()
    cut = replace(own)
    cut.__dict__["payload"] = own.payload[: len(own.payload) // 2]
    assert start(cache, bundle=cut).stdout == need()
    assert not list(cache.rglob("*.py"))


def test_a_python_that_is_too_old_says_its_version_and_nothing_else(cache: Path) -> None:
    old = STAGE0.replace("import sys\n", "import sys\nsys.version_info = (3, 6, 8, 'final', 0)\n", 1)
    said = subprocess.run([sys.executable, "-IS", "-c", old, "x", "y"], capture_output=True, check=False)
    assert (said.stdout, said.returncode) == (b"GSWARM-OLD 3.6.8\n", 64)


@pytest.mark.parametrize("python", pythons())
def test_every_python_runs_what_travels(cache: Path, python: str) -> None:
    assert start(cache, python=python).stdout.startswith(need() + MAGIC)


def test_stage_0_can_be_read_by_the_first_pythons_3() -> None:
    ast.parse(STAGE0, feature_version=(3, 4))
    assert len(STAGE0.encode().hex()) < 16 * 1024
