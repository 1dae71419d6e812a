"""The rules beside a running fleet: what they publish, and what they may never stop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from gswarm_agent.frame import ProcessSample
from gswarm_tui.fleet.events import Event, EventLogged, FindingChanged, FleetExamined, LinkChanged, Phase
from gswarm_tui.fleet.findings import Evidence
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.insight.catalogue import RULES
from gswarm_tui.insight.ledger import CAUSES
from gswarm_tui.insight.live import LiveWatch
from gswarm_tui.insight.rule import Match, Rule
from gswarm_tui.insight.window import Window
from tests.unit.store_recording import T0, arrived, gpu_row, introduced, process_row


def rule(kind: str, find: object) -> Rule:
    return replace(RULES[0], kind=kind, find=find, early=True)  # type: ignore[arg-type]


def broken(window: Window) -> Iterable[Match]:
    raise ZeroDivisionError


def malformed(window: Window) -> Iterable[Match]:
    yield Match("n1", 0, float("nan"), "nothing was measured", ())


def full(window: Window) -> Iterable[Match]:
    evidence = (Evidence("mem_used_mib", 80_000, None, "MiB"),)
    for at in (window.mean("mem_used_mib", 60) > 79_000).nonzero()[0].tolist():
        yield Match(window.gpus[at].node, at, window.now - 60, "memory 98 %", evidence)


def watched(*rules: Rule, seconds: int = 100, fails: bool = False) -> list[Event]:
    """Watch two GPUs, of which the second one is full; return what is published."""
    fleet = Fleet(["n1"])
    published: list[Event] = []

    def publish(event: Event) -> None:
        if fails and isinstance(event, FindingChanged):
            raise OSError("no space left")
        published.append(event)

    watch = LiveWatch(fleet, publish, user="ada", rules=rules)
    fleet.apply(introduced())
    fleet.apply(LinkChanged("n1", T0, Phase.LIVE))
    processes = tuple(ProcessSample(gpu, 10 + gpu, "ada", "train", gpu, gpu, process_row()) for gpu in (0, 1))
    for second in range(1, seconds):
        rows = [gpu_row(util_pct=97, mem_used_mib=used) for used in (20_000, 80_000)]
        fleet.apply(arrived(second, rows, processes=processes))
        watch.observe(T0 + second)
    return published


@pytest.mark.parametrize("find", [broken, malformed])
def test_a_rule_that_fails_is_left_out_and_the_others_go_on(
    find: object, caplog: pytest.LogCaptureFixture
) -> None:
    published = watched(rule("broken", find), rule("gpu_memory", full))
    (warning,) = [event for event in published if isinstance(event, EventLogged)]
    assert "the rule broken failed and is left out" in warning.message
    found = next(event.finding for event in published if isinstance(event, FindingChanged))
    assert (found.kind, found.node, found.gpu, found.rank) == ("gpu_memory", "n1", 1, 1)
    assert [record.exc_info is not None for record in caplog.records] == [True]
    examined = [event for event in published if isinstance(event, FleetExamined)]
    assert len(examined) == 19
    assert [CAUSES[cause] for cause in examined[-1].causes["n1"]] == ["working", "working"]


def test_the_rules_go_on_while_a_node_has_sent_no_sample_yet() -> None:
    fleet, published = Fleet(["n1"]), list[Event]()
    fleet.apply(introduced())
    watch = LiveWatch(fleet, published.append, user="ada")
    for second in range(12):
        watch.observe(T0 + second)
    assert {type(event) for event in published} == {FleetExamined}


def test_an_error_of_the_watch_itself_never_reaches_the_recorder() -> None:
    published = watched(rule("gpu_memory", full), fails=True)
    warning = next(event for event in published if isinstance(event, EventLogged))
    assert "nothing more is looked for: OSError: no space left" in warning.message
