"""The spool: keeps every frame until the head has it on its own disk.

New frames wait in memory. When they are too many, or no head takes them, the oldest go to segments on the
node's disk; when these are too many, the oldest are dropped. A loss is reported by the last lost sequence,
because only the head knows which frames before that it has. Frames that earlier lives of the agent left are
delivered first.

Everything here runs in one thread.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from gswarm_agent.folder import Folder
from gswarm_agent.frame import Frame, Hello
from gswarm_agent.wire import WIRE_VERSION, Lost, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque, Dict, Iterable, Iterator, List, Optional, Set, Tuple

MIB = 1024 * 1024
FULL = "the spool of the node was full"
UNREADABLE = "the spool of the node was full, or a file of it can't be read"
ENDED = "their agent ended before it wrote them to its disk"
UNREAD = "the head read too slowly"
_OVERHEAD = 200
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
SEGMENT_BYTES = MIB
_HEADER = b"gswarm-spool %d\n" % WIRE_VERSION
_RECORD = struct.Struct(">IIQQ")
_SUFFIX = "frames"


_TALLY = "tally"
_TALLY_LAYOUT = struct.Struct(">32sQQQ")
_MOST_FORMER = 64


@dataclass(frozen=True)
class Record:
    """One encoded message; ``seq`` and ``ts_ns`` are a frame's, 0 for a hello."""

    seq: int
    ts_ns: int
    data: bytes


def pack(record: Record) -> bytes:
    """Return a record as bytes for a file."""
    body = struct.pack(">QQ", record.seq, record.ts_ns) + record.data
    return _RECORD.pack(len(record.data), zlib.crc32(body), record.seq, record.ts_ns) + record.data


def unpack(content: bytes) -> Iterator[Record]:
    """Yield the records of a file, up to the first that isn't complete."""
    if not content.startswith(_HEADER):
        return
    at = len(_HEADER)
    while at + _RECORD.size <= len(content):
        length, checksum, seq, ts_ns = _RECORD.unpack_from(content, at)
        begin, end = at + _RECORD.size, at + _RECORD.size + length
        if end > len(content) or zlib.crc32(content[begin - 16 : end]) != checksum:
            return
        yield Record(seq, ts_ns, content[begin:end])
        at = end


class Segment:
    """A file of frames, complete in itself. ``last`` is its last sequence, None until the file has been read.

    It begins with a line that names the version of the wire. Records follow: length, checksum, sequence and
    time, then the message as it goes over the wire. The first record, with sequence 0, is the hello of the
    life of its frames. A record that a crash cut off at the file's end is left out.
    """

    def __init__(self, generation: int, life: str, first: int) -> None:
        self.generation = generation
        self.life = life
        self.first = first
        self.last: Optional[int] = None
        self.size = 0

    @property
    def name(self) -> str:
        """The file name; names sort in the order of the frames."""
        return f"{self.generation:08d}-{self.life}-{self.first:012d}.{_SUFFIX}"

    @classmethod
    def named(cls, name: str) -> Optional[Segment]:
        """Return the segment of a file name, None if it isn't a segment's."""
        try:
            generation, life, rest = name.split("-")
            first, suffix = rest.split(".")
            segment = cls(int(generation), life, int(first))
        except ValueError:
            return None
        return segment if suffix == _SUFFIX and segment.name == name else None


class SegmentStore:
    """The segments in a folder, oldest first, and the one being written.

    Only ``write`` raises the disk's errors.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.segments: List[Segment] = []
        self._writing: Optional[int] = None
        self._last_read: Dict[Tuple[str, int], List[Record]] = {}
        for name in folder.names():
            segment = Segment.named(name)
            if segment is not None:
                segment.size = folder.size(name)
                self.segments.append(segment)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    def records(self, segment: Segment) -> List[Record]:
        """Return a segment's records, its hello first; empty if it can't be read. Keeps the last one."""
        key = segment.name, segment.size
        if key not in self._last_read:
            records = list(unpack(self._folder.read(segment.name)))
            self._last_read = {key: records}
            segment.last = records[-1].seq if records else 0
        return self._last_read[key]

    def last_of(self, segment: Segment) -> int:
        """Return the last sequence in a segment, 0 if it holds no frame."""
        if segment.last is None:
            self.records(segment)
        return segment.last or 0

    def write(self, generation: int, life: str, hello: Record, record: Record) -> None:
        """Append a frame of a life. Raises OSError; then nothing of the frame is on disk."""
        packed = pack(record)
        if self._writing is None or self.segments[-1].size + len(packed) > SEGMENT_BYTES:
            self._begin(Segment(generation, life, record.seq), hello)
        segment = self.segments[-1]
        self._append(segment, packed)
        segment.last = record.seq

    def _begin(self, segment: Segment, hello: Record) -> None:
        self.seal()
        self._writing = self._folder.open(segment.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self.segments.append(segment)
        self._append(segment, _HEADER + pack(hello))
        segment.last = 0

    def _append(self, segment: Segment, data: bytes) -> None:
        descriptor = self._writing
        if descriptor is None:
            raise ValueError("no segment is being written")
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, segment.size)
            self.seal()
            if not segment.last:
                self.drop(segment)
            raise
        segment.size += len(data)

    def seal(self) -> None:
        """Close the segment being written; the next frame begins another."""
        if self._writing is not None:
            os.close(self._writing)
            self._writing = None

    def drop(self, segment: Segment) -> None:
        """Remove a segment with its file."""
        if self.segments and segment is self.segments[-1]:
            self.seal()
        self.segments.remove(segment)
        with suppress(OSError):
            self._folder.unlink(segment.name)


class Spool:
    """The frames of this life and of former ones, in a folder; in a ``NoFolder``, in memory only.

    ``most_memory`` and ``most_disk`` are in bytes.
    """

    def __init__(self, folder: Folder, most_memory: int = 16 * MIB, most_disk: int = 256 * MIB) -> None:
        self.on_disk = folder.on_disk
        self._store = SegmentStore(folder)
        self._tally = Tally(folder)
        self._full_reason = FULL if folder.on_disk else UNREAD
        self._most_memory = most_memory
        self._most_disk = most_disk
        self._memory: Deque[Record] = deque()
        self._memory_bytes = 0
        self._generation = 1 + max((s.generation for s in self._store.segments), default=0)
        self._acknowledged: Dict[str, int] = {one.life: one.acknowledged for one in self._tally.former}
        self._dropped: Set[str] = set()
        self.life = ""
        self._hello: Optional[Record] = None

    def begin(self, hello: Hello) -> None:
        """Begin a new life; frames that are put from now on belong to it."""
        self.life = hello.life
        self.change(hello)
        self._tally.begin(self.life)

    def change(self, hello: Hello) -> None:
        """Continue this life under another hello, which new segments begin with."""
        self._hello = Record(0, 0, encode(replace(hello, clock=None)))

    def put(self, frame: Frame) -> None:
        """Keep a frame of this life. Raises WireError if it can't be encoded."""
        self._memory.append(Record(frame.seq, frame.ts_ns, encode(frame)))
        self._memory_bytes += len(self._memory[-1].data) + _OVERHEAD
        self._tally.put(frame.seq, frame.ts_ns)
        if self._memory_bytes > self._most_memory:
            self._make_room()

    def _make_room(self) -> None:
        """Move half of the memory to disk; if that isn't enough, drop a quarter of it."""
        self.spill(self._most_memory // 2, instead=True)
        if self._memory_bytes > self._most_memory:
            while self._memory_bytes > self._most_memory * 3 // 4:
                self._forget_oldest()
            self._dropped.add(self.life)

    def _forget_oldest(self) -> None:
        self._memory_bytes -= len(self._memory.popleft().data) + _OVERHEAD

    def spill(self, down_to: int = 0, *, instead: bool = False) -> bool:
        """Move the oldest frames from memory to disk until ``down_to`` bytes are left; return success.

        On a full disk they replace older segments with ``instead``, else they stay in memory.
        """
        while self._memory and self._memory_bytes > down_to:
            if not self._write(self._memory[0], instead):
                return False
            self._forget_oldest()
        while self._store.size > self._most_disk:
            self._drop(self._store.segments[0])
        return True

    def _write(self, record: Record, instead: bool) -> bool:
        while self._hello is not None:
            try:
                self._store.write(self._generation, self.life, self._hello, record)
            except OSError as error:
                if not instead or error.errno not in _NO_ROOM or not self._store.segments:
                    return False
                self._drop(self._store.segments[0])
            else:
                return True
        return False

    def _drop(self, segment: Segment) -> None:
        self._dropped.add(segment.life)
        self._store.drop(segment)

    def acknowledge(self, life: str, seq: int) -> None:
        """Forget the frames of a life up to ``seq``: the head has them on disk."""
        if seq <= self._acknowledged.get(life, 0):
            return
        self._acknowledged[life] = seq
        for segment in [s for s in self._store.segments if s.life == life and s.first <= seq]:
            if self._store.last_of(segment) <= seq:
                self._store.drop(segment)
        if life == self.life:
            while self._memory and self._memory[0].seq <= seq:
                self._forget_oldest()
        self._tally.acknowledge(life, seq)

    @property
    def empty(self) -> bool:
        """Whether no frame waits and every loss was reported, in all lives."""
        return not (self._memory or self._store.segments or self._tally.former)

    def waited_ns(self, now_ns: int) -> int:
        """Return how long the oldest frame in memory has waited; 0 without one."""
        return now_ns - self._memory[0].ts_ns if self._memory else 0

    def former_lives(self) -> List[str]:
        """Return the former lives with waiting or lost frames, oldest first."""
        counted = [count.life for count in self._tally.former]
        left = dict.fromkeys(s.life for s in self._store.segments if s.life != self.life)
        return [*(life for life in left if life not in counted), *counted]

    def hello(self, life: str) -> bytes:
        """Return the encoded hello of a former life; empty if none of its frames is left."""
        for segment in self._store.segments:
            if segment.life == life:
                records = self._store.records(segment)
                return records[0].data if records else b""
        return b""

    def lost_before(self, life: str, after: int, record: Record) -> Optional[Lost]:
        """Return the loss between a sequence and the record read next; None without one."""
        if record.seq <= max(after, self._acknowledged.get(life, 0)) + 1:
            return None
        return Lost(
            life, record.seq - 1, record.ts_ns, self._full_reason if life in self._dropped else UNREADABLE
        )

    def lost_at_the_end(self, life: str, after: int) -> Optional[Lost]:
        """Return the loss after the last waiting frame of a former life; None without one."""
        count = self._tally.of(life)
        if count is None or count.seq <= max(after, self._acknowledged.get(life, 0)):
            return None
        return Lost(life, count.seq, count.ts_ns, self._full_reason if life in self._dropped else ENDED)

    def read(self, life: str, after: int, most: int) -> List[Record]:
        """Return the next frames of a life after a sequence, about ``most`` bytes."""
        if life == self.life and self._memory and self._memory[-1].seq <= after:
            return []
        after = max(after, self._acknowledged.get(life, 0))
        for segment in [s for s in self._store.segments if s.life == life]:
            last = self._store.last_of(segment)
            if last > after:
                return _first(most, (r for r in self._store.records(segment) if r.seq > after))
            if last == 0:
                self._store.drop(segment)
        if life != self.life or not self._memory:
            return []
        skipped = max(0, after + 1 - self._memory[0].seq)
        return _first(most, islice(self._memory, skipped, None))

    def waiting(self) -> List[Dict[str, object]]:
        """Return ``life`` and ``frames``, the number of waiting ones, of each life, oldest life first."""
        waiting: List[Dict[str, object]] = []
        for life in [*self.former_lives(), self.life]:
            after = self._acknowledged.get(life, 0)
            frames = len(self._memory) if life == self.life else 0
            for segment in self._store.segments:
                if segment.life == life:
                    frames += sum(record.seq > after for record in self._store.records(segment))
            if frames:
                waiting.append({"life": life, "frames": frames})
        return waiting


def _first(most: int, records: Iterable[Record]) -> List[Record]:
    """Return the first records, about ``most`` bytes, and at least one."""
    taken: List[Record] = []
    size = 0
    for record in records:
        taken.append(record)
        size += len(record.data)
        if size >= most:
            break
    return taken


@dataclass(frozen=True)
class LifeCount:
    """A life's last sequence with its time on the node's clock, and its last acknowledged sequence."""

    life: str
    seq: int = 0
    ts_ns: int = 0
    acknowledged: int = 0


class Tally:
    """Frame counts of this life and of former ones with waiting frames, in a file that survives a SIGKILL."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._file: Optional[int] = None
        content = folder.read(_TALLY)
        if len(content) % _TALLY_LAYOUT.size:
            content = b""
        counts = (
            LifeCount(life.rstrip(b"\0").decode("ascii", "replace"), *numbers)
            for life, *numbers in _TALLY_LAYOUT.iter_unpack(content)
        )
        # A life that was killed while it began may have left its count twice.
        self.former: List[LifeCount] = list({c.life: c for c in counts if c.seq > c.acknowledged}.values())
        self._now = LifeCount("")

    def of(self, life: str) -> Optional[LifeCount]:
        """Return the count of a former life; None if it is acknowledged or unknown."""
        return next((one for one in self.former if one.life == life), None)

    def begin(self, life: str) -> None:
        """Begin a new life."""
        self.former = self.former[-_MOST_FORMER:]
        self._now = LifeCount(life)
        try:
            self._file = self._folder.open(_TALLY, os.O_WRONLY | os.O_CREAT)
        except OSError:  # no room: the loss after a SIGKILL is then not reported exactly
            return
        self._write()

    def put(self, seq: int, ts_ns: int) -> None:
        """Count a frame of this life."""
        self._now = replace(self._now, seq=seq, ts_ns=ts_ns)
        self._write()

    def acknowledge(self, life: str, seq: int) -> None:
        """Note that the head has the frames of a life up to this sequence, or knows which are lost."""
        if life == self._now.life:
            self._now = replace(self._now, acknowledged=seq)
        else:
            former = [replace(one, acknowledged=seq) if one.life == life else one for one in self.former]
            self.former = [one for one in former if one.seq > one.acknowledged]
        self._write()

    def _write(self) -> None:
        if self._file is not None:
            content = b"".join(map(_packed_count, (*self.former, self._now)))
            with suppress(OSError):
                os.pwrite(self._file, content, 0)
                os.ftruncate(self._file, len(content))


def _packed_count(count: LifeCount) -> bytes:
    return _TALLY_LAYOUT.pack(count.life.encode(), count.seq, count.ts_ns, count.acknowledged)
