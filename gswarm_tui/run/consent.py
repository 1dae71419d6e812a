"""Asks the user before a recording of unknown origin decides how to connect to nodes."""

from __future__ import annotations

from typing import TextIO

from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.options.arguments import Options
from gswarm_tui.run.interrupted import InterruptedRun, short_id
from gswarm_tui.run.plan import Plan
from gswarm_tui.slurm import hosts


def confirm(run: InterruptedRun, settings: Options, stdin: TextIO, stdout: TextIO) -> bool:
    """Print how the recording's nodes would be reached, and return whether the user agrees.

    Raises:
        UserError: the saved options can't be used, or there is no terminal to ask on.
    """
    options, plan = run.preview(settings)
    uid = short_id(run.interrupted)
    lines = [
        f"Recording {uid} in {run.path} was made elsewhere, or its options were changed.",
        "If you didn't make it, don't connect: its options run commands. They are:",
        *(f"  {name:14}{value}" for name, value in _connection(options, plan).items()),
    ]
    for line in lines:
        print(printable(line), file=stdout)
    if not (stdin.isatty() and stdout.isatty()):
        raise UserError(f"recording {uid} was made elsewhere or changed; add --trust to connect as shown.")
    print("Connect with these options? [y/N] ", end="", file=stdout, flush=True)
    return stdin.readline().strip().lower() in ("y", "yes")


def _connection(options: Options, plan: Plan) -> dict[str, str]:
    """Return everything that decides which commands run where, as texts by name."""
    values = {
        "launcher": options.launcher,
        "job": plan.job and plan.job.job_id,
        "user": options.user,
        "jump host": options.jump,
        "SSH config": str(options.ssh_config or "~/.ssh/config"),
        "setup": options.setup,
        "agent Python": options.agent_python,
        "nodes": hosts.fold(plan.nodes),
    }
    return {name: value for name, value in values.items() if value}
