"""The spool: keeps every frame until the head says that it is on disk there.

New frames wait in memory. When they are too many, or nobody is there to take them, the oldest go to segments
on the node's disk; when there are too many of those, the oldest are dropped, and the next frame says how many
in a note of kind "gap". What earlier lives of the agent left is delivered first.

Everything here runs in one thread.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from typing import Deque, Dict, Iterable, List, Mapping, Optional, Tuple

from gswarm_agent.folder import Folder
from gswarm_agent.frame import WARNING, Frame, Hello, Note
from gswarm_agent.segments import Record, Segment, Shelf
from gswarm_agent.wire import encode

MIB = 1024 * 1024
_OVERHEAD = 200
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Waiting:
    """Frames of one life that wait; their times are Unix nanoseconds on the node's clock."""

    life: str
    frames: int
    first_ns: int
    last_ns: int


class Tally:
    """What was numbered and acknowledged last in a life, where it outlives even a SIGKILL: a mapped file."""

    _NAME = "tally"
    _LAYOUT = struct.Struct(">32sQQ")

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._map: Optional[mmap.mmap] = None

    def last(self) -> Optional[Tuple[str, int, int]]:
        """The life before, its last sequence and the last that was acknowledged; None for a first life."""
        content = self._folder.read(self._NAME)
        if len(content) != self._LAYOUT.size:
            return None
        life, seq, acknowledged = self._LAYOUT.unpack(content)
        return life.rstrip(b"\0").decode("ascii", "replace"), seq, acknowledged

    def write(self, life: str, seq: int, acknowledged: int) -> None:
        """Remember; costs no system call after the first."""
        if self._map is None:
            try:
                self._map = self._open()
            except OSError:  # no room: a SIGKILL will then not be told exactly
                return
        self._map[:] = self._LAYOUT.pack(life.encode(), seq, acknowledged)

    def _open(self) -> mmap.mmap:
        descriptor = self._folder.open(self._NAME, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(descriptor, 0)
            os.posix_fallocate(descriptor, 0, self._LAYOUT.size)
            return mmap.mmap(descriptor, self._LAYOUT.size)
        finally:
            os.close(descriptor)


class Spool:
    """The frames of this life and of those before it, in a folder.

    ``most_memory`` and ``most_disk`` are in bytes.
    """

    def __init__(self, folder: Folder, most_memory: int = 16 * MIB, most_disk: int = 256 * MIB) -> None:
        self._shelf = Shelf(folder)
        self._tally = Tally(folder)
        self._before = self._tally.last()
        self._most_memory = most_memory
        self._most_disk = most_disk
        self._memory: Deque[Record] = deque()
        self._memory_bytes = 0
        self._generation = 1 + max((s.generation for s in self._shelf.segments), default=0)
        self._acknowledged: Dict[str, int] = {}
        self._notes: List[Note] = []
        self._dropped = self._told = 0
        self.life = ""
        self._hello: Optional[Record] = None
        self._last = 0

    def begin(self, hello: Hello) -> None:
        """This life begins: frames that are put from now on are of it."""
        self.life = hello.life
        self.change(hello)
        if lost := self.lost_to_a_kill():
            self._notes.append(Note("gap", WARNING, lost))
        self._tally.write(self.life, 0, 0)

    def change(self, hello: Hello) -> None:
        """This life goes on under another hello, as segments will say that are begun from now on."""
        self._hello = Record(0, 0, encode(replace(hello, clock=None)))

    def lost_to_a_kill(self) -> str:
        """What the life before numbered and nobody has, in words; empty where there is nothing."""
        if self._before is None:
            return ""
        life, seq, acknowledged = self._before
        kept = [s for s in self._shelf.segments if s.life == life]
        there = max([acknowledged, self._acknowledged.get(life, 0), *(self._shelf.last_of(s) for s in kept)])
        lost = seq - there
        return f"the agent was killed, and {lost} frames that only it had are lost" if lost > 0 else ""

    def put(self, frame: Frame) -> None:
        """Keep a frame of this life. Raises WireError for one that can't be said."""
        if self._dropped > self._told:
            # In all, because the frame that told an earlier count may itself be among them.
            text = f"{self._dropped} frames in all were dropped on the node because its spool was full"
            self._notes.append(Note("gap", WARNING, text))
            self._told = self._dropped
        if self._notes:
            frame = replace(frame, notes=(*frame.notes, *self._notes))
            self._notes = []
        self._memory.append(Record(frame.seq, frame.ts_ns, encode(frame)))
        self._memory_bytes += len(self._memory[-1].data) + _OVERHEAD
        self._last = frame.seq
        self._remember()
        if self._memory_bytes > self._most_memory:
            self._make_room()

    def _make_room(self) -> None:
        """Empty half of the memory to the disk; where that doesn't take enough, lose a quarter of it."""
        self.spill(self._most_memory // 2, instead=True)
        if self._memory_bytes > self._most_memory:
            while self._memory_bytes > self._most_memory * 3 // 4:
                self._forget_oldest()
                self._dropped += 1

    def _remember(self) -> None:
        self._tally.write(self.life, self._last, self._acknowledged.get(self.life, 0))

    def _forget_oldest(self) -> None:
        self._memory_bytes -= len(self._memory.popleft().data) + _OVERHEAD

    def spill(self, down_to: int = 0, *, instead: bool = False) -> bool:
        """Move the oldest frames from memory to disk until ``down_to`` bytes are left; whether that went.

        On a full disk they may take the place of older ones with ``instead``, else they stay in memory.
        """
        while self._memory and self._memory_bytes > down_to:
            if not self._write(self._memory[0], instead):
                return False
            self._forget_oldest()
        while self._shelf.size > self._most_disk:
            self._drop(self._shelf.segments[0])
        return True

    def _write(self, record: Record, instead: bool) -> bool:
        while self._hello is not None:
            try:
                self._shelf.write(self._generation, self.life, self._hello, record)
            except OSError as error:
                if not instead or error.errno not in _NO_ROOM or not self._shelf.segments:
                    return False
                self._drop(self._shelf.segments[0])
            else:
                return True
        return False

    def _drop(self, segment: Segment) -> None:
        acknowledged = self._acknowledged.get(segment.life, 0)
        self._dropped += sum(record.seq > acknowledged for record in self._shelf.records(segment))
        self._shelf.drop(segment)

    def acknowledge(self, life: str, seq: int) -> None:
        """The head has all frames of a life up to ``seq`` on disk."""
        if seq <= self._acknowledged.get(life, 0):
            return
        self._acknowledged[life] = seq
        for segment in [s for s in self._shelf.segments if s.life == life and s.first <= seq]:
            if self._shelf.last_of(segment) <= seq:
                self._shelf.drop(segment)
        if life == self.life:
            while self._memory and self._memory[0].seq <= seq:
                self._forget_oldest()
            self._remember()

    def resume(self, committed: Mapping[str, int]) -> None:
        """A head says what it has of each life."""
        for life, seq in committed.items():
            self.acknowledge(life, seq)

    @property
    def empty(self) -> bool:
        """Whether nothing waits, of any life."""
        return not self._memory and not self._shelf.segments

    def waited_ns(self, now_ns: int) -> int:
        """How long the oldest frame in memory has waited; 0 where there is none."""
        return now_ns - self._memory[0].ts_ns if self._memory else 0

    def former_lives(self) -> List[str]:
        """The lives before this one of which something is left, oldest first."""
        return list(dict.fromkeys(s.life for s in self._shelf.segments if s.life != self.life))

    def hello(self, life: str) -> bytes:
        """The encoded hello of a former life; empty where nothing is left of it."""
        for segment in self._shelf.segments:
            if segment.life == life:
                records = self._shelf.records(segment)
                return records[0].data if records else b""
        return b""

    def read(self, life: str, after: int, most: int) -> List[Record]:
        """The next frames of a life after a sequence, about ``most`` bytes of them."""
        after = max(after, self._acknowledged.get(life, 0))
        for segment in [s for s in self._shelf.segments if s.life == life]:
            last = self._shelf.last_of(segment)
            if last > after:
                return _first(most, (r for r in self._shelf.records(segment) if r.seq > after))
            if last == 0:
                self._shelf.drop(segment)
                self._notes.append(Note("gap", WARNING, "a file of waiting frames on the node can't be read"))
        if life != self.life or not self._memory:
            return []
        skipped = max(0, after + 1 - self._memory[0].seq)
        return _first(most, islice(self._memory, skipped, None))

    def waiting(self) -> List[Waiting]:
        """What waits of each life, oldest life first."""
        found = []
        for life in [*self.former_lives(), self.life]:
            after = self._acknowledged.get(life, 0)
            times = [
                record.ts_ns
                for segment in self._shelf.segments
                if segment.life == life
                for record in self._shelf.records(segment)
                if record.seq > after
            ]
            if life == self.life:
                times += [record.ts_ns for record in self._memory]
            if times:
                found.append(Waiting(life, len(times), times[0], times[-1]))
        return found


def _first(most: int, records: Iterable[Record]) -> List[Record]:
    """The first records, about ``most`` bytes of them, at least one where there is one."""
    taken: List[Record] = []
    size = 0
    for record in records:
        taken.append(record)
        size += len(record.data)
        if size >= most:
            break
    return taken
