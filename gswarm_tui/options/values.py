"""Values of settings: each function parses one kind from a flag's text or a TOML value.

They raise ValueError with a clause that continues "--interval: ".
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple, TypeVar

from gswarm_agent.metrics import ALL_GROUPS, GPU_BY_NAME, GPU_BY_SHORT, known_groups
from gswarm_tui.common.colours import THEME_NAMES
from gswarm_tui.common.errors import nearest, quote
from gswarm_tui.common.paths import is_pattern, recordings_beside
from gswarm_tui.common.time_input import parse_seconds

T = TypeVar("T")

MAX_DEMO_NODES = 1024
MAX_DEMO_GPUS = 16
MAX_LINGER_S = 30 * 86_400
MAX_TIMEOUT_S = 3600
MAX_SPOOL_MIB = 1_048_576
MIN_QUERY_MIB = 64
MAX_QUERY_MIB = 1_048_576
LAUNCHERS = ("ssh", "srun", "local")

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


def text(value: str) -> str:
    """Parse text that isn't empty."""
    if not value.strip():
        raise ValueError("must not be empty")
    if "\0" in value:
        raise ValueError("must not contain a zero byte")
    return value


def word(value: str) -> str:
    """Parse a word that is safe as an argument of another program."""
    given = text(value)
    if given.startswith("-") or not given.isprintable() or " " in given:
        raise ValueError(f"{quote(given)} starts with a dash, or contains a space or control character")
    return given


def path(value: str) -> Path:
    """Parse a path; ``~`` is the home folder."""
    try:
        return Path(text(value)).expanduser()
    except RuntimeError:
        raise ValueError(f"{quote(text(value))} names a user without a home folder") from None


def file(value: str) -> Path:
    """Parse the path of an existing file."""
    found = database(value)
    if not found.exists():
        raise ValueError(f"there is no file {quote(str(found))}")
    if not found.is_file():
        raise ValueError(f"{quote(str(found))} is a pipe or a device, not a file")
    return found


def database(value: str) -> Path:
    """Parse the path of a database; its folder must exist."""
    given = path(value)
    if given.is_dir():
        raise ValueError(f"{quote(str(given))} is a folder; name a file in it")
    if not given.parent.is_dir():
        raise ValueError(f"there is no folder {quote(str(given.parent))}")
    return given


def recording(value: str) -> Path:
    """Parse the path of an existing database."""
    found = path(value)
    if not found.exists():
        raise ValueError(f"there is no file {quote(str(found))}{recordings_beside(found)}")
    return file(value)


def recordings(value: str) -> Path:
    """Parse the path of an existing database, or a pattern of such paths."""
    found = path(value)
    return found if is_pattern(found) else recording(value)


def switch(value: str | bool) -> bool:
    """Parse true or false, also written as yes, no, on, off, 1 and 0."""
    chosen = _SWITCHES.get(str(value).lower())
    if chosen is None:
        raise ValueError(f"must be true or false, not {quote(str(value))}")
    return chosen


def _whole_seconds(examples: str, least: int, most: int) -> Callable[[str], int]:
    """Return a function that parses a time into whole seconds."""
    return lambda value: round(parse_seconds(value, examples, least, most))


linger_s = _whole_seconds("30m, 24h or 2d", 1, MAX_LINGER_S)
"""Parses the time that an agent runs without its recorder."""
unattended_s = _whole_seconds("0, 10m or 1d", 0, MAX_LINGER_S)
"""Parses the time that a recorder runs without a screen."""
timeout_s = _whole_seconds("30s or 2m", 1, MAX_TIMEOUT_S)
"""Parses the time to wait for a node."""


def run_s(value: str) -> float:
    """Parse a time within the run of a command into seconds, from text such as 10, 30s and 2m."""
    return parse_seconds(value, "10, 30s or 2m", 0.001, MAX_LINGER_S)


def spool_mib(value: str) -> int:
    """Parse the size of an agent's spool on its node's disk, in MiB."""
    if not (_WHOLE.fullmatch(value) and 1 <= int(value) <= MAX_SPOOL_MIB):
        raise ValueError(f"{quote(value)} isn't a whole number of MiB from 1 to {MAX_SPOOL_MIB:,}")
    return int(value)


def memory_bytes(value: str) -> int:
    """Parse a size of memory into bytes, from text such as 512MiB and 2GiB."""
    match = _MEMORY.fullmatch(value.strip())
    mib = int(match[1]) * (1024 if match[2] == "GiB" else 1) if match else 0
    if not MIN_QUERY_MIB <= mib <= MAX_QUERY_MIB:
        limits = f"from {MIN_QUERY_MIB}MiB to {MAX_QUERY_MIB // 1024}GiB"
        raise ValueError(f"{quote(value)} isn't a size {limits}, such as 512MiB or 2GiB")
    return mib * 1024**2


def demo_size(value: str) -> DemoSize:
    """Parse NODESxGPUS, such as 4x8."""
    match = _DEMO.fullmatch(value.strip())
    size = DemoSize(int(match[1]), int(match[2])) if match else DemoSize(0, 0)
    if not (1 <= size.nodes <= MAX_DEMO_NODES and 1 <= size.gpus <= MAX_DEMO_GPUS):
        limits = f"from 1x1 to {MAX_DEMO_NODES}x{MAX_DEMO_GPUS}"
        raise ValueError(f"{quote(value)} isn't NODESxGPUS {limits}, such as 4x8")
    return size


def job_id(value: str) -> str:
    """Parse a Slurm job: 4711, an array task 4711_3 or a component 4711+1."""
    if not _JOB.fullmatch(given := value.strip()):
        raise ValueError(f"{quote(given)} isn't a job number, such as 4711 or 4711_3")
    return given


def launcher(value: str) -> str:
    """Parse ssh, srun or local."""
    return _known(value, LAUNCHERS, "a launcher")


def theme(value: str) -> str:
    """Parse the name of a theme."""
    return _known(value, THEME_NAMES, "a theme")


def metric(value: str) -> str:
    """Parse a GPU metric's column name or short name into its column name."""
    return (GPU_BY_NAME.get(value) or GPU_BY_SHORT[_known(value, GPU_BY_SHORT, "a GPU metric")]).name


def metric_groups(value: str) -> tuple[str, ...]:
    """Parse the groups of metrics to measure, from text such as core,pcie; core is always on."""
    names = [name.strip() for name in text(value).split(",") if name.strip()]
    return known_groups([_known(name, ALL_GROUPS, "a group of metrics") for name in names])


def _known(value: str, known: Collection[str], what: str) -> str:
    """Return a word that is one of the known ones."""
    if value not in known:
        hint = nearest(value, known) or f"; use one of {', '.join(known)}"
        raise ValueError(f"{quote(value)} isn't {what}{hint}")
    return value


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
