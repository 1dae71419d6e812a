"""When a session began, as people say it."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gswarm_tui.common.time_input import TimeInputError, parse_start, split_start

NOW = datetime(2026, 3, 2, 14, 5, 30, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds_ago"),
    [
        ("now", 0),
        ("", 0),
        ("30s", 30),
        ("2m", 120),
        ("2 minutes ago", 120),
        ("since 2m ago", 120),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("1.5h", 5400),
        ("1d", 86400),
        ("14:05", 30),
        ("14:05:10", 20),
        ("14:06", 86400 - 30),
        ("2026-03-02 14:00", 330),
        ("2026-03-02T14:00:00", 330),
        ("2026-03-02T15:00+01:00", 330),
    ],
)
def test_start_time_is_parsed(text: str, seconds_ago: float) -> None:
    assert parse_start(text, NOW, UTC) == NOW - seconds_ago


def test_time_of_day_is_local() -> None:
    assert parse_start("15:05", NOW, timezone(timedelta(hours=1))) == NOW - 30


@pytest.mark.parametrize("text", ["soon", "25:00", "2 fortnights", "2027-01-01", "-5m", "m"])
def test_invalid_start_time_raises_one_sentence(text: str) -> None:
    with pytest.raises(TimeInputError, match=r"\w+ \w+"):
        parse_start(text, NOW, UTC)


@given(st.text(max_size=30) | st.text("0123456789:-T. smhd", max_size=30))
@example("9" * 400 + "d")
@example("99999999999d")
@example("0001-01-01")
@example("9999-12-31T23:59:59-14:00")
def test_any_text_is_a_past_time_or_an_error(text: str) -> None:
    for zone in (UTC, timezone(timedelta(hours=14)), None):
        with contextlib.suppress(TimeInputError):
            assert 0 <= parse_start(text, NOW, zone) <= NOW


@pytest.mark.parametrize(
    ("line", "name", "since"),
    [
        ("train", "train", ""),
        ("train, since 2m ago", "train", "2m ago"),
        ("a, b, since 14:05", "a, b", "14:05"),
        (", since 2m", ", since 2m", ""),
        ("  spaced  ", "spaced", ""),
    ],
)
def test_line_is_split_into_name_and_start(line: str, name: str, since: str) -> None:
    assert split_start(line) == (name, since)
