"""XDG folders of the head: config file, state folder and runtime folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gswarm_tui.common.errors import UserError

_NAME = "gswarm-tui"


def config_file() -> Path:
    """Return ``~/.config/gswarm-tui/config.toml``, or where ``XDG_CONFIG_HOME`` puts it. Raises UserError."""
    import platformdirs  # late: --help and mark need neither file

    return _path_of(platformdirs.user_config_path) / "config.toml"


def state_folder() -> Path:
    """Return ``~/.local/state/gswarm-tui``, or where ``XDG_STATE_HOME`` puts it. Raises UserError."""
    import platformdirs

    return _path_of(platformdirs.user_state_path)


def runtime_folder(environ: Mapping[str, str]) -> Path | None:
    """Return ``$XDG_RUNTIME_DIR/gswarm-tui``, None where the login has no runtime folder.

    platformdirs would make up another one, and a head and its commands would no longer meet.
    """
    given = Path(environ.get("XDG_RUNTIME_DIR", ""))
    return given / _NAME if given.is_absolute() else None


def _path_of(folder: Callable[[str], Path]) -> Path:
    try:
        return folder(_NAME)
    except RuntimeError:  # the user has no home folder
        raise UserError("you have no home folder on this machine; set HOME to a folder of yours") from None
