"""Compiles the NVML stand-in into a shared library named like NVIDIA's."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
SOURCES = Path(__file__).parent


class NoCompiler(RuntimeError):
    """Raised if this machine has no C compiler named ``$CC``, or ``cc``."""


def build(into: Path, scenarios: Path, *, omit: Iterable[str] = ()) -> Path:
    """Compile ``libnvidia-ml.so.1`` into a folder and return the folder, which goes into ``LD_LIBRARY_PATH``.

    The library reads ``<scenarios>/<host name>.scenario``, or the file that the environment variable
    ``GSWARM_STANDIN_SCENARIO`` names.

    Args:
        omit: functions to leave out of the library, as in an older driver.

    Raises:
        NoCompiler: there is no C compiler.
        subprocess.CalledProcessError: the compiler failed; its messages went to standard error.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise NoCompiler("The NVML stand-in needs a C compiler: install gcc or clang, or set CC.")
    into.mkdir(parents=True, exist_ok=True)
    # An exact name wins over the pattern, so omitted functions are not exported.
    local = "".join(f"{name};" for name in omit)
    exports = into / "exports.map"
    exports.write_text(f"{{ global: nvml*; local: {local} *; }};\n")
    sources = sorted(map(str, SOURCES.glob("*.c")))
    unfinished = into / f".{LIBRARY}.{os.getpid()}"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    link = [f"-Wl,-soname,{LIBRARY}", f"-Wl,--version-script={exports}"]
    subprocess.run(
        [compiler, *flags, f'-DSCENARIOS="{scenarios.resolve()}"', *sources, *link, "-o", str(unfinished)],
        check=True,
    )
    unfinished.rename(into / LIBRARY)
    return into
