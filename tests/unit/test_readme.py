"""What the README shows is what the program does."""

from __future__ import annotations

import re

from gswarm_tui.arguments import parse
from tests.readme import README, written


def test_keys_metrics_and_recipes_are_the_programs_own() -> None:
    text = README.read_text()
    assert written(text) == text, "run `python -m tests.readme`"


def test_pictures_exist() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README.read_text())
    assert pictures
    assert [p for p in pictures if not (README.parent / p).is_file()] == []


def test_options_in_the_table_are_options() -> None:
    for option in set(re.findall(r"^\| `(--[a-z-]+)", README.read_text(), re.MULTILINE)):
        switch = option == "--no-record"
        parse([option] if switch else [option, EXAMPLES.get(option, "x")], {"HOME": "/nonexistent"})


EXAMPLES = {
    "--interval": "0.5",
    "--launcher": "ssh",
    "--db": "run.duckdb",
    "--ssh-config": str(README),
    "--linger": "2d",
    "--spool-mib": "1024",
}
