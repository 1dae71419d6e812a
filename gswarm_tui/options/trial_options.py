"""Command line of ``gswarm-tui trial``."""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence

from gswarm_tui.common.errors import quote
from gswarm_tui.options import values
from gswarm_tui.options.arguments import (
    CommandParser,
    UsageError,
    add_connection,
    add_recording_options,
    given_flags,
    parse,
    split_command,
)
from gswarm_tui.options.profile_options import split_words

PLACEMENTS = ("packed", "spread")
MOST_NODES, MOST_GPUS, MOST_RANKS, MOST_REPEATS = 10_000, 64, 1024, 100
DEFAULT_REPEATS = 3
_RUN = (
    *("job", "launcher", "user", "ssh_config", "jump", "setup", "agent_python"),
    *("interval", "metrics", "db", "linger", "spool_mib", "query_memory", "config"),
    "on_finding",
)
"""Options that the recorder of the trial shares with other runs."""


def parse_trial(
    argv: Sequence[str],
    environ: Mapping[str, str],
    add_output_options: Callable[[argparse.ArgumentParser], None] = lambda _parser: None,
) -> argparse.Namespace:
    """Return the flags of ``trial``; ``command`` has the words after ``--``.

    ``run`` has the options that its recorder shares with other runs. ``node_counts`` and ``gpus_per_node``
    are empty for those that the job has. A process that ``drives`` does the runs below the recorder.

    ``add_output_options`` adds the flags for the format of results. Raises UsageError, ConfigError.
    """
    own, command = split_command(argv)
    parser = _parser()
    add_output_options(parser)
    given = parser.read(own)
    if given.results and command and not given.drives:
        raise UsageError("--results runs nothing; remove -- and the command after it.")
    if not (given.results or command or given.drives):
        raise UsageError("no command to try; write it after --: gswarm-tui trial -- python train.py.")
    given.command = tuple(command)
    given.run = parse(given_flags(given, _RUN), environ)._replace(record=True)
    given.srun = split_words("--srun", given.srun)
    return given


def _parser() -> CommandParser:
    parser = CommandParser(
        "trial",
        "[options] -- COMMAND ...\n--results [--db PATH] [--format FORMAT]",
        "Run COMMAND under several placements (numbers of nodes and GPUs), each a session of one recording, "
        "and compare them. The runs are steps of this job. The exit status is 0 if all runs succeeded, 1 if "
        "a run failed, 3 if the trial ended before its last run, and 130 after Ctrl-C.",
        database=False,
    )
    add = parser.add_argument_group("placements").add_argument
    for flag, most, text in (
        ("--node-counts", MOST_NODES, "numbers of nodes: 1,2,4 (default: 1, 2, 4 ... of this job)"),
        ("--gpus-per-node", MOST_GPUS, "numbers of GPUs on each node: 4,8 (default: all of this job)"),
    ):
        add(flag, type=_numbers_to(most), default=(), metavar="N,...", help=text)
    text = (
        "packed (fewest nodes), spread (same number of GPUs, most nodes), or packed,spread (default: packed)"
    )
    add("--placements", type=_placements, default=PLACEMENTS[:1], metavar="WORDS", help=text)
    text = "ranks on each node: 1 for torchrun (default: one for each GPU)"
    add("--ntasks-per-node", type=values.whole(1, MOST_RANKS), metavar="N", help=text)
    add("--srun", metavar="TEXT", help="any other options of srun: --srun='--mpi=pmix -c 8'")
    repeat_help = f"runs of each placement (default: {DEFAULT_REPEATS})"
    number = values.whole(1, MOST_REPEATS)
    add("--repeat", type=number, default=DEFAULT_REPEATS, metavar="N", help=repeat_help)
    add = parser.add_argument_group("limits").add_argument
    time = values.argument(values.run_s)
    add("--timeout", type=time, metavar="TIME", help="end a run that takes longer: 90s, 10m, 2h")
    add("--dry-run", action="store_true", help="print the plan and its cost, and run nothing")
    group = parser.add_argument_group("comparison", "Default: the wall time of each run.")
    throughput_help = "compare a number in the output: 'samples/s: ([0-9.]+)'"
    group.add_argument("--throughput", type=_pattern, metavar="PATTERN", help=throughput_help)
    add = parser.add_argument_group("job").add_argument
    add("--job", metavar="ID", help="a running job of yours (default: that of this shell)")
    add = add_recording_options(parser)
    add("--results", action="store_true", help="print the results of the newest trial")
    add_connection(parser)
    add = parser.add_argument_group("general").add_argument
    add("--config", metavar="PATH", help="config file (default: ~/.config/gswarm-tui/config.toml)")
    add("--drives", action="store_true", help=argparse.SUPPRESS)
    return parser


def _numbers_to(most: int) -> Callable[[str], tuple[int, ...]]:
    number = values.whole(1, most)
    return lambda text: tuple(sorted({number(part.strip()) for part in text.split(",")}))


def _placements(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for word in words:
        if word not in PLACEMENTS:
            raise ArgumentTypeError(f"{quote(word)} is neither packed nor spread")
    return words


def _pattern(text: str) -> str:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ArgumentTypeError(f"{quote(text)} isn't a regular expression: {error}") from None
    if pattern.groups != 1:
        raise ArgumentTypeError(
            f"{quote(text)} has {pattern.groups or 'no'} groups; put the number, and nothing "
            "else, in parentheses: 'samples/s: ([0-9.]+)'"
        )
    return text
