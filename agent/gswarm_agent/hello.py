"""How a life of the agent introduces itself."""

from __future__ import annotations

import os

from gswarm_agent import __version__
from gswarm_agent.frame import GpuFacts, Hello, HostFacts
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, PROCESS_COLUMNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Tuple


def make_hello(
    facts: Tuple[HostFacts, Tuple[GpuFacts, ...], Dict[str, str]], interval_ms: int, simulated: bool
) -> Hello:
    """The hello of a new life, from a probe's facts."""
    host, gpus, capabilities = facts
    return Hello(
        agent_version=__version__,
        life=os.urandom(8).hex(),
        interval_ms=interval_ms,
        simulated=simulated,
        host=host,
        gpus=gpus,
        capabilities=capabilities,
        gpu_columns=GPU_COLUMNS,
        host_columns=HOST_COLUMNS,
        process_columns=PROCESS_COLUMNS,
    )
