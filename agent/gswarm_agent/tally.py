"""What each life of the agent has numbered, and what of it was acknowledged, where it outlives a SIGKILL.

A file that is mapped into memory: to write to it costs no system call.
"""

from __future__ import annotations

import mmap
import os
import struct

from gswarm_agent.folder import Folder
from gswarm_agent.frozen import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional

_NAME = "tally"
_LAYOUT = struct.Struct(">32sQQQ")
_MOST_FORMER = 64


@dataclass(frozen=True)
class Count:
    """A life's last sequence with its time on the node's clock, and the last that was acknowledged."""

    life: str
    seq: int = 0
    ts_ns: int = 0
    acknowledged: int = 0


class Tally:
    """The count of this life, and of those before it that nobody has acknowledged to the end."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._map: Optional[mmap.mmap] = None
        content = folder.read(_NAME)
        if len(content) % _LAYOUT.size:
            content = b""
        counts = (
            Count(life.rstrip(b"\0").decode("ascii", "replace"), *numbers)
            for life, *numbers in _LAYOUT.iter_unpack(content)
        )
        # A life that was killed while it began may have left one twice, here and behind what it wrote.
        self.former: List[Count] = list({c.life: c for c in counts if c.seq > c.acknowledged}.values())
        self._now = Count("")

    def of(self, life: str) -> Optional[Count]:
        """The count of a former life; None where all of it is acknowledged, or nothing known."""
        return next((one for one in self.former if one.life == life), None)

    def begin(self, life: str) -> None:
        """This life begins."""
        self.former = self.former[-_MOST_FORMER:]
        self._now = Count(life)
        try:
            self._map = self._open()
        except OSError:  # no room: what a SIGKILL costs will then not be told exactly
            self._map = None

    def put(self, seq: int, ts_ns: int) -> None:
        """A frame of this life has this number."""
        self._now = replace(self._now, seq=seq, ts_ns=ts_ns)
        self._write_now()

    def acknowledge(self, life: str, seq: int) -> None:
        """The head has all of a life up to this number, or knows that it is lost."""
        if life == self._now.life:
            self._now = replace(self._now, acknowledged=seq)
            self._write_now()
            return
        former = [replace(one, acknowledged=seq) if one.life == life else one for one in self.former]
        self.former = [one for one in former if one.seq > one.acknowledged]
        if self._map is not None:
            self._map[:] = self._content().ljust(len(self._map), b"\0")

    def _write_now(self) -> None:
        if self._map is not None:
            at = len(self.former) * _LAYOUT.size
            self._map[at : at + _LAYOUT.size] = _packed(self._now)

    def _content(self) -> bytes:
        return b"".join(map(_packed, (*self.former, self._now)))

    def _open(self) -> mmap.mmap:
        content = self._content()
        descriptor = self._folder.open(_NAME, os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(descriptor, 0, len(content))
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
            return mmap.mmap(descriptor, len(content))
        finally:
            os.close(descriptor)


def _packed(count: Count) -> bytes:
    return _LAYOUT.pack(count.life.encode(), count.seq, count.ts_ns, count.acknowledged)
