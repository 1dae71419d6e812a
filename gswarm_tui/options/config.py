"""Config file: default values of flags in TOML, with the flags' names as keys."""

from __future__ import annotations

from pathlib import Path

from gswarm_tui.common.errors import UserError, nearest, quote

KEYS = (
    "interval",
    "metrics",
    "db",
    "record",
    "arm",
    "launcher",
    "user",
    "ssh_config",
    "jump",
    "setup",
    "agent_python",
    "linger",
    "unattended",
    "spool_mib",
    "query_memory",
    "theme",
    "metric",
)
"""Settings of the file; in the environment they are ``GSWARM_TUI_`` and the key in capitals."""
ALLOCATION_KEYS = ("partition", "gres", "time", "account", "constraint", "salloc")
"""Further settings, for the allocations of ``profile``."""


class ConfigError(UserError):
    """Unreadable config file or unknown setting in it; the message names the file."""


def load(path: Path) -> dict[str, object]:
    """Load the settings of the file at ``path`` with their TOML values; none if the file doesn't exist.

    Raises:
        ConfigError: the file can't be read, isn't TOML, or holds an unknown key.
    """
    import tomllib

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):  # HOME may be /dev/null
        return {}
    except OSError as error:
        raise ConfigError(f"can't read the config file {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the config file {path} isn't UTF-8 at byte {error.start}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the config file {path} isn't valid TOML: {error}.") from None
    known = (*KEYS, *ALLOCATION_KEYS)
    for key in found:
        if key not in known:
            hint = nearest(key.replace("-", "_"), known) or f"; use one of {', '.join(KEYS)}"
            raise ConfigError(f"{path}: unknown setting {quote(key)}{hint}.")
    return found
