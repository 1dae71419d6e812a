"""Segments: files of frames on a node's disk, each complete in itself.

A file begins with a line that names the version of the wire, then come records: length, checksum, sequence
and time, then the message as it goes over the wire. The first record, with sequence 0, is the hello of the
life that the frames are of. What a crash cut off at a file's end is noticed and left out.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress

from gswarm_agent.folder import Folder
from gswarm_agent.frozen import dataclass
from gswarm_agent.wire import WIRE_VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional, Tuple

SEGMENT_BYTES = 1024 * 1024
_HEADER = b"gswarm-spool %d\n" % WIRE_VERSION
_RECORD = struct.Struct(">IIQQ")
_SUFFIX = "frames"


@dataclass(frozen=True)
class Record:
    """One encoded message; ``seq`` and ``ts_ns`` are a frame's, 0 for a hello."""

    seq: int
    ts_ns: int
    data: bytes


def pack(record: Record) -> bytes:
    """A record as it is in a file."""
    body = struct.pack(">QQ", record.seq, record.ts_ns) + record.data
    return _RECORD.pack(len(record.data), zlib.crc32(body), record.seq, record.ts_ns) + record.data


def unpack(content: bytes) -> Iterator[Record]:
    """The records of a file, up to the first that is not whole."""
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
    """One file. ``last`` is its last sequence, None until it has been looked into."""

    def __init__(self, generation: int, life: str, first: int) -> None:
        self.generation = generation
        self.life = life
        self.first = first
        self.last: Optional[int] = None
        self.size = 0

    @property
    def name(self) -> str:
        """Its file name, by which segments sort in the order of their frames."""
        return f"{self.generation:08d}-{self.life}-{self.first:012d}.{_SUFFIX}"

    @classmethod
    def named(cls, name: str) -> Optional[Segment]:
        """The segment of a file name; None where it is that of something else."""
        try:
            generation, life, rest = name.split("-")
            first, suffix = rest.split(".")
            segment = cls(int(generation), life, int(first))
        except ValueError:
            return None
        return segment if suffix == _SUFFIX and segment.name == name else None


class Shelf:
    """The segments in a folder, oldest first, and the one that is being written.

    Only ``write`` raises the disk's errors.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self.segments: List[Segment] = []
        self._writing: Optional[int] = None
        self._opened: Dict[Tuple[str, int], List[Record]] = {}
        for name in folder.names():
            segment = Segment.named(name)
            if segment is not None:
                segment.size = self._size(name)
                self.segments.append(segment)

    def _size(self, name: str) -> int:
        try:
            descriptor = self._folder.open(name, os.O_RDONLY)
        except OSError:
            return 0
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    def records(self, segment: Segment) -> List[Record]:
        """A segment's records, its hello first; empty where it can't be read. The last one read is kept."""
        key = segment.name, segment.size
        if key not in self._opened:
            self._opened = {key: list(unpack(self._folder.read(segment.name)))}
            found = self._opened[key]
            segment.last = found[-1].seq if found else 0
        return self._opened[key]

    def last_of(self, segment: Segment) -> int:
        """The last sequence in a segment, 0 where there is no frame in it."""
        if segment.last is None:
            self.records(segment)
        return segment.last or 0

    def write(self, generation: int, life: str, hello: Record, record: Record) -> None:
        """Put a frame of a life at the end. Raises OSError; then nothing of it is there."""
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
        """Write no more to the segment that is being written."""
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
