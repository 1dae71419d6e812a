"""Asking NCCL RAS: the agent's step, over a real socket, and what reports say about ranks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gswarm_agent.asking import ras as agent_ras
from gswarm_tui.asking import ras
from gswarm_tui.asking.verdict import MOVED, RankProcess, Verdict
from tests.hostile import TEXTS
from tests.jobs.ras_server import RasServer

WORLD = tuple(
    RankProcess(
        f"gpu0{1 + rank // 4}",
        1000 + rank,
        rank,
        rank % 4,
        addresses=(f"10.0.0.{1 + rank // 4}",),
        world_size=8,
    )
    for rank in range(8)
)
BROKEN_JSON, IN_TEXT = "2.28.9", "2.27.7"
LATE = {"counts": {"AllReduce": 1204, "Broadcast": 3}}
FOUR, ONE = "rank 0, rank 1, rank 2, rank 3", "the other 1,205"
VERSIONS = (IN_TEXT, BROKEN_JSON, "2.30.7")


def member(rank: int, **changes: Any) -> dict[str, Any]:
    """Return a rank of the stand-in that launched 1,205 AllReduces and 3 Broadcasts."""
    place = {"rank": rank, "host": WORLD[rank].addresses[0], "pid": 1000 + rank, "nvml_dev": rank % 4}
    return place | {"counts": {"AllReduce": 1205, "Broadcast": 3}} | changes


def of(ranks: dict[int, dict[str, Any]] | None = None, size: int = 8) -> dict[str, Any]:
    return {
        "hash": "ae94423cfbb2ef4a",
        "ranks": [member(rank, **(ranks or {}).get(rank, {})) for rank in range(size)],
    }


@contextmanager
def served(path: Path, **state: Any) -> Iterator[RasServer]:
    path.write_text(json.dumps({"version": "2.30.7", "communicators": [of()]} | state))
    with RasServer(path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: RasServer, **request: Any) -> dict[str, Any]:
    return agent_ras.ask({"address": f"localhost:{server.server_address[1]}"} | request)


def judged(path: Path, **state: Any) -> Verdict:
    """Return the verdict from two reports that the agent's step got."""
    with served(path, **state) as server:
        first, second = ask(server), ask(server)
    return ras.judge(first["report"], second["report"], WORLD)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("changes", "behind", "sentence"),
    [
        ({5: LATE}, [5], "rank 5 launched 1,204 AllReduces, the other 7 1,205"),
        # NCCL names the only rank that is not late.
        (dict.fromkeys(range(7), LATE), [*range(7)], f"{FOUR} and 3 more launched 1,204 AllReduces, {ONE}"),
        ({5: {"missing": "dead"}, 1: {"missing": "unresponsive"}}, [5], "NCCL considers rank 5 dead"),
        ({1: {"missing": "unresponsive"}}, [1], "NCCL gets no answer from rank 1"),
        ({2: {"async_error": 6}, 3: {"async_error": 2}}, [3], "NCCL reports an error on rank 3"),
    ],
    ids=["late", "all but one late", "dead", "unresponsive", "failed"],
)  # fmt: skip
def test_the_rank_at_fault_is_named_in_all_forms_of_the_report(
    tmp_path: Path, version: str, changes: dict[int, dict[str, Any]], behind: list[int], sentence: str
) -> None:
    verdict = judged(tmp_path / "state", version=version, communicators=[of(changes)])
    assert (verdict.decided, [one.rank for one in verdict.behind], verdict.sentence) == (
        True,
        behind,
        sentence,
    )
    assert verdict.evidence
    assert any("ae94423cfbb2ef4a: 8 ranks" in line for line in verdict.lines)


def test_a_dead_process_that_no_agent_sees_has_its_node(tmp_path: Path) -> None:
    with served(tmp_path / "state", communicators=[of({5: {"missing": "dead"}})]) as server:
        verdict = ras.judge(ask(server)["report"], None, WORLD[:5] + WORLD[6:])
    assert [one.name for one in verdict.behind] == ["process 1005 (gpu02)"]


def test_a_report_on_another_job_accuses_nobody(tmp_path: Path) -> None:
    """Two jobs of one user on a node share the port of RAS."""
    elsewhere = tuple(replace(one, pid=one.pid + 50) for one in WORLD)
    with served(tmp_path / "state", communicators=[of({5: {"missing": "dead"}})]) as server:
        report = ask(server)["report"]
    verdict = ras.judge(report, report, elsewhere)
    assert not verdict.decided
    assert verdict.sentence.startswith("NCCL RAS reports on other processes")


def test_one_report_names_nobody_who_is_late(tmp_path: Path) -> None:
    with served(tmp_path / "state", communicators=[of({5: LATE})]) as server:
        verdict = ras.judge(ask(server)["report"], None, WORLD)
    assert not verdict.decided
    assert verdict.sentence == "NCCL RAS answered only once, which doesn't show who is late"


def test_ranks_that_left_or_got_the_error_of_another_are_counted_and_not_named(tmp_path: Path) -> None:
    passed_on = of({6: {"missing": "left"}, 7: {"async_error": 6}})
    verdict = judged(tmp_path / "state", communicators=[passed_on])
    assert not verdict.decided
    assert verdict.lines[0].endswith(", 1 with an error that another rank caused, 1 left")


def test_a_job_that_moves_and_one_that_stands_still(tmp_path: Path) -> None:
    late = of({5: LATE})
    verdict = judged(tmp_path / "state", communicators=[late], advance=2)
    assert (verdict.sentence, verdict.decided, verdict.behind) == (MOVED, True, ())
    verdict = judged(tmp_path / "state")
    assert verdict.sentence == "NCCL RAS names no rank that launched fewer collectives than the others"
    assert not verdict.decided
    stuck = {rank: {"stuck": True} for rank in range(4)}
    verdict = judged(
        tmp_path / "state",
        communicators=[
            {"hash": "a", "ranks": of(stuck)["ranks"][:4]},
            {"hash": "b", "ranks": of()["ranks"][4:]},
        ],
        advance=1,
    )
    assert verdict.sentence == "4 of 8 ranks moved within a second, and none stays behind"


def test_a_rank_that_waits_in_another_communicator_is_not_at_fault(tmp_path: Path) -> None:
    """Rank 4 hangs; rank 5 waits for it in their communicator, so rank 1 waits for rank 5 in another."""
    pairs = [
        [member(4, counts={"AllReduce": 9}), member(5, counts={"AllReduce": 10})],
        [member(1, counts={"Broadcast": 7}), member(5, counts={"Broadcast": 6})],
    ]
    verdict = judged(
        tmp_path / "state", communicators=[{"hash": f"{at}", "ranks": pair} for at, pair in enumerate(pairs)]
    )
    assert [one.rank for one in verdict.behind] == [4]


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("silent", "accepts connections but doesn't answer within 0.2 s"),
        ("closes", "closed the connection without a report"),
        ("other", "doesn't speak the protocol of NCCL RAS"),
        ("huge", "sent a report of more than 8 MiB"),
        ("drips", "sent no whole report within 1.2 s"),
    ],
)
def test_a_server_that_sends_no_report_ends_in_one_clause(tmp_path: Path, mode: str, why: str) -> None:
    with served(tmp_path / "state", mode=mode) as server:
        started = time.monotonic()
        answer = ask(server, seconds=1.2)
        assert time.monotonic() - started < 5
        assert answer == {"why": f"NCCL RAS at localhost:{server.server_address[1]} {why}"}


def test_the_agent_speaks_the_protocol_and_survives_addresses_of_jobs(tmp_path: Path) -> None:
    with served(tmp_path / "state") as server:
        assert ask(server, seconds=12)["report"].startswith("{")
        assert server.commands == ["client protocol 2", "timeout 5", "set format json", "verbose status"]
        port = server.server_address[1]
        assert ask(server, address=f"[::1]:{port}")["report"].startswith("{")
    assert "can't be reached at localhost" in ask(server)["why"]
    for address in (*TEXTS[1:], "host:99999", "localhost", "[::1]"):
        assert ask(server, address=address)["why"].startswith("NCCL_RAS_ADDR isn't an address"), address


def test_hostile_reports_end_in_one_sentence(tmp_path: Path) -> None:
    with served(tmp_path / "state", communicators=[of(size=2)]) as server:
        in_json = ask(server)["report"]
    with served(tmp_path / "state", version=IN_TEXT, communicators=[of(size=2)]) as server:
        in_text = ask(server)["report"]
    reports = [
        in_json[:-9],
        in_text[:-30],
        "",
        "{" * 10**6,
        "[" * 10**6,
        '{"communicators":' * 10**5,
        "{}",
        " " * 10**7,
    ]
    for old in ("1205", "1000", '"10.0.0.1"', '"0xae94423cfbb2ef4a"', "0", "false", "{", "["):
        reports += [
            in_json.replace(old, new)
            for new in ("NaN", "-9", "1e999", "9" * 5000, "null", '"x"', "[[]]", '{"a": 0}')
        ]
    for text in TEXTS:
        reports += [in_json.replace("10.0.0.1", json.dumps(text)[1:-1]), in_text.replace("RUNNING", text)]
        reports += [in_json.replace("AllReduce", json.dumps(text)[1:-1])]
    reports += [
        "\nWarnings\n#0-0 (a) MISMATCH\n" + "  1 ranks have " * 10**5,
        in_text + "  Rank 1 has " + " -- GPU 1" * 10**5,
    ]
    started = time.monotonic()
    for report in reports:
        verdict = ras.judge(report, report, WORLD)
        for text in (verdict.sentence, *verdict.lines, *(one.name for one in verdict.behind)):
            assert text.isprintable()
            assert len(text) < 500
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("nccl", "asked"),
    [("2.29.2", True), ("2.30.7-1", True), ("2.28.9", False), ("", False), ("\x1b[2J", False)],
)
def test_versions_in_which_a_request_could_corrupt_the_job_are_not_asked(nccl: str, asked: bool) -> None:
    why = ras.why_not(nccl, force=False)
    assert ras.why_not(nccl, force=True) == ""
    assert (why == "") == asked
    assert why.isprintable()
    assert asked or "could corrupt a job" in why
