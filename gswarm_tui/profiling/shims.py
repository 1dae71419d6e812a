"""Wrappers named nsys and ncu on the login node, which run the tool on a node allocated for the call.

Each call allocates a node, runs the real tool there with the very arguments, and gives the node back. Results
are in a folder that both sides see, which is linked from where the GUI looks.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shlex
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from gswarm_tui.options.profile_options import TOOLS
from gswarm_tui.profiling.allocation import allocated
from gswarm_tui.profiling.node_scripts import CONVERT, RUN, setup_line
from gswarm_tui.profiling.profile_run import shell
from gswarm_tui.profiling.slurm_commands import ProfileError, kept

RESULTS = "results"
_SHIM = """\
#!/bin/sh
# Written by `gswarm-tui profile --shims`: each call runs the real {tool} on a node that is allocated for it.
exec {python} -P -m gswarm_tui profile --shim {tool} --shims {folder} -- "$@"
"""
# The link is replaced only if it is a link of the user's: others may own a name in /tmp. The folder of shims
# leaves PATH, or a shim would call itself.
_TOOL = (
    CONVERT
    + """
tool=$1 shims=$2 link=$3; shift 3; PATH=$(printf %s "$PATH" | tr : '\\n' | grep -vxF "$shims" | paste -sd:)
if [ -L "$link" ] && [ "$(stat -c %u "$link")" = "$(id -u)" ] || ! [ -e "$link" -o -L "$link" ]; then
ln -sfn "$shims/results" "$link"; fi
command -v "$tool" >/dev/null || { echo "gswarm-tui: $(hostname): there is no $tool after the setup; \
set setup = \\"module load ...\\" in the config file." >&2; exit 127; }
"$tool" "$@"; status=$?
for raw in "$shims"/results/*.qdstrm; do convert "${raw%.qdstrm}" /dev/null; done
exit $status
"""
)


def results_link() -> Path:
    """Return the path at which GUIs look for results of a remote profiler."""
    return Path(f"/tmp/nvvp_{getpass.getuser()}")  # noqa: S108 - the name is the GUI's


def write_shims(folder: Path) -> list[Path]:
    """Write the shims and their folder of results; return their paths. Raises ProfileError."""
    folder = folder.absolute()
    try:
        for made in (folder, folder / RESULTS):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = made.stat()
            if status.st_uid != os.geteuid():
                raise ProfileError(f"{made} belongs to another user; name a folder of yours.")
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ProfileError(f"{made}: others can write there; name another folder, or run chmod go-w.")
        paths = []
        for tool in TOOLS:
            path = folder / tool
            new = folder / f".{tool}.new"
            new.write_text(
                _SHIM.format(tool=tool, python=shlex.quote(sys.executable), folder=shlex.quote(str(folder)))
            )
            new.chmod(0o700)
            new.replace(path)
            paths.append(path)
    except OSError as error:
        raise ProfileError(f"{error.filename}: {error.strerror}; name another folder with --shims.") from None
    return paths


async def run_shim(words: Sequence[str], folder: Path, salloc: Sequence[str], setup: str) -> int:
    """Run the real tool, ``words``, on a node that is allocated for it; return its exit status.

    ``folder`` is that of the shims, absolute. Raises ProfileError.
    """
    link = results_link()
    _link(link, folder / RESULTS)
    if not any(word.startswith(("--gres", "--gpus", "-G")) for word in salloc):
        salloc = ["--gres=gpu:1", *salloc]
    salloc = ["--quiet", "--nodes=1", "--ntasks=1", *salloc]
    async with allocated(salloc) as nodes:
        tool = ["bash", "-c", _TOOL, "shim", words[0], str(folder), str(link), *words[1:]]
        run = [*shell(RUN, setup), secrets.token_hex(8), "", ",", "0", *tool]
        step = [*nodes.step("--ntasks=1", "--unbuffered"), *run]
        async with kept(step, setup_line(setup), passes_output=True) as command:
            return await command.wait()


def _link(link: Path, target: Path) -> None:
    """Point the link to the results, unless another user or program owns its name."""
    with contextlib.suppress(OSError):
        if link.is_symlink():
            if link.lstat().st_uid != os.geteuid() or link.readlink() == target:
                return
            link.unlink()
        link.symlink_to(target)
