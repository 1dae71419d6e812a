"""What a recording has to remember of its command line, so that it can go on after its head was killed."""

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


def remember(options: Options, plan: Plan) -> str:
    """The nodes and how they are reached, as a JSON object."""
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


def recall(remembered: Mapping[str, Any], options: Options) -> tuple[Options, Plan]:
    """``options`` with all that ``remember`` kept, and the plan of then.

    Raises:
        UserError: nothing of use was kept, as by an older version, or a secret would be needed that wasn't.
    """
    try:
        user, jump, setup, agent_python = (_text(remembered[name]) for name in _TEXTS)
        config, demo, job = (remembered[name] for name in ("ssh_config", "demo", "job"))
        allocation = remembered["allocation"]
        options = options._replace(
            launcher=launcher(remembered["launcher"]),
            user=user,
            jump=jump,
            setup=_setup(setup, options.setup),
            agent_python=agent_python,
            nodes=None,
            job=None,
            ssh_config=None if config is None else Path(config),
            interval_ms=int(remembered["interval_ms"]),
            linger_s=_number(remembered.get("linger_s")),
            spool_mib=_number(remembered.get("spool_mib")),
            demo=None if demo is None else DemoSize(*map(int, demo)),
            record=True,
        )
        nodes = tuple(map(str, remembered["nodes"]))
        plan = Plan(
            nodes,
            None if job is None else Job(str(job[0]), str(job[1]), nodes, cluster=_text(job[2])),
            None if allocation is None else {n: frozenset(map(int, m)) for n, m in allocation.items()},
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise UserError("this recording doesn't say how its nodes are reached, so it can't go on.") from None
    return options, plan


def _setup(kept: str | None, given: str | None) -> str | None:
    """The setup of then; one with a secret, which isn't kept, is taken from the settings of now."""
    if kept is None or HIDDEN not in kept:
        return kept
    if given is None or redact([given])[0] != kept:
        raise UserError(
            f"this recording's --setup has a secret that wasn't kept, {quote(kept)}; "
            "give it again as GSWARM_TUI_SETUP or in the config file."
        )
    return given


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
