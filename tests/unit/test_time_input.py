"""Times of a recording, as people type them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gswarm_tui.common.time_input import TIME_FORMS, TimeInputError, parse_time

START = datetime(2026, 3, 2, 14, 0, tzinfo=UTC).timestamp()
END = START + 3600
BERLIN = timezone(timedelta(hours=1))


def parsed(text: str, *, start: float = START, end: float = END, zone: timezone = UTC) -> float:
    return parse_time(text, start=start, end=end, timezone=zone)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("start", 0),
        ("end", 3600),
        (" Now ", 3600),
        ("14:05", 300),
        (" 14:05:10 ", 310),
        ("+2m", 120),
        ("+ 2 min", 120),
        ("+2m from the start", 120),
        ("90 s from the start", 90),
        ("+1:30", 90),
        ("+00:12:31", 751),
        ("-2m", 3480),
        ("−2m", 3480),
        ("2m ago", 3480),
        ("2 minutes  AGO", 3480),
        ("-1:30", 3510),
        ("0.5h ago", 1800),
        ("-1h", 0),
        ("50%", 1800),
        ("12.5 %", 450),
        ("2026-03-02 14:30", 1800),
        ("2026-03-02T15:30+01:00", 1800),
    ],
)
def test_time_is_parsed(text: str, seconds: float) -> None:
    assert parsed(text) == START + seconds


def test_time_of_day_is_local() -> None:
    assert parsed("15:05", zone=BERLIN) == START + 300


def test_time_of_day_is_the_latest_of_several_days() -> None:
    later = END + 3 * 86400
    assert parsed("14:05", end=later) == START + 300 + 3 * 86400
    assert parsed("13:00", end=later) == START + 71 * 3600


@pytest.fixture
def berlin() -> Iterator[None]:
    """Set the time zone of Berlin, where summer time began on 29 March 2026 at 2:00."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "CET-1CEST,M3.5.0,M10.5.0/3"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_time_before_the_change_to_summer_time_is_that_of_clocks_then() -> None:
    start = datetime(2026, 3, 28, 20, tzinfo=UTC).timestamp()  # 21:00
    assert parse_time("23:30", start=start, end=start + 8 * 3600) == start + 2.5 * 3600
    assert parse_time("03:30", start=start, end=start + 8 * 3600) == start + 5.5 * 3600


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2m", "25:00", "25:99", "14:05:75", "+1:75", "2 fortnights", "+2 f", "m", "+", "1:2:3"],
)
def test_wrong_text_gets_a_sentence_with_all_forms(text: str) -> None:
    with pytest.raises(TimeInputError) as raised:
        parsed(text)
    assert str(raised.value) == f'can\'t read "{text}" as a time; write {TIME_FORMS}'


@pytest.mark.parametrize("text", ["+2h", "-2h", "2h ago", "13:00", "130%", "2027-01-01"])
def test_error_outside_the_recording_names_its_range(text: str) -> None:
    with pytest.raises(TimeInputError) as raised:
        parsed(text)
    assert str(raised.value) == f'"{text}" isn\'t in the recording, which goes from 14:00:00 to 15:00:00'


@given(st.text(max_size=30) | st.text("0123456789:+-T.% smhdago", max_size=30))
@example("-" + "9" * 400 + "d")
@example("99999999999d ago")
@example("0001-01-01")
@example("9999-12-31T23:59:59-14:00")
def test_any_text_is_a_time_of_the_recording_or_an_error(text: str) -> None:
    for zone in (UTC, timezone(timedelta(hours=14)), None):
        with contextlib.suppress(TimeInputError):
            assert START <= parse_time(text, start=START, end=END, timezone=zone) <= END


@given(st.integers(0, 3600))
def test_all_forms_of_one_time_agree(seconds: int) -> None:
    at = START + seconds
    left = 3600 - seconds
    clock = f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"
    share = f"{seconds / 36:.10f}".rstrip("0").rstrip(".")
    forms = [f"+{seconds}s", f"-{left}s", f"{left} s ago", f"+{seconds // 60}m{seconds % 60}s", clock]
    forms += [f"+00:{seconds // 60:02d}:{seconds % 60:02d}"] if seconds < 3600 else []
    forms += [f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d} {clock}", f"{share}%"]
    assert [parsed(form) for form in forms] == pytest.approx([at] * len(forms), abs=1e-3)
