"""Reading one big JSON object bit by bit: its members as they come, and of one array each element by itself.

The file isn't trusted: a value may only be so long, nesting only so deep, and what is wrong is told with its
line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

LONGEST_VALUE = 64 * 2**20
"""Characters of one member or element; a frame of 100,000 GPUs has a quarter of it."""

_READ_AT_ONCE = 2**20
_SPACE = " \t\n\r"
_IN_NUMBERS = frozenset("0123456789.eE+-")


class MalformedError(Exception):
    """The file isn't what was expected; the message says what is wrong, ``line`` is where."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class JsonStream:
    """One JSON object in a text file; ``line`` is where reading has got to."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text = ""
        self._at = 0
        self._line = 1
        self._ended = False
        self._decoder = json.JSONDecoder()

    @property
    def line(self) -> int:
        """The line of the next character."""
        return self._line + self._text.count("\n", 0, self._at)

    def members(self, streamed: str) -> Iterator[tuple[str, Any]]:
        """Each member's name and value; of the array ``streamed``, its elements one by one under that name.

        An array that wraps that array, and nothing else, is looked through. Raises MalformedError, OSError.
        """
        self._take("{", "it isn't a JSON object")
        if self._skip("}"):
            return
        while True:
            name = self._value()
            if not isinstance(name, str):
                raise self._wrong("a name in double quotes should be here")
            self._take(":", "a colon should be here")
            if name == streamed and self._peek() == "[":
                for element in self._elements():
                    yield name, element
            else:
                yield name, self._value()
            if self._skip("}"):
                break
            self._take(",", "a comma should be here")
        if self._peek():
            raise self._wrong("there is more after the end")

    def _elements(self) -> Iterator[Any]:
        self._take("[", "an array should be here")
        if self._skip("]"):
            return
        while True:
            if self._peek() == "[":
                yield from self._elements()
            else:
                yield self._value()
            if self._skip("]"):
                return
            self._take(",", "a comma should be here")

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError:
                raise self._wrong("it is nested too deeply") from None
            except json.JSONDecodeError as error:
                further = error.pos - self._at
                if not self._more():
                    self._at += further
                    ended = self._at >= len(self._text.rstrip()) or error.msg.startswith("Unterminated")
                    raise self._wrong(
                        "the file ends too early" if ended else f"not JSON: {error.msg}"
                    ) from None
            except ValueError as error:  # a number of thousands of digits
                raise self._wrong(str(error).partition(";")[0]) from None
            else:
                further = end - self._at
                # A number at the end of what is read so far may go on.
                if (end < len(self._text) and self._text[end] not in _IN_NUMBERS) or not self._more():
                    self._at += further
                    return value

    def _peek(self) -> str:
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _skip(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._at += 1
        return True

    def _take(self, character: str, otherwise: str) -> None:
        if not self._skip(character):
            raise self._wrong(otherwise if self._peek() else "the file ends too early")

    def _more(self) -> bool:
        """Reads on, and forgets what was used; whether there was more."""
        if self._ended:
            return False
        self._line = self.line
        self._text, self._at = self._text[self._at :], 0
        if len(self._text) > LONGEST_VALUE:
            raise self._wrong(f"a value is longer than {LONGEST_VALUE // 2**20} MiB")
        try:
            read = self._stream.read(max(_READ_AT_ONCE, len(self._text)))
        except UnicodeDecodeError:
            raise self._wrong("it isn't text in UTF-8") from None
        self._ended = not read
        self._text += read
        return bool(read)

    def _wrong(self, message: str) -> MalformedError:
        return MalformedError(message, self.line)
