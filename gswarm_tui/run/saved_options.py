"""Options saved in a recording, from which it is resumed after its head was killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gswarm_agent.redact import HIDDEN, redact
from gswarm_tui.common.errors import UserError, quote
from gswarm_tui.options.arguments import Options
from gswarm_tui.options.values import DemoSize, launcher
from gswarm_tui.run.plan import Plan
from gswarm_tui.slurm.jobs import Job

_TEXTS = ("user", "jump", "setup", "agent_python")


def save_options(options: Options, plan: Plan) -> str:
    """Return the nodes and the options to reach them as a JSON object."""
    job, allocation = plan.job, plan.allocation
    return json.dumps(
        {name: getattr(options, name) for name in ("launcher", *_TEXTS)}
        | {
            "setup": None if options.setup is None else redact([options.setup])[0],
            "ssh_config": None if options.ssh_config is None else str(options.ssh_config.absolute()),
            "interval_ms": options.interval_ms,
            "linger_s": options.linger_s,
            "spool_mib": options.spool_mib,
            "demo": None if options.demo is None else [options.demo.nodes, options.demo.gpus],
            "nodes": list(plan.nodes),
            "job": None if job is None else [job.job_id, job.label, job.cluster],
            "allocation": None if allocation is None else {n: sorted(m) for n, m in allocation.items()},
        }
    )


def restore_options(saved: Mapping[str, Any], options: Options) -> tuple[Options, Plan]:
    """Return ``options`` with all saved ones in their place, and the saved plan.

    Raises:
        UserError: an older version saved none, or a secret is missing, which is never saved.
    """
    try:
        user, jump, setup, agent_python = (_text(saved[name]) for name in _TEXTS)
        config, demo, job = (saved[name] for name in ("ssh_config", "demo", "job"))
        allocation = saved["allocation"]
        options = options._replace(
            launcher=launcher(saved["launcher"]),
            user=user,
            jump=jump,
            setup=_setup(setup, options.setup),
            agent_python=agent_python,
            nodes=None,
            job=None,
            ssh_config=None if config is None else Path(config),
            interval_ms=int(saved["interval_ms"]),
            linger_s=_number(saved.get("linger_s")),
            spool_mib=_number(saved.get("spool_mib")),
            demo=None if demo is None else DemoSize(*map(int, demo)),
            record=True,
        )
        nodes = tuple(map(str, saved["nodes"]))
        plan = Plan(
            nodes,
            None if job is None else Job(str(job[0]), str(job[1]), nodes, cluster=_text(job[2])),
            None if allocation is None else {n: frozenset(map(int, m)) for n, m in allocation.items()},
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise UserError("this recording has no valid saved options, so its nodes can't be reached.") from None
    return options, plan


def _setup(kept: str | None, given: str | None) -> str | None:
    """Return the saved setup; one with a hidden secret is taken from today's settings."""
    if kept is None or HIDDEN not in kept:
        return kept
    if given is None or redact([given])[0] != kept:
        raise UserError(
            f"this recording's --setup has a secret that wasn't saved, {quote(kept)}; "
            "set it again as GSWARM_TUI_SETUP or in the config file."
        )
    return given


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
