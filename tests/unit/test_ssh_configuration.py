"""Configuration shares options between hosts, and returns what asyncssh alone would read for each."""

from __future__ import annotations

from pathlib import Path

import asyncssh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.launch.ssh.configuration import Configuration

HOSTS = ("gpu01", "gpu02", "Gpu01", "login.example.org")
BEGINNINGS = [
    *(f"Host {host}" for host in HOSTS),
    "host  gpu01   gpu02 ",
    "HOST gpu01,gpu02",
    "Host=gpu02",
    "Host = gpu02",
    "Host gpu*",
    "Host gpu0? !gpu01",
    'Host "gpu01"',
    '"Host" gpu02',
    "Host gpu01 # a comment",
    "Host",
    "#Host gpu02",
    "Match host gpu02",
    "Match originalhost gpu01 user alice",
    "match all",
]
SETTINGS = [
    "  HostName 10.0.0.1",
    "HostName=%h.cluster",
    "hostname gpu02",
    "\tPort 2222",
    "  Port twenty-two",
    "User alice",
    "  User=bob",
    "  IdentityFile ~/.ssh/%n",
    '  IdentityFile "~/two words"',
    "  IdentityFile ~/no\\ end",
    '  ProxyCommand nc "%h',
    "# User carol",
    "",
]
OPTIONS = ("Hostname", "Port", "User", "IdentityFile", "ProxyCommand")


def read(host: str, path: Path) -> list[object] | None:
    """Return the options that asyncssh reads from a file for a host; None for an invalid file."""
    try:
        config = asyncssh.SSHClientConnectionOptions(host=host, config=[path], client_keys=None).config
    except ValueError:
        return None
    return [config.get(name) for name in OPTIONS]


@given(st.lists(st.sampled_from([*BEGINNINGS, *SETTINGS])))
async def test_hosts_with_shared_options_get_the_same_as_from_asyncssh(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("ssh") / "config"
    path.write_text("\n".join(lines))
    configuration = Configuration()
    for host in HOSTS:
        try:
            options = await configuration.options(host, [str(path)])
        except ValueError:
            assert read(host, path) is None
        else:
            assert [options.config.get(name) for name in OPTIONS] == read(host, path)


async def test_nodes_of_a_cluster_share_their_options_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("User alice\nHost gpu*\n  Port 2222\nHost login\n  Port 22\n")
    configuration = Configuration()
    first = await configuration.options("gpu01", [str(path)])
    assert await configuration.options("gpu02", [str(path)]) is first
    assert await configuration.options("gpu02", [str(path)], user="bob") is not first
    assert (await configuration.options("login", [str(path)])).port == 22
    path.write_text("Host gpu*\n  Port 2223\n")
    assert (await configuration.options("gpu01", [str(path)])).port == 2223


@pytest.mark.parametrize(
    "line", ["  ProxyCommand nc %h 22", "Match host gpu*", "Include other", 'Host "gpu*"']
)
async def test_hosts_share_nothing_where_options_depend_on_the_host(tmp_path: Path, line: str) -> None:
    path = tmp_path / "config"
    path.write_text(f"Host gpu*\n  Port 2222\n{line}\n")
    configuration = Configuration()
    first = await configuration.options("gpu01", [str(path)])
    assert await configuration.options("gpu02", [str(path)]) is not first
