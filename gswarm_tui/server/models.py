"""Bodies of ``/api/v1``, from which its OpenAPI document is made.

Answers are objects of ``control.status`` and ``fleet.snapshot``. Names are those of a recording's columns and
of ``--json``. Values that weren't measured are null, times are UTC in ISO 8601. Bodies are strict: a wrong
type or an unknown field is an error.
"""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt, StrictStr

from gswarm_agent.mark import MOST_NAME, MOST_VALUES
from gswarm_agent.metrics import MAX_INTERVAL_MS, METRIC_GROUPS, MIN_INTERVAL_MS
from gswarm_tui.control.intents import MAX_TIME
from gswarm_tui.fleet.session_texts import MAX_NOTE
from gswarm_tui.server.requests import MAX_QUERY_S, MAX_ROWS, SessionName

_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
MOST_SQL = 100_000


def _unix_time(value: object) -> float | None:
    """Return the Unix time of a text in ISO 8601 with its zone."""
    if value is None:
        return None
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise ValueError("a time must be ISO 8601 with its zone, such as 2026-03-02T14:03:00Z")
    at = datetime.fromisoformat(value.upper()).timestamp()
    return min(max(at, 0.0), MAX_TIME - 1)  # the recorder refuses these, as they aren't in the recording


def _mark_value(value: object) -> object:
    """Return a value of a mark. Raises ValueError, with one sentence for all of its types."""
    is_known = isinstance(value, (int, float, str)) and not isinstance(value, bool)
    if not is_known or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("a value must be a finite number or a text")
    return value


Time = Annotated[
    float | None,
    BeforeValidator(
        _unix_time,
        json_schema_input_type=Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None,
    ),
]
"""Time in a body, as Unix time; None is now."""
_Finite = Annotated[StrictFloat, Field(allow_inf_nan=False)]
MarkValue = Annotated[StrictInt | _Finite | StrictStr, BeforeValidator(_mark_value)]
Interval = Annotated[StrictInt, Field(ge=MIN_INTERVAL_MS, le=MAX_INTERVAL_MS)]
Group = Literal[tuple(METRIC_GROUPS)]  # type: ignore[valid-type]


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="forbid")


class NewSession(Body):
    """Session to start; its name is the next of session-1, session-2 … if it has none."""

    name: SessionName | None = None
    started_at: Time = Field(None, description="Start in the past; now without it")
    note: Annotated[StrictStr, Field(max_length=MAX_NOTE)] = ""


class SessionEnd(Body):
    """When to end a session."""

    ended_at: Time = Field(None, description="End in the past; now without it")


class SessionChange(Body):
    """New name and note of a session; null leaves one unchanged."""

    name: SessionName | None = None
    note: Annotated[StrictStr, Field(max_length=MAX_NOTE)] | None = None


class NewMark(Body):
    """Mark to set, with its values."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=MOST_NAME)]
    values: dict[StrictStr, MarkValue] = Field(default_factory=dict, max_length=MOST_VALUES)
    at: Time = Field(None, description="Time in the past; now without it")


class SamplingInterval(Body):
    """Time between the samples of all nodes."""

    interval_ms: Interval


class MetricGroups(Body):
    """Groups of metrics that all nodes measure; core is always on."""

    groups: list[Group] = Field(max_length=len(METRIC_GROUPS))  # type: ignore[valid-type]


class Query(Body):
    """One SQL statement that reads, in DuckDB's dialect, and its limits."""

    sql: Annotated[StrictStr, Field(min_length=1, max_length=MOST_SQL)]
    max_rows: Annotated[StrictInt, Field(ge=1, le=MAX_ROWS)] = 1000
    timeout_s: Annotated[StrictFloat, Field(ge=0.1, le=MAX_QUERY_S, allow_inf_nan=False)] = 10.0
