"""Simulates five users at three terminal sizes and prints the time of each step: ``python -m tests.walks``.

``--pictures FOLDER`` also saves what each step showed as a PNG, which needs ``rsvg-convert`` and the font
Fira Code, and the table of steps as ``walks.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gswarm_tui.tui.viewer import Viewer
from screenshots.make import fitted_svg, screen_svg
from tests.walks.users import SIZES, WALKS
from tests.walks.walker import Step, Walker

SLOW_S = 1.0
"""A key that takes longer is printed in bold: a user feels it."""


class Album:
    """Saves what one user saw in a folder, a picture for each step."""

    def __init__(self, folder: Path, user: str, size: tuple[int, int]) -> None:
        self._folder = folder
        self._stem = f"{user}-{size[0]}x{size[1]}"
        self._columns = size[0]
        self._count = 0

    def take(self, _step: Step, seen: Viewer | str) -> None:
        """Save what is seen after a step."""
        self._count += 1
        svg = screen_svg(seen) if isinstance(seen, Viewer) else _printed_svg(seen, self._columns)
        picture = self._folder / f"{self._stem}-{self._count:02}.png"
        subprocess.run(["rsvg-convert", "--output", picture], input=svg, text=True, check=True)


def _printed_svg(text: str, columns: int) -> str:
    console = Console(width=columns, record=True, file=io.StringIO())
    console.print(Text(text), soft_wrap=True)
    return fitted_svg(console.export_svg(title="gswarm-tui"))


def table(user: str, size: tuple[int, int], steps: list[Step]) -> str:
    """Return the steps of a walk as Markdown."""
    lines = [f"## {user}, {size[0]}×{size[1]}", "", "| | step | keys | seconds |", "|--:|---|---|--:|"]
    for number, step in enumerate(steps, 1):
        seconds = f"**{step.seconds:.2f}**" if step.seconds > SLOW_S else f"{step.seconds:.2f}"
        keys = step.keys.replace("|", "\\|")
        lines.append(f"| {number} | {step.does} | {f'`{keys}`' if keys else ''} | {seconds} |")
    return "\n".join([*lines, ""])


async def walk_all(pictures: Path | None, home: Path) -> str:
    """Take all walks and return their tables."""
    tables = []
    for walk in WALKS:
        for size in SIZES:
            folder = home / f"{walk.__name__}-{size[0]}"
            folder.mkdir()
            album = None if pictures is None else Album(pictures, walk.__name__, size)
            walker = Walker(size, folder, None if album is None else album.take)
            await walk(walker)
            tables.append(table(walk.__name__, size, walker.steps))
            print(tables[-1], flush=True)
    return "\n".join(tables)


def main() -> None:
    """Read the option and walk."""
    parser = argparse.ArgumentParser(prog="python -m tests.walks", description=__doc__)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="save a PNG of each step here")
    pictures: Path | None = parser.parse_args().pictures
    if pictures is not None:
        if shutil.which("rsvg-convert") is None:
            parser.error("rsvg-convert is missing: apt-get install librsvg2-bin")
        pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gswarm-walks-") as home:
        os.environ |= {"XDG_RUNTIME_DIR": home, "XDG_STATE_HOME": home}
        tables = asyncio.run(walk_all(pictures, Path(home)))
    if pictures is not None:
        (pictures / "walks.md").write_text(tables, encoding="utf-8")


if __name__ == "__main__":
    main()
