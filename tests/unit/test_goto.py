"""Times in a recording, as people say them."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.common.time_input import TimeInputError, parse_seek_time

START = datetime(2026, 3, 2, 14, 0, tzinfo=UTC).timestamp()
END = START + 3600
AT = START + 600


def goto(text: str, *, start: float = START, end: float = END, zone: timezone = UTC) -> float:
    return parse_seek_time(text, at=AT, start=start, end=end, timezone=zone)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("start", 0),
        ("end", 3600),
        ("14:05", 300),
        ("14:05:10", 310),
        (" 14:05:10 ", 310),
        ("+2m", 720),
        ("-30s", 570),
        ("+1:30", 690),
        ("+00:12:31", 600 + 751),
        ("-2h", 0),
        ("+2h", 3600),
        ("12m30s", 750),
        ("00:12:31", 751),
        ("50%", 1800),
        ("2m ago", 3480),
        ("2026-03-02 14:30", 1800),
        ("2026-03-02T15:30+01:00", 1800),
    ],
)
def test_seek_time_is_parsed(text: str, seconds: float) -> None:
    assert goto(text) == START + seconds


def test_seek_to_a_time_of_day_is_local() -> None:
    assert goto("15:05", zone=timezone(timedelta(hours=1))) == START + 300


def test_time_of_day_is_the_nearest_of_several_days() -> None:
    assert goto("14:05", end=START + 3 * 86400) == START + 300
    assert goto("13:00", end=START + 3 * 86400) == START + 23 * 3600
    assert goto("13:00", start=START - 3 * 86400, end=END) == START - 3600


@pytest.mark.parametrize(
    "text", ["", "soon", "13:00", "2h", "25:00:00", "130%", "2 fortnights", "2027-01-01", "+", "1:2:3"]
)
def test_invalid_seek_time_raises_one_sentence(text: str) -> None:
    with pytest.raises(TimeInputError, match=r"\w+ \w+"):
        goto(text)


def test_error_outside_the_recording_names_its_range() -> None:
    with pytest.raises(
        TimeInputError, match="2h isn't in the recording, which goes from 14:00:00 to 15:00:00"
    ):
        goto("2h")


@pytest.mark.parametrize("text", ["25:99", "14:99", "25:10", "14:05:75", "+1:75"])
def test_impossible_time_of_day_is_invalid(text: str) -> None:
    with pytest.raises(TimeInputError, match=f"can't read '{re.escape(text)}' as a time; write 14:05:10"):
        goto(text)


@given(st.text())
def test_any_text_is_a_time_of_the_recording_or_an_error(text: str) -> None:
    with contextlib.suppress(TimeInputError):
        assert START <= goto(text) <= END


@given(st.floats(START, END))
def test_full_time_is_parsed(at: float) -> None:
    written = f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"
    assert abs(goto(written) - at) <= 1
