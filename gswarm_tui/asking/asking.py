"""Asks the job on all nodes, one step after the other, until one can tell which rank is behind."""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gswarm_agent import wire
from gswarm_agent.asking.steps import RANKS
from gswarm_agent.frame import INFO, WARNING
from gswarm_tui.asking.processes import PROCESSES
from gswarm_tui.asking.verdict import MOVED, RankProcess, Verdict, names
from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import first_of, plural
from gswarm_tui.fleet.events import EventLogged, FindingChanged
from gswarm_tui.fleet.findings import FAULT, RANK_BEHIND, Finding
from gswarm_tui.fleet.plain_values import typed
from gswarm_tui.fleet.state import MAX_MESSAGE
from gswarm_tui.link.hub import Hub

MIB = 1024 * 1024
LATE_S = 5.0
"""Time after an agent's own limit in which its answer may still arrive."""
HOLDS_S = 600.0
"""A finding holds for so long after the answer, unless another answer replaces it."""
MOST_RANKS = 1024
"""Ranks of a node that are asked, at most."""
WAITING, ASKING, DECIDED, UNDECIDED, SKIPPED = "waiting", "asking", "decided", "cannot tell", "not asked"


class AskError(Exception):
    """Raised if the job can't be asked; the message is one clause."""


@dataclass(frozen=True)
class Step:
    """One way to ask the job; ``cost`` says what it does to the job, ``ask`` returns what it saw."""

    name: str
    title: str
    cost: str
    ask: Callable[[Asking, Sequence[RankProcess]], Awaitable[Verdict]]


@dataclass
class _Answer:
    """An answer under way from one node, which may have ``left`` more bytes."""

    left: int
    parts: list[bytes] = field(default_factory=list)
    whole: asyncio.Event = field(default_factory=asyncio.Event)


class Asking:
    """Asks the job once at a time.

    Args:
        hub: the nodes' links, and where findings go.
        steps: returns the ladder, in its order; called when the job is first asked.
        numbers: yields the numbers of new findings.
        job: variables by which the agents know the job's processes, the surest first.
    """

    def __init__(
        self, hub: Hub, steps: Callable[[], Sequence[Step]], numbers: Iterator[int], job: Mapping[str, str]
    ) -> None:
        self.hub, self._job = hub, job
        self.force = False
        self._build_steps, self._numbers = steps, numbers
        self._answers: dict[str, _Answer] = {}
        self._running: asyncio.Task[None] | None = None
        self._token = self._error = ""
        self._ranks: list[RankProcess] = []
        self.unread: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._finding: Finding | None = None
        self._answered_at = 0.0
        hub.flushed.append(self._end_old_finding)

    @functools.cached_property
    def _steps(self) -> dict[str, Step]:
        return {step.name: step for step in self._build_steps()}

    def start(self, steps: Sequence[str], *, force: bool) -> dict[str, Any]:
        """Ask by these steps, all without any, in the ladder's order; return the state. Raises AskError."""
        if self._running is not None and not self._running.done():
            raise AskError("the job is being asked already; wait for its answer")
        if unknown := [step for step in steps if step not in self._steps]:
            raise AskError(
                f"there is no step {printable(unknown[0])[:40]}; choose from {', '.join(self._steps)}"
            )
        if not any(link.is_live for link in self.hub.links.values()):
            raise AskError("no node is connected")
        self._token, self.force, self._error = secrets.token_hex(4), force, ""
        self._ranks, self._verdicts = [], {}
        self._states = {name: WAITING for name in self._steps if not steps or name in steps}
        self._running = asyncio.get_running_loop().create_task(self._run())
        return self.state()

    def state(self) -> dict[str, Any]:
        """Return the newest request as values of a message."""
        decided = self._decided
        return {
            "token": self._token,
            "running": self._running is not None and not self._running.done(),
            "ranks": len(self._ranks),
            "steps": [
                {
                    "step": name,
                    "title": step.title,
                    "cost": step.cost,
                    "state": self._states.get(name, SKIPPED),
                    "saw": self._verdicts[name].sentence if name in self._verdicts else "",
                    "lines": list(self._verdicts[name].lines) if name in self._verdicts else [],
                    "table": list(self._verdicts[name].table) if name in self._verdicts else [],
                }
                for name, step in self._steps.items()
            ],
            "sentence": self._sentence(),
            "decided_by": "" if decided is None else decided.step,
            "behind": [
                {"rank": one.rank, "node": one.node, "gpu": one.gpu, "pid": one.pid}
                for one in (() if decided is None else decided.behind)
            ],
            "finding_id": self._finding.finding_id if decided and decided.behind and self._finding else "",
        }

    @property
    def _decided(self) -> Verdict | None:
        return next((one for one in self._verdicts.values() if one.decided), None)

    def _sentence(self) -> str:
        """Return the answer: who is behind, which step decided, and what it saw; empty while asking."""
        if self._error or any(state in (WAITING, ASKING) for state in self._states.values()):
            return self._error
        if (decided := self._decided) is not None:
            title = self._steps[decided.step].title
            if not decided.behind:
                return f"{MOVED}, by {title}"
            are = "is" if len(decided.behind) == 1 else "are"
            return f"{names(decided.behind)} {are} behind, by {title}: {decided.sentence}"
        saw = [f"{self._steps[name].title}: {one.sentence}" for name, one in self._verdicts.items()]
        return f"cannot tell which rank is behind; {'; '.join(saw)}"

    async def _run(self) -> None:
        try:
            self._ranks = await self._find_ranks()
            for name in self._states:
                self._states[name] = ASKING
                verdict = await self._steps[name].ask(self, self._ranks)
                self._verdicts[name] = verdict = replace(
                    verdict, sentence=printable(verdict.sentence)[: MAX_MESSAGE // 2]
                )
                self._states[name] = DECIDED if verdict.decided else UNDECIDED
                if verdict.decided:
                    break
        except AskError as error:
            self._error = str(error)
        # An error in a step is reported as the answer, and recording continues.
        except Exception as error:
            self._error = f"internal error of gswarm-tui: {type(error).__name__}: {error}"
        finally:
            waiting = [name for name, state in self._states.items() if state in (WAITING, ASKING)]
            self._states.update(dict.fromkeys(waiting, SKIPPED))
        self._conclude()

    async def _find_ranks(self) -> list[RankProcess]:
        """Return the ranks that the agents see, with their GPUs. Raises AskError if there are none."""
        gpus = {
            name: {one.pid: node.facts[one.gpu].index for one in node.processes if one.gpu < len(node.facts)}
            for name, node in self.hub.fleet.nodes.items()
        }
        requests = {
            node: {"job": dict(self._job), "gpu_pids": sorted(pids)[:MOST_RANKS]}
            for node, pids in gpus.items()
        }
        answers = await self.ask(RANKS, requests, seconds=10)
        found: list[RankProcess] = []
        for node, answer in answers.items():
            try:
                found += _ranks_of(node, answer, gpus[node])
            except (KeyError, TypeError):
                answer["why"] = "its agent's answer can't be understood"
        self.unread = {node: str(answer["why"]) for node, answer in answers.items() if "why" in answer}
        if not found:
            why = f" ({first_of([f'{node}: {why}' for node, why in self.unread.items()], 2)})" * bool(
                self.unread
            )
            raise AskError(f"no process of yours on {plural(len(answers), 'node')} has a rank{why}")
        return sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.node, one.pid))

    async def ask(
        self, step: str, requests: Mapping[str, Mapping[str, Any]], *, seconds: int, most: int = MIB
    ) -> dict[str, dict[str, Any]]:
        """Ask nodes by a step of their agents, all at once; return their answers.

        An answer may have ``most`` bytes. A node without one has ``{"why": clause}``.
        """
        answers = await asyncio.gather(
            *(self._ask_node(node, step, request, seconds, most) for node, request in requests.items())
        )
        return dict(zip(requests, answers, strict=True))

    async def _ask_node(
        self, node: str, step: str, request: Mapping[str, Any], seconds: int, most: int
    ) -> dict[str, Any]:
        link, token = self.hub.links[node], secrets.token_hex(8)
        if not link.is_live:
            return {"why": "it isn't connected"}
        answer = self._answers[token] = _Answer(most)
        link.take_answer = self._take
        link.ask(wire.Ask(token, step, seconds, most, json.dumps(request).encode()))
        try:
            async with asyncio.timeout(seconds + LATE_S):
                await answer.whole.wait()
            if answer.left < 0:
                return {"why": f"its answer has more than {most / MIB:g} MiB"}
            found = await asyncio.to_thread(json.loads, b"".join(answer.parts))
            return found if isinstance(found, dict) else {"why": "its agent's answer can't be understood"}
        except TimeoutError:
            return {"why": f"its agent didn't answer within {seconds} s"}
        except (ValueError, RecursionError):
            return {"why": "its agent's answer can't be understood"}
        finally:
            del self._answers[token]

    def _take(self, message: wire.Answer) -> None:
        """Take a part of an answer; one that nobody waits for is dropped."""
        if (answer := self._answers.get(message.token)) is not None:
            answer.parts.append(message.data)
            answer.left -= len(message.data)
            if message.last or answer.left < 0:
                answer.whole.set()

    def _conclude(self) -> None:
        """Log the answer, and publish it as a finding if it names ranks."""
        now, decided = self.hub.now(), self._decided
        # A request that decides nothing leaves the finding of the previous answer open.
        if decided is not None:
            self._end_finding()
        if decided is not None and decided.behind:
            self._finding, self._answered_at = self._make_finding(decided, now), now
            self.hub.publish(FindingChanged(now, self._finding))
        severity = WARNING if self._error else INFO
        self.hub.publish(EventLogged(now, "asked", severity, self._sentence()[:MAX_MESSAGE]))

    def _make_finding(self, verdict: Verdict, now: float) -> Finding:
        first, nodes = verdict.behind[0], tuple(dict.fromkeys(one.node for one in verdict.behind if one.node))
        single = len(verdict.behind) == 1
        advice = "Look at the job's output"
        if first.pid:
            look = f"gswarm-tui stacks --ranks {first.rank}"
            look = f"ps {first.pid} on {first.node}" if verdict.step == PROCESSES else look
            advice = (
                f"Look at it with {look}; ask again soon, as a rank that evaluates or saves looks the same"
            )
        finding = Finding(
            finding_id=str(next(self._numbers)),
            kind=RANK_BEHIND,
            severity=FAULT,
            node=first.node if len(nodes) == 1 else None,
            gpu=first.gpu if single else None,
            rank=first.rank if single else None,
            nodes=nodes,
            since=min(verdict.since or now, now),
            until=None,
            gpu_hours=0.0,
            sentence=f"{self._sentence()} · {advice[0].lower()}{advice[1:]}",
            evidence=verdict.evidence,
            advice=advice,
            source=f"the job's own answer, by {self._steps[verdict.step].title}",
        )
        return Finding.from_plain(finding.plain())

    def _end_finding(self) -> None:
        """End the newest finding, unless it has ended."""
        if self._finding is not None and self._finding.until is None:
            now = self.hub.now()
            known = self.hub.fleet.findings.get(self._finding.finding_id, self._finding)
            self._finding = replace(known, until=now)
            self.hub.publish(FindingChanged(now, self._finding))

    def _end_old_finding(self) -> None:
        """End the finding after a while: the job was asked once, and may have gone on."""
        if self._finding is not None and self.hub.now() > self._answered_at + HOLDS_S:
            self._end_finding()

    async def close(self) -> None:
        """End a request that is under way."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


def _ranks_of(node: str, answer: Mapping[str, Any], gpus: Mapping[int, int]) -> list[RankProcess]:
    """Return the ranks in a node's answer. Raises KeyError, TypeError for a malformed one."""
    addresses = tuple(map(str, answer.get("addresses", ())))
    return [
        typed(
            RankProcess,
            *(node, one["pid"], one["rank"], gpus.get(one["pid"])),
            *(one.get("framework") or "", one.get("nccl") or "", addresses),
            *(one.get("state") or "", one.get("world_size"), one.get("ras") or ""),
        )
        for one in answer.get("ranks", ())[:MOST_RANKS]
    ]
