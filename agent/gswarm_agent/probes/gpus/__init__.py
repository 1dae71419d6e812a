"""GPUs of all vendors: a process that reads them (``child``), the agent's side of it (``reader``), drivers.

A vendor is one module with a class that is a ``Vendor`` and one line in ``VENDORS``.
"""

from __future__ import annotations

from gswarm_agent.probes.gpus.nvidia import Nvidia

VENDORS = (Nvidia,)
"""The vendors whose drivers are tried, in this order; the first one with GPUs on a node is used."""
