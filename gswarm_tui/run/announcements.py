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
from urllib.request import HTTPRedirectHandler, Request, build_opener

from gswarm_tui.fleet.events import Event, FindingChanged
from gswarm_tui.fleet.findings import NOTE
from gswarm_tui.printing.json_output import finding_object

LIMIT_S = 2.0
"""A command may take this long, and so may each wait for a server."""
AGAIN_S = 3600.0
"""A finding of the same kind and place is sent again after this time, if it still holds or came back."""
MOST_WAITING = 100

_LOG = logging.getLogger(__name__)


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
        ways = ("--on-finding", command, _run), ("--finding-webhook", webhook, _post)
        self._ways = [(name, target, deliver) for name, target, deliver in ways if target is not None]
        self._about, self._failed = about, failed
        self._sent_at: dict[tuple[str, str | None, int | None], float] = {}
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._deliver, name="announcements", daemon=True)
        self._thread.start()

    def submit(self, events: Sequence[Event]) -> None:
        """Queue the findings among the events; those that find no place are dropped."""
        for event in events:
            if not isinstance(event, FindingChanged):
                continue
            finding = event.finding
            whom = finding.kind, finding.node, finding.gpu
            lately = event.at - self._sent_at.get(whom, -AGAIN_S) < AGAIN_S
            if finding.severity != NOTE and finding.until is None and not (finding.dismissed or lately):
                self._sent_at[whom] = event.at
                # Slack and Mattermost show "text".
                text = f"gswarm-tui: {finding.severity}: {finding.sentence}"
                message = {"text": text, **self._about, "finding": finding_object(finding)}
                with suppress(queue.Full):
                    self._waiting.put_nowait(json.dumps(message).encode())

    def close(self) -> None:
        """Deliver what waits, for a few seconds at most; a server that is slower is abandoned."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(2 * LIMIT_S)

    def _deliver(self) -> None:
        failing: set[str] = set()
        while (message := self._waiting.get()) is not None:
            for name, target, deliver in self._ways:
                try:
                    deliver(target, message)
                    failing.discard(name)
                except Exception as error:
                    _LOG.warning("a finding wasn't sent by %s: %s", name, error)
                    if name not in failing:
                        failing.add(name)
                        # Errors of urllib and of sockets name no address, which may be a secret; others may.
                        reason = error if isinstance(error, OSError) else type(error).__name__
                        self._failed(f"a finding wasn't sent by {name}: {reason}")


def _run(command: str, message: bytes) -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
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
            raise TimeoutError(f"the command took longer than {LIMIT_S:g} s") from None
    if process.returncode:
        raise OSError(f"the command ended with status {process.returncode}")


class _NoRedirect(HTTPRedirectHandler):
    """Handler that follows no redirect, as the message is for one server only."""

    def redirect_request(self, *_: object) -> None:
        return None


def _post(url: str, message: bytes) -> None:
    # The options accept http and https alone.
    request = Request(url, message, {"Content-Type": "application/json"})  # noqa: S310
    try:
        build_opener(_NoRedirect).open(request, timeout=LIMIT_S).close()
    except HTTPError as error:
        error.close()
        raise OSError(f"the server answered {error.code}") from None
    except URLError as error:
        raise OSError(f"the server can't be reached: {error.reason}") from None
