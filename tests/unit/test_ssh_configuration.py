"""What is left of an SSH configuration for one host says of it what the whole says."""

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
ASKED = ("Hostname", "Port", "User", "IdentityFile", "ProxyCommand")


def read(host: str, paths: list[str]) -> list[object] | None:
    """What asyncssh makes of the files for a host; None where it can't read them."""
    try:
        config = asyncssh.SSHClientConnectionOptions(host=host, config=paths, client_keys=None).config
    except ValueError:
        return None
    return [config.get(name) for name in ASKED]


@given(st.lists(st.sampled_from([*BEGINNINGS, *SETTINGS])), st.sampled_from(HOSTS))
def test_a_host_is_told_what_the_whole_file_says(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], host: str
) -> None:
    path = tmp_path_factory.mktemp("ssh") / "config"
    path.write_text("\n".join(lines))
    with Configuration().about(host, [str(path)]).files() as shorter:
        assert read(host, shorter) == read(host, [str(path)])


@given(st.lists(st.sampled_from([*BEGINNINGS, *SETTINGS])))
async def test_what_is_said_of_hosts_alike_means_the_same(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("ssh") / "config"
    path.write_text("\n".join(lines))
    configuration = Configuration()
    for host in HOSTS:
        try:
            options = await configuration.options(host, [str(path)])
        except ValueError:
            assert read(host, [str(path)]) is None
        else:
            assert [options.config.get(name) for name in ASKED] == read(host, [str(path)])


def test_the_sections_of_other_hosts_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("".join(f"Host gpu{index:03d}\n  Port {2000 + index}\n" for index in range(500)))
    configuration = Configuration()
    assert configuration.about("gpu123", [str(path)]).texts == ("Match all\n  Port 2123\n",)
    path.write_text("Host gpu123\n  Port 22\nHost gpu124\n  Port 23\n")
    assert configuration.about("gpu123", [str(path)]).texts == ("Match all\n  Port 22\n",)


async def test_what_is_said_of_all_nodes_is_parsed_once(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("User alice\nHost gpu*\n  Port 2222\nHost login\n  Port 22\n")
    configuration = Configuration()
    first = await configuration.options("gpu01", [str(path)])
    assert await configuration.options("gpu02", [str(path)]) is first
    assert await configuration.options("gpu02", [str(path)], user="bob") is not first
    assert (await configuration.options("login", [str(path)])).port == 22
    path.write_text("Host gpu*\n  Port 2223\n")
    assert (await configuration.options("gpu01", [str(path)])).port == 2223
