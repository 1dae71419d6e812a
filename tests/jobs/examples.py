"""The examples on the rules' pages: ``python -m tests.jobs.examples`` finds them in modelled jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from gswarm_tui.fleet.findings import Finding
from tests.jobs import faults as f
from tests.jobs.blind import DRAWN, WITHIN_S
from tests.jobs.feed import run
from tests.jobs.model import Fault, Job

EXAMPLES = Path(__file__).with_name("examples.json")
"""For each kind the sentence and the evidence of one finding."""
JOB = Job(nodes=4, gpus=8)
BEGIN_S = 900.0
OTHERS = {
    "blind": JOB.with_faults(Fault(f.silent_node, BEGIN_S, node=1)),
    "checkpoint": replace(JOB, seconds=3000.0, checkpoint_every=450, checkpoint_s=60),
    "scheduler_waits": JOB.with_faults(Fault(f.scheduler_busy, 0)),
    "slow_steps": JOB.with_faults(Fault(f.marks_steps, 0, node=1, gpu=5, strength=0.4)),
    "starting": replace(JOB, seconds=120.0, compile_s=300),
    "uneven_stages": replace(JOB, kind="pipeline"),
}
"""Jobs for kinds that the blind run doesn't draw."""


def jobs() -> dict[str, Job]:
    """Return a job for each kind of finding that can be modelled."""
    drawn = {}
    for one in DRAWN:
        start = 0.0 if one.from_start else BEGIN_S
        # Ranks without data on their GPU have their contexts on the first one.
        gpu = 0 if one.kind == "ghosts" else 5
        fault = Fault(one.act, start, one.kind, 1, gpu, 0.25)
        drawn[one.kind] = replace(JOB, seconds=start + WITHIN_S + 60).with_faults(fault)
    return drawn | OTHERS


def main() -> None:
    """Write one finding of each kind, from the jobs."""
    found: dict[str, Finding] = {}
    for kind, job in jobs().items():
        findings = run(job).at(job.seconds)
        found |= dict([(kind, one) for one in findings if one.kind == kind][:1])
        print(found[kind].sentence if kind in found else f"no {kind}: {[one.kind for one in findings]}")
    plain = {kind: one.plain() for kind, one in sorted(found.items())}
    kept = {kind: {name: one[name] for name in ("sentence", "evidence")} for kind, one in plain.items()}
    lines = (f"{json.dumps(kind)}: {json.dumps(one, ensure_ascii=False)}" for kind, one in kept.items())
    EXAMPLES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
