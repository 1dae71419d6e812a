"""``gswarm-tui import``: an export, or a file of gswarm-profiler, back into a recording file."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from gswarm_tui.commands.finding import SUFFIX
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.exchange.json_import import ImportCounts, JsonImport
from gswarm_tui.exchange.profiler_values import Units
from gswarm_tui.options.arguments import CommandParser
from gswarm_tui.printing.progress import Progress
from gswarm_tui.store.recording.files import is_database
from gswarm_tui.store.transfer.importing import importing


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Read a file or folder into a new recording. Raises UserError, StoreError."""
    asked = _parser().read(words)
    path = Path(asked.path)
    if not path.exists():
        raise UserError(f"there is nothing at {path}.")
    if is_database(path):
        raise UserError(f"{path} is a DuckDB file already; other commands read a recording with --db.")
    if path.suffix == SUFFIX:
        raise UserError(
            f"{path} is named like a DuckDB file and isn't one; import reads JSON, or a folder of Parquet: "
            "if it is that, give it another name."
        )
    if path.suffix == ".csv":
        raise UserError(f"{path}: CSV holds one table only; export as JSON or Parquet to import it.")
    db = asked.db or Path(path.resolve().stem + SUFFIX)
    with Progress(f"reading {printable(str(path))}") as progress, importing(db) as target:
        if path.is_dir():
            counted = ImportCounts(target.add_dataset(path, progress.report), 0, "")
        else:
            counted = JsonImport(target, path, Units(asked.units), _memory(asked)).read(progress.report)
    gpus = f" of {counted.gpus} GPU{'' if counted.gpus == 1 else 's'}" if counted.gpus else ""
    print(printable(f"{db}: {counted.samples:,} samples{gpus} from {path}"))
    if counted.notice:
        print(printable(counted.notice))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "import",
        "PATH [--db PATH] [--units UNITS] [--gpu-memory-mib MIB]",
        "Read what export wrote as JSON or Parquet, or gswarm-profiler's JSON, into a new recording.",
        writes=True,
    )
    parser.add_argument("path", metavar="PATH", help="the JSON file, or the folder of Parquet")
    parser.add_argument(
        "--units",
        choices=[str(units) for units in Units],
        default=str(Units.AUTO),
        help="how gswarm-profiler's values are meant: as its program writes them (0-1, KiB/s, rx and tx "
        "swapped), as it documents them (0-100, GB/s), or texts as written and numbers as documented "
        "(default: auto)",
    )
    parser.add_argument(
        "--gpu-memory-mib",
        metavar="MIB",
        help="memory of each GPU, to make gpu_memory a size where the file doesn't tell it",
    )
    return parser


def _memory(asked: Namespace) -> int | None:
    if asked.gpu_memory_mib is None:
        return None
    if not asked.gpu_memory_mib.isdecimal() or not 0 < int(asked.gpu_memory_mib) < 2**31:
        raise UserError("--gpu-memory-mib: a whole number of MiB is needed, as in 81559.")
    return int(asked.gpu_memory_mib)
