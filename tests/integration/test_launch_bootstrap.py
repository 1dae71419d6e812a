"""The bootstrap starts the agent from every login shell and Python on this machine."""

from __future__ import annotations

import base64
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.wire import MAGIC, Start, Stop, encode
from gswarm_tui.launch.base import LaunchError, Retry, check_name, clean, last_line
from gswarm_tui.launch.bootstrap import MAX_NOISE, SHELL, Bootstrap, Greeting, greet
from gswarm_tui.launch.bundle import own_bundle
from gswarm_tui.launch.process import ProcessChannel
from tests.integration.agent_node import Node

SHELLS = [path for name in ("sh", "bash", "zsh", "tcsh", "fish") if (path := shutil.which(name)) is not None]
TOOLS = [
    "base64",
    "find",
    "gzip",
    "head",
    "id",
    "mkdir",
    "mktemp",
    "mv",
    "readlink",
    "rm",
    "sh",
    "sha256sum",
    "stat",
    "tar",
]
AWKWARD = 'it\'s "a" $HOME `id` \\n ! * ; & | < > ( ) é\n# end'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home folder for the shells."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return home


async def through(shell: str, bootstrap: Bootstrap) -> ProcessChannel:
    """Run the bootstrap's command line in the user's login shell, as sshd does."""
    channel = await ProcessChannel.start([shell, "-c", f"exec {SHELL}"])
    await greet(channel, bootstrap, ("stream", "--simulate", "{}"))
    return channel


async def failing(shell: str, bootstrap: Bootstrap) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        await through(shell, bootstrap)
    return caught.value


async def speaks(shell: str, bootstrap: Bootstrap) -> None:
    channel = await through(shell, bootstrap)
    try:
        assert (await channel.read()).startswith(MAGIC)
    finally:
        await channel.close()


def stand_in(path: Path, script: str) -> Path:
    """Write a shell script as a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def link_tools(folder: Path) -> None:
    """Fill a folder with every program that the bootstrap needs, and no Python."""
    folder.mkdir(exist_ok=True)
    for name in TOOLS:
        (folder / name).symlink_to(str(shutil.which(name)))


@pytest.mark.parametrize("shell", SHELLS)
async def test_any_login_shell_runs_the_bootstrap(shell: str) -> None:
    await speaks(shell, Bootstrap(agent_python="python3"))


@pytest.mark.parametrize("shell", SHELLS)
async def test_any_login_shell_runs_a_python_of_any_name(shell: str, tmp_path: Path) -> None:
    python = stand_in(tmp_path / "it's a `python` & $HOME", f'exec {sys.executable} "$@"')
    await speaks(shell, Bootstrap(agent_python=str(python)))


@pytest.mark.parametrize("shell", SHELLS)
async def test_any_login_shell_runs_a_setup_of_any_text(shell: str, home: Path) -> None:
    setup = f"cat > {home}/said <<'END'\n{AWKWARD}\nEND\n"
    await speaks(shell, Bootstrap(setup=setup))
    assert (home / "said").read_text() == AWKWARD + "\n"


async def test_a_python_whose_path_is_not_utf8_is_used(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"m\xfcller's \xc3\xa9")
    python = stand_in(folder / "python", f'exec {sys.executable} "$@"')
    await speaks("sh", Bootstrap(agent_python=str(python)))


async def test_a_setup_is_on_no_command_line(home: Path) -> None:
    setup = f"export PASSPHRASE=zq7zq7; cat /proc/[1-9]*/cmdline > {home}/seen 2>/dev/null; true"
    await speaks("sh", Bootstrap(setup=setup))
    seen = (home / "seen").read_bytes()
    assert b'GSWARM"-SETUP"' in seen, "its own shell was looked at"
    assert b"zq7zq7" not in seen
    assert base64.b64encode(setup.encode()) not in seen


async def test_ps_shows_plain_command_lines(home: Path, node: Node) -> None:
    bootstrap = Bootstrap(agent_python=sys.executable)
    options = ("--recording", "rec", "--node", "n1", "--folder", str(node.folder), "--simulate", "{}")
    channel = await ProcessChannel.start([SHELL])
    await greet(channel, bootstrap, ("attach", *options))
    try:
        channel.write(MAGIC + encode(Start(1000, 1)))
        server = node.pid
        folder = f"{home}/.cache/gswarm-tui/{own_bundle().name}/gswarm_agent"
        agent = [sys.executable, "-IS", f"{folder}/run.py", "attach", *options]
        assert command_line_of(server) == agent
        assert command_line_of(channel.pid) == [
            "sh", f"{folder}/run.sh", sys.executable, "attach", *options,
        ]  # fmt: skip
        (relay,) = Path(f"/proc/{channel.pid}/task/{channel.pid}/children").read_text().split()
        assert command_line_of(int(relay)) == agent
    finally:
        channel.write(encode(Stop()))
        await channel.close()


def command_line_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


async def test_a_setup_runs_in_a_login_shell_and_may_replace_python3(home: Path) -> None:
    stand_in(home / "module/python3", f'echo chosen >> {home}/chosen; exec {sys.executable} "$@"')
    (home / ".bash_profile").write_text(
        f"echo Welcome; module() {{ PATH={home}/module:$PATH; echo $1 $2; }}\n"
    )
    await speaks("sh", Bootstrap(setup="module load python"))
    # The head's own interpreter is there too and comes first, as long as nobody names another.
    await speaks("sh", Bootstrap(setup="module load python", agent_python="python3"))
    assert (home / "chosen").read_text() == "chosen\n"


@pytest.mark.parametrize(
    ("setup", "reason"),
    [
        ("false", "the setup failed with exit status 1"),
        ("echo out; echo 'no such module' >&2; false", "the setup failed with exit status 1: no such module"),
        ("exit 7", "the setup failed with exit status 7"),
        ("if then", "the setup failed with exit status "),
        ("set -e; false; true", "the setup failed with exit status 1"),
    ],
)
async def test_a_failing_setup_is_reported_with_its_status_and_last_line(setup: str, reason: str) -> None:
    error = await failing("sh", Bootstrap(setup=setup))
    assert error.reason.startswith(reason)
    assert (error.remedy, error.retry) == ("correct --setup", Retry.SLOWLY)


async def test_a_setup_that_leaves_no_channel_ends_without_an_agent() -> None:
    error = await failing("sh", Bootstrap(setup="exec 3>&-; exec 1>&-; kill -9 $$"))
    assert error.reason == "the agent was ended by SIGKILL"


async def test_a_node_without_python_gets_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    link_tools(tmp_path / "bin")
    monkeypatch.setattr(sys, "executable", "/not/there/python3")
    shell = str(shutil.which("sh"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    error = await failing(shell, Bootstrap())
    assert error.reason == "it has no working python3"
    assert "--agent-python" in error.remedy


async def test_a_python_that_is_too_old_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(tmp_path / "bin/python3", "echo GSWARM-OLD 3.6.8; exit 64")
    stand_in(tmp_path / "bin/python3.12", f'exec {sys.executable} "$@"')
    monkeypatch.setattr(sys, "executable", "/not/there/python3")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    await speaks("sh", Bootstrap())


async def test_the_version_is_reported_if_every_python_is_too_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link_tools(tmp_path / "bin")
    stand_in(tmp_path / "bin/python3", "echo GSWARM-OLD 3.6.8; exit 64")
    monkeypatch.setattr(sys, "executable", "/not/there/python3")
    shell = str(shutil.which("sh"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    error = await failing(shell, Bootstrap())
    assert error.reason == "its python3 is 3.6.8; 3.9 or later with _ctypes is needed"
    named = await failing(shell, Bootstrap(agent_python=str(tmp_path / "bin/python3")))
    assert named.reason == f"the Python {tmp_path}/bin/python3 is 3.6.8; 3.9 or later with _ctypes is needed"


async def test_a_python_without_ctypes_is_skipped_and_reported_if_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Python is without libffi's headers where it is built."""
    monkeypatch.setattr(sys, "executable", "/not/there/python3")
    code = tmp_path / "without.py"
    code.write_text(
        "import runpy, sys\n"
        "from importlib.machinery import PathFinder\n"
        "class Without:\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        return None if name == '_ctypes' else PathFinder.find_spec(name, path, target)\n"
        "sys.meta_path[sys.meta_path.index(PathFinder)] = Without\n"
        "del sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    python = Path(os.path.realpath(sys.base_prefix)) / "bin/python3"
    stand_in(tmp_path / "bin/python3", f'shift; exec {python} -IS {code} "$@"')
    link_tools(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    shell, version = str(shutil.which("sh")), ".".join(map(str, sys.version_info[:3]))
    error = await failing(shell, Bootstrap())
    assert error.reason == f"its python3 is {version} without _ctypes; 3.9 or later with _ctypes is needed"
    assert "--agent-python" in error.remedy
    stand_in(tmp_path / "bin/python3.12", f'exec {python} "$@"')
    await speaks(shell, Bootstrap())


async def test_a_python_that_does_not_start_on_the_node_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = f"touch {tmp_path}/tried; echo 'libpython3.11.so: cannot open' >&2; exit 127"
    broken = stand_in(tmp_path / "env/bin/python3.11", script)
    (tmp_path / "env/lib/python3.11/lib-dynload").mkdir(parents=True)
    (tmp_path / "env/lib/python3.11/os.py").touch()
    monkeypatch.setattr(sys, "executable", str(broken))
    await speaks("sh", Bootstrap())
    assert (tmp_path / "tried").exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "[ $1 = -c ] && { echo 2.7.18; exit; }; echo 'Unknown option: -I' >&2; exit 2",
            "the Python PYTHON is 2.7.18; 3.9 or later with _ctypes is needed",
        ),
        (
            "printf 'perl:\\nsyntax error at run.py line 1\\n' >&2; exit 255",
            "PYTHON can't be run as Python 3.9 or later: syntax error at run.py line 1",
        ),
        (
            "printf 'Traceback:\\nImportError: no \\033[31mzlib\\n' >&2; exit 1",
            "PYTHON can't be run as Python 3.9 or later: ImportError: no [31mzlib",
        ),
    ],
)
async def test_an_agent_python_that_is_none_is_reported_with_a_remedy(
    tmp_path: Path, script: str, reason: str
) -> None:
    python = stand_in(tmp_path / "python", script)
    error = await failing("sh", Bootstrap(agent_python=str(python)))
    assert error.reason == reason.replace("PYTHON", str(python))
    assert error.remedy == "correct --agent-python"


async def test_an_early_crash_of_the_agent_is_reported_by_its_last_line(tmp_path: Path) -> None:
    script = f"""[ $1 != -c ] || exec {sys.executable} "$@"; echo 'OSError: no space' >&2; exit 1"""
    crash = stand_in(tmp_path / "python", script)
    error = await failing("sh", Bootstrap(agent_python=str(crash)))
    assert error.reason == "the agent ended with exit status 1: OSError: no space"


async def test_an_account_that_only_prints_is_reported(tmp_path: Path) -> None:
    flood = stand_in(tmp_path / "python", "while :; do echo You may not do this here.; done")
    error = await failing("sh", Bootstrap(agent_python=str(flood)))
    assert error.reason.startswith("no agent answered, only other output: ")


NEED = b"GSWARM-NEED " + own_bundle().name.encode() + b"\n"


@given(data=st.data(), noise=st.binary(max_size=50).filter(lambda b: b"GSWARM" not in b and b"\0" not in b))
def test_a_greeting_is_understood_in_pieces_of_any_size(data: st.DataObject, noise: bytes) -> None:
    stream = noise + b"\nGSWARM-OLD 3.6.8\n" + noise + NEED + MAGIC + b"frames"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    greeting = Greeting(own_bundle())
    answer = b"".join(
        greeting.feed(stream[a:b]) for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    )
    rest = greeting.wire or b""
    assert answer == own_bundle().payload
    assert greeting.old_version == "3.6.8"
    assert rest == MAGIC + b"frames" or (MAGIC + b"frames").startswith(rest)


def test_bytes_after_the_magic_are_the_wires() -> None:
    greeting = Greeting(own_bundle())
    assert greeting.feed(MAGIC + NEED) == b""
    assert greeting.wire == MAGIC + NEED


@given(st.binary(max_size=300))
def test_noise_is_never_mistaken_for_an_agent(noise: bytes) -> None:
    greeting = Greeting(own_bundle())
    greeting.feed(noise)
    assert greeting.wire is None or MAGIC in noise


@pytest.mark.parametrize("noise", [b"no\n", b"GSWARM-OLD 3.6.8\n", NEED, b"GSWARM-SETUP\n"])
def test_endless_noise_is_a_failure(noise: bytes) -> None:
    greeting = Greeting(own_bundle())
    greeting.feed(noise * (MAX_NOISE // len(noise) + 2))
    assert greeting.failure is not None
    assert greeting.failure[0] == "noise"


def test_a_node_gets_the_setup_once_and_the_bundle_twice_however_often_it_requests_them() -> None:
    greeting = Greeting(own_bundle(), "true")
    reply = greeting.feed((NEED + b"GSWARM-SETUP\n") * 500)
    assert reply == own_bundle().payload + base64.b64encode(b"true") + b"\n" + own_bundle().payload


@given(st.text(), st.integers(2, 50))
def test_cleaned_text_is_one_short_line_that_moves_no_cursor(text: str, longest: int) -> None:
    cleaned = clean(text, longest)
    assert len(cleaned) <= longest
    assert cleaned.isprintable()


def test_last_line_that_is_not_empty_is_found() -> None:
    assert last_line(b"first\nTimeoutError: \x1b[1mlate\xff\n \n\x07\n") == "TimeoutError: [1mlate\ufffd"
    assert last_line(b"") == ""


@pytest.mark.parametrize("name", ["gpu01", "gpu-01.cluster_a", "10.0.0.1", "fe80::1", "_a"])
def test_host_names_are_accepted_as_node_names(name: str) -> None:
    check_name(name)
