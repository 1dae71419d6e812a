"""Contract with asyncssh: everything that gswarm-tui uses beyond its documentation.

A failure here with a new asyncssh names the part of ``gswarm_tui/launch/ssh`` that it would break.
"""

from __future__ import annotations

import asyncio
import copy
import subprocess
from pathlib import Path

import asyncssh
import pytest

from gswarm_tui.launch.ssh.asyncssh_internals import (
    configured,
    is_about_host_key,
    is_revoked,
    load_key_pairs,
    match_known_hosts,
    needs_passphrase,
    parse_known_hosts,
    read_options,
)
from tests.integration.sshd import free_port, new_key, public

CONFIG = """
Host gpu*
  HostName 10.0.0.1
  Port 2222
  User alice
  ProxyJump login
  HostKeyAlias cluster
  ConnectTimeout 7
  ServerAliveInterval 9
  IdentityFile ~/.ssh/first
  IdentityFile ~/.ssh/second
  IdentitiesOnly yes
  IdentityAgent /run/agent
  CertificateFile ~/.ssh/first-cert.pub
  UserKnownHostsFile /known /known2
  GlobalKnownHostsFile /global
  HostKeyAlgorithms ssh-ed25519
  Ciphers aes256-gcm@openssh.com
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("IdentitiesOnly", True),
        ("IdentityAgent", "/run/agent"),
        ("CertificateFile", ["~/.ssh/first-cert.pub"]),
        ("IdentityFile", ["~/.ssh/first", "~/.ssh/second"]),
        ("UserKnownHostsFile", ["/known", "/known2"]),
        ("GlobalKnownHostsFile", ["/global"]),
        ("HostKeyAlgorithms", "ssh-ed25519"),
        ("Ciphers", "aes256-gcm@openssh.com"),
    ],
)
def test_options_config_holds_the_configured_values(tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / "config").write_text(CONFIG)
    options = read_options("gpu01", [str(tmp_path / "config")])
    assert configured(options, name) == value, f"options.config.get({name!r}) changed"
    other = read_options("login", [str(tmp_path / "config")])
    assert configured(other, name, "default") == "default", "options.config.get lost its default"


def test_options_have_the_attributes_that_a_connection_is_opened_with(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(CONFIG)
    options = read_options("gpu01", [str(tmp_path / "config")])
    assert configured(options, "Hostname") == "10.0.0.1"
    expected = {
        "port": 2222,
        "username": "alice",
        "tunnel": "login",
        "host_key_alias": "cluster",
        "connect_timeout": 7,
        "keepalive_interval": 9,
    }
    assert {name: getattr(options, name, "missing") for name in expected} == expected
    given = read_options("gpu01", [str(tmp_path / "config")], "bob", 22)
    assert (given.username, given.port) == ("bob", 22), "arguments no longer override the configuration"


def test_options_report_the_file_and_line_of_an_error(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host gpu*\n  Port many\n")
    with pytest.raises(ValueError, match="config line 2"):
        read_options("gpu01", [str(tmp_path / "config")])


def test_an_encrypted_key_is_skipped_and_recognised(tmp_path: Path) -> None:
    new_key(tmp_path / "locked", passphrase="secret")
    new_key(tmp_path / "open")
    (pair,) = load_key_pairs([tmp_path / "locked", tmp_path / "open"], [])
    assert pair.public_data == asyncssh.read_public_key(tmp_path / "open.pub").public_data
    with pytest.raises(ValueError, match=r"(?i)passphrase") as caught:
        asyncssh.read_private_key(tmp_path / "locked")
    assert needs_passphrase(caught.value), "the error of an encrypted key reads differently"
    (tmp_path / "noise").write_text("not a key")
    with pytest.raises(asyncssh.KeyImportError) as caught:
        asyncssh.read_private_key(tmp_path / "noise")
    assert not needs_passphrase(caught.value)


def test_a_public_key_is_skipped_and_an_invalid_one_named(tmp_path: Path) -> None:
    new_key(tmp_path / "id")
    assert load_key_pairs([tmp_path / "id.pub"], []) == []
    (tmp_path / "noise").write_text("not a key")
    with pytest.raises(ValueError, match=f"{tmp_path}/noise: "):
        load_key_pairs([tmp_path / "id.pub", tmp_path / "noise"], [])


@pytest.mark.parametrize("named", [False, True])
def test_a_key_is_offered_with_its_certificate_and_without(tmp_path: Path, named: bool) -> None:
    key, authority = tmp_path / "id", tmp_path / "authority"
    new_key(key)
    new_key(authority)
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", "me", f"{key}.pub"], check=True)
    certificates = [Path(f"{key}-cert.pub").rename(tmp_path / "elsewhere.pub")] if named else []
    pairs = load_key_pairs([key], certificates)
    assert [pair.has_cert for pair in pairs] == [True, False]


def test_copies_of_a_key_pair_choose_their_signature_algorithm_each(tmp_path: Path) -> None:
    new_key(tmp_path / "id", kind="rsa")
    pair = load_key_pairs([tmp_path / "id"], [])[0]
    one, other = copy.copy(pair), copy.copy(pair)
    one.set_sig_algorithm(b"rsa-sha2-256")
    other.set_sig_algorithm(b"rsa-sha2-512")
    assert one.sig_algorithm == b"rsa-sha2-256", "cached key pairs can't be shared by copies any more"


def test_known_hosts_are_parsed_line_by_line_and_matched(tmp_path: Path) -> None:
    for name in ("plain", "other", "gone", "authority"):
        new_key(tmp_path / name)
    first = f"nonsense\n@what is this\ngpu01 {public(tmp_path / 'plain')}\n|1|x|y z\n"
    second = f"[gpu01]:2222 {public(tmp_path / 'other')}\n@revoked * {public(tmp_path / 'gone')}\n"
    third = f"@cert-authority gpu02 {public(tmp_path / 'authority')}\n"
    known = parse_known_hosts([first, second, third])

    def keys(*names: str) -> list[asyncssh.SSHKey]:
        return [asyncssh.read_public_key(tmp_path / f"{name}.pub") for name in names]

    assert match_known_hosts(known, "gpu01", None) == (keys("plain"), [], keys("gone"))
    assert match_known_hosts(known, "gpu01", 2222) == (keys("other"), [], keys("gone"))
    assert match_known_hosts(known, "gpu02", None) == ([], keys("authority"), keys("gone"))


def test_hashed_host_names_match(tmp_path: Path) -> None:
    new_key(tmp_path / "one")
    hashed = "|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg="  # 192.168.1.61, from sshd(8)
    known = parse_known_hosts([f"{hashed} {public(tmp_path / 'one')}\n"])
    assert len(match_known_hosts(known, "192.168.1.61", None)[0]) == 1
    assert len(match_known_hosts(known, "192.168.1.62", None)[0]) == 0


async def handshake(
    folder: Path, known_keys: tuple[list[str], list[str], list[str]]
) -> asyncssh.DisconnectError:
    """Return the error of connecting to a server with the key ``folder / "host"`` and these trusted keys."""
    port = free_port()
    listening = await asyncssh.listen("127.0.0.1", port, server_host_keys=[str(folder / "host")])
    async with listening, asyncio.timeout(30):
        with pytest.raises(asyncssh.DisconnectError) as caught:
            await asyncssh.connect(
                "127.0.0.1", port, config=None, client_keys=None, known_hosts=known_keys, username="alice"
            )
    return caught.value


async def test_the_error_of_an_untrusted_host_key_is_recognised(tmp_path: Path) -> None:
    new_key(tmp_path / "host")
    new_key(tmp_path / "other")
    error = await handshake(tmp_path, ([f"{tmp_path}/other.pub"], [], []))
    assert isinstance(error, asyncssh.HostKeyNotVerifiable)
    assert is_about_host_key(error), f"a changed host key reads differently: {error.reason}"
    assert not is_revoked(error)


async def test_the_error_of_a_host_key_of_another_type_is_recognised(tmp_path: Path) -> None:
    new_key(tmp_path / "host")
    new_key(tmp_path / "other", kind="ecdsa")
    error = await handshake(tmp_path, ([f"{tmp_path}/other.pub"], [], []))
    assert isinstance(error, (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed))
    assert is_about_host_key(error), f"a host key of another type reads differently: {error.reason}"
