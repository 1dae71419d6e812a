"""The process in which one step asks this node's ranks: the request comes on standard input as JSON.

A step is a module of this package with ``ask(request)``, which returns a dictionary for JSON; it is
``{"why": clause}`` where nothing can be found out.
"""

from __future__ import annotations

import sys

RANKS, RAS, FLIGHT_RECORDER, STACKS, TOOL = STEPS = ("ranks", "ras", "flight_recorder", "stacks", "tool")
_MEMORY = 1 << 30
"""Bytes of address space: an answer that unpacks to more ends the step, not the node's memory."""
_PR_SET_PDEATHSIG = 1


def run(step: str) -> int:
    """Ask by one step and print the answer as JSON; return the exit status."""
    import ctypes
    import importlib
    import json
    import resource
    import signal

    # The step must not outlive the agent.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    try:
        answer = importlib.import_module(f"gswarm_agent.asking.{step}").ask(json.load(sys.stdin))
    except MemoryError:
        answer = {"why": f"the answer needs more than {_MEMORY >> 30} GiB of memory"}
    except Exception as error:
        import traceback

        traceback.print_exc()
        answer = {"why": f"internal error of the agent: {type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(answer))
    return 0
