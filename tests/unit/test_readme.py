"""What the README shows is what the program does."""

from __future__ import annotations

import re

from gswarm_tui.options.arguments import parse
from tests.bench.past import arithmetic
from tests.readme import README, written


def test_keys_metrics_and_recipes_are_the_programs_own() -> None:
    text = README.read_text()
    assert written(text) == text, "run `python -m tests.readme`"


def test_pictures_exist() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README.read_text())
    assert pictures
    assert [p for p in pictures if not (README.parent / p).is_file()] == []


def test_the_arithmetic_past_one_machine_comes_to_what_stands_there() -> None:
    page = README.read_text().split("## Past one machine")[1].split("\n## ")[0]
    figures = {figure.what: figure.measured for figure in arithmetic()}
    fleet = "10,000 nodes"
    for figure, told in {
        "a node: with SSH, TCP and IP": "(488) bytes a second",
        "a line of 1 Gbit/s": "SSH, TCP and IP | (256,000) nodes",
        "a node: disk": "GPU-sample, (22) MB a day",
        "1 TB of disk, for a day": "(45,000) nodes for a day",
        "1 TB of disk, for eight weeks": "(800) for eight weeks",
        f"{fleet}: GPU-samples": "(6.9) billion",
        f"{fleet}: values": "(1.8) million |",
        f"{fleet}, recording: disk a value": "(1.4) bytes in the recording",
        f"{fleet}, Parquet: disk a value": "(1) in Parquet",
        f"{fleet}, recording: disk": "| (220) GB, 160 GB",
        f"{fleet}, Parquet: disk": "220 GB, (160) GB",
        f"{fleet}, Prometheus: series": "(1.6) million series",
        f"{fleet}, Prometheus: memory": "(6.4) GiB, one server",
        f"{fleet}, Prometheus every 30 s: values": "(53,000)",
        f"{fleet}, Prometheus every 30 s: disk at 1 bytes a value": "(4.6) to 9.2 GB",
        f"{fleet}, Prometheus every 30 s: disk at 2 bytes a value": "4.6 to (9.2) GB",
        f"{fleet}, Prometheus every 1 s: disk at 1 bytes a value": "(140) to 280 GB a day",
        f"{fleet}, Prometheus every 1 s: disk at 2 bytes a value": "140 to (280) GB a day",
    }.items():
        assert told.replace("(", "").replace(")", "") in page
        number = told.split("(")[1].split(")")[0].replace(",", "")
        digits = len(number.replace(".", "").strip("0"))
        assert float(f"{figures[figure]:.{digits}g}") == float(number), (figure, figures[figure], number)


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
