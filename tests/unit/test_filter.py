"""Filter language: matches, error messages, and the laws of boolean logic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gswarm_agent.frame import TABLES, GpuFacts, Hello, HostFacts, Processes, ProcessSample
from gswarm_agent.metrics import GPU_COLUMNS, GPU_METRICS, HOST_COLUMNS, PROCESS_COLUMNS
from gswarm_tui.fleet.events import Phase
from gswarm_tui.fleet.filter import FilterError, next_match, parse
from gswarm_tui.fleet.node import NodeState

NOW = 1000.0
WORDS = [
    *"()!&|<>=: ",
    "<=",
    "!=",
    "util",
    "mem",
    "gpu:0-3",
    "rank",
    "node:",
    "state:",
    "mine",
    "5",
    "-1",
    "80G",
    "*a",
]


def node(
    name: str = "gpu03", *, gpus: int = 4, mine: tuple[bool, ...] | None = None, **values: float | list[float]
) -> NodeState:
    """Return a live node with a value per GPU for each GPU metric, and one value for each host metric."""
    facts = tuple(GpuFacts(i, f"GPU-{i}", "NVIDIA H100", memory_total_mib=80_000) for i in range(gpus))
    hello = Hello("1", "life", 1000, False, HostFacts(name, "boot"), facts, {})
    made = NodeState(name, phase=Phase.LIVE, hello=hello, last_arrival=NOW, mine=mine or (True,) * gpus)
    made.gpus = np.full((gpus, len(GPU_COLUMNS)), np.nan)
    for metric, value in values.items():
        if metric in GPU_COLUMNS:
            made.gpus[:, GPU_COLUMNS.index(metric)] = value
        else:
            made.host[HOST_COLUMNS.index(metric)] = value
    unmeasured = (None,) * len(PROCESS_COLUMNS)
    seen = [
        ProcessSample(
            *(g, 100 + g, "ada", "python train.py", g + 8, g, unmeasured, "0-7", "D", "nfs_wait"),
            *("4711", "0", "torch 2.14.1", f"2.2{7 + g}.3", None),
        )
        for g in range(2)
    ]
    made.process_table = Processes.of(TABLES.processes, seen)
    return made


def found(text: str, one: NodeState | None = None) -> list[int]:
    """Return the positions of the GPUs that match."""
    return np.flatnonzero(parse(text).match(one or node(), NOW)).tolist()


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", [0, 1, 2, 3]),
        ("util<5", [0]),
        ("util<=4 | util>96", [0, 3]),
        ("util>5 & power>300", [2, 3]),
        ("util>5 power>300", [2, 3]),
        ("util_pct=50", [1]),
        ("util!=50", [0, 2, 3]),
        ("!util<5", [1, 2, 3]),
        ("!(util<5 | power>600)", [1, 2]),
        ("mem>40", [1, 2, 3]),
        ("mem>40GiB", [1, 2, 3]),
        ("mem>40 GiB", [1, 2, 3]),
        ("mem<0.01", [0]),
        ("power>300W", [2, 3]),
        ("nvtx>100GB/s", [2, 3]),
        ("nvtx>100", [2, 3]),
        ("memtemp>80°C", [3]),
        ("energy>2", [3]),
        ("util>5%", [1, 2, 3]),
        ("iowait>20", [0, 1, 2, 3]),
        ("iowait>50", []),
        ("gpu03", [0, 1, 2, 3]),
        ("GPU0*", [0, 1, 2, 3]),
        ("gpu04", []),
        ("gpu03:2", [2]),
        ("node:gpu*", [0, 1, 2, 3]),
        ("gpu:1-2", [1, 2]),
        ("gpu=3", [3]),
        ("rank:8", [0]),
        ("rank>8", [1]),
        ("user:ada", [0, 1]),
        ("command:train", [0, 1]),
        ("wchan:nfs* & !wchan:futex", [0, 1]),
        ("job:4711 framework:torch nccl:2.27* | container:*", [0]),
        ("model:h100", [0, 1, 2, 3]),
        ("state:live", [0, 1, 2, 3]),
        ("state:lost", []),
        ("temp>10", []),
        ("  ( util < 5 )  ", [0]),
    ],
)
def test_filter_selects_gpus(text: str, matches: list[int]) -> None:
    one = node(
        util_pct=[0, 50, 90, 100],
        power_w=[70, 200, 400, 690],
        mem_used_mib=[4, 41_000, 70_000, 79_000],
        nvlink_tx_mb_s=[0, 100, 120_000, 300_000],
        mem_temp_c=[40, 50, 60, 90],
        sm_clock_mhz=[345, 1980, 1980, 1980],
        energy_mj=[0, 3.6e6, 3.6e9, 3.6e10],
        cpu_iowait_pct=38.0,
    )
    assert found(text, one) == matches


def test_mine_selects_the_jobs_gpus() -> None:
    assert found("mine", node(mine=(True, False, True, False))) == [0, 2]
    assert found("!mine", node(mine=(True, False, True, False))) == [1, 3]


def test_throttled_gpus_are_selected() -> None:
    """A GPU at its power limit (4) isn't throttled."""
    throttled = node(clock_reasons=[4, 8, np.nan, 0x20 | 1])
    assert found("state:throttled", throttled) == [1, 3]
    assert found("!state:throttled", throttled) == [0, 2]
    assert found("state:throttled", node()) == []
    assert parse("state:throttled").match(NodeState("gpu09"), NOW).tolist() == [False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("util<", "number"),
        ("util<x", "'x'"),
        ("mem<500MiB", "isn't a number of GiB"),
        ("gpu<3W", "'3W' isn't a number"),
        ("user=ada", "write user:ada"),
        ("powr>3", "power"),
        ("util<5 &", "ends too early"),
        ("(util<5", "closed"),
        ("util<5)", "')'"),
        ("<5", "before '<'"),
        ("state:gone", "states: lost, unreachable, unhealthy, stale, connecting, live, ended, throttled"),
        ("state:", "states: lost, unreachable,"),
        ("gpu:x", "0-3"),
        ("colour:red", "'colour'"),
        ("node:", "after the colon"),
        ("util<5 | | a", "'|'"),
        ("!", "ends too early"),
    ],
)
def test_filter_error_names_the_mistake(text: str, words: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert words in str(caught.value)


terms = st.one_of(
    st.builds(
        lambda metric, operator, number: f"{metric}{operator}{number}",
        st.sampled_from([m.short for m in GPU_METRICS]),
        st.sampled_from(["<", "<=", ">", ">=", "=", "!="]),
        st.integers(-5, 105),
    ),
    st.sampled_from(
        ["gpu03", "gpu0*", "nothing", "mine", "rank:8-9", "gpu:1", "state:live", "user:ada", "iowait>20"]
    ),
)
filters = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.builds(lambda a: f"!({a})", inner),
        st.builds(lambda a, b: f"({a} & {b})", inner, inner),
        st.builds(lambda a, b: f"({a} | {b})", inner, inner),
        st.builds(lambda a, b: f"({a} {b})", inner, inner),
    ),
    max_leaves=6,
)
readings = st.builds(
    lambda values, iowait: node(
        **{name: values[place::20] for place, name in enumerate(GPU_COLUMNS[:20])}, cpu_iowait_pct=iowait
    ),
    st.lists(st.sampled_from([float("nan"), 0.0, 3.0, 50.0, 99.0]), min_size=80, max_size=80),
    st.sampled_from([float("nan"), 0.0, 38.0]),
)


@given(filters, filters, readings)
def test_operators_follow_boolean_logic(one: str, other: str, where: NodeState) -> None:
    a, b = parse(one).match(where, NOW), parse(other).match(where, NOW)
    assert (parse(f"({one}) & ({other})").match(where, NOW) == (a & b)).all()
    assert (parse(f"({one}) ({other})").match(where, NOW) == (a & b)).all()
    assert (parse(f"({one}) | ({other})").match(where, NOW) == (a | b)).all()
    assert (parse(f"!({one})").match(where, NOW) == ~a).all()
    assert (parse(f"{one} | {other} & {one}").match(where, NOW) == (a | (b & a))).all()


@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=40).map("".join))
@example("(" * 5000)
@example("!" * 5000 + "mine")
@example("mine&" * 5000 + "mine")
@example("node:" + "*a" * 2000)
def test_any_text_is_a_filter_or_a_filter_error(text: str) -> None:
    try:
        made = parse(text)
    except FilterError:
        return
    assert made.match(node(), NOW).shape == (4,)


def test_word_in_no_node_name_is_explained() -> None:
    nodes = ["gpu01", "gpu02"]
    assert "perhaps you meant power" in parse("gpu01 | powr").unknown_name(nodes)
    assert "write util>5" in parse("util").unknown_name(nodes)
    assert parse("gpu0* mine state:lost util>200").unknown_name(nodes) == ""


def test_next_match_goes_round_from_the_gpu_after_the_cursor() -> None:
    nodes = [
        node("gpu01", util_pct=[1, 90, 90, 1]),
        node("gpu02", util_pct=90.0),
        node("gpu03", util_pct=[90, 90, 2, 90]),
    ]
    matches = {one.name: parse("util<5").match(one, NOW) for one in nodes}
    seen = [next_match(nodes, matches, None)]
    for _ in range(3):
        seen.append(next_match(nodes, matches, seen[-1]))
    assert seen == [("gpu01", 0), ("gpu01", 3), ("gpu03", 2), ("gpu01", 0)]
    assert next_match(nodes, matches, ("gpu01", 3), stay=True) == ("gpu01", 3)
    assert next_match(nodes, matches, ("gpu01", 1), stay=True) == ("gpu01", 3)
    assert next_match(nodes, matches, ("gone", 7)) == ("gpu01", 0)
    none = {one.name: parse("util>95").match(one, NOW) for one in nodes}
    assert next_match(nodes, none, ("gpu01", 0)) is None
