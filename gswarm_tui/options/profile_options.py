"""Command line of ``gswarm-tui profile``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gswarm_tui.common.errors import quote
from gswarm_tui.common.trace_input import parse_rank_list
from gswarm_tui.options import values
from gswarm_tui.options.arguments import CommandParser, Options, UsageError, given_flags, parse, split_command
from gswarm_tui.options.config import ALLOCATION_KEYS

TOOLS = ("nsys", "ncu")
_MAX_RANKS = 100_000
_RUN = ("ssh_config", "jump", "setup", "config", "job")
"""Options that a profile shares with a run."""


class ProfileOptions(NamedTuple):
    """Options of ``profile``; ``run`` has those that it shares with a run.

    ``job`` is a running job, None for an allocation with the options ``salloc``, and ``allocates`` is whether
    a flag asks for one. ``ranks`` is empty for all, ``ntasks`` None to let Slurm decide, and ``duration_s``
    and ``delay_s`` are None for the whole run.
    ``shims`` is the folder for shims, and ``shim`` the tool as which a shim calls this program. ``relay`` is
    the token of the program that started this one on a login node.
    ``db`` is None for the running recording or a new one; without ``imports`` the reports stay files.
    """

    run: Options
    tool: str
    job: str | None
    salloc: tuple[str, ...]
    allocates: bool
    ranks: tuple[int, ...]
    ntasks: int | None
    duration_s: float | None
    delay_s: float | None
    tool_options: tuple[str, ...]
    output: Path
    db: Path | None
    imports: bool
    shims: Path | None
    shim: str | None
    relay: str | None
    command: tuple[str, ...]


def parse_profile(argv: Sequence[str], environ: Mapping[str, str]) -> ProfileOptions:
    """Resolve the options of ``profile``; the words after ``--`` are the command.

    Raises UsageError, ConfigError.
    """
    own, command = split_command(argv)
    given = _parser().read(own)
    shims = None if given.shims is None else Path(given.shims).expanduser()
    if not command and shims is None and given.relay is None:
        raise UsageError("no command to profile; write it after --: gswarm-tui profile -- python train.py.")
    options = parse(given_flags(given, _RUN), environ)
    asked = [key for key in (*ALLOCATION_KEYS, "nodes") if getattr(given, key) is not None]
    if given.job is not None and asked:
        raise UsageError(f"--{asked[0]} applies to an allocation of its own; remove it, or --job.")
    if given.tool == "ncu" and (given.duration or given.delay):
        raise UsageError("--duration and --delay apply to nsys; limit ncu with --tool-options '-c 20'.")
    if given.shim and not environ.get("GSWARM_TUI_PARTITION"):
        given.partition = given.partition or environ.get("PARTITION")
    nodes = [] if given.nodes is None else [f"--nodes={given.nodes}"]
    # Flags count before the environment, and this before the config file.
    preset = dict(options.allocation)
    salloc = {key: getattr(given, key) or preset.get(key) for key in ALLOCATION_KEYS}
    more = split_words("--salloc", salloc.pop("salloc"))
    return ProfileOptions(
        run=options,
        tool=given.tool,
        job=options.job,
        salloc=(*nodes, *(f"--{key}={value}" for key, value in salloc.items() if value), *more),
        allocates=bool(asked),
        ranks=given.ranks,
        ntasks=given.ntasks,
        duration_s=given.duration,
        delay_s=given.delay,
        tool_options=split_words("--tool-options", given.tool_options),
        output=Path(given.output).expanduser(),
        db=given.db,
        imports=not given.no_import,
        shims=shims,
        shim=given.shim,
        relay=given.relay,
        command=tuple(command),
    )


def _parser() -> CommandParser:
    parser = CommandParser(
        "profile",
        "[options] -- COMMAND ...\n--shims DIR",
        "Run COMMAND under Nsight Systems or Nsight Compute: on the nodes of this allocation, in a running "
        "job, or in an allocation of its own that is given back. Reports come here and are imported. The "
        "exit status is the command's, or 128 + the number of the signal that ended this program.",
        writes=True,
        usual="a new file here, named after the job",
    )
    add = parser.add_argument_group("profiler").add_argument
    add("--tool", choices=TOOLS, default=TOOLS[0], help="nsys (timeline) or ncu (kernels) (default: nsys)")
    ranks_help = "profile only these ranks: 0,5 or 0-3 (default: all)"
    add("--ranks", type=values.argument(parse_rank_list), default=(), metavar="RANKS", help=ranks_help)
    time = values.argument(values.run_s)
    add("--delay", type=time, metavar="TIME", help="start the capture so long after the command: 10, 2m")
    duration_help = "end the capture after this time; the command continues"
    add("--duration", type=time, metavar="TIME", help=duration_help)
    add("--tool-options", metavar="TEXT", help="more options of the profiler, quoted as in a shell")
    group = parser.add_argument_group("nodes", "Default: the allocation of this shell, else a new one.")
    add = group.add_argument
    add("--job", metavar="ID", help="a running job of yours")
    number = values.whole(1, _MAX_RANKS)
    add("--nodes", type=number, metavar="N", help="number of nodes to allocate")
    add("--ntasks", type=number, metavar="N", help="number of ranks (default: Slurm's)")
    for words in ("gres GRES", "partition NAME", "time TIME", "account NAME", "constraint NAME"):
        key, metavar = words.split()
        add(f"--{key}", metavar=metavar, help="as for salloc")
    add("--salloc", metavar="TEXT", help="any other options of salloc: --salloc='-w gpu01'")
    add = parser.add_argument_group("connection").add_argument
    add("--jump", metavar="HOST", help="login node that has gswarm-tui, [user@]host[:port]")
    add("--ssh-config", metavar="PATH", help="SSH config file")
    add("--setup", metavar="COMMAND", help="shell command to run on each node first, such as module load")
    add = parser.add_argument_group("results").add_argument
    add("--output", metavar="DIR", default=".", help="folder for the reports (default: this one)")
    add("--no-import", action="store_true", help="leave the reports as files")
    add("--shims", metavar="DIR", help="write executables nsys and ncu for a GUI's toolkit path")
    add("--shim", choices=TOOLS, help=argparse.SUPPRESS)
    add("--relay", help=argparse.SUPPRESS)
    add("--config", metavar="PATH", help="config file (default: ~/.config/gswarm-tui/config.toml)")
    return parser


def split_words(flag: str, text: str | None) -> tuple[str, ...]:
    """Return the words of a flag's text, quoted as in a shell. Raises UsageError."""
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UsageError(f"{flag}: {str(error).lower()} in {quote(text or '')}.") from None
