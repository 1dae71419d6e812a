"""Command line: flags, and the options made of flags, environment, config file and defaults."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from gswarm_agent import __version__
from gswarm_agent.metrics import ALL_GROUPS, DEFAULT_GROUPS
from gswarm_tui.common import paths
from gswarm_tui.common.errors import UserError, nearest, printable, quote
from gswarm_tui.common.time_input import parse_interval_ms
from gswarm_tui.options import config, values
from gswarm_tui.options.command_table import COMMAND_NAMES, COMMANDS
from gswarm_tui.options.server_options import ServerSettings, add_server_options, server_settings

T = TypeVar("T")

ONCE_TIMEOUT_S = 30
UNATTENDED_S = 3600
ENVIRONMENT_PREFIX = "GSWARM_TUI_"
_DEMO = "4x8"
GSWARM_PROFILER_COMMANDS = ("start", "connect", "http-profile", "http-status", "stop", "http-stop", "stat")
"""Commands of gswarm-profiler that aren't ours."""
CONNECTION = {
    "launcher": ("ssh|srun|local", "start agents by SSH, by srun, or on this machine (default: ssh)"),
    "user": ("NAME", "SSH user name (default: from your SSH configuration)"),
    "ssh_config": ("PATH", "SSH config file (default: ~/.ssh/config)"),
    "jump": ("HOST", "SSH jump host, [user@]host[:port], as for ssh -J"),
    "setup": ("COMMAND", "shell command to run on each node before the agent starts"),
    "agent_python": ("PATH", "Python 3.9 or later on the nodes (default: detected)"),
}
"""Metavars and help texts of the options that decide how nodes are reached."""
SETTINGS: dict[str, tuple[str, Callable[[Any], Any], Any]] = {
    "interval": ("interval_ms", parse_interval_ms, 1000),
    "metrics": ("metrics", values.metric_groups, DEFAULT_GROUPS),
    "db": ("db", values.database, None),
    "record": ("record", values.switch, True),
    "arm": ("arm", values.switch, True),
    "launcher": ("launcher", values.launcher, "ssh"),
    "user": ("user", values.word, None),
    "ssh_config": ("ssh_config", values.file, None),
    "jump": ("jump", values.word, None),
    "setup": ("setup", values.text, None),
    "agent_python": ("agent_python", values.word, None),
    "py_spy": ("py_spy", values.word, None),
    "linger": ("linger_s", values.linger_s, None),
    "unattended": ("unattended_s", values.unattended_s, UNATTENDED_S),
    "spool_mib": ("spool_mib", values.spool_mib, None),
    "query_memory": ("query_memory", values.memory_bytes, None),
    "on_finding": ("on_finding", values.text, None),
    "theme": ("theme", values.theme, None),
    "metric": ("metric", values.metric, "util_pct"),
}
"""Settings of flags, environment and config file: their fields of Options, parsers and defaults.

In the environment they are ``GSWARM_TUI_`` and the key in capitals.
"""

_EXAMPLES = """\
examples:
  gswarm-tui                                     in salloc: all nodes of the job
  gswarm-tui --nodes $(scontrol show hostnames)  the same, spelt out
  gswarm-tui --nodes 'gpu[01-04,07]' login2      any nodes you reach by SSH
  gswarm-tui --job 4711                          a running job of yours
  gswarm-tui --job 4711 --launcher srun          the same, without SSH
  gswarm-tui --launcher local                    this machine
  gswarm-tui --setup 'module load cuda/12.4' --db run.duckdb --interval 0.5
  gswarm-tui --demo 64x8                         try it without a cluster

Recording, connection and screen options can be preset: interval = 0.5 in the
config file, or GSWARM_TUI_INTERVAL=0.5 in the environment. Flags override the
environment, and the environment overrides the config file.
"""


class UsageError(UserError):
    """Invalid command line."""


class Options(NamedTuple):
    """Options of a run, resolved from flags, environment, config file and defaults.

    ``nodes`` has the words after ``--nodes``, None without the flag, ``hostfile`` the file after
    ``--hostfile``. ``db`` is None if nothing is recorded (``record`` is False) or the program chooses the
    file name. With ``arm`` the processes of a command can be traced on request. ``allocation`` has options of
    ``salloc`` for profiles. A recorder without a job ends ``unattended_s`` after its last screen. ``new``
    starts a recorder even if one of the same nodes runs. Findings are sent to the command ``on_finding``.
    """

    nodes: tuple[str, ...] | None
    hostfile: Path | None
    job: str | None
    demo: values.DemoSize | None
    interval_ms: int
    metrics: tuple[str, ...]
    record: bool
    db: Path | None
    launcher: str
    user: str | None
    ssh_config: Path | None
    jump: str | None
    setup: str | None
    agent_python: str | None
    linger_s: int | None
    spool_mib: int | None
    arm: bool
    query_memory: int | None
    theme: str | None
    metric: str
    server: ServerSettings | None = None
    unattended_s: int = UNATTENDED_S
    new: bool = False
    allocation: tuple[tuple[str, str], ...] = ()
    on_finding: str | None = None
    py_spy: str | None = None


_observers: list[Callable[[argparse.ArgumentParser], None]] = []


def observe_parser(observer: Callable[[argparse.ArgumentParser], None]) -> None:
    """Pass the next complete parser to the observer before it parses, as completion by a shell needs."""
    _observers[:] = [observer]


class Parser(argparse.ArgumentParser):
    """Parser that raises UsageError where argparse would print its usage and exit.

    ``usage`` has the words after the name, a line for each form.
    """

    def __init__(self, name: str, usage: str, description: str, **settings: Any) -> None:
        forms = [f"{name} {form}" for form in usage.splitlines()]
        super().__init__(
            prog=name,
            usage="\n       ".join(forms),
            description=description,
            allow_abbrev=False,
            add_help=False,
            **settings,
        )
        # Private to argparse: -1h is a value and no option. test_arguments.py notices when it changes.
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")

    def read(self, args: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments, options also between others, after an observer. Raises UsageError."""
        if _observers:
            _observers.pop()(self)
        # Before Python 3.12, an intermixed parse forgets the --, and takes a word like -x after it for an
        # option.
        has_dashed = any(word.startswith("-") for word in split_command(args)[1])
        namespace, rest = (self.parse_known_args if has_dashed else self.parse_known_intermixed_args)(args)
        if rest:
            raise UsageError(_unexpected(next((word for word in rest if word != "--"), "--"), self))
        return namespace

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with argparse's message."""
        raise UsageError(f"{message.removeprefix('argument ').rstrip('.')}.")


class CommandParser(Parser):
    """Parser of a subcommand, with ``--help`` and, unless ``database`` is false, ``--db``.

    With ``writes`` the recording need not exist yet. ``usual`` describes the default recording in the help.
    """

    def __init__(
        self,
        name: str,
        usage: str,
        description: str,
        *,
        writes: bool = False,
        usual: str = "",
        database: bool = True,
    ) -> None:
        super().__init__(f"gswarm-tui {name}", usage, description)
        usual = usual or ("a new file here, named after PATH" if writes else "the newest in this folder")
        if database:
            self.add_argument(
                "--db",
                type=values.argument(values.database if writes else values.recording),
                metavar="PATH",
                help=f"recording file (default: {usual})",
            )
        self.add_argument("--help", "-h", action="help", help="print help and exit")


class _Setting(NamedTuple):
    """Value of a setting, with the label and the number of its source; the strongest source is 0."""

    label: str
    value: Any
    source: int


_UNSET = _Setting("", None, 3)


def _read(given: Mapping[str, _Setting], key: str, read: Callable[[Any], T], default: T) -> T:
    """Parse the value of a setting with ``read``. Raises UsageError."""
    if key not in given:
        return default
    label, value, _ = given[key]
    try:
        return read(value)
    except ValueError as error:
        raise UsageError(f"{label}: {error}.") from None
    except OSError as error:
        raise UsageError(f"{label}: {error.filename}: {error.strerror}.") from None


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Resolve the options from ``argv``, environment and config file.

    Prints and raises SystemExit for ``--help`` and ``--version``. Raises UsageError, ConfigError.
    """
    parser = Parser(
        "gswarm-tui",
        "[options]\nCOMMAND ...",
        "Monitor the GPUs of a multi-node job and record every sample in a DuckDB file.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    width = max(map(len, COMMAND_NAMES)) + 2
    lines = [f"  {command.name:{width}}{command.help}" for command in COMMANDS]
    parser.epilog = "\n".join(["commands (each has its own --help):", *lines, "", _EXAMPLES])
    _add_nodes(parser)
    add = add_recording_options(parser)
    add("--record", action=argparse.BooleanOptionalAction, help="record, or only show (default: record)")
    add("--new", action="store_true", help="start another recording of the same nodes")
    add("--unattended", metavar="TIME", help="without a job, record this long without a screen (default: 1h)")

    add_connection(parser)
    add_server_options(parser)
    add = parser.add_argument_group("screen").add_argument
    add("--theme", metavar="NAME", help="colour theme")
    add("--metric", metavar="NAME", help="metric of the heatmap: util, mem, power, temp ... (default: util)")

    add = _add_general(parser)
    add("--version", action="version", version=f"gswarm-tui {__version__}", help="print version and exit")
    return _resolve(parser, argv, environ)[0]._replace(arm=False)


def parse_once(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Options, argparse.Namespace]:
    """Resolve the options of ``once``; return also its flags. Raises UsageError, ConfigError."""
    parser = Parser(
        "gswarm-tui once",
        "[--json | --csv] [options]",
        "Print the present state of the nodes and their GPUs in plain lines, for screen readers and "
        "mails, or as JSON or CSV for scripts. Records nothing. The exit status is 1 if a node sent no data.",
    )
    add = parser.add_argument_group("format").add_mutually_exclusive_group().add_argument
    add("--json", action="store_true", help="print nodes, GPUs and processes as JSON")
    add("--csv", action="store_true", help="print a row for each GPU as CSV")
    _add_nodes(parser)
    add_connection(parser)
    _add_timeout(_add_general(parser))
    options, given = _resolve(parser, argv, environ)
    return options._replace(record=False, db=None), given


def parse_doctor(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Options, argparse.Namespace]:
    """Resolve the options of ``doctor``; return also its flags. Raises UsageError, ConfigError."""
    parser = Parser(
        "gswarm-tui doctor",
        "[--json] [options]",
        "Check this machine and each node: SSH, Python, agent, NVIDIA driver, hardware counters, clock, "
        "disk, and what differs from the other nodes. Prints what to fix. Installs and "
        "records nothing. The exit status is 1 if something needs fixing.",
    )
    add = parser.add_argument_group("output").add_argument
    add("--json", action="store_true", help="print the whole report as JSON")
    _add_nodes(parser, demo=False)
    add_connection(parser)
    _add_timeout(_add_general(parser))
    options, given = _resolve(parser, argv, environ)
    return options._replace(record=False, db=None, metrics=DEFAULT_GROUPS), given


def parse_record(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[Options, argparse.Namespace]:
    """Resolve the options of ``record``; return also its flags, with the words after ``--``."""
    own, command = split_command(argv)
    if "--" in argv and not command:
        raise UsageError("no command after --; remove -- to record until a signal ends the recording.")
    parser = Parser(
        "gswarm-tui record",
        "[options] [-- COMMAND ...]",
        "Record without a screen: start a session, run COMMAND, end the session with it, and print the "
        "summary to standard error. The exit status is the command's. Without COMMAND, record until a "
        "signal ends the recording.",
    )
    add = parser.add_argument_group("session").add_argument
    name_help = "name of the session (default: the command's or the job's)"
    add("--name", type=values.argument(values.text), metavar="NAME", help=name_help)
    report_help = "write the session's report to this .html file at the end"
    add("--report", type=values.argument(values.path), metavar="FILE", help=report_help)
    add("--force", action="store_true", help="replace an existing report")
    arm_help = "set variables for traces on request (default: arm)"
    add("--arm", action=argparse.BooleanOptionalAction, help=arm_help)
    _add_nodes(parser)
    add_recording_options(parser)
    add_connection(parser)
    add_server_options(parser)
    _add_general(parser)
    options, given = _resolve(parser, own, environ)
    given.command = tuple(command)
    return options._replace(record=True, arm=options.arm and bool(command)), given


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before ``--``, and those after it, which are a command."""
    words = list(argv)
    dashes = words.index("--") if "--" in words else len(words)
    return words[:dashes], words[dashes + 1 :]


def _resolve(
    parser: Parser, argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[Options, argparse.Namespace]:
    """Resolve the options; return also the flags."""
    if argv and not argv[0].startswith("-"):  # before --help, which would hide a mistyped command
        raise UsageError(_unexpected(argv[0], parser))
    given = parser.read(argv)
    flags: dict[str, Any] = {key: value for key, value in vars(given).items() if value is not None}
    _refuse_contradictions(flags)
    settings = {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): _Setting(name, value, 1)
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and value
    }
    settings |= {key: _Setting(_flag(key), value, 0) for key, value in flags.items()}
    file = _read(settings, "config", values.file, None) or paths.config_file()
    loaded = config.load(file, SETTINGS).items()
    settings = {key: _Setting(f"{file}: {key}", value, 2) for key, value in loaded} | settings
    found = {field: _read(settings, key, read, usual) for key, (field, read, usual) in SETTINGS.items()}
    # --db in a stronger source than record = false: this run is to be recorded.
    found["record"] |= settings.get("db", _UNSET).source < settings.get("record", _UNSET).source
    allocation = ((key, _read(settings, key, values.text, "")) for key in config.ALLOCATION_KEYS)
    options = Options(
        nodes=tuple(flags["nodes"]) if "nodes" in flags else None,
        hostfile=flags.get("hostfile"),
        job=flags.get("job"),
        demo=flags.get("demo"),
        allocation=tuple((key, text) for key, text in allocation if text),
        new=flags.get("new", False),
        server=server_settings(flags["http"], flags) if "http" in flags else None,
        **found | ({} if found["record"] else {"db": None}),
    )
    elsewhere = [_flag(key) for key in ("nodes", "hostfile", "job") if key in flags]
    if options.launcher == "local" and elsewhere:
        raise UsageError(
            f"--launcher local monitors only this machine; remove {elsewhere[0]}, or use --launcher ssh."
        )
    return options, given


def given_flags(namespace: argparse.Namespace, keys: Iterable[str]) -> list[str]:
    """Return those flags of a subcommand that were given, as words for ``parse``."""
    return [f"{_flag(key)}={value}" for key in keys if (value := getattr(namespace, key)) is not None]


def _refuse_contradictions(flags: Mapping[str, object]) -> None:
    if "demo" in flags:
        for key in ("nodes", "hostfile", "job", "launcher"):
            if key in flags:
                raise UsageError(f"--demo simulates its nodes; remove {_flag(key)}.")
    if "nodes" in flags and "hostfile" in flags:
        raise UsageError("--nodes and --hostfile both name the nodes; remove one of them.")
    if "http" in flags and flags.get("record") is False:
        raise UsageError("--http serves a recording, but --no-record makes none; remove one of them.")
    if "db" in flags and flags.get("record") is False:
        raise UsageError("--db names a recording, but --no-record makes none; remove one of them.")


def _unexpected(word: str, parser: Parser) -> str:
    """Return a sentence on a word that a parser doesn't know."""
    if word.startswith("-"):
        option = word.partition("=")[0]
        known = re.findall(r"(?<![\w-])--([a-z][a-z-]*)", parser.format_help())
        hint = nearest(option.lstrip("-"), known, "--") or "; see --help"
        return f"unknown option {quote(option)}{hint}."
    if any(parser.prog == f"gswarm-tui {each.name}" and each.runs_another for each in COMMANDS):
        return f"write -- before the command: {parser.prog} -- {printable(word)} ..."
    if is_recording(word):
        replay = ", or use gswarm-tui replay" if parser.prog == "gswarm-tui" else ""
        return f"unexpected argument {quote(word)}; name the recording with --db{replay}."
    if parser.prog != "gswarm-tui":
        return f"unexpected argument {quote(word)} after {parser.prog}; see --help."
    if word in COMMAND_NAMES:
        return f"the command {word} comes first: gswarm-tui {word} [options]."
    if word in GSWARM_PROFILER_COMMANDS:
        return (
            f"{word} is a command of gswarm-profiler; here `record` and `recording stop` start and end a "
            "recording, `session start` and `session stop` a session, and `summary` and `plot` describe it."
        )
    hint = nearest(word, COMMAND_NAMES) or "; name nodes with --nodes, or see the commands in --help"
    return f"unexpected argument {quote(word)}{hint}."


def is_recording(word: str) -> bool:
    """Return whether a word names a recording file."""
    return word.endswith(".duckdb")


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _add_nodes(parser: Parser, *, demo: bool = True) -> None:
    nodes = parser.add_argument_group("nodes", "Default: the nodes of the job this shell is in.")
    add = nodes.add_argument
    nodes_help = "names and host lists: gpu01 gpu[02-04,07],login2"
    add("--nodes", nargs="*", action="extend", metavar="NODE", help=nodes_help)
    hostfile_help = "the nodes in this file, one a line: gpu01 slots=8"
    add("--hostfile", type=values.argument(values.path), metavar="FILE", help=hostfile_help)
    job_help = "a running job of yours; with --nodes, only these of its nodes"
    add("--job", type=values.argument(values.job_id), metavar="ID", help=job_help)
    if demo:
        size, demo_help = values.argument(values.demo_size), f"simulate nodes (default: {_DEMO})"
        add("--demo", nargs="?", const=_DEMO, type=size, metavar="NODESxGPUS", help=demo_help)


def add_connection(parser: Parser, title: str = "connection", *, defaults: bool = True) -> None:
    """Add the options that decide how nodes are reached; ``defaults``: their help names these."""
    group = parser.add_argument_group(title)
    for key, (metavar, text) in CONNECTION.items():
        shown = text if defaults else text.partition(" (default")[0]
        group.add_argument(_flag(key), metavar=metavar, help=shown)


def add_recording_options(parser: Parser) -> Callable[..., argparse.Action]:
    """Add the recording options; return the function that adds more of them."""
    add = parser.add_argument_group("recording").add_argument
    add("--interval", metavar="TIME", help="time between samples: 1, 0.5s, 500ms; 0.1 s to 60 s (default: 1)")
    metrics_help = f"metric groups to measure, of {','.join(ALL_GROUPS)} (default: all but counters)"
    add("--metrics", metavar="GROUPS", help=metrics_help)
    add("--db", metavar="PATH", help="DuckDB file to record into (default: a new file in this folder)")
    add("--linger", metavar="TIME", help="keep agents sampling without the recorder: 30m, 2d (default: 24h)")
    add("--spool-mib", metavar="N", help="MiB of node disk for samples not fetched yet (default: 256)")
    add("--query-memory", metavar="SIZE", help="memory limit of all queries: 2GiB (default: 512MiB)")
    add("--on-finding", metavar="COMMAND", help="shell command that gets each finding as JSON on stdin")
    return add


def _add_general(parser: Parser) -> Callable[..., argparse.Action]:
    """Add the general options; return the function that adds more of them."""
    add = parser.add_argument_group("general").add_argument
    add("--config", metavar="PATH", help="config file (default: ~/.config/gswarm-tui/config.toml)")
    add("--help", "-h", action="help", help="print help and exit")
    return add


def _add_timeout(add: Callable[..., argparse.Action]) -> None:
    time_s = values.argument(values.timeout_s)
    text = f"wait this long for each node's samples (default: {ONCE_TIMEOUT_S}s)"
    add("--timeout", type=time_s, default=ONCE_TIMEOUT_S, metavar="TIME", help=text)
