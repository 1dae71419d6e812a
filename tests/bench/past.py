"""Limits of one machine: the measured cost of a node, and how many nodes CPU, memory and disk allow.

Two heads record half of the nodes each, and what they export is read as one.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import duckdb

from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS
from gswarm_tui.launch.simulated import simulated_names
from tests.bench.figures import BenchOptions, Figure
from tests.bench.growth import GPUS_A_NODE, READINGS, measured
from tests.bench.headless import Headless
from tests.bench.nodes import Nodes
from tests.bench.processes import rss_mib, share_of_a_core
from tests.bench.start import PROGRAM
from tests.bench.watched import Reader
from tests.integration import sshd

CORE_PCT = 80.0
"""Percent of a core that may be used before frames have to wait."""
MEMORY_MIB = 16 * 1024
DISK_BYTES = 1e12
DAY_S = 86_400
WIRE_BYTES = 46 * GPUS_A_NODE
"""Bytes of a frame of eight simulated GPUs that train; the values of the agent's bench hardly change."""
PACKET_BYTES = 120
"""Headers of Ethernet, IP, TCP and SSH for two packets: the frame and its acknowledgement."""
LINE_BYTES_A_S = 1e9 / 8
DISK_BYTES_A_SAMPLE, PARQUET_BYTES_A_SAMPLE = 32, 23
"""Bytes per sample of a closed recording and of its export, as the benches disk and after_the_run measure."""
FLEET = 10_000
EXPORTED, SCRAPED_S = 20, 30
"""Counters per GPU in dcgm-exporter's default list, and the scrape interval of NVIDIA's guide."""
PROMETHEUS_BYTES, SERIES_GIB = (1, 2), 2
"""Prometheus's bytes per value on disk, and GiB of memory per million series."""
MS_A_PERCENT = 10.0
"""Milliseconds per second that are one percent of a core."""

LEAST = 1e-9
"""Lower bound of measured differences, which noise could make negative."""


@dataclass(frozen=True)
class Cost:
    """Cost of a head at 1 Hz: percent of a core and MiB, without nodes and per node."""

    fixed_pct: float
    node_pct: float
    fixed_mib: float
    node_mib: float


def run(options: BenchOptions) -> Iterator[Figure]:
    """Check that queries see two heads as one; then measure each number of docs/guide/scale.md."""
    yield from _two_as_one(options)
    ssh_pct, ssh_mib = _over_ssh(options)
    yield Figure("a node: CPU for SSH", MS_A_PERCENT * ssh_pct, "ms a second")
    yield Figure("a node: memory for SSH", ssh_mib, "MiB")
    for screen in () if options.smoke else (False, True):
        if (cost := _cost(options, screen=screen)) is not None:
            yield from _one_head(cost, ssh_pct, ssh_mib, "with the screen, " if screen else "")
    yield from arithmetic()


def _one_head(cost: Cost, ssh_pct: float, ssh_mib: float, how: str) -> Iterator[Figure]:
    """Return how many nodes a head's core and memory allow, and the heads needed for 10,000 nodes."""
    node_pct, node_mib = cost.node_pct + ssh_pct, cost.node_mib + ssh_mib
    by_core = (CORE_PCT - cost.fixed_pct) / node_pct
    yield Figure(f"{how}a node: CPU for links, hub, recorder", MS_A_PERCENT * cost.node_pct, "ms a second")
    yield Figure(f"{how}{CORE_PCT:.0f} % of a core, with SSH", by_core, "nodes")
    yield Figure(f"{how}a node: memory, with SSH", node_mib, "MiB")
    yield Figure(f"{how}16 GiB of memory", (MEMORY_MIB - cost.fixed_mib) / node_mib, "nodes")
    heads = math.ceil(FLEET / by_core)
    memory_gib = (cost.fixed_mib + FLEET / heads * node_mib) / 1024
    yield Figure(f"{how}{FLEET:,} nodes", heads, "heads")
    yield Figure(f"{how}{FLEET:,} nodes: memory of each head", memory_gib, "GiB")


def arithmetic() -> Iterator[Figure]:
    """Return figures computed from other benches' bytes: one node, 10,000 nodes, and Prometheus."""
    frame = WIRE_BYTES + PACKET_BYTES
    yield Figure("a node: with SSH, TCP and IP", frame, "bytes a second")
    yield Figure("a line of 1 Gbit/s", LINE_BYTES_A_S / frame, "nodes")
    samples_a_day = GPUS_A_NODE * DAY_S
    node_bytes = DISK_BYTES_A_SAMPLE * samples_a_day
    yield Figure("a node: disk", node_bytes / 1e6, "MB a day")
    yield Figure("1 TB of disk, for a day", DISK_BYTES / node_bytes, "nodes")
    yield Figure("1 TB of disk, for eight weeks", DISK_BYTES / node_bytes / 56, "nodes")
    fleet = f"{FLEET:,} nodes"
    yield Figure(f"{fleet}: GPU-samples", FLEET * samples_a_day / 1e9, "billion a day")
    values = FLEET * (GPUS_A_NODE * len(GPU_METRICS) + len(HOST_METRICS))
    yield Figure(f"{fleet}: values", values / 1e6, "million a second")
    for what, sample_bytes in (("recording", DISK_BYTES_A_SAMPLE), ("Parquet", PARQUET_BYTES_A_SAMPLE)):
        kept = FLEET * samples_a_day * sample_bytes
        yield Figure(f"{fleet}, {what}: disk a value", kept / (values * DAY_S), "bytes")
        yield Figure(f"{fleet}, {what}: disk", kept / 1e9, "GB a day")
    series = FLEET * GPUS_A_NODE * EXPORTED
    yield Figure(f"{fleet}, Prometheus: series", series / 1e6, "million")
    yield Figure(f"{fleet}, Prometheus: memory", 2 * SERIES_GIB * series / 1e6, "GiB")
    for every_s in (SCRAPED_S, 1):
        how = f"{fleet}, Prometheus every {every_s} s"
        yield Figure(f"{how}: values", series / every_s, "a second")
        for size in PROMETHEUS_BYTES:
            written_gb = series / every_s * DAY_S * size / 1e9
            yield Figure(f"{how}: disk at {size} bytes a value", written_gb, "GB a day")


def _cost(options: BenchOptions, *, screen: bool) -> Cost | None:
    """Return the cost from a small and a large fleet; None if this machine can't run the large one."""
    points = []
    few, many = 64, 1024
    for nodes in (few, many):
        folder = options.folder / f"past-{nodes}-{int(screen)}"
        with Nodes(folder, nodes, GPUS_A_NODE, options.seed, readings=READINGS) as served:
            points.append(measured(options, served, 1, screen=screen))
    low, high = points
    if problem := low.problem or high.problem:
        print(f"{many} nodes at 1 Hz can't be measured here: {problem}", file=sys.stderr)
        return None
    node_pct = max(LEAST, (high.cpu_pct - low.cpu_pct) / (many - few))
    node_mib = max(LEAST, (high.rss_mib - low.rss_mib) / (many - few))
    return Cost(low.cpu_pct - few * node_pct, node_pct, low.rss_mib - few * node_mib, node_mib)


def _over_ssh(options: BenchOptions) -> tuple[float, float]:
    """Return the additional cost of SSH: percent of a core per frame and second, MiB per node.

    Behind SSH each node is an agent of its own, on a server of this machine.
    """
    hertz, many = 5, options.count(20, 2)
    folder = options.folder / "past-ssh"
    folder.mkdir()
    with ExitStack() as stack:
        config = _configured(stack, folder)
        names = [f"gpu{index:02d}" for index in range(many)]
        served = stack.enter_context(Nodes(folder / "nodes", many, GPUS_A_NODE, options.seed))
        one = _needed(options, folder / "one", config, names[:1], hertz)
        by_ssh = _needed(options, folder / "ssh", config, names, hertz)
        by_socket = _needed(options, folder / "socket", served.folder, simulated_names(many), hertz)
    pct = (by_ssh[0] - by_socket[0]) / (many * hertz)
    return max(0.0, pct), max(0.0, (by_ssh[1] - one[1]) / (many - 1))


def _needed(
    options: BenchOptions, to: Path, where: Path, names: Sequence[str], hertz: int
) -> tuple[float, float]:
    """Measure percent of a core and MiB of a head without a screen."""
    journal = to.with_suffix(".jsonl")
    with Headless(journal, where, names, 1000 // hertz, to.with_suffix(".duckdb")) as head:
        Reader(journal, head.writes).wait_for(3 * len(names))
        return share_of_a_core([head.pid], options.seconds(20)), rss_mib(head.pid)


def _configured(stack: ExitStack, folder: Path) -> Path:
    """Run an SSH server with a configuration in which many node names lead to it."""
    server = stack.enter_context(sshd.running(folder, MaxStartups="200"))
    server.trust()
    config = folder / "ssh_config"
    config.write_text(
        f"Host gpu*\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {server.user_key}\n"
        f"  IdentityAgent none\n  UserKnownHostsFile {server.known_hosts}\n"
    )
    return config


def _two_as_one(options: BenchOptions) -> Iterator[Figure]:
    """Run two heads, and compare a query on both datasets with the recorded frames."""
    nodes = options.count(64, 2)
    names, half = simulated_names(nodes), nodes // 2
    paths = [options.folder / "rack1.duckdb", options.folder / "rack2.duckdb"]
    with ExitStack() as stack:
        served = stack.enter_context(
            Nodes(options.folder / "past-racks", nodes, GPUS_A_NODE, options.seed, readings=READINGS)
        )
        for path, called in zip(paths, (names[:half], names[half:]), strict=True):
            journal = path.with_suffix(".jsonl")
            head = stack.enter_context(Headless(journal, served.folder, called, 1000, path))
            Reader(journal, head.writes).wait_for(half)
        time.sleep(options.seconds(10))
    recorded = 0
    for path in paths:
        subprocess.run(
            [*PROGRAM, "export", "--db", path, "--format", "parquet", "-o", path.with_suffix(".parquet")],
            check=True, stdout=sys.stderr,
        )  # fmt: skip
        recorded += _asked(str(path), "SELECT count(*), 0 FROM gpu_samples")[0]
    found, nodes_found = _asked(
        ":memory:",
        "SELECT count(*), count(DISTINCT node) FROM read_parquet("
        f"'{options.folder}/rack*.parquet/gpu_samples/**/*.parquet', hive_partitioning = true)",
    )
    yield Figure("two heads, exported and read as one", found, "GPU samples", recorded, at_least=True,
                 limit="recorded", beside=recorded)  # fmt: skip
    yield Figure("two heads, exported and read as one", nodes_found, "nodes", nodes, at_least=True)


def _asked(path: str, sql: str) -> tuple[int, int]:
    with duckdb.connect(path) as connection:
        first, second = connection.execute(sql).fetchall()[0]
    return int(first), int(second)
