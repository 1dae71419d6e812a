"""Sends findings to a command or a webhook of the user, in a thread that the recorder never waits for."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from gswarm_tui.fleet.events import Event, FindingChanged
from gswarm_tui.fleet.findings import NOTE, Finding
from gswarm_tui.printing.json_output import finding_object

LIMIT_S = 2.0
"""A command or a server may take this long."""
AGAIN_S = 3600.0
"""A finding of the same kind and place is sent again after this time, if it still holds or came back."""
MOST_WAITING = 100

_LOG = logging.getLogger(__name__)


class AnnouncementError(Exception):
    """Raised for a message that wasn't delivered; says why, without the address, which may be a secret."""


class Announcements:
    """Sink of the hub that sends each finding that costs something: faults and waste, but no notes.

    ``command`` is a line for the shell, which gets JSON on its standard input; ``webhook`` is a URL, to which
    the same is posted. ``about`` is added to each message. ``failed`` is called from the thread, once until a
    message was delivered again.
    """

    def __init__(
        self,
        command: str | None,
        webhook: str | None,
        about: Mapping[str, Any],
        failed: Callable[[str], None],
    ) -> None:
        self._ways = [way for way in (_command(command), _webhook(webhook)) if way is not None]
        self._about, self._failed = about, failed
        self._sent_at: dict[tuple[str, str | None, int | None], float] = {}
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._failing: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="announcements", daemon=True)
        self._thread.start()

    def submit(self, events: Sequence[Event]) -> None:
        """Queue the findings among the events; those that find no place are dropped."""
        for event in events:
            if isinstance(event, FindingChanged) and self._is_due(event.at, event.finding):
                with suppress(queue.Full):
                    self._waiting.put_nowait(self._message(event.finding))

    def _is_due(self, now: float, finding: Finding) -> bool:
        if finding.severity == NOTE or finding.until is not None or finding.dismissed:
            return False
        whom = finding.kind, finding.node, finding.gpu
        if now - self._sent_at.get(whom, -AGAIN_S) < AGAIN_S:
            return False
        self._sent_at[whom] = now
        return True

    def _message(self, finding: Finding) -> bytes:
        # Slack and Mattermost show "text".
        text = f"gswarm-tui: {finding.severity}: {finding.sentence}"
        return json.dumps({"text": text, **self._about, "finding": finding_object(finding)}).encode()

    def close(self) -> None:
        """Deliver what waits, for a few seconds at most."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(2 * LIMIT_S)

    def _run(self) -> None:
        while (message := self._waiting.get()) is not None:
            for name, deliver in self._ways:
                try:
                    deliver(message)
                    self._failing.discard(name)
                except Exception as error:
                    _LOG.warning("a finding wasn't sent by %s: %s", name, error)
                    if name not in self._failing:
                        self._failing.add(name)
                        self._failed(f"a finding wasn't sent by {name}: {_reason(error)}")


Way = tuple[str, Callable[[bytes], None]]


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, AnnouncementError) else type(error).__name__


def _command(line: str | None) -> Way | None:
    def run(message: bytes) -> None:
        with subprocess.Popen(
            ["/bin/sh", "-c", line or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                process.communicate(message, LIMIT_S)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise AnnouncementError(f"the command took longer than {LIMIT_S:g} s") from None
        if process.returncode:
            raise AnnouncementError(f"the command ended with status {process.returncode}")

    return None if line is None else ("--on-finding", run)


def _webhook(url: str | None) -> Way | None:
    # Without handlers of redirects, as the message is for one server only, and of other schemes.
    opener = OpenerDirector()
    for handler in (ProxyHandler, HTTPHandler, HTTPSHandler, HTTPErrorProcessor, HTTPDefaultErrorHandler):
        opener.add_handler(handler())

    def post(message: bytes) -> None:
        done: queue.Queue[Exception | None] = queue.Queue()
        request = Request(url or "", message, {"Content-Type": "application/json"})  # noqa: S310 (as above)

        def send() -> None:
            try:
                answer = opener.open(request, timeout=LIMIT_S)
                done.put(None)
                if answer is not None:
                    answer.close()
            except HTTPError as error:
                done.put(AnnouncementError(f"the server answered {error.code}"))
                error.close()
            except URLError as error:
                done.put(AnnouncementError(f"the server can't be reached: {error.reason}"))
            except Exception as error:
                done.put(error)

        # A timeout of urllib is for one read, and a server may send byte by byte: its thread is abandoned.
        threading.Thread(target=send, name="webhook", daemon=True).start()
        try:
            error = done.get(timeout=LIMIT_S)
        except queue.Empty:
            error = AnnouncementError(f"the server took longer than {LIMIT_S:g} s")
        if error is not None:
            raise error

    return None if url is None else ("--finding-webhook", post)
