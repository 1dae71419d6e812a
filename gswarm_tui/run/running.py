"""Finds a running recorder of the same job, file or nodes, which a new screen attaches to."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from gswarm_tui.common.errors import print_notice
from gswarm_tui.control import registry
from gswarm_tui.control.client import Head, running_heads
from gswarm_tui.options.arguments import Options
from gswarm_tui.run.plan import Plan


def find_running(options: Options, plan: Plan, environ: Mapping[str, str]) -> Head | None:
    """Return a recorder here that records the same file, or without a named file the same job or nodes.

    One on another host is named in a notice.
    """
    for head in running_heads(environ):
        if head.hangs or head.path is None:
            continue
        same = head.of_job(plan.job_id) if plan.job is not None else set(head.nodes) == set(plan.nodes)
        if head.records(options.db) if options.db is not None else same:
            return head
    for note in registry.remote_notes():
        same = note.job == plan.label if plan.job is not None else set(note.nodes) == set(plan.nodes)
        if options.db is None and same:
            print_notice(
                f"another gswarm-tui records the same nodes on {note.host}: gswarm-tui attach "
                f"{shlex.quote(f'{note.host}:{note.uid[:8]}')} shows it"
            )
    return None
