"""Time to connect to many nodes: real sshd servers on this machine, compared with parallel OpenSSH clients.

The client's CPU for each node is the slope between few and many nodes, which leaves out the program's start.
It is compared with asyncssh alone, which runs ``true`` on each node.
"""

from __future__ import annotations

import asyncio
import json
import math
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.figures import BenchOptions, Figure
from tests.integration import sshd
from tests.integration.heads import clear
from tests.terminal import InTerminal

PROBE = 'import nvitop, msgpack; print("there")'
INTERVAL_MS = 10_000
"""Long, since all nodes share this machine: no node should sample again before the last one is connected."""
LINGER_S = 300
"""Agents of a killed bench end after this time."""
BARE = "bare"


@dataclass(frozen=True)
class ClientCost:
    """A client's wall time, CPU and memory for ``nodes`` nodes, from its start.

    ``start_ms`` is its CPU before the first node.
    """

    nodes: int
    wall_s: float
    start_ms: float
    cpu_ms: float
    peak_mib: float


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure from a new client process to every node's first frame; then again with the agents serving."""
    nodes, few, rounds = options.count(64, 3), options.count(8, 1), options.count(3, 1)
    peers: list[float] = []
    whole: list[float] = []
    took: dict[str, list[tuple[ClientCost, ClientCost]]] = {"": [], ", agents serving": [], BARE: []}
    with ExitStack() as stack:
        config, names = ssh_servers(stack, options.folder, nodes)
        _ours(config, names[:1], "")  # the first start puts the agent into the home that the nodes share
        streamed = _ours(config, names, "")
        for _ in range(rounds):
            peers.append(parallel_ssh(config, names))
            whole.append(_whole_command(config, names))
            one, other = str(uuid.uuid4()), str(uuid.uuid4())
            stack.callback(clear, one)
            stack.callback(clear, other)
            took[""].append((_ours(config, names[:few], one), _ours(config, names, other)))
            took[", agents serving"].append(
                (_ours(config, names[:few], one, stop=True), _ours(config, names, other, stop=True))
            )
            took[BARE].append((_ours(config, names[:few], BARE), _ours(config, names, BARE)))
    peer, alone = median(peers), _a_node(took.pop(BARE))
    bare = "asyncssh alone, with keys read, for a connection and `true` on each node"
    limit = f"ssh … python3 -c 'import nvitop, msgpack', {nodes} at once"
    reached = f"fan-out: command to first frame of {nodes} sshd"
    yield Figure(f"{reached}, agents without a recording", streamed.wall_s, "s", limit=limit, beside=peer)
    for (what, pairs), share in zip(took.items(), (1.0, 0.5), strict=True):
        wall_s = median(many.wall_s for _, many in pairs)
        yield Figure(f"{reached}{what}", wall_s, "s", share * peer, limit=limit, beside=peer)
        node_ms = _a_node(pairs)
        yield Figure(f"fan-out: client CPU for each node{what}", node_ms, "ms", 3, limit=bare, beside=alone)
    shown = f"fan-out: command to {nodes} sshd live on the screen, with a recording"
    yield Figure(shown, median(whole), "s", limit=limit, beside=peer)
    pairs = took[""]
    start_ms = median(least.start_ms + least.cpu_ms for least, _ in pairs) - few * _a_node(pairs)
    yield Figure("fan-out: client CPU to start, whatever the nodes", max(0.0, start_ms), "ms")
    grown = median((many.peak_mib - least.peak_mib) / (nodes - few) for least, many in pairs)
    yield Figure("fan-out: client memory for each node", max(0.0, 1024 * grown), "KiB")


def _a_node(pairs: Sequence[tuple[ClientCost, ClientCost]]) -> float:
    """Return the CPU milliseconds for each node, without the client's constant cost.

    Imports are subtracted first: they take 350 ms and vary by more than a node costs.
    """
    return max(0.0, median((many.cpu_ms - few.cpu_ms) / (many.nodes - few.nodes) for few, many in pairs))


def ssh_servers(stack: ExitStack, folder: Path, nodes: int) -> tuple[Path, list[str]]:
    """Start servers; return a configuration with one section for all of them, and their names.

    Names are addresses, because nothing resolves names here. The home folder is empty: a login shell's own
    start-up files could take longer than all that is measured.
    """
    names = [f"127.0.1.{index}" for index in range(1, nodes + 1)]
    port, known, key = sshd.free_port(), folder / "known_hosts", folder / "id_user"
    sshd.new_key(key)
    (folder / "authorized_keys").write_text(sshd.public(key) + "\n")
    home = folder / "home"
    home.mkdir()
    with known.open("w") as lines:
        for name in names:
            own = folder / name
            own.mkdir()
            given = {"ListenAddress": name, "AuthorizedKeysFile": str(folder / "authorized_keys")}
            given |= {"MaxStartups": "200", "SetEnv": f"HOME={home}"}
            stack.enter_context(sshd.running(own, port=port, **given))
            lines.write(f"[{name}]:{port} {sshd.public(own / 'host')}\n")
    said = (
        f"Port {port}",
        "User root",
        f"IdentityFile {key}",
        "IdentityAgent none",
        f"UserKnownHostsFile {known}",
    )
    config = folder / "ssh_config"
    config.write_text("".join(f"{line}\n" for line in ("Host 127.0.1.*", *said)))
    return config, names


def parallel_ssh(config: Path, names: Sequence[str], *command: str) -> float:
    """Return the seconds of one OpenSSH client for each node, all at once, that run a command.

    The usual command imports nvitop. An agent does so only for old drivers; with pynvml instead, this takes
    three quarters of the time.
    """
    began = time.monotonic()
    clients = [
        subprocess.Popen(
            ["ssh", "-F", str(config), name, *(command or (sys.executable, "-c", f"'{PROBE}'"))],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for name in names
    ]  # fmt: skip
    said = [client.communicate()[0] for client in clients]
    took = time.monotonic() - began
    wrong = [words for words in said if "there" not in words]
    if wrong:
        raise RuntimeError(f"ssh failed: {wrong[0]}")
    return took


def _whole_command(config: Path, names: Sequence[str]) -> float:
    """Return the seconds until the whole program shows all nodes live."""
    words = ("--nodes", *names, "--ssh-config", str(config), "--interval", f"{INTERVAL_MS / 1000:g}")
    command = [sys.executable, "-m", "gswarm_tui", *words, "--linger", f"{LINGER_S}s"]
    with InTerminal(command, folder=config.parent) as program:
        return program.wait_for(f"nodes {len(names)}/{len(names)} ", 180) - program.began


def _ours(config: Path, names: Sequence[str], recording: str, *, stop: bool = False) -> ClientCost:
    """Run a client until each node's first frame; with ``BARE``, asyncssh alone."""
    words = [sys.executable, "-m", "tests.bench.fanout", str(config), recording, str(int(stop)), *names]
    began = time.monotonic()
    client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    line = client.stdout.readline()
    took_s = time.monotonic() - began
    client.communicate()
    if not line:
        raise RuntimeError("the client found no frames")
    start_s, cpu_s, peak_kib = map(float, line.split())
    return ClientCost(len(names), took_s, 1000 * start_s, 1000 * (cpu_s - start_s), peak_kib / 1024)


def _print_usage(start_s: float) -> None:
    """Print CPU seconds before the first node and until now, and peak memory in KiB, for the bench."""
    print(start_s, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)


async def _drive(config: str, recording: str, stop: bool, names: Sequence[str]) -> None:
    """Connect to all nodes; print the usage when each has sent a frame."""
    from gswarm_tui.fleet.events import Event, FrameArrived, RecorderStatus
    from gswarm_tui.fleet.state import Fleet
    from gswarm_tui.launch.bootstrap import Bootstrap, Serving
    from gswarm_tui.launch.ssh import SshLauncher, SshSettings
    from gswarm_tui.link.hub import Hub
    from gswarm_tui.link.link import Link

    hub = Hub(Fleet(names, INTERVAL_MS))
    # Nothing is acknowledged, so frames wait for the next client as after one that was killed.
    hub.recorder = RecorderStatus("", rows=0, file_bytes=0, waiting=0, committed={})
    launcher = SshLauncher(SshSettings("", config, ""), Bootstrap("", "", Serving(recording, LINGER_S)))
    known = Path(config).with_name(f"lives-{recording}")
    missing, there = set(names), asyncio.Event()
    newest: dict[tuple[str, str], int] = {}

    def publish(event: Event) -> None:
        hub.publish(event)
        if isinstance(event, FrameArrived):
            newest[event.node, event.life] = event.frame.seq
            missing.discard(event.node)
            if not missing:
                there.set()

    for name in names:
        hub.links[name] = Link(name, launcher, INTERVAL_MS, publish)
    # As after a resumed recording.
    for node, life in json.loads(known.read_text()).items() if known.exists() else ():
        if node in hub.links:
            hub.links[node].resume(life, 0, 0.0, math.inf)
    start_s = time.process_time()
    running = asyncio.create_task(hub.run())
    try:
        async with asyncio.timeout(120):
            await there.wait()
    except TimeoutError:
        node = next(iter(missing))
        raise TimeoutError(f"no frame of {node}: {hub.fleet.nodes[node].reason}") from None
    _print_usage(start_s)
    known.write_text(json.dumps(dict(newest.keys())))
    if stop or not recording:
        hub.recorded(RecorderStatus("", rows=0, file_bytes=0, waiting=0, committed=newest))
        hub.recorder = None  # later frames are acknowledged as they arrive
        await hub.stop_links()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await launcher.close()


async def _drive_bare(config: str, names: Sequence[str]) -> None:
    """Connect to all nodes with asyncssh alone, with all options given."""
    import asyncssh

    said = dict(line.split() for line in Path(config).read_text().splitlines())
    keys = asyncssh.load_keypairs(said["IdentityFile"])
    known = asyncssh.read_known_hosts(said["UserKnownHostsFile"])

    async def visit(name: str) -> None:
        connection = await asyncssh.connect(
            name,
            int(said["Port"]),
            config=None,
            username=said["User"],
            client_keys=keys,
            known_hosts=known,
            agent_path=None,
            encryption_algs="aes128-gcm@openssh.com",
        )
        await connection.run("true")
        connection.close()
        await connection.wait_closed()

    start_s = time.process_time()
    await asyncio.gather(*map(visit, names))
    _print_usage(start_s)


if __name__ == "__main__":
    if sys.argv[2] == BARE:
        asyncio.run(_drive_bare(sys.argv[1], sys.argv[4:]))
    else:
        asyncio.run(_drive(sys.argv[1], sys.argv[2], sys.argv[3] == "1", sys.argv[4:]))
