"""The subcommands of ``gswarm-tui`` and their lines in its help."""

from __future__ import annotations

from typing import NamedTuple  # dataclasses would cost a tenth of --help


class Command(NamedTuple):
    """Subcommand; ``module`` is its module in ``gswarm_tui.commands`` where its name is taken by Python.

    ``runs_another``: it runs a command of the user's, which keeps the user's umask.
    """

    name: str
    help: str
    module: str = ""
    runs_another: bool = False


COMMANDS = (
    Command("record", "record without a screen, while a command runs", runs_another=True),
    Command("profile", "run a command under Nsight Systems or Compute on nodes", runs_another=True),
    Command("trial", "run a command on several numbers of nodes, and compare", runs_another=True),
    Command("attach", "show a running recording on the screen"),
    Command("serve", "answer HTTP requests about a running recording"),
    Command("web", "show a running recording in browsers"),
    Command("once", "print the nodes' present state as lines, JSON or CSV"),
    Command("doctor", "check this machine and the nodes, and print what to fix"),
    Command("status", "print the state of your running gswarm-tui"),
    Command("nodes", "list the nodes of a running gswarm-tui"),
    Command("session", "start, stop or rename a session of a running gswarm-tui"),
    Command("mark", "mark this moment in the running recordings"),
    Command("interval", "show or change the sampling interval of a running gswarm-tui"),
    Command("metrics", "show or switch the metric groups of a running gswarm-tui"),
    Command("who", "ask the job which rank is behind, and why"),
    Command("stacks", "print the stacks of all ranks, the odd ones first"),
    Command("trace", "trace the job's PyTorch processes and fetch the files"),
    Command("recording", "end the recording of a running gswarm-tui"),
    Command("sql", "query a recording in SQL, also while it is written"),
    Command("sessions", "list the sessions of a recording"),
    Command("runs", "list all your recordings, finished or running"),
    Command("thin", "remove the samples of old recordings, keep their figures"),
    Command("diagnose", "find what slows or ends a job, and what to do"),
    Command("summary", "summarise a session: utilisation, idle phases, energy, memory"),
    Command("compare", "compare runs: speed-up, efficiency, energy, balance"),
    Command("export", "write a session as JSON, CSV or Parquet"),
    Command("import", "read an export or a gswarm-profiler file into a recording", module="import_"),
    Command("replay", "play a recording on the screens"),
    Command("plot", "plot a session as PDF, PNG or SVG"),
    Command("report", "write a session's report as one HTML page"),
    Command("recover", "list interrupted recordings, resume or finish one"),
    Command("completion", "print the completion script of bash, zsh or fish"),
)
COMMAND_NAMES = tuple(command.name for command in COMMANDS)
