"""Launching agents through a real SSH server, and the error that each failure reports."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncssh
import pytest

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.wire import MAGIC, Decoder, Message, Start, Stop, encode
from gswarm_tui.launch.base import Channel, LaunchError, Retry
from gswarm_tui.launch.bootstrap import Bootstrap
from gswarm_tui.launch.ssh import SshLauncher, SshSettings
from gswarm_tui.launch.ssh.asyncssh_internals import read_options
from gswarm_tui.launch.ssh.attempt import Attempt, _load_key_pairs
from gswarm_tui.launch.ssh.configuration import SshConfiguration
from tests.integration.agent_node import gone, until
from tests.integration.sshd import SSHD, SshServer, new_key, public, running

INVALID_NODE_NAMES = ["-oProxyCommand=x", "a b", "a;b", "$(id)", "", "gpu01\n", "a/b", "gpu'01", "x" * 300]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, for this process and those that sshd starts."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return home


@pytest.fixture
def server(tmp_path: Path, home: Path) -> Iterator[SshServer]:
    """A server and a client that trust each other."""
    if SSHD is None:
        pytest.skip("no sshd on this machine")
    with running(tmp_path, SetEnv=f"XDG_CACHE_HOME={home}/cache", AcceptEnv="SITE PLACE") as server:
        server.trust()
        yield server


@asynccontextmanager
async def launcher(
    server: SshServer, *config: str, bootstrap: Bootstrap | None = None, **settings: str
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
    """Return the agent's messages up to the first of a kind."""
    decoder, received = Decoder(), list[Message]()
    async with asyncio.timeout(60):
        while data := await channel.read():
            for message in decoder.feed(data):
                received.append(message)
                if isinstance(message, kind):
                    return received
    raise AssertionError(f"{await channel.explain_end()} after {received}")


async def first_frame(launcher: SshLauncher, node: str = "gpu01") -> list[Message]:
    channel = await launcher.open(node)
    try:
        channel.write(MAGIC + encode(Start(1000, 1)))
        received = await messages(channel, Frame)
        channel.write(encode(Stop()))
        return received
    finally:
        await channel.close()


async def test_agent_is_sent_once_to_a_bare_node(server: SshServer, home: Path) -> None:
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


async def test_eight_nodes_connect_at_once(server: SshServer) -> None:
    async with launcher(server) as ssh:
        received = await asyncio.gather(*(first_frame(ssh, f"gpu{n:02d}") for n in range(8)))
    lives = {hello.life for hello, *_ in received if isinstance(hello, Hello)}
    assert len(lives) == 8


async def test_unknown_host_key_is_refused_with_a_remedy(server: SshServer) -> None:
    server.known_hosts.write_text("")
    async with launcher(server) as ssh:
        error = await refused(ssh)
    assert error.reason == f"its host key is not in {server.known_hosts}"
    assert error.remedy == f"run `ssh -F {server.folder}/ssh_config gpu01` once to check and accept it"
    assert error.retry is Retry.SLOWLY


async def test_host_key_accepted_later_is_found(server: SshServer) -> None:
    server.known_hosts.write_text("")
    async with launcher(server) as ssh:
        await refused(ssh)
        server.trust()
        assert await first_frame(ssh)


async def test_changed_host_key_is_refused(server: SshServer, tmp_path: Path) -> None:
    new_key(tmp_path / "other")
    server.trust(public(tmp_path / "other"))
    async with launcher(server) as ssh:
        error = await refused(ssh)
    assert error.reason == f"its host key is not the one in {server.known_hosts}"
    assert "ssh-keygen -R gpu01" in error.remedy


async def test_revoked_host_key_is_refused(server: SshServer) -> None:
    server.known_hosts.write_text(
        f"{server.known_hosts.read_text()}@revoked * {public(server.folder / 'host')}\n"
    )
    async with launcher(server) as ssh:
        assert (await refused(ssh)).reason == f"its host key is revoked in {server.known_hosts}"


async def test_host_key_is_refused_without_a_known_hosts_file(server: SshServer) -> None:
    needs_variables = Bootstrap(setup='[ "$SITE, $PLACE" = "a, b c" ]')
    async with launcher(server, bootstrap=needs_variables) as ssh:
        config = Path(server.config())
        config.write_text(config.read_text().replace(str(server.known_hosts), "none"))
        assert "its host key is not in" in (await refused(ssh)).reason


@pytest.mark.parametrize("after_key", [False, True], ids=["instead of a key", "after the key"])
async def test_server_that_wants_a_password_gets_a_remedy(
    tmp_path: Path, home: Path, after_key: bool
) -> None:
    if SSHD is None:
        pytest.skip("no sshd on this machine")
    methods = "publickey,password" if after_key else "password"
    with running(tmp_path, AuthenticationMethods=methods, PasswordAuthentication="yes") as strict:
        strict.trust()
        async with launcher(strict) as ssh:
            error = await refused(ssh)
    assert error.reason == f"it refuses the user {getpass.getuser()} without a password or code"
    assert "gswarm-tui types none: if ssh asks for one, set up a key with `ssh-copy-id gpu01`" in error.remedy


async def test_refused_user_key_is_reported(server: SshServer) -> None:
    (server.folder / "authorized_keys").write_text("")
    async with launcher(server) as ssh:
        error = await refused(ssh)
    assert error.reason.startswith("it refuses the user ")
    assert f"`ssh -F {server.folder}/ssh_config gpu01`" in error.remedy
    assert error.retry is Retry.SLOWLY


async def test_ssh_agent_is_never_forwarded(
    server: SshServer, home: Path, monkeypatch: pytest.MonkeyPatch
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


async def test_refusal_quotes_the_banner(tmp_path: Path, home: Path) -> None:
    if SSHD is None:
        pytest.skip("no sshd on this machine")
    (tmp_path / "banner").write_text("Access denied by \x1b[31mpam_slurm_adopt\x1b[0m\n")
    with running(tmp_path, Banner=str(tmp_path / "banner")) as strict:
        (tmp_path / "authorized_keys").write_text("")
        strict.trust()
        async with launcher(strict) as ssh:
            error = await refused(ssh)
    assert "Access denied by [31mpam_slurm_adopt" in error.reason


async def test_encrypted_key_without_an_agent_is_reported(server: SshServer) -> None:
    new_key(server.user_key, passphrase="secret")
    async with launcher(server) as ssh:
        error = await refused(ssh)
    assert f"the key {server.user_key} has a passphrase, so only an ssh-agent can offer it" in error.reason
    assert error.remedy.startswith("run `ssh-add` if your ssh-agent lacks the key; else try `ssh ")


async def test_unresolvable_name_is_reported(server: SshServer) -> None:
    async with launcher(server) as ssh:
        error = await refused(ssh, "nowhere.invalid")
    assert error.reason == "its name does not resolve"
    assert error.remedy == "check it for a typo; a node of a Slurm job is also reached with `--launcher srun`"


async def test_refused_connection_is_reported(tmp_path: Path, home: Path) -> None:
    nothing = SshServer(tmp_path)
    new_key(nothing.user_key)
    async with launcher(nothing) as ssh:
        error = await refused(ssh)
    assert error.reason == "it refuses connections: nothing listens on its SSH port"
    assert error.retry is Retry.SOON


async def test_silent_server_times_out(tmp_path: Path, home: Path) -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = SshServer(tmp_path)
    new_key(silent.user_key)
    listening = await asyncio.start_server(ignore, "127.0.0.1", silent.port)
    async with listening, launcher(silent, "  ConnectTimeout 1") as ssh:
        assert (await refused(ssh)).reason == "it did not answer in time"


async def test_configuration_error_names_its_line(server: SshServer) -> None:
    async with launcher(server, "  Port many") as ssh:
        error = await refused(ssh)
    assert "ssh_config line 9" in error.reason


SHAPES = """
Match final all # as Cloudflare and Red Hat write it
  Include {folder}/none/* # nothing
Match originalhost elsewhere exec "test a=b"
  UserKnownHostsFile ~/.ssh/%k
Host gpu1* # with a comment
  HostName 127.0.0.1 # not the name
  HostKeyAlias first
  UserKnownHostsFile "{folder}/known hosts/%k" /dev/null
  IdentityFile {folder}/%k-%n.key
Host gpu2*
  HostName 127.0.0.1
  UserKnownHostsFile ${{KNOWN}}/known_hosts
  IdentityFile {folder}/%k-%n.key
  ProxyCommand ssh -F {folder}/ssh_config -W %h:%p gpu11 2>/dev/null
Host *
  HostKeyAlgorithms +ssh-rsa
  RekeyLimit 1G 1h
  SetEnv SITE=a "PLACE=b c"
  PubkeyAuthentication unbound
"""
"""Lines that ssh understands and asyncssh doesn't; those for other hosts must not matter, either."""


async def test_the_configuration_is_what_ssh_makes_of_it(
    server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = server.folder
    (folder / "known hosts").mkdir()
    (folder / "known hosts/first").write_text(f"first {public(folder / 'host')}\n")
    shutil.copy(server.user_key, folder / "gpu21-gpu21.key")
    server.user_key.rename(folder / "first-gpu11.key")
    monkeypatch.setenv("KNOWN", str(folder))
    needs_variables = Bootstrap(setup='[ "$SITE, $PLACE" = "a, b c" ]')
    async with launcher(server, bootstrap=needs_variables) as ssh:
        config = Path(server.config())
        config.write_text(SHAPES.format(folder=folder) + config.read_text())
        for node in ("gpu11", "gpu21"):
            assert await first_frame(ssh, node), node


def count_calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program named ssh in front of the real one; return the file that gets a line for each call."""
    (folder / "bin").mkdir()
    program, calls = folder / "bin/ssh", folder / "calls"
    program.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec {shutil.which("ssh")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return calls


async def test_configuration_of_a_host_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = count_calls(tmp_path, monkeypatch)
    (tmp_path / "config").write_text("Host gpu*\n  HostName 127.0.0.1\n")
    configuration = SshConfiguration(str(tmp_path / "config"))
    for _ in range(2):
        options = await asyncio.gather(*(configuration.read(f"gpu{n}", "", 0) for n in range(8)))
    assert len(called.read_text().splitlines()) == 8 + 1  # and one for ssh's defaults
    assert options[0][0].host == "127.0.0.1"


async def test_ssh_that_hangs_is_ended_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gswarm_tui.launch.ssh.configuration.ANSWER_S", 1)
    monkeypatch.setattr("gswarm_tui.launch.process._PATIENCE_S", 0.1)
    (tmp_path / "config").write_text(f'Match exec "echo $$ > {tmp_path}/pid; exec sleep 600"\n')
    error = await refused(SshLauncher(SshSettings(config=str(tmp_path / "config"))))
    assert error.reason == "reading its SSH configuration took more than 1 s"
    until(lambda: gone(int((tmp_path / "pid").read_text())))


async def test_missing_ssh_is_reported(server: SshServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    async with launcher(server) as ssh:
        error = await refused(ssh)
    assert error.reason == "ssh can't be run: No such file or directory"


@pytest.mark.parametrize("name", INVALID_NODE_NAMES)
async def test_invalid_node_name_is_refused(name: str) -> None:
    error = await refused(SshLauncher(), name)
    assert "isn't a host name" in error.reason
    assert error.retry is Retry.NEVER


async def test_missing_agent_python_is_reported(server: SshServer) -> None:
    async with launcher(server, bootstrap=Bootstrap(agent_python="/opt/no python")) as ssh:
        error = await refused(ssh)
    assert error.reason == "the Python /opt/no python can't be run"
    assert error.remedy == "correct --agent-python"


async def test_failed_setup_reports_its_last_line(server: SshServer) -> None:
    setup = "echo loading; echo 'no module cuda/99 \x1b[1m' >&2; exit 4"
    async with launcher(server, bootstrap=Bootstrap(setup=setup)) as ssh:
        error = await refused(ssh)
    assert error.reason == "the setup failed with exit status 4: no module cuda/99 [1m"
    assert error.remedy == "correct --setup"


async def test_setup_may_print_and_its_exports_reach_the_agent(server: SshServer, home: Path) -> None:
    setup = f"echo $'GSWARM-\\0 noise'; cat; export XDG_CACHE_HOME='{home}/it'\"'\"'s mine'"
    bootstrap = Bootstrap(setup=setup, agent_python="python3")
    async with launcher(server, bootstrap=bootstrap) as ssh:
        assert await first_frame(ssh)
    assert (home / "it's mine/gswarm-tui").is_dir()


async def test_forced_command_is_reported(server: SshServer) -> None:
    async with launcher(server) as ssh:
        key = public(server.user_key)
        (server.folder / "authorized_keys").write_text(f'command="echo not available >&2; exit 1" {key}\n')
        error = await refused(ssh)
    assert error.reason == "its login shell ended with exit status 1: not available"
    assert error.remedy == f"try `ssh -F {server.folder}/ssh_config gpu01 true`"


async def test_login_shell_that_reads_the_input_is_reported(
    server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``~/.bashrc`` does when it starts another shell."""
    monkeypatch.setattr("gswarm_tui.launch.bootstrap.GREETING_S", 1.0)
    async with launcher(server) as ssh:
        (server.folder / "authorized_keys").write_text(f'command="cat" {public(server.user_key)}\n')
        error = await refused(ssh)
    assert error.reason.startswith("its login shell didn't answer within 1 s")
    assert error.remedy == f"try `ssh -F {server.folder}/ssh_config gpu01 true`"


async def test_nodes_share_one_jump_host_connection(server: SshServer) -> None:
    async with launcher(server, jump="gpujump") as ssh:
        received = await asyncio.gather(*(first_frame(ssh, f"gpu{n:02d}") for n in range(3)))
    assert len(received) == 3
    logins = (server.folder / "sshd.log").read_text().count("Accepted publickey")
    assert logins == 4


async def test_jump_host_comes_from_the_configuration(server: SshServer) -> None:
    async with launcher(server, "Host gpu*", "  ProxyJump gpujump") as ssh:
        assert await first_frame(ssh)
    assert (server.folder / "sshd.log").read_text().count("Accepted publickey") == 2


async def test_jump_hosts_have_jump_hosts_of_their_own(server: SshServer) -> None:
    """The way to gpu01 is gpu04, gpu03, gpu02: two are its own, and gpu04 is that of gpu03."""
    jumps = ("Host gpu01", "  ProxyJump gpu03,gpu02", "Host gpu03", "  ProxyJump gpu04", "Host gpu04")
    async with launcher(server, *jumps, "  ProxyJump gpu04") as ssh:
        assert await first_frame(ssh)
    assert (server.folder / "sshd.log").read_text().count("Accepted publickey") == 4


async def test_known_hosts_command_gives_host_keys(server: SshServer) -> None:
    """FreeIPA's clients set one; the host key is in no file then."""
    keys = server.folder / "keys"
    keys.write_text(f'#!/bin/sh\necho "$@" >> $0.log\necho "$1 {public(server.folder / "host")}"\n')
    keys.chmod(0o755)
    server.known_hosts.write_text("")
    async with launcher(server, f"  KnownHostsCommand {keys} %H %n %I %t", "  ProxyJump gpu02") as ssh:
        assert await first_frame(ssh)
    asked = [f"[127.0.0.1]:{server.port} {node} HOSTNAME NONE" for node in ("gpu01", "gpu02")]
    assert Path(f"{keys}.log").read_text().splitlines() == asked
    keys.write_text("#!/bin/sh\nexit 1\n")
    for command in (keys, "/none/of/these"):
        async with launcher(server, f"  KnownHostsCommand {command}") as ssh:
            assert (await refused(ssh)).reason == f"its host key is not in {server.known_hosts}"


async def test_proxy_command_is_used_where_host_keys_sign(server: SshServer) -> None:
    command = f"  ProxyCommand ssh -F {server.folder}/ssh_config -W %h:%p gpu02"
    async with launcher(server, "  EnableSSHKeysign yes", "Host gpu01", command) as ssh:
        assert await first_frame(ssh)


def test_ssh_keysign_is_found_where_distributions_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, keysign = tmp_path / "config", tmp_path / "ssh-keysign"
    config.write_text("EnableSSHKeysign yes\n")
    monkeypatch.setattr("gswarm_tui.launch.ssh.attempt._KEYSIGNS", (str(keysign),))
    attempt = Attempt("gpu01", read_options("gpu01", [str(config)]))
    assert attempt.keysign() is None
    keysign.touch(0o755)
    assert attempt.keysign() == str(keysign)
    assert Attempt("gpu01", read_options("gpu01", [])).keysign() is None


async def test_jump_host_without_forwarding_gets_a_remedy(tmp_path: Path, home: Path) -> None:
    if SSHD is None:
        pytest.skip("no sshd on this machine")
    with running(tmp_path, AllowTcpForwarding="no") as strict:
        strict.trust()
        async with launcher(strict, jump="gpu09") as ssh:
            error = await refused(ssh)
    assert error.reason == "the jump host's SSH server forbids connections through it"
    assert error.remedy == "run gswarm-tui on the jump host"


async def test_jump_host_failure_names_the_jump_host(server: SshServer) -> None:
    async with launcher(server, jump=f"{os.getpid()}@nowhere.invalid:2222") as ssh:
        error = await refused(ssh)
    assert error.reason == "the jump host nowhere.invalid can't be used: its name does not resolve"


async def test_killed_connection_is_reported(server: SshServer) -> None:
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
async def ssh_agent(folder: Path, *keys: Path) -> AsyncIterator[Path]:
    """The socket of a real ssh-agent that holds these keys."""
    socket = folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(60):
            while not socket.exists():
                await asyncio.sleep(0.01)
        environment = {**os.environ, "SSH_AUTH_SOCK": str(socket)}
        subprocess.run(["ssh-add", "-q", *map(str, keys)], env=environment, check=True)
        yield socket
    finally:
        agent.terminate()
        agent.wait()


def use_agent(server: SshServer, socket: Path) -> None:
    config = Path(server.config())
    config.write_text(config.read_text().replace("IdentityAgent none", f"IdentityAgent {socket}"))


async def test_key_from_the_ssh_agent_is_used(server: SshServer, tmp_path: Path) -> None:
    async with ssh_agent(tmp_path, server.user_key) as socket, launcher(server) as ssh:
        use_agent(server, socket)
        server.user_key.unlink()
        assert await first_frame(ssh)


async def test_public_key_names_the_one_that_the_agent_holds(server: SshServer, tmp_path: Path) -> None:
    async with ssh_agent(tmp_path, server.user_key) as socket, launcher(server) as ssh:
        use_agent(server, socket)
        config = Path(f"{server.folder}/ssh_config")
        config.write_text(config.read_text().replace(str(server.user_key), f"{server.user_key}.pub"))
        assert await first_frame(ssh)


async def test_encrypted_key_held_by_the_agent_is_used(server: SshServer, tmp_path: Path) -> None:
    async with ssh_agent(tmp_path, server.user_key) as socket, launcher(server) as ssh:
        use_agent(server, socket)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(server.user_key)], check=True)
        assert await first_frame(ssh)


class NoSessions(asyncssh.SSHServer):
    """An SSH server that accepts every user and refuses every session."""

    def begin_auth(self, username: str) -> bool:
        return False

    def session_requested(self) -> bool:
        return False


async def test_server_without_sessions_is_reported(tmp_path: Path, home: Path) -> None:
    server = SshServer(tmp_path)
    new_key(server.user_key)
    new_key(tmp_path / "host")
    server.trust()
    listening = await asyncssh.listen(
        "127.0.0.1", server.port, server_factory=NoSessions, server_host_keys=[str(tmp_path / "host")]
    )
    async with listening, launcher(server) as ssh:
        error = await refused(ssh)
    assert error.reason.startswith("its SSH server ran no command")
    assert error.remedy == f"try `ssh -F {server.folder}/ssh_config gpu01 true`"


async def test_server_that_insists_on_compression_is_refused(tmp_path: Path, home: Path) -> None:
    server = SshServer(tmp_path)
    new_key(server.user_key)
    new_key(tmp_path / "host")
    server.trust()
    listening = await asyncssh.listen(
        "127.0.0.1",
        server.port,
        server_factory=NoSessions,
        server_host_keys=[str(tmp_path / "host")],
        compression_algs=["zlib@openssh.com"],
    )
    async with listening, launcher(server, "Compression yes") as ssh:
        error = await refused(ssh)
    assert error.reason.startswith("the connection broke: ")


def test_known_hosts_are_parsed_once_and_again_when_they_change(tmp_path: Path) -> None:
    new_key(tmp_path / "one")
    (tmp_path / "config").write_text(f"UserKnownHostsFile {tmp_path}/known_hosts {tmp_path}/none\n")
    options = read_options("gpu01", [str(tmp_path / "config")])
    path = tmp_path / "known_hosts"
    path.write_text(f"gpu01 {public(tmp_path / 'one')}\n")
    first, second = (Attempt("gpu01", options).trusted_keys("gpu01", "", None)[0] for _ in range(2))
    assert first[0] is second[0]
    path.write_text(f"gpu01,gpu02 {public(tmp_path / 'one')}\n")
    assert len(Attempt("gpu02", options).trusted_keys("gpu02", "", None)[0]) == 1


def test_private_keys_are_loaded_once_and_again_when_they_change(tmp_path: Path) -> None:
    attempt = Attempt("gpu01", read_options("gpu01", []))
    key, missing = tmp_path / "id_rsa", tmp_path / "none"
    new_key(key, kind="rsa")
    before = _load_key_pairs.cache_info().misses
    (one,), (other,) = attempt.key_pairs([key, missing]), attempt.key_pairs([key, missing])
    assert _load_key_pairs.cache_info().misses == before + 1
    assert one is not other
    assert one.public_data == other.public_data == asyncssh.read_public_key(f"{key}.pub").public_data
    new_key(key, kind="rsa")
    assert attempt.key_pairs([key])[0].public_data == asyncssh.read_public_key(f"{key}.pub").public_data
