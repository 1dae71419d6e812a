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
    from typing import Dict, List, Optional

    from gswarm_agent.frame import Number, Row
    from gswarm_agent.probes.listings import Readers

_MB = 10**6
_STATES = PORT_METRICS[PORT_COLUMNS.index("state")].words
_INTERFACE_STATES = {
    b"up": _STATES.index("ACTIVE"),
    b"dormant": _STATES.index("INIT"),
    **dict.fromkeys((b"down", b"lowerlayerdown", b"notpresent"), _STATES.index("DOWN")),
}


def _number(path: str) -> Optional[Number]:
    """Return the number that a file begins with; None for another beginning, as -1 or "N/A (no PMA)"."""
    found = re.match(rb"(\d+)(\.\d+)?", read_start(path))
    if found is None:
        return None
    return float(found[0]) if found[2] else int(found[0])


class _Port:
    """A port, whose files have the names of their columns but for those given; ``gbit`` is its unit of rate.

    Its counters of data count ``word`` bytes as one. An odd file makes only its own value unknown.
    """

    def __init__(self, folders: List[str], word: int, gbit: float, **files: str) -> None:
        self._files = files
        self._files.update(
            (name, path)
            for folder in folders
            for name in PORT_COLUMNS
            if name not in files and exists(path := f"{folder}/{name}")
        )
        self._units = {"rx_mb_s": word / _MB, "tx_mb_s": word / _MB, "rate_gbit_s": gbit}
        self._rates = {"rx_mb_s": Rate(), "tx_mb_s": Rate()}
        self._errors: Dict[str, Number] = {}
        self._new_errors: Number = 0

    def read(self, now_ns: int) -> Row:
        """Return its row of ``PORT_COLUMNS``."""
        values = {name: _number(path) for name, path in self._files.items()}
        if "operstate" in values:
            values["state"] = _INTERFACE_STATES.get(read_start(self._files["operstate"]).strip())
        for name, rate in self._rates.items():
            values[name] = rate.update(values[name], now_ns)
        for name, unit in self._units.items():
            value = values[name]
            values[name] = None if value is None else value * unit
        errors = {name: count for name in PORT_ERRORS if (count := values.get(name)) is not None}
        if errors:  # a counter that was reset must not hide that another one grew
            growth = [count - self._errors.get(name, count) for name, count in errors.items()]
            self._new_errors += sum(max(0, each) for each in growth)
            self._errors, values["new_errors"] = errors, self._new_errors
        return tuple([values.get(name) for name in PORT_COLUMNS])


def _adapter_port(folder: str) -> _Port:
    device = f"{dirname(dirname(folder))}/device"
    counters = f"{folder}/counters"
    return _Port(
        [folder, device, counters, f"{folder}/hw_counters"],
        4,  # InfiniBand Architecture Specification, PortCounters
        1,
        rate_gbit_s=f"{folder}/rate",
        rx_mb_s=f"{counters}/port_rcv_data",
        tx_mb_s=f"{counters}/port_xmit_data",
    )


def _interface(folder: str) -> _Port:
    statistics = f"{folder}/statistics"
    return _Port(
        [folder, f"{folder}/device", statistics],
        1,
        0.001,
        operstate=f"{folder}/operstate",
        rate_gbit_s=f"{folder}/speed",
        rx_mb_s=f"{statistics}/rx_bytes",
        tx_mb_s=f"{statistics}/tx_bytes",
    )


class Ports:
    """The node's ports below ``sys``, found again each time. Bridges, bonds and veths have no device."""

    def __init__(self, sys: str) -> None:
        self._sys = sys
        self._known: Dict[str, _Port] = {}

    def find(self, now_ns: int) -> Readers:
        """Return a function for each port that returns its row."""
        found = {}
        for folder in sorted(glob(f"{self._sys}/class/infiniband/*/ports/*")):
            name = f"{basename(dirname(dirname(folder)))}/{basename(folder)}"
            found[name] = self._known.get(name) or _adapter_port(folder)
        for device in sorted(glob(f"{self._sys}/class/net/*/device")):
            name = basename(dirname(device))
            found[name] = self._known.get(name) or _interface(dirname(device))
        self._known = dict(list(found.items())[:MAX_LISTED])
        return {name: partial(port.read, now_ns) for name, port in self._known.items()}
