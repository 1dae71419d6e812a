"""The spool: keeps every frame until the head says that it is on disk there.

New frames wait in memory. When they are too many, or nobody is there to take them, the oldest go to segments
on the node's disk; when there are too many of those, the oldest are dropped. What never comes is told by the
last of its numbers: how much of it the head has, only that knows. What earlier lives of the agent left is
delivered first.

Everything here runs in one thread.
"""

from __future__ import annotations

import errno
from collections import deque
from itertools import islice

from gswarm_agent.folder import Folder
from gswarm_agent.frame import Frame, Hello
from gswarm_agent.frozen import dataclass, replace
from gswarm_agent.segments import Record, Segment, Shelf
from gswarm_agent.tally import Tally
from gswarm_agent.wire import Lost, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque, Dict, Iterable, List, Mapping, Optional, Set

MIB = 1024 * 1024
FULL = "the spool of the node was full"
UNREADABLE = "the spool of the node was full, or a file of it can't be read"
ENDED = "the agent that had them ended before they were on its disk"
_OVERHEAD = 200
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Waiting:
    """Frames of one life that wait; their times are Unix nanoseconds on the node's clock."""

    life: str
    frames: int
    first_ns: int
    last_ns: int


class Spool:
    """The frames of this life and of those before it, in a folder.

    ``most_memory`` and ``most_disk`` are in bytes.
    """

    def __init__(self, folder: Folder, most_memory: int = 16 * MIB, most_disk: int = 256 * MIB) -> None:
        self._shelf = Shelf(folder)
        self._tally = Tally(folder)
        self._most_memory = most_memory
        self._most_disk = most_disk
        self._memory: Deque[Record] = deque()
        self._memory_bytes = 0
        self._generation = 1 + max((s.generation for s in self._shelf.segments), default=0)
        self._acknowledged: Dict[str, int] = {one.life: one.acknowledged for one in self._tally.former}
        self._dropped: Set[str] = set()
        self.life = ""
        self._hello: Optional[Record] = None

    def begin(self, hello: Hello) -> None:
        """This life begins: frames that are put from now on are of it."""
        self.life = hello.life
        self.change(hello)
        self._tally.begin(self.life)

    def change(self, hello: Hello) -> None:
        """This life goes on under another hello, as segments will say that are begun from now on."""
        self._hello = Record(0, 0, encode(replace(hello, clock=None)))

    def put(self, frame: Frame) -> None:
        """Keep a frame of this life. Raises WireError for one that can't be said."""
        self._memory.append(Record(frame.seq, frame.ts_ns, encode(frame)))
        self._memory_bytes += len(self._memory[-1].data) + _OVERHEAD
        self._tally.put(frame.seq, frame.ts_ns)
        if self._memory_bytes > self._most_memory:
            self._make_room()

    def _make_room(self) -> None:
        """Empty half of the memory to the disk; where that doesn't take enough, lose a quarter of it."""
        self.spill(self._most_memory // 2, instead=True)
        if self._memory_bytes > self._most_memory:
            while self._memory_bytes > self._most_memory * 3 // 4:
                self._forget_oldest()
            self._dropped.add(self.life)

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
        self._dropped.add(segment.life)
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
        self._tally.acknowledge(life, seq)

    def resume(self, committed: Mapping[str, int]) -> None:
        """A head says what it has of each life."""
        for life, seq in committed.items():
            self.acknowledge(life, seq)

    @property
    def empty(self) -> bool:
        """Whether nothing waits, of any life, and nothing that is lost has to be told."""
        return not (self._memory or self._shelf.segments or self._tally.former)

    def waited_ns(self, now_ns: int) -> int:
        """How long the oldest frame in memory has waited; 0 where there is none."""
        return now_ns - self._memory[0].ts_ns if self._memory else 0

    def former_lives(self) -> List[str]:
        """The lives before this one of which something is left or lost, oldest first."""
        counted = [count.life for count in self._tally.former]
        left = dict.fromkeys(s.life for s in self._shelf.segments if s.life != self.life)
        return [*(life for life in left if life not in counted), *counted]

    def hello(self, life: str) -> bytes:
        """The encoded hello of a former life; empty where nothing is left of it."""
        for segment in self._shelf.segments:
            if segment.life == life:
                records = self._shelf.records(segment)
                return records[0].data if records else b""
        return b""

    def lost_before(self, life: str, after: int, record: Record) -> Optional[Lost]:
        """What is lost of a life between a sequence and the record that is read next; None if nothing."""
        if record.seq <= max(after, self._acknowledged.get(life, 0)) + 1:
            return None
        return Lost(life, record.seq - 1, record.ts_ns, FULL if life in self._dropped else UNREADABLE)

    def lost_at_the_end(self, life: str, after: int) -> Optional[Lost]:
        """What is lost of a former life after all that is left of it; None if nothing."""
        count = self._tally.of(life)
        if count is None or count.seq <= max(after, self._acknowledged.get(life, 0)):
            return None
        return Lost(life, count.seq, count.ts_ns, FULL if life in self._dropped else ENDED)

    def read(self, life: str, after: int, most: int) -> List[Record]:
        """The next frames of a life after a sequence, about ``most`` bytes of them."""
        if life == self.life and self._memory and self._memory[-1].seq <= after:
            return []
        after = max(after, self._acknowledged.get(life, 0))
        for segment in [s for s in self._shelf.segments if s.life == life]:
            last = self._shelf.last_of(segment)
            if last > after:
                return _first(most, (r for r in self._shelf.records(segment) if r.seq > after))
            if last == 0:
                self._shelf.drop(segment)
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
