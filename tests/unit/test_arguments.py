"""Command line: options, errors and help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.cli import main
from gswarm_tui.common.colours import THEME_NAMES
from gswarm_tui.common.errors import UserError
from gswarm_tui.options.arguments import SETTINGS, Options, parse
from gswarm_tui.options.command_table import COMMAND_NAMES
from gswarm_tui.options.values import DemoSize

HEAVY = ("textual", "rich", "duckdb", "asyncssh", "asyncio", "logging", "numpy", "ClusterShell", "msgpack")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home folder, which is also the current folder, without Slurm and settings."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "GSWARM_TUI_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options(*words: str, **environ: str) -> Options:
    return parse(words, environ)


def refusal(*words: str, **environ: str) -> str:
    with pytest.raises(UserError) as caught:
        parse(words, environ)
    return str(caught.value)


def settings(home: Path, text: str) -> Path:
    path = home / ".config" / "gswarm-tui" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_every_flag_sets_its_option(home: Path) -> None:
    (home / "sshconfig").touch()
    line = (
        "--nodes a b --job 4711_3 --interval 500ms --db run.duckdb --launcher ssh --user me --jump u@login:22"
    )
    more = (
        "--metrics",
        "pcie",
        "--ssh-config",
        "~/sshconfig",
        "--setup",
        "module load cuda/12.4",
        "--agent-python",
        "/opt/python3",
        "--linger",
        "2d",
        "--spool-mib",
        "512",
        "--query-memory",
        "2GiB",
    )
    found = options(*line.split(), *more, "--theme", "light", "--metric", "power", "--nodes", "c,d")
    assert found == Options(
        nodes=("a", "b", "c,d"),
        hostfile=None,
        job="4711_3",
        demo=None,
        interval_ms=500,
        metrics=("core", "pcie"),
        record=True,
        db=Path("run.duckdb"),
        launcher="ssh",
        user="me",
        ssh_config=home / "sshconfig",
        jump="u@login:22",
        setup="module load cuda/12.4",
        agent_python="/opt/python3",
        linger_s=172_800,
        spool_mib=512,
        arm=False,
        query_memory=2 * 1024**3,
        theme="light",
        metric="power_w",
    )


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("30m", 1800), ("24h", 86_400), ("1 d", 86_400)])
def test_linger_is_read_in_seconds_minutes_hours_and_days(text: str, seconds: int) -> None:
    assert options("--linger", text).linger_s == seconds


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--linger soon", '--linger: "soon" isn\'t a time such as 30m, 24h or 2d.'),
        ("--linger -1h", '--linger: "-1h" isn\'t a time such as 30m, 24h or 2d.'),
        ("--linger 1y", '--linger: "1y" isn\'t a time such as 30m, 24h or 2d.'),
        ("--linger", "--linger: expected one argument."),
        ("--linger 0", '--linger: "0" isn\'t between 1 s and 30 d.'),
        ("--linger 31d", '--linger: "31d" isn\'t between 1 s and 30 d.'),
        (
            "--metrics nvlinks",
            '--metrics: "nvlinks" isn\'t a group of metrics; perhaps you meant nvlink.',
        ),
        (
            "--query-memory 2",
            '--query-memory: "2" isn\'t a size from 64MiB to 1024GiB, such as 512MiB or 2GiB.',
        ),
        (
            "--query-memory 8MiB",
            '--query-memory: "8MiB" isn\'t a size from 64MiB to 1024GiB, such as 512MiB or 2GiB.',
        ),
        ("--spool-mib 0.5", '--spool-mib: "0.5" isn\'t a whole number of MiB from 1 to 1,048,576.'),
        ("--spool-mib 0", '--spool-mib: "0" isn\'t a whole number of MiB from 1 to 1,048,576.'),
    ],
)
def test_invalid_linger_and_spool_sizes_are_refused(words: str, said: str) -> None:
    assert refusal(*words.split()) == said


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("1", 1000), ("0.5s", 500), ("500ms", 500), ("60", 60_000), (".1", 100), ("100ms", 100), ("2 s", 2000)],
)
def test_interval_is_read_in_seconds_and_milliseconds(text: str, milliseconds: int) -> None:
    assert options("--interval", text).interval_ms == milliseconds


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["--demo"], (4, 8)),
        (["--demo", "64x8"], (64, 8)),
        (["--demo=1X1"], (1, 1)),
        (["--demo", "2×4"], (2, 4)),
    ],
)
def test_demo_size_is_nodes_times_gpus(words: list[str], size: tuple[int, int]) -> None:
    assert options(*words).demo == DemoSize(*size)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--nods a", 'unknown option "--nods"; perhaps you meant --nodes.'),
        ("--intervall=2", 'unknown option "--intervall"; perhaps you meant --interval.'),
        ("--xyzzy", 'unknown option "--xyzzy"; see --help.'),
        ("--inter 1", 'unknown option "--inter"; perhaps you meant --interval.'),
        ("--lisst 1", 'unknown option "--lisst"; see --help.'),
        ("gpu01", 'unexpected argument "gpu01"; name nodes with --nodes, or see the commands in --help.'),
        ("gp1 --help", 'unexpected argument "gp1"; name nodes with --nodes, or see the commands in --help.'),
        ("summry", 'unexpected argument "summry"; perhaps you meant summary.'),
        ("summry --help", 'unexpected argument "summry"; perhaps you meant summary.'),
        ("reply run.duckdb", 'unexpected argument "reply"; perhaps you meant replay.'),
        (
            "run.duckdb",
            'unexpected argument "run.duckdb"; name the recording with --db, or use gswarm-tui replay.',
        ),
        ("--db", "--db: expected one argument."),
        ("--record=5", "--record/--no-record: ignored explicit argument '5'."),
        ("--interval -1s", '--interval: "-1s" isn\'t a time such as 1, 0.5s or 500ms.'),
        ("--interval 0.05", '--interval: "0.05" isn\'t between 0.1 s and 60 s.'),
        ("--interval 1h", '--interval: "1h" isn\'t between 0.1 s and 60 s.'),
        ("--interval nan", '--interval: "nan" isn\'t a time such as 1, 0.5s or 500ms.'),
        ("--demo 4", '--demo: "4" isn\'t NODESxGPUS from 1x1 to 1024x16, such as 4x8.'),
        ("--demo -1x2", '--demo: "-1x2" isn\'t NODESxGPUS from 1x1 to 1024x16, such as 4x8.'),
        ("--demo 0x8", '--demo: "0x8" isn\'t NODESxGPUS from 1x1 to 1024x16, such as 4x8.'),
        ("--demo 4x17", '--demo: "4x17" isn\'t NODESxGPUS from 1x1 to 1024x16, such as 4x8.'),
        ("--job abc", '--job: "abc" isn\'t a job number, such as 4711 or 4711_3.'),
        ("--launcher shh", '--launcher: "shh" isn\'t a launcher; perhaps you meant ssh.'),
        ("--metric uitl", '--metric: "uitl" isn\'t a GPU metric; perhaps you meant util.'),
        ("--theme nope", f'--theme: "nope" isn\'t a theme; use one of {", ".join(THEME_NAMES)}.'),
        ("--theme lihgt", '--theme: "lihgt" isn\'t a theme; perhaps you meant light.'),
        ("--user=-l", '--user: "-l" starts with a dash, or contains a space or control character.'),
        (
            "--jump a\nb",
            '--jump: "a\\nb" starts with a dash, or contains a space or control character.',
        ),
        ("--setup=", "--setup: must not be empty."),
        ("--db .", '--db: "." is a folder; name a file in it.'),
        ("--db none/x.db", '--db: there is no folder "none".'),
        ("--ssh-config none", '--ssh-config: there is no file "none".'),
        ("--config none", '--config: there is no file "none".'),
        ("--db ~nobody-here/x", '--db: "~nobody-here/x" names a user without a home folder.'),
        ("--demo --nodes a", "--demo simulates its nodes; remove --nodes."),
        ("--demo --job 1", "--demo simulates its nodes; remove --job."),
        ("--demo --launcher srun", "--demo simulates its nodes; remove --launcher."),
        ("--db x --no-record", "--db names a recording, but --no-record makes none; remove one of them."),
        (
            "--launcher local --nodes a",
            "--launcher local monitors only this machine; remove --nodes, or use --launcher ssh.",
        ),
    ],
)
def test_invalid_command_line_gets_one_sentence(words: str, sentence: str) -> None:
    assert refusal(*words.split(" ")) == sentence


@given(st.lists(st.text(max_size=12), max_size=4))
def test_any_arguments_are_parsed_or_refused_with_a_printable_sentence(words: list[str]) -> None:
    said = ""
    try:
        parse(["--nodes=a", *(word for word in words if word not in {"-h", "--help"})], {})
    except UserError as error:
        said = str(error)
    assert not said or (said.isprintable() and said.endswith("."))


def test_flags_override_environment_and_environment_overrides_config_file(home: Path) -> None:
    settings(home, 'interval = 2\nmetric = "temp"\ntheme = "light"\nrecord = false\n')
    environ = {"GSWARM_TUI_INTERVAL": "3", "GSWARM_TUI_METRIC": "power_w", "GSWARM_TUI_THEME": ""}
    found = options("--interval", "4", **environ)
    assert (found.interval_ms, found.metric, found.theme, found.record) == (4000, "power_w", "light", False)


def test_config_flag_and_variable_name_another_config_file(home: Path) -> None:
    settings(home, "interval = 2\n")
    other = home / "other.toml"
    other.write_text('interval = "250ms"\nrecord = true\nsetup = """\nmodule purge\nmodule load cuda\n"""\n')
    for found in (options("--config", "other.toml"), options(GSWARM_TUI_CONFIG=str(other))):
        assert (found.interval_ms, found.setup) == (250, "module purge\nmodule load cuda\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("interval = true", ": interval must be text or a number."),
        ("interval = 0", ': interval: "0" isn\'t between 0.1 s and 60 s.'),
        ('record = "maybe"', ': record: must be true or false, not "maybe".'),
        ("theme = {a = 1}", ": theme must be text or a number."),
    ],
)
def test_invalid_setting_names_its_config_file(home: Path, text: str, said: str) -> None:
    path = settings(home, text)
    assert refusal() == f"{path}{said}"


def test_invalid_variable_is_named() -> None:
    assert refusal(GSWARM_TUI_SSH_CONFIG="none") == 'GSWARM_TUI_SSH_CONFIG: there is no file "none".'


def test_db_flag_overrides_record_false_of_the_config_file(home: Path) -> None:
    settings(home, 'record = false\ndb = "always.duckdb"')
    assert (options().record, options().db) == (False, None)
    assert (options("--db", "x").record, options("--db", "x").db) == (True, Path("x"))
    assert options("--record").db == Path("always.duckdb")


def test_every_setting_of_the_config_file_is_an_option() -> None:
    fields = {re.sub("_m?s$", "", name) for name in Options._fields}
    assert set(SETTINGS) == fields - {"nodes", "hostfile", "job", "demo", "new", "server", "allocation"}


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_a_full_disk_refuses_gets_one_sentence(unbuffered: str) -> None:
    command = [sys.executable, "-m", "gswarm_tui", "completion", "bash"]
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, env=environ, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    problem = "gswarm-tui: the output can't be written: No space left on device.\n"
    assert (done.returncode, done.stderr) == (1, problem)


def test_reader_that_ends_first_gets_no_traceback() -> None:
    command = [sys.executable, "-m", "gswarm_tui", "completion", "bash"]
    environ = {**os.environ, "PYTHONUNBUFFERED": ""}
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(command, env=environ, stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["--nodes", "a", "--nods"]])
def test_command_line_is_parsed_without_heavy_imports(words: list[str]) -> None:
    script = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print('loaded', *set(sys.modules) & set({HEAVY!r})))\n"
        "from gswarm_tui.cli import main\n"
        f"main({words!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded"


def test_screens_are_imported_without_duckdb_and_asyncssh() -> None:
    script = (
        "import sys, gswarm_tui.tui.app, gswarm_tui.run.screen\n"
        "print('loaded', *set(sys.modules) & {'duckdb', 'asyncssh', 'matplotlib'})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "loaded\n"


@pytest.mark.parametrize(
    ("words", "arenas"),
    [(["recover"], "narenas:1"), (["summary", "no such session"], "")],
)
def test_only_long_running_heads_make_duckdb_return_memory(
    words: list[str], arenas: str, tmp_path: Path
) -> None:
    """DuckDB reads the setting when it is loaded, so it must be set before that."""
    script = (
        "import os, sys\n"
        "seen = []\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'duckdb': seen.append(os.environ.get('DUCKDB_JE_MALLOC_CONF', ''))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "from gswarm_tui.cli import main\n"
        f"main({words!r})\n"
        "import duckdb\n"
        "print(seen[0])\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "DUCKDB_JE_MALLOC_CONF"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=True, cwd=tmp_path, env=environ,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].partition(",")[0] == arenas


def test_help_lists_every_option_and_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    others = ("nodes", "job", "demo", "config", "version", "help", "no_record")
    for key in (*set(SETTINGS) - {"arm", "py_spy"}, *others):  # arm is for record, py_spy for the config file
        assert f"--{key.replace('_', '-')}" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_help_of_each_command_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: gswarm-tui {name}")
    assert max(map(len, shown.splitlines())) <= 80


def test_command_after_other_options_is_refused_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="the command summary comes first: gswarm-tui summary"):
        parse(["--db", "run.duckdb", "summary"], {"HOME": "/nonexistent"})


@pytest.mark.parametrize("text", ['metrics = "pcie, host"', 'metrics = ["host", "core", "pcie"]'])
def test_config_file_lists_metric_groups_as_text_or_list(home: Path, text: str) -> None:
    settings(home, text)
    assert options().metrics == ("core", "pcie", "host")
