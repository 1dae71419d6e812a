"""The command line of ``gswarm-tui profile``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gswarm_tui.options.arguments import UsageError
from gswarm_tui.options.profile_options import ProfileOptions, parse_profile


def parsed(*words: str, settings: str = "", folder: Path = Path("/nowhere")) -> ProfileOptions:
    """Parse words with a config file of these settings."""
    if settings:
        (folder / "config.toml").write_text(settings)
        return parse_profile([f"--config={folder / 'config.toml'}", *words], {})
    return parse_profile(words, {"XDG_CONFIG_HOME": str(folder)})


def test_words_after_the_dashes_are_the_command_exactly() -> None:
    command = ("python", "--job", "$HOME", "a b", "--", "")
    assert parsed("--tool", "ncu", "--", *command).command == command


def test_options_of_the_allocation_come_from_flags_and_the_config_file(tmp_path: Path) -> None:
    settings = 'partition = "gpu"\naccount = "ml"\nsalloc = "--exclusive --comment=\'a b\'"\n'
    options = parsed("--gres=gpu:4", "--partition=big", "--", "x", settings=settings, folder=tmp_path)
    assert options.salloc == (
        "--partition=big",
        "--gres=gpu:4",
        "--account=ml",
        "--exclusive",
        "--comment=a b",
    )
    assert options.allocates
    assert not parsed("--", "x", settings=settings, folder=tmp_path).allocates, "a preset isn't a request"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no command to profile; write it after --: gswarm-tui profile -- python train.py."),
        (["train.py"], "write -- before the command: gswarm-tui profile -- train.py ..."),
        (
            ["--job=1", "--gres=gpu:1", "--", "x"],
            "--gres applies to an allocation of its own; remove it, or --job.",
        ),
        (["--ranks=a", "--", "x"], "--ranks: 'a' isn't a rank or a range of ranks, such as 0-7,16."),
        (["--duration=soon", "--", "x"], '--duration: "soon" isn\'t a time such as 10, 30s or 2m.'),
        (["--salloc='", "--", "x"], '--salloc: no closing quotation in "\'".'),
        (["--nodes=gpu01", "--", "x"], '--nodes: "gpu01" isn\'t a number from 1 to 100,000.'),
    ],
)
def test_mistakes_on_the_command_line_get_one_sentence(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(*words)
    assert str(caught.value) == message


def test_ranks_and_times_are_read() -> None:
    options = parsed("--ranks=0,5-7", "--delay=1.5", "--duration=2m", "--", "x")
    assert (options.ranks, options.delay_s, options.duration_s) == ((0, 5, 6, 7), 1.5, 120.0)


def test_a_shim_passes_no_words_on_and_takes_the_partition_of_the_environment() -> None:
    call = ["--shim=nsys", "--shims=/tools", "--"]
    assert parse_profile(call, {"PARTITION": "short"}).salloc == ("--partition=short",)
    both = {"PARTITION": "short", "GSWARM_TUI_PARTITION": "gpu"}
    options = parse_profile(call, both)
    assert options.salloc == ("--partition=gpu",)
    assert (options.shim, options.command) == ("nsys", ())
