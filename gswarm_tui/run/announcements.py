"""Sends findings to a command of the user, in a thread that the recorder never waits for."""

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

from gswarm_tui.fleet.events import Event, FindingChanged
from gswarm_tui.fleet.findings import NOTE
from gswarm_tui.printing.json_output import finding_object

LIMIT_S = 2.0
"""A command may take this long."""
AGAIN_S = 3600.0
"""A finding of the same kind and place is sent again after this time, if it still holds or came back."""
MOST_WAITING = 100

_LOG = logging.getLogger(__name__)


class Announcements:
    """Sink of the hub that sends each finding that costs something: faults and waste, but no notes.

    ``command`` is a line for the shell, which gets JSON on its standard input. ``about`` is added to each
    message. ``failed`` is called from the thread, once until a message was delivered again.
    """

    def __init__(self, command: str, about: Mapping[str, Any], failed: Callable[[str], None]) -> None:
        self._command, self._about, self._failed = command, about, failed
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
        """Deliver what waits, for a few seconds at most."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(2 * LIMIT_S)

    def _deliver(self) -> None:
        failing = False
        while (message := self._waiting.get()) is not None:
            try:
                _run(self._command, message)
                failing = False
            except OSError as error:
                _LOG.warning("a finding wasn't sent: %s", error)
                if not failing:
                    self._failed(f"a finding wasn't sent by --on-finding: {error}")
                failing = True


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
