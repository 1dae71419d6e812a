"""Status of an agent with its waiting frames: any reply is parsed, or refused with a reason."""

from __future__ import annotations

import contextlib
import json
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gswarm_agent.wire import MAGIC
from gswarm_tui.launch.agent_status import query_check, query_status
from gswarm_tui.launch.base import Launcher, LaunchError


class Says:
    """A launcher and its channel, on which each node sends the same reply."""

    def __init__(self, *said: bytes | Exception) -> None:
        self._said = list(said)
        self.closed = False

    async def open(self, node: str, *words: str) -> Says:
        return self

    async def read(self) -> bytes:
        said = self._said.pop(0) if self._said else b""
        if isinstance(said, Exception):
            raise said
        return said

    async def close(self) -> None:
        self.closed = True


entries = st.fixed_dictionaries(
    {},
    optional={
        "node": st.sampled_from(["gpu01", 7]),
        "pid": st.none() | st.integers(-1, 9) | st.sampled_from([10**400, 1e400, "x", []]),
        "lives": st.lists(
            st.fixed_dictionaries(
                {},
                optional=dict.fromkeys(
                    ("life", "frames"),
                    st.sampled_from([0, 1, -1, 10**400, 1e400, "\x1b[2J", None, [], {}]),
                ),
            )
        )
        | st.none(),
    },
)


@given(st.lists(entries).map(lambda said: json.dumps(said).encode()) | st.binary())
@example(b"[" * 100_000)
@example(b"9" * 5000)
async def test_any_reply_is_parsed_or_refused_in_a_sentence(said: bytes) -> None:
    node = Says(MAGIC + said)
    with contextlib.suppress(LaunchError):
        assert isinstance((await query_status(cast(Launcher, node), "gpu01", "ab")).frames, int)
    assert node.closed


async def test_the_reason_of_a_broken_connection_holds_no_control_characters() -> None:
    node = Says(ConnectionError("bye\x1b[2J\n\u202e"))
    with pytest.raises(LaunchError) as caught:
        await query_status(cast(Launcher, node), "gpu01", "ab")
    assert caught.value.reason == "the connection broke: bye [2J"


values = st.none() | st.booleans() | st.integers(-1, 9) | st.sampled_from([10**400, 1e400, "\x1b[2J", [], {}])
checks = st.fixed_dictionaries(
    dict.fromkeys(
        (
            "agent_version",
            "python",
            "python_version",
            "spool_folder",
            "spool_free_mib",
            "spool_problems",
            "perf_event_paranoid",
            "gpu_counters_admin_only",
            "likwid_lock_owner",
            "counter_privileges",
            "counter_obstacle",
            "cpu_counters",
            "gpu_counters",
            "counter_tools",
            "counters_in_use_by",
        ),
        values,
    )
)


@given((checks | st.lists(values)).map(lambda said: json.dumps(said).encode()) | st.binary())
async def test_any_check_is_parsed_or_refused_in_a_sentence(said: bytes) -> None:
    launcher = Says(MAGIC + said)
    with contextlib.suppress(LaunchError):
        found = await query_check(cast("Launcher", launcher), "gpu01")
        assert str(found["python"]).isprintable()
        assert found["spool_free_mib"] is None or type(found["spool_free_mib"]) is int
    assert launcher.closed
