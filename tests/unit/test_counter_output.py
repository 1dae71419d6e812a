"""Output of perf: real lines are parsed, and any other text is refused, never misread."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.probes.counter_tools import Perf, parse_perf_line, parse_perf_list

# perf 6.1 on a virtual machine, perf 5.14 on an Intel node.
PERF = """     1.003886694,<not supported>,,instructions,0,100.00,,
     1.003886694,22816,,page-faults,1019990206,100.00,,
     1.003886694,<not counted>,,context-switches:u,0,100.00,,
     1.003886694,6311.52,MiB,uncore_imc/cas_count_read/,1001234567,100.00,,
     1.003886694,123456789,,cycles:u,1001234567,62.50,3.251,GHz"""


def test_lines_of_perf_are_parsed() -> None:
    lines = [parse_perf_line(line) for line in PERF.splitlines()]
    shown = [(line.at, line.event, line.count, line.supported) for line in lines if line is not None]
    at = 1.003886694
    assert shown == [
        (at, "instructions", None, False),
        (at, "page-faults", 22816, True),
        (at, "context-switches", None, True),
        (at, "uncore_imc/cas_count_read/", 6311.52 * 2**20, True),
        (at, "cycles", 123456789, True),
    ]


PIECES = ("0", "1", "9", ".", "e", ",", "-", "nan", "inf", "<not supported>", "MiB", "cycles", ":u")


@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_from_perf_is_a_finite_count_or_refused(text: str) -> None:
    line = parse_perf_line(text)
    if line is not None:
        assert line.event
        assert math.isfinite(line.at)
        assert line.at >= 0
        assert line.count is None or (math.isfinite(line.count) and line.count >= 0)


@given(
    st.floats(0.001, 1e6),
    st.integers(0, 10**18),
    st.sampled_from(("instructions", "cycles:u", "fp_arith_inst_retired.scalar_double")),
)
def test_what_perf_counted_is_what_is_parsed(at: float, count: int, event: str) -> None:
    line = parse_perf_line(f"{at:16.9f},{count},,{event},1000,100.00,,")
    assert line is not None
    assert (line.event, line.count) == (event.removesuffix(":u"), float(count))
    assert line.at == pytest.approx(at, abs=1e-9)


def test_events_of_this_cpu_are_found_in_perfs_list() -> None:
    listed = """
  fp_arith_inst_retired.scalar_double
  uncore_imc_0/cas_count_read/                       [Kernel PMU event]
  page-faults OR faults                              [Software event]"""
    assert parse_perf_list(listed) == (
        ["fp_arith_inst_retired.scalar_double"],
        ["uncore_imc/cas_count_read/", "uncore_imc/cas_count_write/"],
    )
    assert parse_perf_list("  page-faults OR faults [Software event]") == ([], [])


def perf(*events: str) -> Perf:
    tool = Perf("/usr/bin/perf")
    tool.counting([*events])
    return tool


def interval(tool: Perf, at: float, **counts: float | None) -> None:
    for event in tool.counting([])[tool.counting([]).index("-e") + 1].split(","):
        count = counts.get(event.replace("-", "_"), 0)
        tool.feed(f"{at:.9f},{'<not supported>' if count is None else count},,{event},1,100.00,,")


def test_rates_are_means_of_all_intervals_since_the_last_look() -> None:
    tool = perf()
    interval(tool, 1.0, instructions=3e9, cycles=2e9, page_faults=100)
    interval(tool, 3.0, instructions=9e9, cycles=2e9, page_faults=500)
    rates = tool.take()
    assert rates is not None
    assert rates["instructions_g_s"] == pytest.approx(4.0)
    assert rates["ipc"] == pytest.approx(3.0)
    assert rates["page_faults_s"] == pytest.approx(200.0)
    assert tool.take() is None, "no interval has ended since"
    assert set(tool.reasons) == {"flops_g_s", "memory_bandwidth_mb_s"}


def test_events_that_a_virtual_machine_lacks_have_a_reason_each() -> None:
    tool = perf()
    interval(tool, 1.0, instructions=None, cycles=None, cache_misses=None, page_faults=7)
    assert tool.take() == {"page_faults_s": 7.0, "context_switches_s": 0.0, "cpu_migrations_s": 0.0}
    assert set(tool.reasons) == {
        "instructions_g_s",
        "cycles_g_s",
        "ipc",
        "flops_g_s",
        "memory_bandwidth_mb_s",
        "llc_misses_m_s",
    }
    assert all("virtual machine" in reason for reason in tool.reasons.values())


def test_floating_point_operations_count_each_lane_of_a_vector() -> None:
    tool = perf("fp_arith_inst_retired.scalar_double", "fp_arith_inst_retired.512b_packed_double")
    at = "1.000000000"
    for event, count in (("scalar_double", 10**9), ("512b_packed_double", 10**9)):
        tool.feed(f"{at},{count},,fp_arith_inst_retired.{event},1,100.00,,")
    tool.feed("2.000000000,1,,cycles,1,100.00,,")
    rates = tool.take()
    assert rates is not None
    assert rates["flops_g_s"] == pytest.approx(9.0)
