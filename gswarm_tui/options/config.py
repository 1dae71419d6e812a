"""The config file: defaults in TOML, with keys that are the flags' names."""

from __future__ import annotations

import re
from pathlib import Path

from gswarm_tui.common.errors import UserError, nearest, quote

KEYS = (
    "interval",
    "db",
    "record",
    "launcher",
    "user",
    "ssh_config",
    "jump",
    "setup",
    "agent_python",
    "linger",
    "spool_mib",
    "theme",
    "metric",
)
"""What can be set in the file, and in the environment as ``GSWARM_TUI_`` and the key in capitals."""


class ConfigError(UserError):
    """A config file that can't be read or holds a key that doesn't exist; names the file and the line."""


def load(path: Path) -> dict[str, object]:
    """The settings in the file at ``path``, their values as TOML gives them; none where there is no file.

    Raises:
        ConfigError: the file can't be read, isn't TOML, or holds an unknown key.
    """
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"can't read the config file {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the config file {path} isn't UTF-8 at byte {error.start}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the config file {path} isn't valid TOML: {error}.") from None
    for key in found:
        if key not in KEYS:
            hint = nearest(key.replace("-", "_"), KEYS) or f"; the settings are {', '.join(KEYS)}"
            raise ConfigError(f"{path}{_line(text, key)}: there is no setting {quote(key)}{hint}.")
    return found


def _line(text: str, key: str) -> str:
    """``, line N`` where ``key`` is set, empty where the text has it in some other spelling."""
    match = re.search(rf"""^\s*\[?\[?\s*["']?{re.escape(key)}\b""", text, re.MULTILINE)
    return f", line {text.count(chr(10), 0, match.end()) + 1}" if match else ""
