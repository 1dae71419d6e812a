"""End of the Slurm job: it reaches the links, and agents end with their job."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from gswarm_agent.wire import Ack, Bye, JobEnds
from gswarm_tui.common.errors import UserError
from gswarm_tui.fleet.events import Phase
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import Hub
from gswarm_tui.run.job_end import GRACE_S, POLL_S, POLL_SOONEST_S, follow
from gswarm_tui.slurm.jobs import Job, JobEnd, Slurm, SlurmError
from tests.unit.test_hub import FakeLink
from tests.unit.test_link import BEGIN, FRAME, SECOND_NS, FakeAgent, running_link, settle

JOB = Job("4711", "4711", ("n1",), ends_at=1_000.0)


class Scontrol(Slurm):
    """A fake Slurm that returns one result after the other."""

    def __init__(self, *answers: JobEnd | UserError | None) -> None:
        super().__init__({})
        self.answers = list(answers)

    def end_of(self, job_id: str) -> JobEnd | None:
        assert job_id == "4711"
        if not self.answers:
            raise asyncio.CancelledError
        answer = self.answers.pop(0)
        if isinstance(answer, UserError):
            raise answer
        return answer


async def told(job: Job, *answers: JobEnd | UserError | None) -> tuple[list[float], Sequence[float]]:
    """Return the ends sent to the links, and the pause before each further poll."""
    now, ends, pauses = [0.0], list[float](), list[float]()

    class RecordingLink(FakeLink):
        def set_job_end(self, at: float) -> None:
            ends.append(at)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    hub = Hub(Fleet(["n1"]), clock=lambda: now[0])
    hub.links["n1"] = RecordingLink("n1")
    await asyncio.gather(follow(hub, Scontrol(*answers), job, sleep=sleep), return_exceptions=True)
    return ends, pauses


async def test_extended_and_cancelled_jobs_reach_the_links() -> None:
    running, extended = JobEnd(1_000, running=True), JobEnd(5_000, running=True)
    ends, pauses = await told(JOB, running, extended, JobEnd(200, running=False))
    assert ends == [1_000, 5_000, 200]
    assert pauses[:2] == [POLL_S, POLL_S]


async def test_polls_come_sooner_near_the_end_of_the_job() -> None:
    job = Job("4711", "4711", ("n1",), ends_at=100.0)
    _, pauses = await told(job, *(JobEnd(100, running=False) for _ in range(5)))
    assert pauses == [50, 25, 12.5, POLL_SOONEST_S, POLL_SOONEST_S]


async def test_job_that_exceeds_its_limit_keeps_its_agents() -> None:
    job = Job("4711", "4711", ("n1",), ends_at=0.0)
    ends, _ = await told(job, JobEnd(0, running=True), JobEnd(0, running=True))
    assert ends == [0, GRACE_S, GRACE_S * 1.5]


async def test_last_known_job_end_is_kept_while_slurm_does_not_answer() -> None:
    answers = SlurmError("Slurm didn't answer."), UserError("a node list can't be read."), None
    ends, _ = await told(JOB, *answers, JobEnd(1_000, running=True))
    assert ends == [1_000]


async def test_job_without_a_limit_never_ends() -> None:
    job = Job("4711", "4711", ("n1",))
    ends, pauses = await told(job, JobEnd(math.inf, running=True), JobEnd(math.inf, running=True))
    assert ends == [math.inf]
    assert pauses == [POLL_S, POLL_S]


async def test_agent_gets_the_job_end_at_once_and_on_each_connection() -> None:
    first, second = FakeAgent(), FakeAgent()
    async with running_link(first, second) as test:
        first.greet()
        test.link.set_job_end(BEGIN + 60)
        first.outgoing.put_nowait(b"")
        await test.clock.advance(2)
        test.link.set_job_end(math.inf)
    begin, sent = round(BEGIN * SECOND_NS), [m for m in first.received if isinstance(m, JobEnds)]
    assert sent == [JobEnds(begin + 60 * SECOND_NS, begin)]
    again = [message.at for message in second.received if isinstance(message, JobEnds)]
    assert again == [begin + 60 * SECOND_NS, None]


async def test_no_agent_starts_after_the_job_until_it_is_extended() -> None:
    agent, another = FakeAgent(), FakeAgent()
    async with running_link(agent, another) as test:
        test.link.set_job_end(BEGIN + 60)
        agent.greet()
        agent.send(FRAME)
        await settle()
        test.link.acknowledge("life1", 1)
        assert Ack("life1", 1) in agent.received
        for _ in range(6):
            await test.clock.advance(10)
            agent.send(FRAME)
        agent.send(Bye("the agent ended because the job ended"))
        await test.clock.advance(500)
        assert test.last_change().reason == "the agent ended because the job ended"
        assert test.last_change().retry_at is None
        assert len(test.launcher.opened) == 1
        test.link.set_job_end(BEGIN + 3_600)
        await settle()
        another.greet()
        await settle()
        assert test.phases()[-1] is Phase.LIVE
