"""The command line: flags, and the options that come of flags, environment, config file and defaults."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gswarm_agent import __version__
from gswarm_tui.common import paths
from gswarm_tui.common.errors import UserError, nearest, quote
from gswarm_tui.options import config, values
from gswarm_tui.options.command_table import COMMANDS

T = TypeVar("T")

ENVIRONMENT_PREFIX = "GSWARM_TUI_"
_DEMO = "4x8"
_SSH_ONLY = ("user", "ssh_config", "jump")
_REMOTE_ONLY = ("setup", "agent_python")
_LASTING_ONLY = ("linger", "spool_mib")
_SAID = (
    (r"\Aargument ", ""),
    (r": expected (at least )?one argument\Z", " needs a value; --help tells which"),
    (r"\Athe following arguments are required: (.+)", r"\1 is missing; --help shows what is needed"),
    (r": ignored explicit argument (.+)", r" takes no value, so leave out \1"),
)
"""What argparse says, and what a person is told."""

_EXAMPLES = """\
examples:
  gswarm-tui                                     in salloc: all nodes of the job
  gswarm-tui --nodes $(scontrol show hostnames)  the same, spelt out
  gswarm-tui --nodes gpu[01-04,07] login2        any nodes you reach by SSH
  gswarm-tui --job 4711                          a running job of yours
  gswarm-tui --job 4711 --launcher srun          the same, without SSH
  gswarm-tui --launcher local                    this machine
  gswarm-tui --setup 'module load cuda/12.4' --db run.duckdb --interval 0.5
  gswarm-tui --demo 64x8                         see it without a cluster

Options about recording, reaching the nodes and the screen can have defaults of
yours: interval = 0.5 in the config file, or GSWARM_TUI_INTERVAL=0.5 in the
environment. A flag wins over the environment, and that over the file.
"""


class UsageError(UserError):
    """A command line that can't be carried out."""


@dataclass(frozen=True)
class Options:
    """What the person asked for, completely resolved.

    ``nodes`` holds the words after ``--nodes`` as given, None without the flag. ``db`` is None where
    nothing is recorded (``record`` is False) or where the file's name is left to the program.
    """

    nodes: tuple[str, ...] | None
    job: str | None
    demo: values.DemoSize | None
    interval_ms: int
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
    theme: str | None
    metric: str


class _Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would print its usage and exit."""

    def __init__(self, **what: Any) -> None:
        super().__init__(**what)
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")  # -1h is a value, no option begins so

    def error(self, message: str) -> NoReturn:
        for said, meant in _SAID:
            message = re.sub(said, meant, message)
        raise UsageError(message.rstrip(".") + ".")


class CommandParser(_Parser):
    """The options of a word that does one thing and ends; ``--db`` and ``--help`` are there already.

    With ``writes`` the recording may be one that isn't there yet. ``usual`` says which it is where none
    is named.
    """

    def __init__(
        self, word: str, usage: str, description: str, *, writes: bool = False, usual: str = ""
    ) -> None:
        super().__init__(
            prog=f"gswarm-tui {word}",
            usage=_wrapped_usage(f"gswarm-tui {word} {usage}"),
            description=textwrap.fill(description, _width()),
            formatter_class=_help_format,
            allow_abbrev=False,
            add_help=False,
        )
        self._database = values.database if writes else values.file
        usual = usual or ("made here, named after PATH" if writes else "the newest of this folder")
        self.add_argument("--db", metavar="PATH", help=f"the recording (default: {usual})")
        self.add_argument("--help", "-h", action="help", help="show this and exit")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The options, ``db`` a Path or None. Raises UsageError."""
        namespace, rest = self.parse_known_args(words)
        if rest:
            option = rest[0].partition("=")[0]
            known = [string for action in self._actions for string in action.option_strings]
            if not option.startswith("-"):
                hint = "name a recording with --db" if _is_recording(option) else "--help shows what it takes"
                raise UsageError(f"{self.prog} can't use {quote(option)}; {hint}.")
            hint = nearest(option, known) or "; --help lists them all"
            raise UsageError(f"{self.prog} has no option {quote(option)}{hint}.")
        if namespace.db is not None:
            namespace.db = _Layers((_flag, {"db": namespace.db})).get("db", self._database, None)
        return namespace


class _Layers:
    """The places where a setting may come from, strongest first, each with its name for errors."""

    def __init__(self, *layers: tuple[Callable[[str], str], Mapping[str, object]]) -> None:
        self._layers = layers

    def rank(self, key: str) -> int:
        """The place of the strongest layer that holds ``key``; the number of layers where none does."""
        held = (rank for rank, (_, found) in enumerate(self._layers) if key in found)
        return next(held, len(self._layers))

    def get(self, key: str, read: Callable[[object], T], default: T) -> T:
        """The strongest value of ``key``, read by ``read``."""
        if (rank := self.rank(key)) == len(self._layers):
            return default
        label, found = self._layers[rank]
        try:
            return read(found[key])
        except ValueError as error:
            raise UsageError(f"{label(key)}: {error}.") from None
        except OSError as error:
            raise UsageError(f"{label(key)}: {error.filename}: {error.strerror}.") from None


def parse(argv: Sequence[str] | None, environ: Mapping[str, str]) -> Options:
    """The options that ``argv`` (None: the process's own), environment and config file make together.

    Prints and raises SystemExit for ``--help`` and ``--version``.

    Raises:
        UsageError: a flag, variable or setting is wrong, or two contradict each other.
        ConfigError: the config file can't be used.
    """
    parser = _parser()
    namespace, rest = parser.parse_known_args(argv)
    if rest:
        raise _unexpected(rest[0], parser)
    flags: dict[str, object] = {key: value for key, value in vars(namespace).items() if value is not None}
    _refuse_contradictions(flags)
    prefix_length = len(ENVIRONMENT_PREFIX)
    variables: dict[str, object] = {
        name[prefix_length:].lower(): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and value
    }
    asked = _Layers((_flag, flags), (_variable, variables)).get("config", values.file, None)
    file = asked or paths.config_file()
    settings = config.load(file)
    layers = _Layers((_flag, flags), (_variable, variables), (lambda key: f"{file}: {key}", settings))
    options = _options(flags, layers)
    if options.launcher == "local" and (options.nodes is not None or options.job):
        raise UsageError(
            "--launcher local watches this machine alone; leave out --nodes and --job, or choose ssh."
        )
    return options


def _options(flags: Mapping[str, object], layers: _Layers) -> Options:
    own = _Layers((_flag, flags))
    words = flags.get("nodes")
    # A database named in a stronger place than "don't record" means that this run is to be recorded.
    record = layers.rank("db") < layers.rank("record") or layers.get("record", values.switch, True)
    return Options(
        nodes=tuple(words) if isinstance(words, list) else None,
        job=own.get("job", values.job_id, None),
        demo=own.get("demo", values.demo_size, None),
        interval_ms=layers.get("interval", values.interval_ms, 1000),
        record=record,
        db=layers.get("db", values.database, None) if record else None,
        launcher=layers.get("launcher", values.launcher, "ssh"),
        user=layers.get("user", values.word, None),
        ssh_config=layers.get("ssh_config", values.file, None),
        jump=layers.get("jump", values.word, None),
        setup=layers.get("setup", values.text, None),
        agent_python=layers.get("agent_python", values.word, None),
        linger_s=layers.get("linger", values.linger_s, None),
        spool_mib=layers.get("spool_mib", values.spool_mib, None),
        theme=layers.get("theme", values.theme, None),
        metric=layers.get("metric", values.metric, "util_pct"),
    )


def _refuse_contradictions(flags: Mapping[str, object]) -> None:
    if "demo" in flags:
        for key in ("nodes", "job", "launcher"):
            if key in flags:
                raise UsageError(f"--demo simulates its nodes, so leave out {_flag(key)}.")
    if "db" in flags and flags.get("record") is False:
        raise UsageError("--db names a recording and --no-record makes none; leave out one of them.")
    launcher = "demo" if "demo" in flags else flags.get("launcher", "ssh")
    for key in _SSH_ONLY:
        if key in flags and launcher != "ssh":
            raise UsageError(f"{_flag(key)} is about SSH, which this command doesn't use; leave it out.")
    for key in _REMOTE_ONLY:
        if key in flags and launcher in ("local", "demo"):
            raise UsageError(f"{_flag(key)} is about other machines, and here is none; leave it out.")
    for key in _LASTING_ONLY:
        if key in flags and (launcher == "demo" or flags.get("record") is False):
            raise UsageError(
                f"{_flag(key)} is about agents that go on alone; here none does, so leave it out."
            )


def _unexpected(word: str, parser: argparse.ArgumentParser) -> UsageError:
    if _is_recording(word):
        return UsageError(
            f"{quote(word)} stands alone; gswarm-tui replay plays it, --db adds a recording to it."
        )
    if not word.startswith("-"):
        return UsageError(f"{quote(word)} stands alone; nodes are named with --nodes.")
    option = word.partition("=")[0]
    known = [string for action in parser._actions for string in action.option_strings]
    return UsageError(
        f"there is no option {quote(option)}{nearest(option, known) or '; --help lists them all'}."
    )


def _is_recording(word: str) -> bool:
    return word.endswith(".duckdb")


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper()


def _width() -> int:
    """Columns that help may take: the terminal's, within reason."""
    return max(40, min(shutil.get_terminal_size().columns, 100))


def _wrapped_usage(usage: str) -> str:
    """Lines as wide as help is, under argparse's "usage: "; an option stays with its value."""
    indent, kept = " " * len("usage: "), "\x00"
    whole = re.sub(r"\[[^\]]*\]", lambda option: option[0].replace(" ", kept), usage)
    lines = textwrap.wrap(whole, _width() - len(indent), break_long_words=False, break_on_hyphens=False)
    return f"\n{indent}".join(lines).replace(kept, " ")


def _help_format(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=_width())


def _commands() -> str:
    """A line for each word that does one thing and ends."""
    width = max(len(command.word) for command in COMMANDS) + 2
    lines = [f"  {command.word:{width}}{command.help}" for command in COMMANDS]
    return "\n".join(["commands (each has its own --help):", *lines, "", ""])


def _parser() -> _Parser:
    parser = _Parser(
        prog="gswarm-tui",
        usage="gswarm-tui [--nodes NODE ... | --job ID | --demo [NODESxGPUS]] [options]\n"
        "       gswarm-tui COMMAND ...",
        description="Watch the GPUs of a multi-node job live, and keep every sample in a DuckDB file.",
        epilog=_commands() + _EXAMPLES,
        formatter_class=_help_format,
        allow_abbrev=False,
        add_help=False,
    )
    nodes = parser.add_argument_group(
        "which nodes", "With none of these: the nodes of the job this shell is in."
    )
    add = nodes.add_argument
    add(
        "--nodes",
        nargs="*",
        action="extend",
        metavar="NODE",
        help="names in any mixture: gpu01 gpu[02-04,07],login2",
    )
    add("--job", metavar="ID", help="a running job of yours; together with --nodes, only those of its nodes")
    add("--demo", nargs="?", const=_DEMO, metavar="NODESxGPUS", help=f"simulated nodes (default: {_DEMO})")

    add = parser.add_argument_group("recording").add_argument
    add("--interval", metavar="TIME", help="time between samples, 0.1 s to 60 s: 1, 0.5s, 500ms (default: 1)")
    add(
        "--db", metavar="PATH", help="DuckDB file to add the recording to (default: a new one in this folder)"
    )
    add("--linger", metavar="TIME", help="how long agents go on alone: 30m, 24h, 2d (default: 24h)")
    add("--spool-mib", metavar="N", help="MiB that each keeps on its node's disk meanwhile (default: 256)")
    add("--record", action=argparse.BooleanOptionalAction, help="whether to record (default: yes)")

    add = parser.add_argument_group("reaching the nodes").add_argument
    add(
        "--launcher",
        metavar="ssh|srun|local",
        help="how agents are started; local is this machine (default: ssh)",
    )
    add("--user", metavar="NAME", help="user name for SSH (default: as your ssh has it)")
    add("--ssh-config", metavar="PATH", help="SSH config file (default: ~/.ssh/config)")
    add("--jump", metavar="HOST", help="SSH jump host, [user@]host[:port], as for ssh -J")
    add("--setup", metavar="COMMAND", help="shell command to run on each node before its agent")
    add("--agent-python", metavar="PATH", help="Python on the nodes, 3.9 or later (default: one is found)")

    add = parser.add_argument_group("screen").add_argument
    add("--theme", metavar="NAME", help="colour theme")
    add(
        "--metric",
        metavar="NAME",
        help="what the heatmap shows first: util, mem, power, temp ... (default: util)",
    )

    add = parser.add_argument_group("general").add_argument
    add("--config", metavar="PATH", help="config file (default: ~/.config/gswarm-tui/config.toml)")
    add("--version", action="version", version=f"gswarm-tui {__version__}", help="show the version and exit")
    add("--help", "-h", action="help", help="show this and exit")
    return parser
