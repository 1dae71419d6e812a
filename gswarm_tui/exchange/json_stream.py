"""Incremental reader of a large, untrusted JSON object with streamed arrays."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from io import BufferedReader
from typing import Any

import ijson

MAX_VALUE_BYTES = 64 * 2**20
"""Maximum bytes of one member or element; a frame of 100,000 GPUs needs a quarter."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NOT_FINITE = re.compile(rb"((?:^|[,:\[])\s*)-?(?:NaN|nan|inf|Infinity)(?=\s*(?:[,\]}]|$))")
_WORDS = (b"NaN", b"nan", b"inf", b"Infinity")
_WORDS_ENDED = tuple(word + end for word in _WORDS for end in (b",", b"]", b"}", b" ", b"\n", b"\r", b"\t"))
"""Finding these takes a tenth of the pattern's time, which is that of parsing."""
_WITHOUT_CONTROLS = b" " * 32 + bytes(range(32, 256))
_MESSAGES = {
    "premature EOF": "the file ends too early",
    "trailing garbage": "more text follows the end",
    "invalid bytes in UTF8 string": "it isn't text in UTF-8",
}

_Events = Iterator[tuple[str, Any]]


class MalformedError(Exception):
    """Raised for a file that isn't the expected JSON; the message names the problem."""


class JsonStream:
    """Reader of one JSON object in a binary file."""

    def __init__(self, file: BufferedReader, *, repairs: bool = False) -> None:
        """With ``repairs``, control characters become blanks, and bytes that aren't UTF-8 become U+FFFD."""
        self._file = file
        self._value_bytes = self._before = 0
        self._last = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if repairs else None

    def read(self, size: int) -> bytes:
        """Return bytes for the parser; a bare NaN or infinity, which JSON lacks, becomes null."""
        if not size:  # the parser looks whether it gets bytes
            return b""
        text = self._file.read(size)
        # The last letters may be a part of -inf; a longer run of letters is none of these words.
        for _ in range(len("-Infinity")):
            if text[-1:].isalpha() or text.endswith(b"-"):
                text += self._file.read(1)
        if text.endswith(_WORDS) or any(word in text for word in _WORDS_ENDED):
            text = _NOT_FINITE.sub(rb"\1null", text)
        if self._decoder is not None:
            text = self._decoder.decode(text).encode().translate(_WITHOUT_CONTROLS)
        self._value_bytes += len(text)
        self._before, self._last = self._before + len(self._last), text
        if self._value_bytes > MAX_VALUE_BYTES:
            raise MalformedError(f"a value is longer than {MAX_VALUE_BYTES // 2**20} MiB")
        return text

    def members(self, *streamed: str) -> Iterator[tuple[str, Any]]:
        """Yield each member's name and value; of the arrays ``streamed``, their elements one by one.

        Elements that are arrays themselves are read in turn, element by element.

        Raises:
            MalformedError: the file isn't one JSON object.
            OSError: the file can't be read.
        """
        try:
            if self._file.peek(3)[:3] == _BYTE_ORDER_MARK:
                self._file.read(3)
            events: _Events = iter(ijson.basic_parse(self, use_float=True))
            if next(events)[0] != "start_map":
                raise MalformedError("it isn't a JSON object")
            for _, name in events:
                if name is None:  # This event ends the object, and the parser goes on to the file's end.
                    continue
                event, value = next(events)
                elements = name in streamed and event == "start_array"
                for one in self._elements(events) if elements else [_value(event, value, events)]:
                    self._value_bytes = 0
                    yield name, one
        except RecursionError:
            raise MalformedError("it is nested too deeply") from None
        except ijson.JSONError as error:
            raise MalformedError(self._message(error)) from None

    def _message(self, error: ijson.JSONError) -> str:
        """Return the parser's reason, and where in the uncompressed file it is and what is there."""
        reason, _, excerpt = str(error).removeprefix("b'").replace("\\n", "\n").partition("\n")
        reason = reason.partition(": ")[2] or reason
        near = excerpt.partition("\n")[0].strip()
        at = self._last.find(near.encode()) if near else -1
        where = f" near byte {self._before + at:,}: {near}" if at >= 0 else ""
        return _MESSAGES.get(reason.rstrip("."), f"not JSON: {reason.rstrip('.')}{where}")

    def _elements(self, events: _Events) -> Iterator[Any]:
        depth = 1
        for event, value in events:
            if event in {"start_array", "end_array"}:
                depth += 1 if event == "start_array" else -1
                if not depth:
                    return
            else:
                yield _value(event, value, events)


def _value(event: str, value: Any, events: _Events) -> Any:
    """Build the value that begins with a parser event."""
    if event == "start_array":
        return [_value(*item, events) for item in iter(lambda: next(events), ("end_array", None))]
    if event == "start_map":
        pairs = iter(lambda: next(events), ("end_map", None))
        return {name: _value(*next(events), events) for _, name in pairs}
    return value
