"""Installation of the agent on a node: its bundle, and how the bootstrap unpacks and starts it."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gswarm_agent.wire import MAGIC
from gswarm_tui.launch.bootstrap import Bootstrap
from gswarm_tui.launch.bundle import Bundle, own_bundle


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "home/.cache"


def start(
    cache: Path, *, bundle: Bundle | None = None, times: int = 2, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the bootstrap as on a node; the head sends the payload this many times, then disconnects."""
    bundle = bundle or own_bundle()
    script = Bootstrap(agent_python=sys.executable).script("stream", "--simulate", "{}").decode()
    assert script.count("=/tmp/") == 1
    return subprocess.run(
        ["sh", "-c", script.replace("=/tmp/", f"={cache.parents[1]}/")],
        input=bundle.payload * times,
        env={"HOME": str(cache.parent), "PATH": os.environ["PATH"], **environment},
        capture_output=True,
        check=False,
    )


BEGIN = b"GSWARM-FOUND\n" + MAGIC


def need() -> bytes:
    return b"GSWARM-NEED " + own_bundle().name.encode() + b"\n"


def folder_of(cache: Path) -> Path:
    (folder,) = (cache / "gswarm-tui").iterdir()
    return folder


def test_sha256sum_accepts_the_manifest(tmp_path: Path) -> None:
    bundle = own_bundle()
    for name, data in bundle.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    check = ["sha256sum", "--check", "--strict", "--quiet"]
    assert subprocess.run(check, input=bundle.manifest, cwd=tmp_path, check=False).returncode == 0
    assert hashlib.sha256(bundle.manifest).hexdigest() == bundle.manifest_hash
    assert bundle.name == f"agent-{bundle.manifest_hash[:16]}"


def test_the_bundle_holds_the_agent_and_two_modules_without_compiled_code() -> None:
    names = set(own_bundle().files)
    assert {name.split("/")[0] for name in names} == {"gswarm_agent", "msgpack", "pynvml.py"}
    assert {Path(name).suffix for name in names} == {".py", ".sh"}
    assert "gswarm_agent/probes/node.py" in names
    assert len(own_bundle().payload) < 256 * 1024


def test_the_first_start_requests_the_bundle_and_the_second_does_not(cache: Path) -> None:
    first, second = start(cache), start(cache)
    assert first.stdout.startswith(need() + BEGIN)
    assert second.stdout.startswith(BEGIN)
    assert first.returncode == second.returncode == 0
    folder = folder_of(cache)
    assert folder.name == own_bundle().name
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent)} == {0o700}
    assert {(folder / name).stat().st_mode & 0o777 for name in own_bundle().files} == {0o600}
    assert list((folder / "gswarm_agent/__pycache__").glob("wire.*.pyc")), "a second start should be quicker"


@pytest.mark.parametrize("harm", ["truncated", "gone", "changed", "manifest"])
def test_an_incomplete_copy_is_replaced(cache: Path, harm: str) -> None:
    start(cache)
    folder = folder_of(cache)
    victim = folder / ("MANIFEST" if harm == "manifest" else "gswarm_agent/wire.py")
    whole = victim.read_bytes()
    if harm == "gone":
        victim.unlink()
    else:
        victim.write_bytes(whole[: len(whole) // 2] if harm != "changed" else whole[:-1] + b"#")
    assert start(cache).stdout.startswith(need() + BEGIN)
    assert victim.read_bytes() == whole
    assert list(folder.parent.iterdir()) == [folder]


def test_nodes_that_share_a_home_may_start_at_the_same_moment(cache: Path) -> None:
    with ThreadPoolExecutor(6) as nodes:
        outputs = [node.stdout for node in nodes.map(lambda _: start(cache), range(6))]
    assert all(MAGIC in output for output in outputs)
    assert list((cache / "gswarm-tui").iterdir()) == [folder_of(cache)]
    assert start(cache).stdout.startswith(BEGIN)


@pytest.fixture
def fallback(cache: Path) -> Path:
    """Return the folder that is used if the home folder can't be."""
    return cache.parents[1] / f"gswarm-tui-{os.geteuid()}"


@pytest.mark.parametrize("trouble", ["a file", "open to others", "a link"])
def test_a_cache_that_is_not_private_is_skipped(cache: Path, fallback: Path, trouble: str) -> None:
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
    assert start(cache).stdout.startswith(need() + BEGIN)
    assert fallback.stat().st_mode & 0o777 == 0o700
    assert not list(cache.rglob("agent-*"))


@pytest.mark.parametrize("how", ["directly", "by a link"])
def test_cache_below_a_folder_of_others_is_skipped(
    cache: Path, fallback: Path, tmp_path: Path, how: str
) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "mine").mkdir(parents=True)
    (tmp_path / "link").symlink_to(scratch)
    chosen = (scratch if how == "directly" else tmp_path / "link") / "mine"
    start(cache, XDG_CACHE_HOME=str(chosen))
    assert len(list(chosen.glob("gswarm-tui/agent-*"))) == 1
    scratch.chmod(0o777)
    assert start(cache, XDG_CACHE_HOME=str(chosen)).stdout.startswith(need() + BEGIN)
    assert len(list(fallback.glob("agent-*"))) == 1


def test_without_any_private_folder_the_bootstrap_reports_both(cache: Path, fallback: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "gswarm-tui").write_text("")
    fallback.symlink_to(cache)
    done = start(cache)
    assert done.returncode == 3
    assert done.stdout.decode() == f"GSWARM-FAIL cache {cache}/gswarm-tui or {fallback}\n"


@pytest.mark.parametrize("tool", ["sha256sum", "tar", "gzip", "head", "stat", "mktemp", "readlink"])
def test_a_missing_program_is_named_before_the_bundle_is_requested(cache: Path, tool: str) -> None:
    programs = cache.parents[1] / "bin"
    programs.mkdir(parents=True)
    for name in {"sh", "sha256sum", "tar", "gzip", "head", "stat", "mktemp", "mkdir", "readlink"} - {tool}:
        (programs / name).symlink_to(str(shutil.which(name)))
    done = start(cache, PATH=str(programs))
    assert done.returncode == 3
    assert done.stdout.decode() == f"GSWARM-FAIL tool {tool}\n"
    error = Bootstrap().explain("tool", tool, b"", "")
    assert str(error) == f"it lacks the program {tool}"


@pytest.mark.parametrize("harm", ["a file", "the manifest"])
def test_a_payload_that_does_not_fit_its_id_is_never_run(cache: Path, harm: str) -> None:
    own = own_bundle()
    other = Bundle({**own.files, "gswarm_agent/run.py": b"print('evil')"})
    if harm == "a file":
        other.__dict__["manifest"] = own.manifest
    done = start(cache, bundle=other)
    assert done.returncode == 3
    assert done.stdout == need() + b"GSWARM-FAIL payload\n"
    assert not list(cache.rglob("*.py"))


def test_a_python_that_is_too_old_reports_its_version_and_nothing_else(tmp_path: Path) -> None:
    text = own_bundle().files["gswarm_agent/run.py"].decode()
    old = text.replace("import sys\n", "import sys\nsys.version_info = (3, 6, 8, 'final', 0)\n", 1)
    (tmp_path / "run.py").write_text(old)
    done = subprocess.run([sys.executable, "-IS", tmp_path / "run.py"], capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"GSWARM-OLD 3.6.8\n", 64)


def test_any_python_3_can_read_the_file_that_checks_its_version() -> None:
    ast.parse(own_bundle().files["gswarm_agent/run.py"], feature_version=(3, 4))
