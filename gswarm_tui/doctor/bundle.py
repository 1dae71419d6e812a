"""The bundle for a bug report: the report and the newest log in a .tar.gz, with placeholders for names.

A host is node01, a user user, a path path01, an address address01. The same name gets the same placeholder
everywhere in one bundle.
"""

from __future__ import annotations

import io
import ipaddress
import json
import re
import sys
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

MOST_LOG_BYTES = 256 * 1024
REPORT, LOG = "doctor.json", "gswarm-tui.log"

_LIBRARIES = frozenset(
    {"gswarm_tui", "gswarm_agent", "asyncssh", "duckdb", "textual", "rich", "numpy", "msgpack"}
)
_SYSTEM = re.compile(r"/(?:proc|sys|dev|etc|usr|bin|lib|lib64|run|var/run)(?:/|\Z)")
_OWN = re.compile(r"(/(?:var/)?tmp/gswarm-tui-(?:heads-)?)\d+(?=/|\Z)")
_CODE = re.compile(r".*(?=/(?:gswarm_tui|gswarm_agent|site-packages|lib/python3)(?:\.\d+)?/)")
_PATH = r"(?:~|/)[\w.@+~-]*(?:/[\w.@+~-]+)+/?|/[\w.@+~-]{2,}"
_AT = re.compile(r"[\w.+-]+@[\w.-]+\w")
_DOMAIN = re.compile(r"(?<![\w./])(?:[A-Za-z0-9-]+\.){2,}[A-Za-z]{2,}(?![\w.])")
_ADDRESS = re.compile(
    r"(?<![\w.:])[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?![\w:])|(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w)"
)
_UUID = re.compile(r"\b(?:GPU-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_DIGITS = re.compile(r"\d+")
_LETTERS = 2
"""Shorter names would be found in other words."""


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

    Names that differ from a node's only in their numbers count as nodes, too: an old log may have them.
    ``users`` are names of this user, ``others`` those of other users. ``paths`` are files and folders whose
    names may hold spaces.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        hosts: Iterable[str],
        users: Iterable[str],
        others: Iterable[str] = (),
        paths: Iterable[str] = (),
    ) -> None:
        self._width = max(2, len(str(len(nodes))))
        self._given: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        families: set[str] = set()
        for node in nodes:
            short = node.partition(".")[0]
            placeholder = self._placeholder("node", short)
            self._given.setdefault(node, placeholder)
            if _DIGITS.search(short) and not short.isdigit():
                families.add(_DIGITS.sub(r"\\d+", re.escape(short)))
        for host in hosts:
            if len(host) >= _LETTERS:
                placeholder = self._given.get(host.partition(".")[0]) or self._placeholder("host", host)
                self._given.setdefault(host, placeholder)
        for user in users:
            if len(user) >= _LETTERS:
                self._given.setdefault(user, "user")
        for other in others:
            if len(other) >= _LETTERS:
                self._placeholder("user", other)
        longest_first = sorted(paths, key=len, reverse=True)
        known = "".join(f"{re.escape(path)}(?:/[\\w.@+~-]+)*/?(?!\\w)|" for path in longest_first)
        self._paths = re.compile(rf"(?<![\w.:/])(?:{known}{_PATH})")
        names = [re.escape(name) for name in sorted(self._given, key=len, reverse=True)]
        words = "|".join([*names, *sorted(families)])
        self._names = re.compile(rf"(?<!\w)(?:{words})(?:\.[\w.-]*\w)?(?!\w)") if words else None

    def hide(self, text: str) -> str:
        """Return a text with placeholders for names."""
        text = _UUID.sub(lambda found: self._placeholder("uuid", found[0]), text)
        text = self._paths.sub(self._path, text)
        text = _ADDRESS.sub(self._address, text)
        text = _AT.sub(lambda found: f"user@{self._placeholder('host', found[0].partition('@')[2])}", text)
        if self._names is not None:
            text = self._names.sub(self._name, text)
        return _DOMAIN.sub(self._domain, text)

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

    def _name(self, found: re.Match[str]) -> str:
        name, _, rest = found[0].partition(".")
        if found[0] in self._given:
            return self._given[found[0]]
        if name not in self._given and rest and not any(map(str.isalpha, rest)):
            return self._placeholder("node", name) + f".{rest}"
        return self._placeholder("node", name)

    def _path(self, found: re.Match[str]) -> str:
        path = found[0].rstrip("/")
        if _SYSTEM.match(path):
            return found[0]
        if own := _OWN.match(path):
            return f"{own[1]}UID"
        if code := _CODE.match(path):
            return "…" + path[code.end() :]
        return self._placeholder("path", path)

    def _address(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:
            return found[0]
        return found[0] if address.is_loopback else self._placeholder("address", found[0])

    def _domain(self, found: re.Match[str]) -> str:
        first = found[0].partition(".")[0]
        if first in _LIBRARIES or first in sys.stdlib_module_names:
            return found[0]
        return self._placeholder("host", found[0])
