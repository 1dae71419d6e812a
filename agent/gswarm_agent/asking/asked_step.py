"""A step that asks the job, in a process of its own: whatever it waits for can't stop the agent."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import cast

from gswarm_agent.asking.steps import STEPS
from gswarm_agent.wire import Answer
from gswarm_agent.wire_payload import TRACE_PART

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Callable

    from gswarm_agent.wire import Ask

MOST_AT_ONCE = 4
"""Steps that run on a node at once, at most."""
_CHUNK = 1 << 16
_DIES_S = 0.05
"""A killed process is gone within a millisecond, unless it hangs in the kernel."""


class AskedStep:
    """One step of a request; ``send`` gets the answer in parts when it is whole or the time is over."""

    def __init__(self, ask: Ask, selector: selectors.BaseSelector, send: Callable[[Answer], None]) -> None:
        self.done = False
        self._ask, self._selector, self._send = ask, selector, send
        self._data = bytearray()
        self._ends_at = time.monotonic() + ask.seconds
        if ask.step not in STEPS:
            self._finish(f"its agent can't ask by {ask.step}")
            return
        program = os.path.join(os.path.dirname(os.path.dirname(__file__)), "run.py")  # noqa: PTH118, PTH120
        # Without these flags, modules of the agent would hide those of Python with the same name.
        flags = ["-IS"] if sys.flags.no_site else ["-P"] * (sys.version_info >= (3, 11))
        try:
            # A long request would fill a pipe, and the agent would wait until the process reads.
            with tempfile.TemporaryFile() as requests:
                requests.write(ask.request)
                requests.seek(0)
                self._process = subprocess.Popen(
                    [sys.executable, *flags, program, "ask", "--step", ask.step],
                    stdin=requests,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
        except OSError as error:
            self._finish(f"its agent can't start a process: {error.strerror}")
            return
        self._pipe = cast("IO[bytes]", self._process.stdout)
        self._answers = self._pipe.fileno()
        os.set_blocking(self._answers, False)
        selector.register(self._answers, selectors.EVENT_READ, self._receive)

    def _receive(self) -> None:
        try:
            chunk = os.read(self._answers, _CHUNK)
        except BlockingIOError:
            return
        self._data += chunk
        if len(self._data) > self._ask.most:
            self.end(f"the answer has more than {self._ask.most >> 20} MiB")
        elif not chunk:
            self.end("" if self._data else "the process that asks was killed; the node may lack memory")

    def handle_due(self) -> None:
        """End the step when its time is over."""
        if not self.done and time.monotonic() > self._ends_at:
            self.end(f"no answer within {self._ask.seconds} s; a process may hang in the kernel")

    def end(self, why: str) -> None:
        """End the process and send its answer, or why there is none."""
        if self.done:
            return
        self._selector.unregister(self._answers)
        # Programs that the step runs end, too. One that hangs in the kernel ends later, so nobody waits.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_DIES_S)
        self._finish(why)

    def _finish(self, why: str) -> None:
        self.done = True
        data = json.dumps({"why": why}).encode() if why else bytes(self._data)
        for at in range(0, len(data), TRACE_PART):
            self._send(Answer(self._ask.token, data[at : at + TRACE_PART], at + TRACE_PART >= len(data)))
