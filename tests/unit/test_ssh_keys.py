"""The user's keys are read once, and offered as asyncssh would."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from gswarm_tui.launch.ssh.keys import Keys
from tests.unit.sshd import new_key


def certify(key: Path) -> Path:
    """A certificate of a key, beside it."""
    new_key(key.with_name("authority"))
    authority = str(key.with_name("authority"))
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", "me", f"{key}.pub"], check=True)
    return Path(f"{key}-cert.pub")


async def test_a_key_is_read_once_for_all_connections_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, reads = tmp_path / "id_rsa", 0
    load = asyncssh.load_keypairs

    def counted(*words: Any, **options: Any) -> object:
        nonlocal reads
        reads += 1
        return load(*words, **options)

    monkeypatch.setattr(asyncssh, "load_keypairs", counted)
    new_key(key, kind="rsa")
    keys = Keys()
    offered = await asyncio.gather(*(keys.pairs([key, tmp_path / "none"]) for _ in range(50)))
    assert reads == 1
    one, other = offered[0][0], offered[1][0]
    assert one.public_data == other.public_data == asyncssh.read_public_key(f"{key}.pub").public_data
    one.set_sig_algorithm(b"rsa-sha2-256")
    other.set_sig_algorithm(b"rsa-sha2-512")
    assert one.sig_algorithm == b"rsa-sha2-256"
    new_key(key, kind="rsa")
    assert (await keys.pairs([key]))[0].public_data == asyncssh.read_public_key(f"{key}.pub").public_data


async def test_a_locked_key_is_passed_over(tmp_path: Path) -> None:
    new_key(tmp_path / "locked", passphrase="secret")
    new_key(tmp_path / "open")
    (pair,) = await Keys().pairs([tmp_path / "locked", tmp_path / "open"])
    assert pair.public_data == asyncssh.read_public_key(tmp_path / "open.pub").public_data


@pytest.mark.parametrize("named", [False, True])
async def test_a_key_is_offered_with_its_certificate_and_without(tmp_path: Path, named: bool) -> None:
    new_key(tmp_path / "id")
    certificate = certify(tmp_path / "id")
    if named:
        certificate = certificate.rename(tmp_path / "elsewhere.pub")
    pairs = await Keys().pairs([tmp_path / "id"], [certificate] if named else [])
    assert [pair.has_cert for pair in pairs] == [True, False]


async def test_a_file_that_is_no_key_is_told_each_time(tmp_path: Path) -> None:
    (tmp_path / "id").write_text("not a key")
    keys = Keys()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"."):
            await keys.pairs([tmp_path / "id"])
    assert await keys.pairs([tmp_path / "id"], only_private=True) == []
