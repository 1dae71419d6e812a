"""Config file: default values of flags in TOML, with the flags' names as keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gswarm_tui.common.errors import UserError, nearest, quote
from gswarm_tui.common.paths import config_file

ALLOCATION_KEYS = ("partition", "gres", "time", "account", "constraint", "salloc")
"""Settings for the allocations of ``profile``."""
DASK = "dask"
"""Table with the options of Dask's workers under Slurm."""
SWITCHES = ("record", "arm")
"""Settings that are true or false."""


class ConfigError(UserError):
    """Unreadable config file or unknown setting in it; the message names the file."""


def load(path: Path, keys: Iterable[str]) -> dict[str, str]:
    """Load the settings of the file at ``path`` as text, as flags have it; none if the file doesn't exist.

    ``keys`` are the settings besides those of allocations. Raises ConfigError.
    """
    found = _read(path)
    known = (*keys, *ALLOCATION_KEYS)
    found.pop(DASK, None)
    for key, value in found.items():
        if key not in known:
            hint = nearest(key.replace("-", "_"), known) or f"; use one of {', '.join(keys)}"
            raise ConfigError(f"{path}: unknown setting {quote(key)}{hint}.")
        if key == "metrics" and isinstance(value, list):
            found[key] = ",".join(map(str, value))
        elif not isinstance(value, str | int | float) or (isinstance(value, bool) and key not in SWITCHES):
            forms = "true or false" if key in SWITCHES else "text or a number"
            raise ConfigError(f"{path}: {key} must be {forms}.")
    return {key: str(value) for key, value in found.items()}


def load_dask(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the table ``[dask]`` of the config file. Raises ConfigError."""
    path = Path(environ.get("GSWARM_TUI_CONFIG") or config_file())
    found = _read(path).get(DASK, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {DASK} must be a table, with a line [dask].")
    return found


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):  # HOME may be /dev/null
        return {}
    except OSError as error:
        raise ConfigError(f"can't read the config file {path}: {error.strerror}.") from None
    except ValueError as error:  # also bytes that aren't UTF-8
        raise ConfigError(f"the config file {path} isn't valid TOML: {error}.") from None
