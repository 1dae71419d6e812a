"""Variables of a recorded command: which are set for which PyTorch, and switched off by flag or setting."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gswarm_agent import folder
from gswarm_tui.options.arguments import parse_record
from gswarm_tui.run.arming import arm

RECORDING = "1a2b3c4d-5e6f-4711-8000-0123456789ab"
COMMAND = ("srun", sys.executable, "train.py")


@pytest.fixture(autouse=True)
def own_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put socket folders below the test's folder."""
    (tmp_path / "var").mkdir()
    monkeypatch.setattr(folder, "PARENTS", (str(tmp_path / "var"),))


def with_torch(site: Path, version: str) -> dict[str, str]:
    """Return an environment whose Python has this version of PyTorch."""
    metadata = site / "torch-2.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(site)}


KINETO = ["KINETO_IPC_SOCKET_DIR", "KINETO_LOG_LEVEL", "KINETO_ONDEMAND_TRACE_DIR", "KINETO_USE_DAEMON"]
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
OLD_NAMES = ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE"]


@pytest.mark.parametrize(
    ("version", "variables"),
    [
        ("2.9.1+cu128", [PIPE, *OLD_NAMES]),
        ("2.10.0a0", [*KINETO, PIPE, *OLD_NAMES]),
        ("2.14.1", [*KINETO, PIPE, "TORCH_FR_DUMP_TEMP_FILE"]),
    ],
)
def test_each_pytorch_gets_the_variables_that_it_knows_and_that_are_safe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: str, variables: list[str]
) -> None:
    environ = with_torch(tmp_path / "site", version)
    armed = arm(COMMAND, environ, RECORDING)
    assert sorted(armed.keys() - environ.keys()) == sorted(variables)
    assert armed[PIPE].startswith("/tmp/gswarm-flight-")
    complaint = f"gswarm-tui: no Kineto: torch {version} may crash with it; use 2.10 or later\n"
    assert (complaint in capsys.readouterr().err) is (KINETO[0] not in variables)


@pytest.mark.parametrize(
    ("words", "environ", "is_armed"),
    [
        (["--", "train"], {}, True),
        (["--no-arm", "--", "train"], {}, False),
        (["--", "train"], {"GSWARM_TUI_ARM": "false"}, False),
        (["--arm", "--", "train"], {"GSWARM_TUI_ARM": "false"}, True),
        ([], {}, False),
    ],
)
def test_arming_is_switched_by_flag_or_setting_and_needs_a_command(
    words: list[str], environ: dict[str, str], is_armed: bool
) -> None:
    options, _ = parse_record(["--demo", "1x1", *words], {"HOME": "/nonexistent", **environ})
    assert options.arm is is_armed
