"""Segments: files of frames on a node's disk, each complete in itself.

A file begins with a line that names the version of the wire. Records follow: length, checksum, sequence
and time, then the message as it goes over the wire. The first record, with sequence 0, is the hello of the
life of its frames. A record that a crash cut off at the file's end is left out.
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
    """One file. ``last`` is its last sequence, None until the file has been read."""

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
