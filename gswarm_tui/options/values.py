"""Values of settings: each function parses one kind from a flag's text or a TOML value.

They raise ValueError with a clause that continues "--interval: ".
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from gswarm_agent.metrics import ALL_GROUPS, GPU_BY_NAME, GPU_BY_SHORT, known_groups
from gswarm_tui.common.colours import THEME_NAMES
from gswarm_tui.common.errors import nearest, quote
from gswarm_tui.common.paths import recordings_beside

T = TypeVar("T")

MAX_DEMO_NODES = 1024
MAX_DEMO_GPUS = 16
MAX_LINGER_S = 30 * 86_400
MAX_TIMEOUT_S = 3600
MAX_SPOOL_MIB = 1_048_576
MIN_QUERY_MIB = 64
MAX_QUERY_MIB = 1_048_576
LAUNCHERS = ("ssh", "srun", "local")

_DURATION = re.compile(r"([0-9]{1,9})\s*(s|m|h|d|)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MEMORY = re.compile(r"([0-9]{1,9})\s*(MiB|GiB)")
_WHOLE = re.compile(r"[0-9]{1,9}")
_DEMO = re.compile(r"([0-9]{1,9})\s*[xX×]\s*([0-9]{1,9})")
_JOB = re.compile(r"[0-9]{1,10}(?:[_+][0-9]{1,10})?")
_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class DemoSize(NamedTuple):
    """Number of simulated nodes, and of GPUs on each."""

    nodes: int
    gpus: int


def text(value: object) -> str:
    """Parse text that isn't empty."""
    if not isinstance(value, str):
        raise ValueError(f"must be text in quotes, not {_toml(value)}")
    if not value.strip():
        raise ValueError("must not be empty")
    if "\0" in value:
        raise ValueError("must not contain a zero byte")
    return value


def word(value: object) -> str:
    """Parse a word that is safe as an argument of another program."""
    given = text(value)
    if given.startswith("-") or not given.isprintable() or " " in given:
        raise ValueError(f"{quote(given)} starts with a dash, or contains a space or control character")
    return given


def path(value: object) -> Path:
    """Parse a path; ``~`` is the home folder."""
    try:
        return Path(text(value)).expanduser()
    except RuntimeError:
        raise ValueError(f"{quote(text(value))} names a user without a home folder") from None


def textfile(value: object) -> Path | None:
    """Parse the path of a file for node_exporter; None for an empty text."""
    if value == "":
        return None
    found = path(value)
    if found.suffix != ".prom":
        raise ValueError(f"{quote(str(found))} doesn't end in .prom, and node_exporter reads no other file")
    if not found.parent.is_dir():
        raise ValueError(f"there is no folder {quote(str(found.parent))}")
    return found


def file(value: object) -> Path:
    """Parse the path of an existing file."""
    found = path(value)
    if found.is_dir():
        raise ValueError(f"{quote(str(found))} is a folder; name a file in it")
    if not found.exists():
        raise ValueError(f"there is no file {quote(str(found))}")
    if not found.is_file():
        raise ValueError(f"{quote(str(found))} is a pipe or a device, not a file")
    return found


def database(value: object) -> Path:
    """Parse the path of a database; its folder must exist."""
    given = path(value)
    if given.is_dir():
        raise ValueError(f"{quote(str(given))} is a folder; name a file in it")
    if not given.parent.is_dir():
        raise ValueError(f"there is no folder {quote(str(given.parent))}")
    return given


def recording(value: object) -> Path:
    """Parse the path of an existing database."""
    found = path(value)
    if not found.exists():
        raise ValueError(f"there is no file {quote(str(found))}{recordings_beside(found)}")
    return file(value)


def switch(value: object) -> bool:
    """Parse true or false; as text also yes, no, on, off, 1 and 0."""
    chosen = _SWITCHES.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(chosen, bool):
        raise ValueError(f"must be true or false, not {_toml(value)}")
    return chosen


def interval_ms(value: object) -> int:
    """Parse an interval into milliseconds, from seconds or text such as 1, 0.5s and 500ms."""
    from gswarm_tui.common.time_input import parse_interval_ms  # with datetime, which --help doesn't need

    return parse_interval_ms(_written(value), _toml(value))


def linger_s(value: object) -> int:
    """Parse the time that an agent runs without its head into seconds, from text such as 90s, 30m and 2d."""
    return _seconds(value, "30m, 24h or 2d", MAX_LINGER_S, "30 d")


def unattended_s(value: object) -> int:
    """Parse the time that a recorder runs without a screen into seconds, from text such as 0, 10m and 1d."""
    return 0 if _written(value) == "0" else _seconds(value, "0, 10m or 1d", MAX_LINGER_S, "30 d")


def timeout_s(value: object) -> int:
    """Parse the time to wait for a node into seconds, from text such as 30s and 2m."""
    return _seconds(value, "30s or 2m", MAX_TIMEOUT_S, "1 h")


def spool_mib(value: object) -> int:
    """Parse the size of an agent's spool on its node's disk, in MiB."""
    mib = int(_matched(_WHOLE, value, "a whole number of MiB, such as 256")[0])
    if not 1 <= mib <= MAX_SPOOL_MIB:
        raise ValueError(f"{_toml(value)} isn't between 1 and {MAX_SPOOL_MIB} MiB")
    return mib


def memory_bytes(value: object) -> int:
    """Parse a size of memory into bytes, from text such as 512MiB and 2GiB."""
    match = _matched(_MEMORY, value, "a size such as 512MiB or 2GiB")
    mib = int(match[1]) * (1024 if match[2] == "GiB" else 1)
    if not MIN_QUERY_MIB <= mib <= MAX_QUERY_MIB:
        raise ValueError(f"{_toml(value)} isn't between {MIN_QUERY_MIB}MiB and {MAX_QUERY_MIB // 1024}GiB")
    return mib * 1024**2


def demo_size(value: object) -> DemoSize:
    """Parse NODESxGPUS, such as 4x8."""
    match = _DEMO.fullmatch(text(value).strip())
    if match is None:
        raise ValueError(f"{_toml(value)} isn't NODESxGPUS, such as 4x8")
    size = DemoSize(int(match[1]), int(match[2]))
    if not (1 <= size.nodes <= MAX_DEMO_NODES and 1 <= size.gpus <= MAX_DEMO_GPUS):
        raise ValueError(f"{_toml(value)} isn't between 1x1 and {MAX_DEMO_NODES}x{MAX_DEMO_GPUS}")
    return size


def job_id(value: object) -> str:
    """Parse a Slurm job: 4711, an array task 4711_3 or a component 4711+1."""
    if not _JOB.fullmatch(given := text(value).strip()):
        raise ValueError(f"{quote(given)} isn't a job number, such as 4711 or 4711_3")
    return given


def launcher(value: object) -> str:
    """Parse ssh, srun or local."""
    if (given := text(value)) not in LAUNCHERS:
        raise ValueError(f"{quote(given)} isn't one of {', '.join(LAUNCHERS)}{nearest(given, LAUNCHERS)}")
    return given


def theme(value: object) -> str:
    """Parse the name of a theme."""
    if (given := text(value)) not in THEME_NAMES:
        hint = nearest(given, THEME_NAMES) or f"; use one of {', '.join(THEME_NAMES)}"
        raise ValueError(f"{quote(given)} isn't a theme{hint}")
    return given


def metric(value: object) -> str:
    """Parse a GPU metric's column name or short name into its column name."""
    given = text(value)
    found = GPU_BY_NAME.get(given) or GPU_BY_SHORT.get(given)
    if found is None:
        hint = nearest(given, (*GPU_BY_SHORT, *GPU_BY_NAME)) or f"; use one of {', '.join(GPU_BY_SHORT)}"
        raise ValueError(f"{quote(given)} isn't a GPU metric{hint}")
    return found.name


def metric_groups(value: object) -> tuple[str, ...]:
    """Parse the groups of metrics to measure, from text such as core,pcie or a list; core is always on."""
    given = ",".join(map(text, value)) if isinstance(value, list) else text(value)
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in ALL_GROUPS:
            hint = nearest(name, ALL_GROUPS) or f"; use some of {', '.join(ALL_GROUPS)}"
            raise ValueError(f"{quote(name)} isn't a group of metrics{hint}")
    return known_groups(names)


def _seconds(value: object, examples: str, longest_s: int, longest: str) -> int:
    match = _matched(_DURATION, value, f"a time such as {examples}")
    seconds = int(match[1]) * _SECONDS[match[2] or "s"]
    if not 1 <= seconds <= longest_s:
        raise ValueError(f"{_toml(value)} isn't between 1 s and {longest}")
    return seconds


def _matched(pattern: re.Pattern[str], value: object, expected: str) -> re.Match[str]:
    """Match the whole of a text or number."""
    match = pattern.fullmatch(_written(value).strip())
    if match is None:
        raise ValueError(f"{_toml(value)} isn't {expected}")
    return match


def _written(value: object) -> str:
    """Return a text or number as text; empty for anything else, which no pattern matches."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    return str(value)


def _toml(value: object) -> str:
    """Return a value as the user wrote it."""
    if isinstance(value, bool):
        return str(value).lower()
    return quote(value) if isinstance(value, str) else quote(str(value)).strip('"')


def argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return a function of this module as argparse's ``type``, which has the clause in its message."""

    def parse(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None
        except OSError as error:
            raise ArgumentTypeError(f"{error.filename}: {error.strerror}") from None

    return parse


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return an argparse ``type`` for whole numbers in a range."""

    def parse(text: str) -> int:
        if not (_WHOLE.fullmatch(text) and least <= int(text) <= most):
            raise ArgumentTypeError(f"{quote(text)} isn't a number from {least} to {most:,}")
        return int(text)

    return parse
