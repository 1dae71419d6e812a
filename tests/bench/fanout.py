"""How fast many nodes are reached: real sshd servers on this machine, beside parallel OpenSSH clients."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.bench.figures import Figure, Form
from tests.unit import sshd

PROBE = 'import nvitop, msgpack; print("there")'


def run(form: Form) -> Iterator[Figure]:
    """From a fresh client process to the first frame of every node; then again, with the agents serving."""
    nodes = form.count(64, 3)
    with ExitStack() as stack:
        config = _servers(stack, form.folder, nodes)
        names = [f"gpu{index:02d}" for index in range(nodes)]
        warm = _ours(config, names, "", form.folder)  # the bundle is on the nodes from here on
        peer = _parallel_ssh(config, names)
        first = _ours(config, names, "", form.folder)
        recording = str(uuid.uuid4())
        _ours(config, names, recording, form.folder)
        again = _ours(config, names, recording, form.folder, stop=True)
    limit = f"ssh … python3 -c 'import nvitop, msgpack', {nodes} at once"
    yield Figure(f"fan-out: command to first frame of {nodes} sshd, agent sent", warm[0], "s",
                 limit=limit, beside=peer)  # fmt: skip
    for what, (took_s, start_ms, cpu_ms), share in (("", first, 1.0), (", agents serving", again, 0.5)):
        yield Figure(f"fan-out: command to first frame of {nodes} sshd{what}", took_s, "s", share * peer,
                     limit=limit, beside=peer)  # fmt: skip
        yield Figure(f"fan-out: client CPU to start, whatever the nodes{what}", start_ms, "ms")
        yield Figure(f"fan-out: client CPU after its start{what}", cpu_ms / nodes, "ms a node")
        yield Figure(f"fan-out: client CPU{what}", (start_ms + cpu_ms) / nodes, "ms a node", 3)


def _servers(stack: ExitStack, folder: Path, nodes: int) -> Path:
    """So many servers, and the client's configuration that names them."""
    lines, server = [], None
    for index in range(nodes):
        own = folder / f"sshd-{index}"
        own.mkdir()
        server = stack.enter_context(sshd.running(own, MaxStartups="200"))
        server.trust()
        lines += [
            f"Host gpu{index:02d}",
            "  HostName 127.0.0.1",
            f"  Port {server.port}",
            "  User root",
            f"  IdentityFile {server.user_key}",
            "  IdentityAgent none",
            f"  UserKnownHostsFile {server.known_hosts}",
        ]
    config = folder / "ssh_config"
    config.write_text("\n".join(lines) + "\n")
    return config


def _parallel_ssh(config: Path, names: Sequence[str]) -> float:
    """Seconds that one OpenSSH client a node needs, all at once, for a program with the same imports."""
    began = time.monotonic()
    clients = [
        subprocess.Popen(
            ["ssh", "-F", str(config), name, sys.executable, "-c", f"'{PROBE}'"],
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


def _ours(
    config: Path, names: Sequence[str], recording: str, folder: Path, *, stop: bool = False
) -> tuple[float, float, float]:
    """Seconds from a client's start to the first frame of every node; its CPU ms to start, and after that."""
    words = [sys.executable, "-m", "tests.bench.fanout", str(config), recording, str(int(stop)), *names]
    began = time.monotonic()
    client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    line = client.stdout.readline()
    took = time.monotonic() - began
    client.communicate()
    if not line:
        raise RuntimeError("the client found no frames")
    start_s, all_s = map(float, line.split())
    return took, 1000 * start_s, 1000 * (all_s - start_s)


async def _drive(config: str, recording: str, stop: bool, names: Sequence[str]) -> None:
    """Connect to all nodes; print the CPU seconds used before that and when each has sent a frame."""
    from gswarm_tui.fleet.state import Fleet
    from gswarm_tui.hub import Hub
    from gswarm_tui.launch.bootstrap import Bootstrap, Serving
    from gswarm_tui.launch.ssh import SshLauncher, SshSettings
    from gswarm_tui.link import Link

    start_s = time.process_time()
    hub = Hub(Fleet(names, 1.0))
    launcher = SshLauncher(SshSettings("", config, ""), Bootstrap("", "", Serving(recording)))
    for name in names:
        hub.links[name] = Link(name, launcher, 1000, hub.publish)
    running = asyncio.create_task(hub.run())
    deadline = time.monotonic() + 120
    while any(not node.frames for node in hub.fleet.nodes.values()):
        if time.monotonic() > deadline:
            raise TimeoutError(next(str(n.reason) for n in hub.fleet.nodes.values() if not n.frames))
        await asyncio.sleep(0.005)
    print(start_s, time.process_time(), flush=True)
    if stop or not recording:
        await hub.stop_links()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await launcher.close()


if __name__ == "__main__":
    asyncio.run(_drive(sys.argv[1], sys.argv[2], sys.argv[3] == "1", sys.argv[4:]))
