"""Options saved in a recording, from which it is resumed after its recorder was killed.

Anybody may have written a recording, so values pass the checks of the command line, and a private note in the
state folder holds the options with which this user started it: by it ``recover`` knows this user's own. The
note also has the text of ``--setup``, which may contain secrets; a recording holds only whether there was
one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.private_files import PrivateFolder
from gswarm_tui.common.time_input import parse_interval_ms
from gswarm_tui.options import values
from gswarm_tui.options.arguments import SETTINGS, Options
from gswarm_tui.run.plan import Plan
from gswarm_tui.slurm.jobs import Job

NOTES = PrivateFolder("open")
_SETTINGS = tuple(
    SETTINGS[key] for key in ("launcher", "user", "jump", "agent_python", "linger", "spool_mib", "arm")
)
"""Settings that are saved as the words of the command line: fields of Options, parsers and defaults."""


def save_options(options: Options, plan: Plan) -> str:
    """Return the nodes and the options to reach them as a JSON object."""
    job, allocation = plan.job, plan.allocation
    return json.dumps(
        {field: getattr(options, field) for field, _, _ in _SETTINGS}
        | {
            "setup": bool(options.setup) and options.demo is None,
            "ssh_config": None if options.ssh_config is None else str(options.ssh_config.absolute()),
            "interval_ms": options.interval_ms,
            "demo": None if options.demo is None else [options.demo.nodes, options.demo.gpus],
            "nodes": list(plan.nodes),
            "job": None if job is None else [job.job_id, job.label, job.cluster],
            "het_groups": {} if job is None else dict(job.het_groups),
            "gpus_in_total": job is not None and job.gpus_in_total,
            "allocation": None if allocation is None else {n: sorted(m) for n, m in allocation.items()},
        }
    )


def restore_options(
    saved: Mapping[str, Any], options: Options, noted_setup: str | None
) -> tuple[Options, Plan]:
    """Return ``options`` with all saved ones in their place, and the saved plan.

    Raises UserError without valid options, or if neither the note nor ``options`` has the setup.
    """
    try:
        fields = {
            field: usual if saved[field] is None else read(str(saved[field]))
            for field, read, usual in _SETTINGS
        }
        config, demo, job = (saved[name] for name in ("ssh_config", "demo", "job"))
        allocation = saved["allocation"]
        setup = noted_setup or options.setup if saved["setup"] else None
        if saved["setup"] and not setup:
            raise UserError(
                f"this recording was made with --setup, but its text isn't in {NOTES.path}; "
                "set it again with --setup, GSWARM_TUI_SETUP or the config file."
            )
        options = options._replace(
            **fields,
            setup=setup,
            nodes=None,
            job=None,
            ssh_config=None if config is None else Path(config).absolute(),
            interval_ms=parse_interval_ms(f"{saved['interval_ms']}ms"),
            demo=None if demo is None else values.demo_size("x".join(map(str, demo))),
            record=True,
        )
        nodes = tuple(map(str, saved["nodes"]))
        plan = Plan(
            nodes,
            None if job is None else _job(job, nodes, saved),
            None if allocation is None else {n: frozenset(map(int, m)) for n, m in allocation.items()},
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
        raise UserError("this recording has no valid saved options, so its nodes can't be reached.") from None
    return options, plan


def _job(job: Sequence[Any], nodes: tuple[str, ...], saved: Mapping[str, Any]) -> Job:
    job_id, label = map(values.job_id, map(str, job[:2]))
    return Job(
        job_id,
        label,
        nodes,
        cluster=None if job[2] is None else str(job[2]),
        het_groups={node: int(group) for node, group in saved.get("het_groups", {}).items()},
        gpus_in_total=bool(saved.get("gpus_in_total", False)),
    )


# Notes


def write_note(uid: str, options: Mapping[str, Any], setup: str) -> None:
    """Write the note of an open recording, readable by this user alone. Raises OSError, UserError.

    ``setup`` is its setup command, which may contain secrets, empty without one.
    """
    content = {"uid": uid, "options": options, "setup": setup}
    NOTES.write(f"{uid}.json", json.dumps(content).encode())


def read_note(uid: str, options: Mapping[str, Any]) -> str | None:
    """Return the setup of a recording that this user started with these options; None without a note."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        found = json.loads(NOTES.read(f"{uid}.json"))
        if (found["uid"], found["options"]) == (uid, options):
            return str(found["setup"])
    return None


def remove_note(uid: str) -> None:
    """Remove the note of a recording that was closed, if there is one."""
    with suppress(OSError):
        NOTES.remove(f"{uid}.json")
