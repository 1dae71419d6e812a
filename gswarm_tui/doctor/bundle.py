"""The bundle for a bug report: the report and the newest log in a .tar.gz, with placeholders for names.

A host is node01, a user user, a path path01, an address address01. The same name gets the same placeholder
everywhere in one bundle.
"""

from __future__ import annotations

import io
import ipaddress
import json
import re
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

MOST_LOG_BYTES = 256 * 1024
REPORT, LOG = "doctor.json", "gswarm-tui.log"

_SYSTEM = re.compile(r"/(?:proc|sys|dev|etc|usr|bin|lib|lib64|run|var/run)(?:/|\Z)")
_CODE = re.compile(r".*(?=/(?:gswarm_tui|gswarm_agent|site-packages|lib/python3)(?:\.\d+)?/)")
_PATH = r"(?:~|/)[\w.@+~-]*(?:/[\w.@+~-]+)+/?|/[\w.@+~-]{2,}"
_AT = re.compile(r"[\w.+-]+@[\w.-]+\w")
_ADDRESS = re.compile(
    r"(?<![\w.:])[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?![\w:])|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w)"
)
_UUID = re.compile(r"\b(?:GPU-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def write_bundle(file: Path, report: dict[str, Any], log: Path, placeholders: Placeholders) -> list[str]:
    """Write the bundle and return the names of its files. Raises OSError."""
    shown = json.dumps(placeholders.hide_all(report), indent=2, ensure_ascii=False)
    parts = {REPORT: f"{shown}\n"}
    if text := _newest(log):
        parts[LOG] = "\n".join(map(placeholders.hide, text.split("\n")))
    with tarfile.open(file, mode="w:gz", format=tarfile.USTAR_FORMAT) as tar:
        for name, part in parts.items():
            data = part.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"gswarm-tui-doctor/{name}")
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return list(parts)


def _newest(log: Path) -> str:
    """Return the whole lines at the end of a log; empty if there is none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            file.seek(max(0, size - MOST_LOG_BYTES))
            data = file.read()
    except OSError:
        return ""
    if size > MOST_LOG_BYTES:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")


class Placeholders:
    """Replaces names in texts. ``nodes`` are node01 and so on in this order, ``hosts`` are other hosts.

    ``users`` are names of this user. ``paths`` are files and folders whose names may hold spaces.
    """

    def __init__(
        self, nodes: Sequence[str], hosts: Iterable[str], users: Iterable[str], paths: Iterable[str] = ()
    ) -> None:
        self._width = max(2, len(str(len(nodes))))
        self._given: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        for node in nodes:
            placeholder = self._placeholder("node", node)
            self._given.setdefault(node if is_address(node) else node.partition(".")[0], placeholder)
        for host in filter(None, hosts):
            self._placeholder("host", host)
        self._given.update((user, "user") for user in users if user and user not in self._given)
        longest_first = sorted(paths, key=len, reverse=True)
        known = "".join(f"{re.escape(path)}(?:/[\\w.@+~-]+)*/?(?!\\w)|" for path in longest_first)
        self._paths = re.compile(rf"(?<![\w.:/])(?:{known}{_PATH})")
        names = "|".join(map(re.escape, sorted(self._given, key=len, reverse=True)))
        # A node's or host's name may be followed by any domain.
        self._names = re.compile(rf"(?<!\w)({names})(?:\.[\w.-]*[A-Za-z])?(?!\w)")

    def hide(self, text: str) -> str:
        """Return a text with placeholders for names."""
        text = _UUID.sub(lambda found: self._placeholder("uuid", found[0]), text)
        text = self._paths.sub(self._path, text)
        text = _ADDRESS.sub(self._address, text)
        text = _AT.sub(lambda found: f"user@{self._placeholder('host', found[0].partition('@')[2])}", text)
        return self._names.sub(lambda found: self._given[found[1]], text)

    def hide_all(self, value: Any) -> Any:
        """Return a JSON value with placeholders in all its texts."""
        match value:
            case str():
                return self.hide(value)
            case list() | tuple():
                return [self.hide_all(each) for each in value]
            case dict():
                return {key: self.hide_all(each) for key, each in value.items()}
        return value

    def _placeholder(self, kind: str, name: str) -> str:
        if name not in self._given:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._given[name] = f"{kind}{self._counts[kind]:0{self._width}d}"
        return self._given[name]

    def _path(self, found: re.Match[str]) -> str:
        path = found[0].rstrip("/")
        if _SYSTEM.match(path):
            return found[0]
        if code := _CODE.match(path):
            return "…" + path[code.end() :]
        return self._placeholder("path", path)

    def _address(self, found: re.Match[str]) -> str:
        if found[0] in self._given or not is_address(found[0]) or ipaddress.ip_address(found[0]).is_loopback:
            return found[0]
        return self._placeholder("address", found[0])


def is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
