"""``gswarm-tui once``: the fleet in plain lines, without a screen."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_tui.cli import main
from tests.cluster.running import wait_until
from tests.integration.sshd import free_port


def once(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``gswarm-tui once`` as scripts do: with pipes, in an empty home folder."""
    environ = {**os.environ, "HOME": str(folder), "XDG_STATE_HOME": str(folder), "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "gswarm_tui", "once", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_simulated_fleet_is_printed_and_nothing_recorded(tmp_path: Path) -> None:
    done = once(tmp_path, "--demo", "2x2")
    assert (done.returncode, done.stderr) == (0, "")
    whole, *lines = done.stdout.splitlines()
    assert whole.startswith("2 of 2 simulated nodes send data: ")
    of_each = [line for line in lines if not line.startswith("throttled by ")]
    assert lines[-len(of_each) :] == of_each, "throttled GPUs come first"
    assert [line.partition(": ")[0] for line in of_each] == [
        "sim01", "  sim01:0", "  sim01:1", "sim02", "  sim02:0", "  sim02:1"
    ]  # fmt: skip
    assert list(tmp_path.glob("*.duckdb")) == []


def test_unreachable_node_is_named_with_the_reason_and_status_1(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(f"Host *\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    done = once(tmp_path, "--nodes", "gpu[07-08]", "--ssh-config", str(config))
    assert done.returncode == 1
    whole, first, second = done.stdout.splitlines()
    assert whole == "0 of 2 nodes send data; no GPU was measured."
    assert first.startswith("gpu07: unreachable: ")
    assert "it refuses connections" in first
    assert second.startswith("gpu08: unreachable: ")
    assert done.stderr == "gswarm-tui: no data from 2 nodes: gpu[07-08].\n"


def test_silent_node_ends_the_wait_at_the_limit(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text("Host *\n  ProxyCommand sleep 60\n  ConnectTimeout 60\n")
    done = once(tmp_path, "--nodes", "gpu07", "--ssh-config", str(config), "--timeout", "1s")
    assert (done.returncode, done.stdout.splitlines()[1]) == (1, "gpu07: no data yet.")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--demo", "--timeout", "soon"], '--timeout: "soon" isn\'t a time such as 30s or 2m.'),
        (["--demo", "--timeout", "2h"], '--timeout: "2h" isn\'t between 1 s and 60 min.'),
        (["--demo", "--json", "--csv"], "--csv: not allowed with argument --json."),
        (["--demo", "--job", "1"], "--demo simulates its nodes; remove --job."),
        (["--theme", "dark"], 'unknown option "--theme"; see --help.'),
    ],
)
def test_invalid_options_get_one_sentence(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["once", *words]) == 2
    assert capsys.readouterr().err == f"gswarm-tui: {problem}\n"


def test_signal_ends_it_with_status_130_and_no_output(tmp_path: Path) -> None:
    started = tmp_path / "started"
    config = tmp_path / "ssh_config"
    proxy = tmp_path / "proxy"
    proxy.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 60\n")
    proxy.chmod(0o755)
    config.write_text(f"Host *\n  ProxyCommand {proxy}\n")
    command = [sys.executable, "-m", "gswarm_tui", "once", "--nodes", "gpu07", "--ssh-config", str(config)]
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(started.exists, "the connection's start")
        process.send_signal(signal.SIGINT)
        assert process.communicate() == (b"", b"")
    assert process.returncode == 130


INTERRUPTED_AT_START = """
import os, signal, subprocess, sys
from gswarm_tui.__main__ import main
start = subprocess.Popen.__init__
def interrupted(*args, **named):
    start(*args, **named)
    os.kill(os.getpid(), signal.SIGINT)
subprocess.Popen.__init__ = interrupted
sys.exit(main())
"""
INTERRUPTED_WHILE_LOADING = """
import os, signal, sys
module = sys.argv.pop(1)
class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
from gswarm_tui.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (INTERRUPTED_AT_START, ("once", "--demo", "1x1")),
        (INTERRUPTED_AT_START, ("doctor", "--launcher", "local")),
        (INTERRUPTED_WHILE_LOADING, ("gswarm_tui.fleet.snapshot", "doctor", "--launcher", "local")),
        (INTERRUPTED_WHILE_LOADING, ("gswarm_tui.cli",)),
    ],
)
def test_ctrl_c_ends_it_at_once_also_while_modules_load_and_an_agent_starts(
    program: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_json_has_the_catalogues_names_and_null_where_nothing_is_measured(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(f"Host *\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    done = once(tmp_path, "--nodes", "gpu07", "--ssh-config", str(config), "--json")
    (node,) = json.loads(done.stdout)["nodes"]
    assert (done.returncode, node["node"], node["state"]) == (1, "gpu07", "unreachable")
    assert "it refuses connections" in node["reason"]
    assert (node["gpus"], node["driver_version"]) == ([], None)
    assert node["host"] == dict.fromkeys(HOST_COLUMNS)
    assert done.stderr == "gswarm-tui: no data from 1 node: gpu07.\n"

    done = once(tmp_path, "--demo", "2x2", "--json")
    nodes = json.loads(done.stdout)["nodes"]
    assert [node["node"] for node in nodes] == ["sim01", "sim02"]
    assert [gpu["gpu_index"] for node in nodes for gpu in node["gpus"]] == [0, 1, 0, 1]
    for node in nodes:
        assert (node["state"], node["reason"]) == ("live", None)
        assert set(node["host"]) == set(HOST_COLUMNS)
        assert node["host"]["cpu_pct"] > 0, "rates come with the second sample"
        for gpu in node["gpus"]:
            assert set(GPU_COLUMNS) < set(gpu)
            assert type(gpu["util_pct"]) is int
            assert gpu["energy_mj"] > 1_000_000, "the counter, not the energy since the start"
    assert {process["gpu_index"] for node in nodes for process in node["processes"]} <= {0, 1}
    assert [port["state"] for node in nodes for port in node["ports"]] == ["ACTIVE"] * 4
    assert [mount["mount"] for mount in nodes[0]["mounts"]] == ["/scratch/demo", "/tmp"]
    assert any(process["user_name"] == "demo" for node in nodes for process in node["processes"])


def test_csv_has_a_row_for_each_gpu_and_for_a_node_without(tmp_path: Path) -> None:
    done = once(tmp_path, "--demo", "2x2", "--csv")
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert [(row["node"], row["gpu_index"]) for row in rows] == [
        ("sim01", "0"), ("sim01", "1"), ("sim02", "0"), ("sim02", "1")
    ]  # fmt: skip
    assert set(GPU_COLUMNS) < set(rows[0])
    config = tmp_path / "ssh_config"
    config.write_text(f"Host *\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    done = once(tmp_path, "--nodes", "gpu07", "--ssh-config", str(config), "--csv")
    (row,) = csv.DictReader(done.stdout.splitlines())
    assert (row["node"], row["state"], row["gpu_index"], row["util_pct"]) == ("gpu07", "unreachable", "", "")
