"""Agents as steps of a job, with a fake srun that runs the step on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gswarm_agent.wire import MAGIC, WIRE_VERSION
from gswarm_tui.launch.base import LaunchError, Retry
from gswarm_tui.launch.bootstrap import Bootstrap, Serving
from gswarm_tui.launch.srun import STEPS_AT_ONCE, SrunLauncher


@pytest.fixture
def srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file with the shell script that runs as ``srun``."""
    script = tmp_path / "bin/srun"
    script.parent.mkdir()
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    return script


def write(script: Path, body: str) -> None:
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)


async def test_an_agent_starts_as_an_overlapping_step_of_the_job(srun: Path, tmp_path: Path) -> None:
    shift_options = (
        f'while case $1 in --*) true;; *) false;; esac; do echo "$1" >> {tmp_path}/options; shift; done'
    )
    write(srun, f'{shift_options}; exec "$@"')
    launcher = SrunLauncher("4711", Bootstrap(setup="echo hello"))
    channel = await launcher.open("gpu01")
    try:
        assert (await channel.read()).startswith(MAGIC)
    finally:
        await channel.close()
        await launcher.close()
    options = (tmp_path / "options").read_text().split()
    assert {"--jobid=4711", "--nodelist=gpu01", "--overlap", "--unbuffered", "--ntasks=1"} <= set(options)
    assert not any(option.startswith(("--gres", "--gpus")) for option in options)


async def test_a_step_gets_no_options_of_the_job_from_variables_but_its_component(
    srun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_GPUS": "8",
        "SRUN_EXPORT_ENV": "NONE",
        "SLURM_HET_SIZE": "2",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    agent = f"printf '\\000gswarm-wire-{WIRE_VERSION}\\n'; cat"
    write(srun, f'echo "$@" > {tmp_path}/options; env | grep -E "^(SLURM|SRUN)_" > {tmp_path}/seen; {agent}')
    launcher = SrunLauncher("7", het_groups={"gpu01": 1})
    for node in ("gpu01", "cpu01"):
        await (await launcher.open(node)).close()
        assert ("--het-group=1" in (tmp_path / "options").read_text().split()) == (node == "gpu01")
        assert (tmp_path / "seen").read_text() == "SLURM_CONF=/etc/slurm.conf\n"


@pytest.mark.parametrize("recording", ["", "rec"])
async def test_a_step_with_a_recording_gets_no_sigterm(srun: Path, tmp_path: Path, recording: str) -> None:
    told = tmp_path / "told"
    agent = f"printf '\\000gswarm-wire-{WIRE_VERSION}\\n'; while true; do sleep 0.1; done"
    write(srun, f"trap 'echo SIGTERM >{told}; exit' TERM; {agent}")
    channel = await SrunLauncher("7", Bootstrap(serving=Serving(recording))).open("gpu01")
    await channel.close()
    assert told.exists() == (not recording)


async def test_sruns_last_line_is_the_reason(srun: Path) -> None:
    write(srun, "echo 'srun: error: Unable to create step for job 7: Job has expired' >&2; exit 1")
    with pytest.raises(LaunchError) as caught:
        await SrunLauncher("7").open("gpu01")
    assert caught.value.reason == "srun: error: Unable to create step for job 7: Job has expired"
    assert caught.value.retry is Retry.SLOWLY


async def test_the_agents_last_line_is_the_reason_and_not_sruns_addition(srun: Path) -> None:
    write(
        srun, "echo 'ImportError: no zlib' >&2; echo 'srun: error: gpu01: task 0: Exited with 1' >&2; exit 1"
    )
    with pytest.raises(LaunchError) as caught:
        await SrunLauncher("7").open("gpu01")
    assert caught.value.reason == "the agent ended: ImportError: no zlib"


async def test_a_failing_setup_is_not_blamed_on_slurm(srun: Path) -> None:
    write(srun, "echo GSWARM-FAIL setup 1; echo 'srun: error: gpu01: task 0: Exited with 3' >&2; exit 3")
    with pytest.raises(LaunchError) as caught:
        await SrunLauncher("7", Bootstrap(setup="false")).open("gpu01")
    assert caught.value.remedy == "correct --setup"


async def test_a_missing_srun_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError) as caught:
        await SrunLauncher("7").open("gpu01")
    assert caught.value.reason == "srun can't be run: No such file or directory"


@pytest.mark.parametrize(("job", "node"), [("7", "--gres=gpu"), ("7;id", "gpu01"), ("", "gpu01")])
async def test_invalid_job_ids_and_node_names_are_refused(job: str, node: str) -> None:
    with pytest.raises(LaunchError) as caught:
        await SrunLauncher(job).open(node)
    assert caught.value.retry is Retry.NEVER


async def test_steps_that_hang_keep_no_other_node_waiting(
    srun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gswarm_tui.launch.srun.SLOT_S", 0.2)
    agent = f"printf '\\000gswarm-wire-{WIRE_VERSION}\\n'; exec sleep 60"
    write(srun, f'case "$*" in *nodelist=hangs*) exec sleep 60;; esac; {agent}')
    launcher = SrunLauncher("7")
    hanging = [asyncio.create_task(launcher.open(f"hangs{n}")) for n in range(2 * STEPS_AT_ONCE)]
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        channel = await launcher.open("gpu01")
    assert (await channel.read()).startswith(MAGIC)
    assert not any(one.done() for one in hanging)
    for one in hanging:
        one.cancel()
    await asyncio.gather(channel.close(), *hanging, return_exceptions=True)
