"""Commands of this program in processes of their own."""

from __future__ import annotations

import pytest

from gswarm_tui.common import processes


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 0", ""),
        ("echo warning >&2; echo 'gswarm-tui: the disk is full.' >&2; exit 1", "the disk is full."),
        ("kill -KILL $$", "its process ended with status -9"),
    ],
)
async def test_a_failed_command_in_the_background_is_explained(
    script: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "own_command", lambda *words: ["sh", "-c", script, *words])
    assert await processes.run_command("import") == why
