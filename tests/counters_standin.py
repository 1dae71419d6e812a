"""A stand-in for perf on machines without hardware events.

It answers in the format of ``man perf-stat`` (CSV FORMAT), runs the program to measure as the real one does,
and prints an interval of one second every 20 ms. A file beside it holds the fault to show.
"""

from __future__ import annotations

import sys
from pathlib import Path

PERF = """#!{python} -S
import subprocess, sys, time
words = sys.argv[1:]
fault = open({fault!r}).read()
if words[0] == "list":
    print("  fp_arith_inst_retired.scalar_double\\n  fp_arith_inst_retired.512b_packed_double")
    print("  uncore_imc_0/cas_count_read/  [Kernel PMU event]", flush=True)
    sys.exit()
if fault == "endless":
    while True:
        sys.stderr.write("x" * 65536)
if fault == "hangs":
    time.sleep(600)
if fault == "garbage":
    while True:
        sys.stderr.write("\\x1b[2Jwhat is this?\\n")
if fault == "denied":
    sys.exit("Error:\\nAccess to performance monitoring and observability operations is limited.\\n"
             "Consider adjusting /proc/sys/kernel/perf_event_paranoid setting to open\\n"
             "in /etc/sysctl.conf (e.g. kernel.perf_event_paranoid = <setting>)")
events = words[words.index("-e") + 1].split(",")
program = subprocess.Popen(words[words.index("--") + 1:])
counts = {{"instructions": 3e9, "cycles": 2e9, "cache-misses": 5e6, "page-faults": 40,
          "fp_arith_inst_retired.scalar_double": 1e9, "fp_arith_inst_retired.512b_packed_double": 2e9}}
at = 0
while program.poll() is None:
    time.sleep(0.02)
    at += 1
    for event in events:
        unit = "MiB" if event.startswith("uncore") else ""
        count = 1000 if unit else counts.get(event, 0)
        print(f"{{at:16.9f}},{{count:.0f}},{{unit}},{{event}},1000,100.00,,", file=sys.stderr, flush=True)
    if fault == "stalls" and at == 3:
        time.sleep(600)
    if fault == "dies" and at == 3:
        sys.exit("perf: Segmentation fault")
"""


class CounterTools:
    """A folder for the PATH with the stand-in; ``fault`` is what perf shows from its next start on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._fault = folder / "fault"
        self.show("")

    def show(self, fault: str) -> None:
        """Let perf die, hang, stall, print garbage or endless output, or be denied; nothing with ""."""
        self._fault.write_text(fault)

    def add_perf(self) -> None:
        """Add perf."""
        program = self.folder / "perf"
        program.write_text(PERF.format(python=sys.executable, fault=str(self._fault)))
        program.chmod(0o755)
