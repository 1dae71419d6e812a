"""The spool: keeps every frame until the head has it on its own disk.

New frames wait in memory. When they are too many, or no head takes them, the oldest go to segments on the
node's disk; when these are too many, the oldest are dropped. A loss is reported by the last lost sequence,
because only the head knows which frames before that it has. Frames that earlier lives of the agent left are
delivered first.

Everything here runs in one thread.
"""

from __future__ import annotations

import marshal
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
    from typing import Deque, Dict, Iterable, Iterator, List, Optional, Tuple

MIB = 1024 * 1024
UNREADABLE = "the spool of the node was full, or a file of it can't be read"
ENDED = "their agent ended before it wrote them to its disk"
UNREAD = "the recorder read too slowly"
_OVERHEAD = 200
SEGMENT_BYTES = MIB
_HEADER = b"gswarm-spool %d\n" % WIRE_VERSION
_RECORD = struct.Struct(">IIQQ")
_SUFFIX = "frames"
_TALLY = "tally"
"""File with the counts of this life and of former ones with losses, so that a SIGKILL's loss is known.

It maps each life to its last sequence with its time on the node's clock, and its last acknowledged sequence.
"""
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
        self._folder = folder
        self._tally: Optional[int] = None
        try:
            counts = marshal.loads(folder.read(_TALLY))  # noqa: S302  # an agent's own file in a private folder
        except (ValueError, TypeError, EOFError):
            counts = {}
        # The last sequence and its time of this life, and of former ones that lost frames.
        self._counts: Dict[str, Tuple[int, int]] = {
            life: (seq, ts_ns) for life, (seq, ts_ns, acknowledged) in counts.items() if seq > acknowledged
        }
        self._reason = UNREADABLE if folder.on_disk else UNREAD
        self._most_memory = most_memory
        self._most_disk = most_disk
        self._memory: Deque[Record] = deque()
        self._memory_bytes = 0
        self._generation = 1 + max((s.generation for s in self._store.segments), default=0)
        self._acknowledged: Dict[str, int] = {life: counts[life][2] for life in self._counts}
        self.life = ""
        self._hello: Optional[Record] = None

    def begin(self, hello: Hello) -> None:
        """Begin a new life; frames that are put from now on belong to it."""
        self.life = hello.life
        self.change(hello)
        self._counts = dict([*self._counts.items()][-_MOST_FORMER:])
        # On a full disk there is no tally, and the loss after a SIGKILL isn't reported exactly.
        with suppress(OSError):
            self._tally = self._folder.open(_TALLY, os.O_WRONLY | os.O_CREAT)

    def change(self, hello: Hello) -> None:
        """Continue this life under another hello, which new segments begin with."""
        self._hello = Record(0, 0, encode(replace(hello, clock=None)))

    def put(self, frame: Frame) -> None:
        """Keep a frame of this life. Raises WireError if it can't be encoded."""
        self._memory.append(Record(frame.seq, frame.ts_ns, encode(frame)))
        self._memory_bytes += len(self._memory[-1].data) + _OVERHEAD
        self._counts[self.life] = frame.seq, frame.ts_ns
        self._write_tally()
        if self._memory_bytes > self._most_memory:
            self._make_room()

    def _make_room(self) -> None:
        """Move half of the memory to disk; if that isn't enough, drop a quarter of it."""
        self.spill(self._most_memory // 2)
        if self._memory_bytes > self._most_memory:
            while self._memory_bytes > self._most_memory * 3 // 4:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        self._memory_bytes -= len(self._memory.popleft().data) + _OVERHEAD

    def spill(self, down_to: int = 0) -> bool:
        """Move the oldest frames from memory to disk until ``down_to`` bytes are left; return success.

        On a full disk they stay in memory.
        """
        failed = False
        while self._hello is not None and self._memory and self._memory_bytes > down_to:
            try:
                self._store.write(self._generation, self.life, self._hello, self._memory[0])
            except OSError:
                # A file that met its size limit is closed now, so the frame begins the next one.
                if failed:
                    return False
                failed = True
            else:
                self._forget_oldest()
                failed = False
        while self._store.size > self._most_disk:
            self._store.drop(self._store.segments[0])
        return True

    def acknowledge(self, life: str, seq: int) -> None:
        """Forget the frames of a life up to ``seq``: the recorder has them on disk."""
        if seq <= self._acknowledged.get(life, 0):
            return
        self._acknowledged[life] = seq
        for segment in [s for s in self._store.segments if s.life == life and s.first <= seq]:
            if self._store.last_of(segment) <= seq:
                self._store.drop(segment)
        if life == self.life:
            while self._memory and self._memory[0].seq <= seq:
                self._forget_oldest()
        if life != self.life and life in self._counts and self._counts[life][0] <= seq:
            del self._counts[life]
        self._write_tally()

    def _write_tally(self) -> None:
        if self._tally is not None:
            acknowledged = self._acknowledged
            counts = {life: (*count, acknowledged.get(life, 0)) for life, count in self._counts.items()}
            content = marshal.dumps(counts)
            with suppress(OSError):
                os.pwrite(self._tally, content, 0)
                os.ftruncate(self._tally, len(content))

    @property
    def _former(self) -> List[str]:
        """The former lives that lost frames, oldest first."""
        return [life for life in self._counts if life != self.life]

    @property
    def empty(self) -> bool:
        """Whether no frame waits and every loss was reported, in all lives."""
        return not (self._memory or self._store.segments or self._former)

    def waited_ns(self, now_ns: int) -> int:
        """Return how long the oldest frame in memory has waited; 0 without one."""
        return now_ns - self._memory[0].ts_ns if self._memory else 0

    def former_lives(self) -> List[str]:
        """Return the former lives with waiting or lost frames, oldest first."""
        left = dict.fromkeys(s.life for s in self._store.segments if s.life != self.life)
        return [*(life for life in left if life not in self._counts), *self._former]

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
        return Lost(life, record.seq - 1, record.ts_ns, self._reason)

    def lost_at_the_end(self, life: str, after: int) -> Optional[Lost]:
        """Return the loss after the last waiting frame of a former life; None without one."""
        seq, ts_ns = self._counts.get(life, (0, 0))
        if seq <= max(after, self._acknowledged.get(life, 0)):
            return None
        return Lost(life, seq, ts_ns, ENDED)

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
