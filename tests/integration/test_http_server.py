"""Life of the HTTP server: with a recorder or beside one, over restarts, and to the end of the recording."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast
from urllib.request import Request, urlopen

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gswarm_tui.cli import main
from gswarm_tui.common.errors import UserError
from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.server.listening import check_settings
from tests.integration.heads import eventually, head
from tests.served import ServedRecorder, environ_of, served

DAY = timedelta(days=1)


def recorder_process(recorder: ServedRecorder) -> int:
    """Return the pid of the process that records."""
    pid = recorder.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_a_restarted_recorder_keeps_its_address(tmp_path: Path) -> None:
    with served(tmp_path, "--name", "train") as recorder:
        token = recorder.token
        recorder.call("POST", "/profiling/start", {"name": "phase"})
        uid = recorder.get("/api/v1/recording")["uid"]
        count = {"sql": "SELECT count(*) FROM sessions"}
        recorder.eventually(
            lambda: recorder.call("POST", "/api/v1/query", count).json["rows"] == [[2]], "both on disk"
        )
        os.kill(recorder_process(recorder), signal.SIGKILL)
        recorder.read_until("restarting it")

        def sessions() -> dict[str, bool]:
            listed = recorder.get("/profiling/sessions")["sessions"]
            return {one["name"]: one["is_active"] for one in listed}

        recorder.eventually(
            lambda: recorder.get("/api/v1/events?kind=recorder_restarted")["events"] != [], "the restart"
        )
        assert recorder.token == token
        assert recorder.get("/api/v1/recording")["uid"] == uid
        assert sessions() == {"train": True, "phase": True}
        frames = recorder.get("/status")["frame_id_counter"]
        recorder.eventually(lambda: recorder.get("/status")["frame_id_counter"] > frames + 1, "samples")
        recorder.end()
        assert not recorder.token_file.exists()


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of the processes whose state folder this is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"XDG_STATE_HOME={folder}\0" in (process / "environ").read_text(errors="replace"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def test_no_process_remains_after_a_kill_of_recorder_and_parent(tmp_path: Path) -> None:
    with served(tmp_path) as recorder:
        assert recorder.call("GET", "/metrics").status == 200
        assert sum(" record " in line for line in processes_of(tmp_path)) == 2  # parent and recorder
        assert sum(" serve " in line for line in processes_of(tmp_path)) == 1
        for pid in (recorder_process(recorder), recorder.process.pid):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: processes_of(tmp_path) == [], "the end of all processes")


def test_serve_answers_with_tls_for_a_running_recorder_until_its_end(tmp_path: Path) -> None:
    cert_file, key_file = certificate(tmp_path)
    tls = ["--http-tls-cert", str(cert_file), "--http-tls-key", str(key_file)]
    with served(tmp_path) as recorder:
        beside = subprocess.Popen(
            [sys.executable, "-m", "gswarm_tui", "serve", "run.duckdb", "--http", "127.0.0.1:0", *tls],
            cwd=tmp_path,
            env=recorder.environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            other = ServedRecorder(beside, tmp_path, 0, recorder.token_file)
            line = other.read_until("HTTP server at")
            assert line.endswith(f"token in {recorder.token_file}\n")
            url = line.split("HTTP server at ")[1].split(",")[0]
            request = Request(f"{url}/status", headers={"Authorization": f"Bearer {recorder.token}"})
            with urlopen(request, context=ssl.create_default_context(cafile=cert_file)) as answer:
                assert json.load(answer)["total_gpus"] == 8
            assert url.startswith("https://127.0.0.1:")
            assert recorder.token not in line
            recorder.end()
            assert beside.wait(60) == 0
            assert "the recording ended" in other.read_until("ended")
        finally:
            beside.kill()
            beside.communicate()


def test_a_server_that_is_interrupted_ends_its_streams_without_a_traceback(tmp_path: Path) -> None:
    with served(tmp_path) as recorder:
        beside = subprocess.Popen(
            [sys.executable, "-m", "gswarm_tui", "serve", "run.duckdb", "--http", "127.0.0.1:0"],
            cwd=tmp_path,
            env=recorder.environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            line = ServedRecorder(beside, tmp_path, 0, recorder.token_file).read_until("HTTP server at")
            url = line.split("HTTP server at ")[1].split(",")[0]
            header = {"Authorization": f"Bearer {recorder.token}"}
            with urlopen(Request(f"{url}/api/v1/frames?metrics=util_pct", headers=header)) as stream:
                assert stream.readline().startswith(b"id: ")
                beside.send_signal(signal.SIGINT)
                assert b"event: end" not in stream.read()  # the recording continues
            beside.wait(60)
        finally:
            beside.kill()
            beside.communicate()
        log = tmp_path / "gswarm-tui" / "gswarm-tui.log"
        assert not log.exists() or log.read_text() == ""


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate of 127.0.0.1 and its key; return both files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert_file, key_file


def test_a_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    cert_file, other_key = certificate(tmp_path / "one")[0], certificate(tmp_path / "other")[1]
    settings = ServerSettings("127.0.0.1", 8091, tls_cert=cert_file, tls_key=other_key)
    with pytest.raises(UserError, match="they must be a certificate and its own key in PEM"):
        check_settings(settings)


def test_the_app_serves_too_and_shows_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with head("--demo", "1x2", "--db", "run.duckdb", "--http", "127.0.0.1:0") as app:
        app.wait_for("rec")
        app.press("e")
        app.wait_for("HTTP server at http://127.0.0.1:")
        (token_file,) = [each for each in (tmp_path / "gswarm-tui" / "tokens").iterdir() if not each.suffix]
        port = int(app.screen().partition("http://127.0.0.1:")[2].split(",")[0])
        recorder = ServedRecorder(cast(Any, app.process), tmp_path, port, token_file)
        assert recorder.get("/clients")["total_clients"] == 1
        app.process.terminate()
        app.exit_status()
        assert not token_file.exists()


@pytest.mark.parametrize("words", [["record", "--demo"], ["--demo"]])
def test_a_port_in_use_is_reported_before_recording_begins(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "gswarm_tui", *words, "--http", str(port)],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []
    if words[0] == "record":  # the app asks for a terminal first
        used = "another program uses this port; choose another one."
        assert done.stderr == f"gswarm-tui: --http 127.0.0.1:{port}: {used}\n"


def test_serve_without_a_recorder_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "nothing-like-it"]) == 3
    assert 'has the recording, job or file name "nothing-like-it"' in capsys.readouterr().err


def test_tokens_in_an_open_folder_are_refused(tmp_path: Path) -> None:
    tokens = tmp_path / "gswarm-tui" / "tokens"
    tokens.mkdir(parents=True)
    tokens.chmod(0o755)
    (tmp_path / "gswarm-tui").chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-m", "gswarm_tui", "record", "--demo", "--http", "127.0.0.1:0"],
        cwd=tmp_path,
        env=environ_of(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"gswarm-tui: the tokens in {tokens} can't be used: others may enter it.\n"
    assert not list(tmp_path.glob("*.duckdb"))
