"""Brings reports home: from a node, through the login node if there is one, with progress and checksums.

A file has no name before it is complete, so a killed transfer leaves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

from gswarm_tui.common.quantities import file_size
from gswarm_tui.profiling.allocation import Allocation
from gswarm_tui.profiling.slurm_host import ProfileError, SlurmHost, kept, last_line, output

TRIES = 5
_PAUSE_S = 2.0
_HIDDEN = ".gswarm-profile-"
LEAST_FREE_BYTES = 64 << 20
"""Room that is there before a run; how much its reports take is known only after it."""

# Copies files of nodes to a private folder of the login node, which SIGTERM removes. A copy that broke off
# continues where it was; one with a wrong checksum begins again.
_STAGE = """
folder=${XDG_CACHE_HOME:-$HOME/.cache}/gswarm-tui/profiles/$1; job=$2; size=$3; shift 3
mkdir -p -m 700 "$folder" || exit
trap 'kill $copy 2>/dev/null; rm -rf "$folder"; exit 1' TERM
free=$(df -Pk "$folder" | tail -n1 | tr -s ' ' | cut -d' ' -f4); echo "GSWARM $free $folder"
[ "$free" -gt $((size / 1024)) ] || { rmdir "$folder"; exit 1; }
while [ $# != 0 ]; do name=$(basename "$2"); part=$folder/.$name; : >"$part"
for try in 1 2 3 4 5; do
first=$(($(stat -c %s "$part") + 1))
srun --jobid="$job" --overlap --quiet --unbuffered -N1 -n1 -w "$1" tail -c +$first "$2" \\
</dev/null >>"$part" & copy=$!
wait $copy || { sleep $try; continue; }
sum=$(sha256sum <"$part")
[ "${sum%% *}" = "$3" ] && mv "$part" "$folder/$name" && break
: >"$part"; done
[ -e "$part" ] && { rm -rf "$folder"; exit 1; }
shift 3; done
"""

_LEFT = """
cd "${XDG_CACHE_HOME:-$HOME/.cache}/gswarm-tui/profiles" 2>/dev/null || exit 0
for folder in job*; do [ -d "$folder" ] &&
echo "GSWARM $(du -sk "$folder" | cut -f1) $PWD/$folder"; done; exit 0
"""


@dataclass(frozen=True)
class RemoteReport:
    """A report on a node, with size, checksum and Unix time of its last change, which its copy gets, too."""

    node: str
    path: str
    size: int
    sha256: str
    changed_s: int

    @property
    def rank(self) -> int:
        """The rank that its name has."""
        return int(self.name.rpartition("-rank")[2].partition("-")[0])

    @property
    def name(self) -> str:
        """Its file name, which has node, rank and job."""
        return PurePosixPath(self.path).name


def check_room(folder: Path, size: int = LEAST_FREE_BYTES) -> None:
    """Raise ProfileError if a folder has no room for this many bytes."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise ProfileError(f"{folder}: {error.strerror}; name another folder with --output.") from None
    if free < size:
        raise ProfileError(
            f"{folder} has {file_size(free)} free, and the reports take {file_size(size)}; "
            "free some space, or name another folder with --output."
        )


class Fetcher:
    """Fetches reports into a folder; ``progress`` gets the share done of all."""

    def __init__(self, folder: Path, total: int, progress: Callable[[float], None]) -> None:
        self._folder = folder
        self._total = total
        self._done = 0
        self._progress = progress

    async def fetch(self, host: SlurmHost, report: RemoteReport, path: str, step: Sequence[str] = ()) -> Path:
        """Fetch one report from its path on the host, or where a step runs; return its path here.

        Raises ProfileError.
        """
        with _Unnamed(self._folder) as file:
            try:
                problem = await self._receive(file, host, report, path, step)
            except OSError as error:
                raise ProfileError(
                    f"{self._folder}: {os.strerror(error.errno or errno.EIO)} while fetching {report.name}; "
                    "the partial copy was removed."
                ) from None
            if file.size < report.size:
                raise ProfileError(f"{report.node}: fetching {report.name} broke off{problem}.")
            if file.sha256.hexdigest() != report.sha256:
                raise ProfileError(f"{report.node}: {report.name} arrived damaged; its checksum differs.")
            return file.name_it(report.name, report.changed_s)

    async def _receive(
        self, file: _Unnamed, host: SlurmHost, report: RemoteReport, path: str, step: Sequence[str]
    ) -> str:
        """Fetch a report in some tries; return why the last one failed, as ``: reason``. Raises OSError."""
        problem = ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(_PAUSE_S * attempt)
            try:
                words = [*step, "tail", "-c", f"+{file.size + 1}", path]
                async with kept(host, words) as command:
                    while file.size < report.size and (data := await command.read()):
                        data = data[: report.size - file.size]
                        file.write(data)
                        self._done += len(data)
                        self._progress(min(1.0, self._done / max(1, self._total)))
            except (ConnectionError, ProfileError) as error:
                problem = f": {error}".rstrip(".")
            if file.size >= report.size:
                break
        return problem


class _Unnamed:
    """A file in a folder that gets its name when it is complete, where the file system can do that."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.size = 0
        self.sha256 = hashlib.sha256()
        self._hidden: Path | None = None
        try:
            self._fd = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
        except OSError:  # NFS
            _remove_abandoned(folder)
            self._fd, hidden = tempfile.mkstemp(".part", _HIDDEN, folder)
            self._hidden = Path(hidden)
            with contextlib.suppress(OSError):  # a file system without locks: nothing there is removed
                fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __enter__(self) -> _Unnamed:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)
        if self._hidden is not None:
            self._hidden.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Append bytes. Raises OSError."""
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            self.sha256.update(view[:written])
            self.size += written
            view = view[written:]

    def name_it(self, name: str, changed_s: int) -> Path:
        """Give the file a name, with a number if that is taken, and a time; return its path."""
        os.utime(self._fd, (changed_s, changed_s))
        os.fsync(self._fd)
        source = self._hidden or Path(f"/proc/self/fd/{self._fd}")
        for number in range(1, 10_000):
            path = self._folder / (
                name if number == 1 else f"{PurePath(name).stem}-{number}{PurePath(name).suffix}"
            )
            with contextlib.suppress(FileExistsError):
                os.link(source, path, src_dir_fd=0, follow_symlinks=True)  # the number makes it linkat
                return path
        raise ProfileError(f"{self._folder} has too many reports named {name}.")


def _remove_abandoned(folder: Path) -> None:
    """Remove files of transfers that were killed; one that is under way has locked its own."""
    for path in folder.glob(f"{_HIDDEN}*.part"):
        with contextlib.suppress(OSError), path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


async def fetch_from_nodes(
    host: SlurmHost, allocation: Allocation, reports: Sequence[RemoteReport], fetcher: Fetcher
) -> AsyncIterator[tuple[RemoteReport, Path]]:
    """Fetch reports from the nodes; yields them with their paths here. Raises ProfileError."""
    for report in reports:
        step = allocation.step("--nodes=1", "--ntasks=1", f"--nodelist={report.node}", "--unbuffered")
        yield report, await fetcher.fetch(host, report, report.path, step)


async def stage(host: SlurmHost, allocation: Allocation, reports: Sequence[RemoteReport], token: str) -> str:
    """Copy reports from the nodes to a new folder of the login node; return it. Raises ProfileError."""
    triples = [word for report in reports for word in (report.node, report.path, report.sha256)]
    size = sum(report.size for report in reports)
    name = f"job{allocation.job.job_id}-{token}"
    status, text = await output(
        host, ["bash", "-c", _STAGE, "stage", name, allocation.job.job_id, str(size), *triples]
    )
    lines = [line.split(" ", 2) for line in text.splitlines() if line.startswith("GSWARM ")]
    if status != 0:
        if lines and int(lines[0][1]) * 1024 <= size:
            raise ProfileError(
                f"{host.name}: {lines[0][2]} has {file_size(int(lines[0][1]) * 1024)} free, and the reports "
                f"need {file_size(size)}; free some space there."
            )
        raise ProfileError(f"{host.name}: the reports can't be copied there{last_line(text)}.")
    return lines[0][2]


async def left_behind(host: SlurmHost) -> list[str]:
    """Return a sentence for each folder of reports that a killed profile left on the login node."""
    _, text = await output(host, ["bash", "-c", _LEFT])
    found = [line.split(" ", 2) for line in text.splitlines() if line.startswith("GSWARM ")]
    return [
        f"{host.name} has {file_size(int(kib) * 1024)} of reports of another gswarm-tui profile. "
        f"If that no longer runs, {how_to_fetch(host, folder)}."
        for _, kib, folder in found
    ]


def how_to_fetch(host: SlurmHost, folder: str) -> str:
    """Return how the user fetches and removes a folder of reports on the login node, as a clause."""
    parent, _, name = folder.rpartition("/")
    fetch = host.ssh.jump_host_command(shlex.join(["tar", "-C", parent, "-c", name]))
    remove = host.ssh.jump_host_command(shlex.join(["rm", "-r", folder]))
    return f"fetch them with `{fetch} | tar -x` and remove them with `{remove}`"


async def fetch_staged(
    host: SlurmHost, folder: str, reports: Sequence[RemoteReport], fetcher: Fetcher
) -> AsyncIterator[tuple[RemoteReport, Path]]:
    """Fetch reports that were staged in a folder; yields them with their paths here. Raises ProfileError."""
    for report in reports:
        try:
            yield report, await fetcher.fetch(host, report, f"{folder}/{report.name}")
        except ProfileError as error:
            raise ProfileError(
                f"{error} The reports stay on {host.name}; {how_to_fetch(host, folder)}."
            ) from None
