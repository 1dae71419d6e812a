"""Into a node over a real SSH server: what works, and what each failure says."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncssh
import pytest

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.wire import MAGIC, Decoder, Message, Start, Stop, encode
from gswarm_tui.launch.base import Channel, LaunchError, Retry
from gswarm_tui.launch.bootstrap import Bootstrap
from gswarm_tui.launch.bundle import own_folders
from gswarm_tui.launch.ssh import SshLauncher, SshSettings
from gswarm_tui.launch.ssh.attempt import Attempt, KnownHosts
from tests.unit.sshd import SSHD, Server, new_key, public, running

NO_NODE_NAMES = ["-oProxyCommand=x", "a b", "a;b", "$(id)", "", "gpu01\n", "a/b", "gpu'01", "x" * 300]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, for this process and for what sshd starts."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return home


@pytest.fixture
def server(tmp_path: Path, home: Path) -> Iterator[Server]:
    """A server that the client trusts and that trusts the client."""
    if SSHD is None:
        pytest.skip("no sshd on this machine")
    with running(tmp_path, SetEnv=f"XDG_CACHE_HOME={home}/cache") as server:
        server.trust()
        yield server


@asynccontextmanager
async def launcher(
    server: Server, *config: str, bootstrap: Bootstrap | None = None, **settings: str
) -> AsyncIterator[SshLauncher]:
    launcher = SshLauncher(SshSettings(config=server.config(*config), **settings), bootstrap)
    try:
        yield launcher
    finally:
        await launcher.close()


async def refused(launcher: SshLauncher, node: str = "gpu01") -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        await launcher.open(node)
    return caught.value


async def messages(channel: Channel, kind: type[Message]) -> list[Message]:
    """What the agent says until the first message of a kind."""
    decoder, said = Decoder(), list[Message]()
    async with asyncio.timeout(60):
        while data := await channel.read():
            for message in decoder.feed(data):
                said.append(message)
                if isinstance(message, kind):
                    return said
    raise AssertionError(f"{await channel.explain_end()} after {said}")


async def first_frame(launcher: SshLauncher, node: str = "gpu01") -> list[Message]:
    channel = await launcher.open(node)
    try:
        channel.write(MAGIC + encode(Start(1000, 1)))
        said = await messages(channel, Frame)
        channel.write(encode(Stop()))
        return said
    finally:
        await channel.close()


async def test_a_node_without_anything_is_sent_the_agent_once(server: Server, home: Path) -> None:
    bootstrap = Bootstrap(agent_python="python3")
    async with launcher(server, bootstrap=bootstrap) as ssh:
        hello, frame = await first_frame(ssh)
        (folder,) = (home / "cache/gswarm-tui").iterdir()
        sent = {path: path.stat().st_mtime_ns for path in folder.rglob("*.py")}
        await first_frame(ssh)
    assert isinstance(hello, Hello)
    assert not hello.simulated
    assert isinstance(frame, Frame)
    assert sent
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.py")} == sent


async def test_the_heads_own_environment_is_used_where_it_is_there_too(server: Server, home: Path) -> None:
    async with launcher(server) as ssh:
        assert await first_frame(ssh)
    assert (home / "cache").exists() == (not own_folders())  # there are none in a checkout below /tmp


async def test_many_nodes_at_once(server: Server) -> None:
    async with launcher(server) as ssh:
        said = await asyncio.gather(*(first_frame(ssh, f"gpu{n:02d}") for n in range(8)))
    lives = {hello.life for hello, *_ in said if isinstance(hello, Hello)}
    assert len(lives) == 8


async def test_an_unknown_host_key_is_refused_with_what_to_do(server: Server) -> None:
    server.known_hosts.write_text("")
    async with launcher(server) as ssh:
        error = await refused(ssh)
    assert error.reason == f"its host key is not in {server.known_hosts}"
    assert error.remedy == "run `ssh gpu01` once to look at it and accept it"
    assert error.retry is Retry.SLOWLY


async def test_a_host_key_accepted_meanwhile_is_seen(server: Server) -> None:
    server.known_hosts.write_text("")
    async with launcher(server) as ssh:
        await refused(ssh)
        server.trust()
        assert await first_frame(ssh)


async def test_a_changed_host_key_is_refused(server: Server, tmp_path: Path) -> None:
    new_key(tmp_path / "other")
    server.trust(public(tmp_path / "other"))
    async with launcher(server) as ssh:
        error = await refused(ssh)
    assert error.reason == f"its host key is not the one in {server.known_hosts}"
    assert "ssh-keygen -R gpu01" in error.remedy


async def test_a_host_key_of_another_type_is_no_reason_to_trust(server: Server, tmp_path: Path) -> None:
    new_key(tmp_path / "other", kind="ecdsa")
    server.trust(public(tmp_path / "other"))
    async with launcher(server) as ssh:
        error = await refused(ssh)
    assert error.reason == f"its host key is not the one in {server.known_hosts}"


async def test_a_revoked_host_key_is_refused(server: Server) -> None:
    server.known_hosts.write_text(
        f"{server.known_hosts.read_text()}@revoked * {public(server.folder / 'host')}\n"
    )
    async with launcher(server) as ssh:
        assert (await refused(ssh)).reason == f"its host key is revoked in {server.known_hosts}"


async def test_lines_that_cannot_be_read_do_not_hide_the_others(server: Server) -> None:
    server.known_hosts.write_text(f"nonsense\n@what is this\n{server.known_hosts.read_text()}|1|x|y z\n")
    async with launcher(server) as ssh:
        assert await first_frame(ssh)


async def test_no_user_file_of_known_hosts_is_not_a_licence(server: Server) -> None:
    async with launcher(server) as ssh:
        config = Path(server.config())
        config.write_text(config.read_text().replace(str(server.known_hosts), "none"))
        assert "its host key is not in" in (await refused(ssh)).reason


async def test_a_refused_key(server: Server) -> None:
    (server.folder / "authorized_keys").write_text("")
    async with launcher(server) as ssh:
        error = await refused(ssh)
    assert error.reason.startswith("it refuses the user ")
    assert "`ssh gpu01`" in error.remedy
    assert error.retry is Retry.SLOWLY


def test_a_banner_without_end_is_not_kept() -> None:
    attempt = Attempt("gpu01", KnownHosts())
    for _ in range(1000):
        attempt.auth_banner_received("no" * 10_000, "en")
    assert len(attempt.banner) <= 4096


async def test_no_node_gets_at_the_ssh_agent(
    server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "agent"))
    setup = f'echo "agent:$SSH_AUTH_SOCK" > {home}/seen'
    config = Path(server.config("ForwardAgent yes"))
    config.write_text(config.read_text().replace("  IdentityAgent none\n", ""))
    ssh = SshLauncher(SshSettings(config=str(config)), Bootstrap(setup=setup))
    try:
        await first_frame(ssh)
    finally:
        await ssh.close()
    assert (home / "seen").read_text() == "agent:\n"


async def test_a_banner_says_why(tmp_path: Path, home: Path) -> None:
    if SSHD is None:
        pytest.skip("no sshd on this machine")
    (tmp_path / "banner").write_text("Access denied by \x1b[31mpam_slurm_adopt\x1b[0m\n")
    with running(tmp_path, Banner=str(tmp_path / "banner")) as strict:
        (tmp_path / "authorized_keys").write_text("")
        strict.trust()
        async with launcher(strict) as ssh:
            error = await refused(ssh)
    assert "Access denied by [31mpam_slurm_adopt" in error.reason


async def test_a_key_with_a_passphrase_and_no_agent(server: Server) -> None:
    new_key(server.user_key, passphrase="secret")
    async with launcher(server) as ssh:
        error = await refused(ssh)
    assert f"the key {server.user_key} has a passphrase and no ssh-agent offered it" in error.reason
    assert error.remedy == "run `ssh-add` first"


async def test_an_identity_that_is_not_there(server: Server) -> None:
    async with launcher(server, "  IdentityFile /nowhere/id_gone") as ssh:
        assert await first_frame(ssh)


async def test_a_name_that_does_not_resolve(server: Server) -> None:
    async with launcher(server) as ssh:
        error = await refused(ssh, "nowhere.invalid")
    assert error.reason == "its name does not resolve"


async def test_a_port_on_which_nothing_listens(tmp_path: Path, home: Path) -> None:
    nothing = Server(tmp_path)
    new_key(nothing.user_key)
    async with launcher(nothing) as ssh:
        error = await refused(ssh)
    assert error.reason == "it refuses connections: nothing listens on its SSH port"
    assert error.retry is Retry.SOON


async def test_a_server_that_says_nothing(tmp_path: Path, home: Path) -> None:
    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _reader.read()
        writer.close()

    silent = Server(tmp_path)
    new_key(silent.user_key)
    listening = await asyncio.start_server(say_nothing, "127.0.0.1", silent.port)
    async with listening, launcher(silent, "  ConnectTimeout 1") as ssh:
        assert (await refused(ssh)).reason == "it does not answer in time"


async def test_a_configuration_that_cannot_be_read_names_its_line(server: Server) -> None:
    async with launcher(server, "  Port many") as ssh:
        error = await refused(ssh)
    assert "ssh_config line 9" in error.reason


@pytest.mark.parametrize("name", NO_NODE_NAMES)
async def test_what_is_no_host_name_is_refused_before_anything_happens(name: str) -> None:
    error = await refused(SshLauncher(), name)
    assert "is no host name" in error.reason
    assert error.retry is Retry.NEVER


async def test_a_python_that_is_not_there(server: Server) -> None:
    async with launcher(server, bootstrap=Bootstrap(agent_python="/opt/no python")) as ssh:
        error = await refused(ssh)
    assert error.reason == "the Python /opt/no python can't be run"
    assert error.remedy == "correct --agent-python"


async def test_a_setup_that_fails_is_told_with_its_last_words(server: Server) -> None:
    setup = "echo loading; echo 'no module cuda/99 \x1b[1m' >&2; exit 4"
    async with launcher(server, bootstrap=Bootstrap(setup=setup)) as ssh:
        error = await refused(ssh)
    assert error.reason == "the setup failed with exit status 4: no module cuda/99 [1m"
    assert error.remedy == "correct --setup"


async def test_a_setup_may_talk_and_what_it_exports_reaches_the_agent(server: Server, home: Path) -> None:
    setup = f"echo $'GSWARM-\\0 noise'; cat; export XDG_CACHE_HOME='{home}/it'\"'\"'s mine'"
    bootstrap = Bootstrap(setup=setup, agent_python="python3")
    async with launcher(server, bootstrap=bootstrap) as ssh:
        assert await first_frame(ssh)
    assert (home / "it's mine/gswarm-tui").is_dir()


async def test_an_account_that_lets_nobody_in(server: Server) -> None:
    async with launcher(server) as ssh:
        key = public(server.user_key)
        (server.folder / "authorized_keys").write_text(f'command="echo not available >&2; exit 1" {key}\n')
        error = await refused(ssh)
    assert error.reason == "the agent ended with exit status 1: not available"


async def test_through_a_jump_host_that_is_connected_to_once(server: Server) -> None:
    async with launcher(server, jump="gpujump") as ssh:
        said = await asyncio.gather(*(first_frame(ssh, f"gpu{n:02d}") for n in range(3)))
    assert len(said) == 3
    logins = (server.folder / "sshd.log").read_text().count("Accepted publickey")
    assert logins == 4


async def test_a_jump_host_from_the_configuration(server: Server) -> None:
    async with launcher(server, "Host gpu*", "  ProxyJump gpujump") as ssh:
        assert await first_frame(ssh)
    assert (server.folder / "sshd.log").read_text().count("Accepted publickey") == 2


async def test_a_jump_host_that_cannot_be_used_is_named(server: Server) -> None:
    async with launcher(server, jump=f"{os.getpid()}@nowhere.invalid:2222") as ssh:
        error = await refused(ssh)
    assert error.reason == "the jump host nowhere.invalid can't be used: its name does not resolve"


async def test_a_jump_host_that_is_no_name_is_refused(server: Server) -> None:
    async with launcher(server, jump="-oProxyCommand=x") as ssh:
        error = await refused(ssh)
    assert "is no host name" in error.reason
    assert error.remedy == "correct --jump"


async def test_a_connection_that_is_cut_is_told_as_one(server: Server) -> None:
    async with launcher(server) as ssh:
        channel = await ssh.open("gpu01")
        try:
            for pid in server.sessions():
                os.kill(pid, signal.SIGKILL)
            with suppress(ConnectionError):
                while await channel.read():
                    pass
            assert await channel.explain_end() == "the agent broke off with the connection"
        finally:
            await channel.close()


@asynccontextmanager
async def ssh_agent(folder: Path, key: Path) -> AsyncIterator[Path]:
    """The socket of a real ssh-agent that holds a key."""
    socket = folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(20):
            while not socket.exists():
                await asyncio.sleep(0.01)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(socket)}
        subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True)
        yield socket
    finally:
        agent.terminate()
        agent.wait()


def use_agent(server: Server, socket: Path) -> None:
    config = Path(server.config())
    config.write_text(config.read_text().replace("IdentityAgent none", f"IdentityAgent {socket}"))


async def test_a_key_that_only_the_agent_has(server: Server, tmp_path: Path) -> None:
    async with ssh_agent(tmp_path, server.user_key) as socket, launcher(server) as ssh:
        use_agent(server, socket)
        server.user_key.unlink()
        assert await first_frame(ssh)


async def test_a_key_with_a_passphrase_is_not_blamed_when_the_agent_has_it(
    server: Server, tmp_path: Path
) -> None:
    async with ssh_agent(tmp_path, server.user_key) as socket, launcher(server) as ssh:
        use_agent(server, socket)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(server.user_key)], check=True)
        assert await first_frame(ssh)
        (server.folder / "authorized_keys").write_text("")
        error = await refused(ssh)
    assert "passphrase" not in error.reason


class NoSessions(asyncssh.SSHServer):
    """A server that lets everybody in and lets nobody do anything."""

    def begin_auth(self, username: str) -> bool:
        return False

    def session_requested(self) -> bool:
        return False


async def test_a_server_without_sessions(tmp_path: Path, home: Path) -> None:
    server = Server(tmp_path)
    new_key(server.user_key)
    new_key(tmp_path / "host")
    server.trust()
    listening = await asyncssh.listen(
        "127.0.0.1", server.port, server_factory=NoSessions, server_host_keys=[str(tmp_path / "host")]
    )
    async with listening, launcher(server) as ssh:
        error = await refused(ssh)
    assert error.reason.startswith("it lets nobody run a command")
    assert error.remedy == "try `ssh gpu01 true`"


def test_known_hosts_are_parsed_once_and_again_when_they_change(tmp_path: Path) -> None:
    new_key(tmp_path / "one")
    path = tmp_path / "known_hosts"
    path.write_text(f"gpu01 {public(tmp_path / 'one')}\n")
    known = KnownHosts()
    paths = [path, tmp_path / "none"]
    first = known.read(paths)
    assert known.read(paths) is first
    path.write_text(f"gpu01,gpu02 {public(tmp_path / 'one')}\n")
    assert len(known.read(paths).match("gpu02", "", None)[0]) == 1
    before = weakref.ref(first)
    del first
    assert before() is None


def test_hashed_known_hosts_are_understood(tmp_path: Path) -> None:
    new_key(tmp_path / "one")
    path = tmp_path / "known_hosts"
    hashed = (
        "|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg="  # 192.168.1.61, from sshd(8)'s kind
    )
    path.write_text(f"{hashed} {public(tmp_path / 'one')}\n")
    assert len(KnownHosts().read([path]).match("192.168.1.61", "", None)[0]) == 1
    assert len(KnownHosts().read([path]).match("192.168.1.62", "", None)[0]) == 0
