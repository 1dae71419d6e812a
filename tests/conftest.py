"""Fixtures that all tests share."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from textual._wait import wait_for_idle
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot

from gswarm_tui.store.querying.opening import attach
from gswarm_tui.store.recording import database
from tests.agent_pythons import VERSIONS, agent_pythons
from tests.bytecode import write_bytecode
from tests.cluster.standin import NoCompiler, build

os.environ["GSWARM_TUI_UNATTENDED"] = "0"  # no recorder is left when its test ends
UMASK = os.umask(0o022)
os.umask(UMASK)

ENDS_S = 15.0
"""Time in which a process that a test ended may take its leave."""
CACHE = ".pytest_cache/cache"
BETWEEN_KEYS_S = 0.005
NOT_ONLY_FAILED = 8
"""Exit status for skipped tests, which a second run of failed tests can't mend."""
IN_SECOND_CLUSTER = (
    "tests/cluster/test_gpus.py",
    "tests/cluster/test_profile.py",
    "tests/cluster/test_trial.py",
)
"""Tests that take as long as all others of the shared cluster together: two clusters run side by side."""
SLOWEST = (
    "cluster",
    "second cluster",
    "tests/cluster/test_faults.py",
    "tests/docs/test_docs.py",
    "tests/security/test_crashes.py",
    "tests/integration/test_web.py",
    "tests/integration/test_recover.py",
    "tests/integration/test_record.py",
    "tests/integration/test_attached.py",
    "tests/integration/test_attach.py",
    "tests/security/test_rogue_nodes.py",
    "tests/security/test_web_attacks.py",
    "tests/integration/test_jobs.py",
    "tests/integration/test_traces.py",
    "tests/integration/test_control.py",
    "tests/security/test_recover_consent.py",
    "tests/integration/test_counters.py",
    "tests/docs/test_skill.py",
    "tests/tui/test_look_back.py",
    "tests/integration/test_import.py",
    "tests/integration/test_profiles.py",
    "tests/security/test_hostile_nodes.py",
    "tests/tui/test_driver.py",
    "tests/integration/test_http_server.py",
    "tests/tui/test_replay.py",
    "tests/integration/test_plot.py",
    "tests/cluster/test_slurm_counters.py",
    "tests/integration/test_probes_processes.py",
    "tests/integration/test_probes_gpu.py",
    "tests/integration/test_launch_ssh.py",
    "tests/integration/test_web_api.py",
    "tests/tui/test_fleet.py",
    "tests/tui/test_sql.py",
    "tests/tui/test_app.py",
)
"""Groups of tests that take longest, those that compute beside those that wait."""

# How long an example takes says nothing on a busy machine. The long form is for an hour of one's own:
# pytest tests/unit tests/tui tests/integration -m hypothesis --hypothesis-profile=long
hypothesis.settings.register_profile("short", deadline=None, max_examples=30)
hypothesis.settings.register_profile("long", deadline=None, max_examples=20_000)
hypothesis.settings.load_profile("short")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--no-skips``, with which a skipped test is a failure, as in CI."""
    parser.addoption("--no-skips", action="store_true", help="fail when any test is skipped")


def pytest_report_header() -> str:
    """Name the interpreters that the agent's tests run under, and those that aren't installed."""
    tested = ", ".join(f"{version} ({path})" for version, path in agent_pythons().items())
    missing = ", ".join(version for version in VERSIONS if version not in agent_pythons())
    return f"agent tested with Python {tested}; not installed: {missing or 'none'}"


def pytest_configure(config: pytest.Config) -> None:
    """Register marks; prepare signals and bytecode for the hundreds of processes that tests start.

    What a script starts with ``&`` ignores Ctrl-C, and below ``nohup`` the end of a terminal; so would these
    processes.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    gc.disable()
    write_bytecode()
    if getattr(config.option, "numprocesses", None):
        _compile_tests()
    if hasattr(config.option, "loadscopereorder"):  # pytest-xdist would begin with the most tests
        config.option.loadscopereorder = False
    config.addinivalue_line("markers", "root(act): needs what only root can do")
    config.addinivalue_line("markers", "xdist_group(name): known without pytest-xdist too")


def _compile_tests() -> None:
    """Compile program and tests once in a fresh checkout: 5 s of CPU, which each process would need."""
    compiled = Path(cache_from_source(str(Path(__file__).with_name("unit") / "test.py"))).parent
    if any(compiled.glob("test_*.pyc")):
        return
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-n", "0"]
    halves = ("unit", "security", "docs"), ("integration", "tui", "cluster")
    running = [
        subprocess.Popen([*collect, *(f"tests/{folder}" for folder in half)], stdout=subprocess.DEVNULL)
        for half in halves
    ]
    for process in running:
        process.wait()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep the tests of one file, and all on the shared cluster, in one process, since they share fixtures.

    A test that needs root is skipped for others.
    """
    item.add_marker(pytest.mark.xdist_group(_group(item)))
    if (root := item.get_closest_marker("root")) is not None and os.geteuid() != 0:
        item.add_marker(pytest.mark.skip(reason=f"only root can {root.args[0]}"))


def _group(item: pytest.Item) -> str:
    path = item.nodeid.partition("::")[0]
    if "cluster" not in getattr(item, "fixturenames", ()):
        return path
    return "second cluster" if path in IN_SECOND_CLUSTER else "cluster"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start the slowest groups first in a run with several processes."""
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: SLOWEST.index(group) if (group := _group(item)) in SLOWEST else len(SLOWEST)
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take the group off a test's name, which pytest-xdist appends: ``--last-failed`` wouldn't find it."""
    if not hasattr(report, "node"):  # not a report that came from a worker
        return
    path = report.nodeid.partition("::")[0]
    for group in ("cluster", "second cluster", path):
        report.nodeid = report.nodeid.removesuffix(f"@{group}")


def pytest_collection_finish() -> None:
    """Search for garbage rarely and not among the collected tests: it took a third of some tests' time."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 100)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run for skipped tests, with ``--no-skips``."""
    gc.unfreeze()
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a worker of pytest-xdist
        return
    if session.config.getoption("--no-skips") and reporter.stats.get("skipped"):
        session.exitstatus = NOT_ONLY_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the agent's interpreters if its tests ran."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    if any("test_agent_pythons.py" in report.nodeid for report in reports):
        terminalreporter.write_line(pytest_report_header())  # a quiet run has no header


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Restore the umask, which commands that run inside a test change."""
    yield
    os.umask(UMASK)


@pytest.fixture(scope="session", autouse=True)
def private_folders(pytestconfig: pytest.Config) -> Iterator[None]:
    """Separate the heads and agents of a test from those that somebody runs on this machine.

    The path is short: that of a socket in it may have no more than 107 characters.
    """
    with tempfile.TemporaryDirectory(prefix="gswarm-run-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        patch.setenv("XDG_STATE_HOME", f"{folder}/state")
        patch.setenv("XDG_CACHE_HOME", str(pytestconfig.rootpath / CACHE))
        patch.setattr("gswarm_tui.control.registry.SHARED", f"{folder}/heads")
        yield


@pytest.fixture(scope="module", autouse=True)
def no_program_left(private_folders: None) -> Iterator[None]:
    """Fail after a file whose tests left a recorder or another process of gswarm-tui running.

    A variable of the environment marks them: a recorder isn't a child of the screen that started it.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GSWARM_TEST", mark)
        yield
    deadline = time.monotonic() + ENDS_S
    while (left := _started_programs(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"left running: {'; '.join(left.values())}"


def _started_programs(mark: str) -> dict[int, str]:
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words, variables = (
                (entry / name).read_text(errors="replace").split("\0") for name in ("cmdline", "environ")
            )
            is_ours = any(word == "gswarm_tui" or word.endswith("gswarm-tui") for word in words)
            if is_ours and f"GSWARM_TEST={mark}" in variables:
                found[int(entry.name)] = " ".join(words)
    return found


async def _briefly_idle(_min_s: float = 0, max_s: float = 1) -> None:
    began = time.monotonic()
    while time.monotonic() - began < max_s:
        used = time.process_time()
        await asyncio.sleep(BETWEEN_KEYS_S)
        if time.process_time() - used < BETWEEN_KEYS_S / 10:
            return


@pytest.fixture(scope="session", autouse=True)
def quick_keys() -> Iterator[None]:
    """Wait 20 ms for an idle process after ``Pilot.press``, where Textual does so twice after each key.

    Nothing is animated: a press would wait until a screen has scrolled.
    """
    press = Pilot.press

    async def press_quickly(pilot: Pilot[Any], *keys: str) -> None:
        await press(pilot, *keys)
        await wait_for_idle(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("textual.constants.TEXTUAL_ANIMATIONS", "none")
        patch.setattr("textual.app.wait_for_idle", _briefly_idle)
        patch.setattr(Pilot, "press", press_quickly)
        yield


@pytest.fixture(scope="session", autouse=True)
def parsed_styles() -> Iterator[None]:
    """Parse style sheets once for all apps of the same colours: it took a fifth of an app's start."""
    parse = Stylesheet._parse_rules
    parsed: dict[tuple[Any, ...], list[RuleSet]] = {}

    def parse_once(sheet: Stylesheet, *args: Any, **options: Any) -> list[RuleSet]:
        key = (*args, *options.items(), *sheet._variables.items())
        if key not in parsed:
            parsed[key] = parse(sheet, *args, **options)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def copied_schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Begin new recordings as copies of a file with all tables, views and comments.

    To create them takes 0.2 s for each of 700 recordings: it was a tenth of all tests' CPU time.
    """
    update_schema, describe = database._update_schema, database.Database.describe
    template = tmp_path_factory.mktemp("schema") / "template.duckdb"
    copied: set[Path] = set()

    def attach_copy(connection: Any, path: Path, options: str, *others: Path) -> None:
        copied.discard(path)
        if options:  # only a new file has options
            with suppress(OSError):  # DuckDB reports it, in the sentence that is tested
                copied.add(Path(shutil.copyfile(template, path)))
        attach(connection, path, "" if path in copied else options, *others)

    def use_copy(connection: Any, path: Path) -> None:
        if path in copied:
            connection.execute("USE rec")
        else:
            update_schema(connection, path)

    made = database.Database(template)
    made.describe()
    made.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "attach", attach_copy)
        patch.setattr(database, "_update_schema", use_copy)
        patch.setattr(database.Database, "describe", lambda made: made.path in copied or describe(made))
        yield


@pytest.fixture(scope="session")
def standin_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the NVML stand-in's folder: ``lib`` has the library, ``scenarios`` the files that it reads."""
    folder = tmp_path_factory.mktemp("standin")
    (folder / "scenarios").mkdir()
    try:
        build(folder / "lib", folder / "scenarios")
    except NoCompiler as missing:
        pytest.skip(str(missing))
    return folder


@pytest.fixture(scope="session")
def standin_lib(standin_dir: Path) -> Path:
    """Return the folder with the NVML stand-in, to be put into ``LD_LIBRARY_PATH``."""
    return standin_dir / "lib"
