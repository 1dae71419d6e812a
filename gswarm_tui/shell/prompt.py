"""The prompt: reads statements until their semicolon, and prints their answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.filters import has_completions
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from gswarm_tui.common.errors import nearest, quote
from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.printing import formats
from gswarm_tui.printing.formats import OutputOptions
from gswarm_tui.shell.completion import Known, SqlCompleter
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.querying.running_query import split

_TEXT_FORMATS = tuple(each for each in formats.FORMATS if each != "parquet")
_COMMANDS = {
    ".help": "show this",
    ".tables": "list tables and views, and what they hold",
    ".columns NAME": "list the columns of a table or view, with units",
    f".format {'|'.join(_TEXT_FORMATS)}": "print answers so from now on",
    ".all": "print all rows, or again only as many as fit",
    ".quit": "end; Ctrl-D does, too",
}
_ALIASES = {".exit": ".quit", "\\q": ".quit", "\\?": ".help", "\\d": ".tables", ".schema": ".columns"}
_ENDS = {"quit", "exit", "quit;", "exit;"}
_TABLES = """
SELECT table_name AS name, coalesce(comment, '') AS holds
FROM (SELECT table_name, comment, internal FROM duckdb_tables()
      UNION ALL SELECT view_name, comment, internal FROM duckdb_views())
WHERE NOT internal ORDER BY name"""
_COLUMNS = """
SELECT column_name AS name, data_type AS type, coalesce(comment, '') AS holds
FROM duckdb_columns() WHERE NOT internal AND table_name = ? ORDER BY column_index"""


class Prompt:
    """Asks ``source`` what is typed; ``answer`` prints the answer of one statement with its values."""

    def __init__(
        self,
        source: QuerySource,
        answer: Callable[[str, OutputOptions, Iterable[object]], None],
        form: OutputOptions,
        asked: QueryHistory,
        *,
        read: Input | None = None,
        write: Output | None = None,
        out: TextIO | None = None,
    ) -> None:
        self._source = source
        self._answer = answer
        self._form = form
        self._known = Known.of(source)
        self._out = out or sys.stdout
        self._session: PromptSession[str] = PromptSession(
            history=_Kept(asked),
            completer=SqlCompleter(self._known, [*(each.split()[0] for each in _COMMANDS), *_ALIASES]),
            complete_while_typing=False,
            multiline=True,
            key_bindings=_keys(),
            prompt_continuation="…> ",
            input=read,
            output=write,
        )

    def run(self) -> None:
        """Until the person has enough."""
        while True:
            try:
                text = self._session.prompt("> ").strip()
            except KeyboardInterrupt:  # what was typed is thrown away
                continue
            except EOFError:
                return
            if text.lower() in _ENDS or _ALIASES.get(text, text) == ".quit":
                return
            try:
                self._carry_out(text)
            except StoreError as error:
                self._say(f"{error}")
            except KeyboardInterrupt:
                self._say("cancelled")

    def _carry_out(self, text: str) -> None:
        """Raises StoreError, KeyboardInterrupt."""
        if text.startswith((".", "\\")):
            self._command(*text.rstrip(";").split())
            return
        for number, statement in enumerate(split(text)):
            if number:
                self._say("")
            self._answer(statement, self._form, ())

    def _command(self, word: str, *arguments: str) -> None:
        match _ALIASES.get(word, word), arguments:
            case ".help", ():
                width = max(map(len, _COMMANDS)) + 2
                for command, meaning in _COMMANDS.items():
                    self._say(f"{command:{width}}{meaning}")
                self._say(
                    "Everything else is SQL, as many lines as you like, up to a semicolon. Times are UTC."
                )
            case ".tables", ():
                self._answer(_TABLES, self._form, ())
            case ".columns", (name,):
                if name.lower() not in self._known.columns:
                    hint = nearest(name.lower(), self._known.columns) or "; .tables lists them"
                    self._say(f"there is no table {quote(name)}{hint}")
                else:
                    self._answer(_COLUMNS, self._form, (name.lower(),))
            case ".format", (name,) if name in _TEXT_FORMATS:
                self._form = OutputOptions(name, None, self._form.every)
            case ".format", _:
                self._say(f".format takes one of {', '.join(_TEXT_FORMATS)}")
            case ".all", ():
                self._form = OutputOptions(self._form.format, None, not self._form.every)
                self._say("all rows are shown" if self._form.every else "as many rows are shown as fit")
            case _:
                self._say(f"there is no command {quote(word)} of that form; .help lists them")

    def _say(self, words: str) -> None:
        print(words, file=self._out)


class _Kept(History):
    """What was asked before, as the session wants it."""

    def __init__(self, asked: QueryHistory) -> None:
        super().__init__()
        self._asked = asked

    def load_history_strings(self) -> Iterable[str]:
        """The newest first."""
        return reversed(self._asked.read())

    def store_string(self, string: str) -> None:
        """One more."""
        self._asked.add(string)


def _keys() -> KeyBindings:
    """Enter ends a statement that has its semicolon, and what is no SQL; otherwise it begins a line."""
    keys = KeyBindings()

    @keys.add("enter", filter=~has_completions)
    def _(event: KeyPressEvent) -> None:
        text = event.current_buffer.text.strip()
        if not text or text.endswith(";") or text.startswith((".", "\\")) or text.lower() in _ENDS:
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    @keys.add("enter", filter=has_completions)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.apply_completion(buffer.complete_state.current_completion)
        else:
            buffer.cancel_completion()

    return keys
