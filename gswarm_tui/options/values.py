"""What a setting's value may be: each function reads one kind from a flag's text or a TOML value.

They raise ValueError with a clause that continues "--interval: ".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gswarm_agent.metrics import GPU_BY_NAME, GPU_BY_SHORT, MAX_INTERVAL_MS, MIN_INTERVAL_MS
from gswarm_tui.common.colours import THEME_NAMES
from gswarm_tui.common.errors import nearest, quote

MAX_DEMO_NODES = 1024
MAX_DEMO_GPUS = 16
MAX_LINGER_S = 30 * 86_400
MAX_SPOOL_MIB = 1_048_576
LAUNCHERS = ("ssh", "srun", "local")

_INTERVAL = re.compile(r"([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s*(ms|s|)")
_DURATION = re.compile(r"([0-9]{1,9})\s*(s|m|h|d|)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WHOLE = re.compile(r"[0-9]{1,9}")
_DEMO = re.compile(r"([0-9]{1,9})\s*[xX×]\s*([0-9]{1,9})")
_JOB = re.compile(r"[0-9]{1,10}(?:[_+][0-9]{1,10})?")
_SWITCHES = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


@dataclass(frozen=True)
class DemoSize:
    """How many simulated nodes, and how many GPUs each has."""

    nodes: int
    gpus: int


def text(value: object) -> str:
    """Any text that isn't empty."""
    if not isinstance(value, str):
        raise ValueError(f"must be text in quotes, not {_toml(value)}")
    if not value.strip():
        raise ValueError("is empty")
    if "\0" in value:
        raise ValueError("holds a zero byte")
    return value


def word(value: object) -> str:
    """Text without white space or a leading dash, fit to stand on another program's command line."""
    given = text(value)
    if given.startswith("-") or not given.isprintable() or " " in given:
        raise ValueError(f"{quote(given)} begins with a dash, or holds a space or a control character")
    return given


def path(value: object) -> Path:
    """A path; ``~`` is the home folder."""
    try:
        return Path(text(value)).expanduser()
    except RuntimeError:
        raise ValueError(f"{quote(text(value))} is in a home folder that isn't known") from None


def file(value: object) -> Path:
    """The path of a file that is there."""
    found = path(value)
    if found.is_dir():
        raise ValueError(f"{quote(str(found))} is a folder; name a file in it")
    if not found.is_file():
        raise ValueError(f"there is no file {quote(str(found))}")
    return found


def database(value: object) -> Path:
    """The path of a database that is there or can be made: its folder exists."""
    given = path(value)
    if given.is_dir():
        raise ValueError(f"{quote(str(given))} is a folder; name a file in it")
    if not given.parent.is_dir():
        raise ValueError(f"there is no folder {quote(str(given.parent))}")
    return given


def switch(value: object) -> bool:
    """true or false; as text also yes, no, on, off, 1 and 0."""
    chosen = _SWITCHES.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(chosen, bool):
        raise ValueError(f"must be true or false, not {_toml(value)}")
    return chosen


def interval_ms(value: object) -> int:
    """An interval in milliseconds, from seconds or text such as 1, 0.5s and 500ms; 0.1 s to 60 s."""
    given = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    match = _INTERVAL.fullmatch(given.strip()) if isinstance(given, str) else None
    if match is None:
        raise ValueError(f"{_toml(value)} isn't a time such as 1, 0.5s or 500ms")
    milliseconds = round(float(match[1]) * (1 if match[2] == "ms" else 1000))
    if not MIN_INTERVAL_MS <= milliseconds <= MAX_INTERVAL_MS:
        raise ValueError(
            f"{_toml(value)} isn't between {MIN_INTERVAL_MS / 1000:g} s and {MAX_INTERVAL_MS / 1000:g} s"
        )
    return milliseconds


def linger_s(value: object) -> int:
    """How long an agent goes on alone, in seconds, from seconds or text such as 90s, 30m, 24h and 2d."""
    given = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    match = _DURATION.fullmatch(given.strip()) if isinstance(given, str) else None
    if match is None:
        raise ValueError(f"{_toml(value)} isn't a time such as 30m, 24h or 2d")
    seconds = int(match[1]) * _SECONDS[match[2] or "s"]
    if not 1 <= seconds <= MAX_LINGER_S:
        raise ValueError(f"{_toml(value)} isn't between 1 s and 30 d")
    return seconds


def spool_mib(value: object) -> int:
    """How much an agent keeps on its node's disk, in MiB."""
    given = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not (isinstance(given, str) and _WHOLE.fullmatch(given.strip())):
        raise ValueError(f"{_toml(value)} isn't a whole number of MiB, such as 256")
    if not 1 <= int(given) <= MAX_SPOOL_MIB:
        raise ValueError(f"{_toml(value)} isn't between 1 and {MAX_SPOOL_MIB} MiB")
    return int(given)


def demo_size(value: object) -> DemoSize:
    """NODESxGPUS, such as 4x8."""
    match = _DEMO.fullmatch(text(value).strip())
    if match is None:
        raise ValueError(f"{_toml(value)} isn't NODESxGPUS, such as 4x8")
    size = DemoSize(int(match[1]), int(match[2]))
    if not (1 <= size.nodes <= MAX_DEMO_NODES and 1 <= size.gpus <= MAX_DEMO_GPUS):
        raise ValueError(f"{_toml(value)} isn't between 1x1 and {MAX_DEMO_NODES}x{MAX_DEMO_GPUS}")
    return size


def job_id(value: object) -> str:
    """A Slurm job: 4711, an array task 4711_3 or a component 4711+1."""
    if not _JOB.fullmatch(given := text(value).strip()):
        raise ValueError(f"{quote(given)} isn't a job number, such as 4711 or 4711_3")
    return given


def launcher(value: object) -> str:
    """ssh, srun or local."""
    if (given := text(value)) not in LAUNCHERS:
        raise ValueError(f"{quote(given)} isn't one of {', '.join(LAUNCHERS)}{nearest(given, LAUNCHERS)}")
    return given


def theme(value: object) -> str:
    """One of the themes."""
    if (given := text(value)) not in THEME_NAMES:
        hint = nearest(given, THEME_NAMES) or f"; it is one of {', '.join(THEME_NAMES)}"
        raise ValueError(f"{quote(given)} isn't a theme{hint}")
    return given


def metric(value: object) -> str:
    """A GPU metric of the catalogue by its column name or short name; its column name."""
    given = text(value)
    found = GPU_BY_NAME.get(given) or GPU_BY_SHORT.get(given)
    if found is None:
        hint = nearest(given, (*GPU_BY_SHORT, *GPU_BY_NAME)) or f"; it is one of {', '.join(GPU_BY_SHORT)}"
        raise ValueError(f"{quote(given)} isn't a GPU metric{hint}")
    return found.name


def _toml(value: object) -> str:
    """``value`` as people wrote it."""
    if isinstance(value, bool):
        return str(value).lower()
    return quote(value) if isinstance(value, str) else quote(str(value)).strip('"')
