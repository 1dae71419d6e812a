"""Ports of InfiniBand and RoCE adapters, and physical network interfaces, from /sys.

The kernel's files are described in its Documentation/ABI: stable/sysfs-class-infiniband,
testing/sysfs-class-net and testing/sysfs-class-net-statistics.
"""

from __future__ import annotations

import re
from functools import partial
from glob import glob
from os.path import basename, dirname, exists

from gswarm_agent.metrics import PORT_COLUMNS, PORT_ERRORS, PORT_METRICS
from gswarm_agent.probes.procfs import read_start
from gswarm_agent.probes.rates import Rate
from gswarm_agent.wire_payload import MAX_LISTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

    from gswarm_agent.frame import Number, Row
    from gswarm_agent.probes.listings import Readers

_FILES = {
    "state": ("state", "operstate"),
    "rate_gbit_s": ("rate", "speed"),
    "rx_mb_s": ("counters/port_rcv_data", "statistics/rx_bytes"),
    "tx_mb_s": ("counters/port_xmit_data", "statistics/tx_bytes"),
    "numa_node": ("../../device/numa_node", "device/numa_node"),
}
"""Files of an adapter's port and of an interface, where they don't have the name of their column."""
_FOLDERS = "", "counters/", "hw_counters/", "statistics/"
_STATES = PORT_METRICS[PORT_COLUMNS.index("state")].words
_INTERFACE_STATES = {
    b"up": _STATES.index("ACTIVE"),
    b"dormant": _STATES.index("INIT"),
    **dict.fromkeys((b"down", b"lowerlayerdown", b"notpresent"), _STATES.index("DOWN")),
}


def _value(path: str) -> Optional[Number]:
    """Return the number that a file begins with, or an interface's state; None for -1, "N/A (no PMA)" …"""
    text = read_start(path)
    found = re.match(rb"(\d+)(\.\d+)?", text)
    if found is None:
        return _INTERFACE_STATES.get(text.strip())
    return float(found[0]) if found[2] else int(found[0])


class _Port:
    """A port whose files are in ``folder``. A file in an unknown form makes only its own value unknown."""

    def __init__(self, folder: str) -> None:
        paths = {
            name: [f"{folder}/{file}" for file in _FILES.get(name, [each + name for each in _FOLDERS])]
            for name in PORT_COLUMNS
        }
        self._files = {name: path for name, found in paths.items() for path in found if exists(path)}
        adapter = "phys_state" in self._files
        # Adapters count words of four bytes (InfiniBand Architecture Specification, PortCounters).
        mb = (4 if adapter else 1) / 10**6
        self._units = {"rx_mb_s": mb, "tx_mb_s": mb, "rate_gbit_s": 1 if adapter else 0.001}
        self._rates = {"rx_mb_s": Rate(), "tx_mb_s": Rate()}
        self._errors: Dict[str, Number] = {}
        self._new_errors: Number = 0

    def read(self, now_ns: int) -> Row:
        """Return its row of ``PORT_COLUMNS``."""
        values = {name: _value(path) for name, path in self._files.items()}
        for name, rate in self._rates.items():
            values[name] = rate.update(values.get(name), now_ns)
        for name, unit in self._units.items():
            value = values.get(name)
            values[name] = None if value is None else value * unit
        errors = {name: count for name in PORT_ERRORS if (count := values.get(name)) is not None}
        # A counter that was reset must not hide that another one grew.
        if errors:
            growth = [count - self._errors.get(name, count) for name, count in errors.items()]
            self._new_errors += sum(max(0, each) for each in growth)
            self._errors, values["new_errors"] = errors, self._new_errors
        return tuple([values.get(name) for name in PORT_COLUMNS])


class Ports:
    """The node's ports below ``sys``, found again each time. Bridges, bonds and veths have no device."""

    def __init__(self, sys: str) -> None:
        self._sys = sys
        self._known: Dict[str, _Port] = {}

    def find(self, now_ns: int) -> Readers:
        """Return a function for each port that returns its row."""
        folders = {
            f"{basename(dirname(dirname(folder)))}/{basename(folder)}": folder
            for folder in sorted(glob(f"{self._sys}/class/infiniband/*/ports/*"))
        }
        devices = sorted(glob(f"{self._sys}/class/net/*/device"))
        folders.update((basename(dirname(device)), dirname(device)) for device in devices)
        named = list(folders.items())[:MAX_LISTED]
        self._known = {name: self._known.get(name) or _Port(folder) for name, folder in named}
        return {name: partial(port.read, now_ns) for name, port in self._known.items()}
