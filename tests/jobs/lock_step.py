"""Rank of a job that moves in lock-step through a shared folder, for tests that ask the job.

As a program below ``srun``: ``lock_step.py FOLDER``. The folder's ``state.json`` is read all the time:
``stuck`` is the ranks that stay in their input, ``ras`` what NCCL RAS reports ("counts", "equal", or a mode
of ``ras_server``), ``recorder`` what the Flight Recorder has ("on", or "hostile").
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import pickle
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.jobs import worker_server
from tests.jobs.ras_server import RasServer

PACKAGES = {
    "torch/distributed/distributed_c10d.py": (
        "import time\n\ndef all_reduce(is_over):\n    while not is_over():\n        time.sleep(0.02)\n"
    ),
    "torch/lib/libtorch_cpu.so": "a library",
    "torch-2.14.1.dist-info/METADATA": "",
    "nvidia/nccl/lib/libnccl.so.2": "a library",
    "nvidia_nccl_cu13-2.30.7.dist-info/METADATA": "",
}
"""Files by which an agent knows PyTorch and NCCL, and the function in which ranks wait."""

WITH_PIPE = 2
"""The rank of each node that has Flight Recorder's pipe instead of a worker server."""


def install(folder: Path) -> None:
    """Write the packages that the ranks use."""
    for name, text in PACKAGES.items():
        path = folder / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class Rank:
    """One rank; ``steps`` is how many collectives it has launched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rank, self.size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
        self.local_rank, self.steps = int(os.environ["SLURM_LOCALID"]), 0
        self.completed, self.called_at = 0, 0.0
        place = {
            "rank": self.rank,
            "host": socket.gethostbyname(socket.gethostname()),
            "pid": os.getpid(),
            "nvml_dev": self.local_rank,
            "node": os.environ["SLURMD_NODENAME"],
        }
        self.write(f"place-{self.rank}", json.dumps(place))

    def write(self, name: str, text: str) -> None:
        """Replace a file of the shared folder at once."""
        new = self.folder / f"{name}.new-{self.rank}"
        new.write_text(text)
        new.rename(self.folder / name)

    def state(self) -> dict[str, Any]:
        """Return what the test wants now."""
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state

    def launched(self) -> list[int]:
        """Return how many collectives each rank has launched."""
        paths = [self.folder / f"steps-{rank}" for rank in range(self.size)]
        return [int(path.read_text()) if path.exists() else 0 for path in paths]

    def train(self) -> None:
        """Run steps: a batch of input, then a collective in which all ranks wait for the last."""
        all_reduce = importlib.import_module("torch.distributed.distributed_c10d").all_reduce
        while True:
            self.load_batch()
            self.steps += 1
            self.write(f"steps-{self.rank}", str(self.steps))
            self.called_at = time.time()
            all_reduce(lambda: min(self.launched()) >= self.steps)
            self.completed = self.steps

    def record(self) -> dict[str, Any]:
        """Return what PyTorch's Flight Recorder has."""
        done, called_ns = self.completed == self.steps, int(self.called_at * 1e9)
        entry = {
            "pg_id": 0,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": self.steps,
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[4096, 1024]],
            "input_dtypes": ["BFloat16"],
            "time_created_ns": called_ns,
            "time_discovered_started_ns": called_ns,
            "time_discovered_completed_ns": time.time_ns() if done else None,
            "state": "completed" if done else "started",
            "is_p2p": False,
            "retired": done,
        }
        numbers = {"enqueued": self.steps, "started": self.steps, "completed": self.completed}
        return {
            "version": "2.10",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": json.dumps([*range(self.size)])}},
            "pg_status": {"0": {f"last_{name}_collective": str(number) for name, number in numbers.items()}},
            "entries": [entry],
        }

    def dump(self) -> None:
        """Write the record, as NCCL's process group does, whenever a byte comes through the pipe."""
        pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{self.rank}.pipe"
        file = Path(f"{os.environ['TORCH_NCCL_DEBUG_INFO_TEMP_FILE']}{self.rank}")
        os.mkfifo(pipe, 0o600)
        while True:
            with Path(pipe).open("rb") as asked:
                asked.read(1)
            hostile = self.state()["recorder"] == "hostile"
            file.write_bytes(pickle.dumps(os.system if hostile else self.record(), 2))

    def load_batch(self) -> None:
        """Return soon, unless this rank is stuck."""
        time.sleep(0.05)
        while self.rank in self.state()["stuck"]:
            time.sleep(0.05)


class WorkerServer(worker_server.Handler):
    """Worker server whose record is that of this moment."""

    rank: Rank

    def handle(self) -> None:
        """Answer one request."""
        record: Any = self.rank.record()
        if self.rank.state()["recorder"] == "hostile":
            record = worker_server.HUGE if self.rank.rank == 0 else {**record, "pg_status": "\x1b[2J"}
        state = {"dump_nccl_trace_json": record}
        self.state = self.rank.folder / f"handlers-{self.rank.rank}"
        self.rank.write(self.state.name, json.dumps(state))
        super().handle()


def serve(rank: Rank) -> None:
    """Serve handlers in a thread of the name that PyTorch's has."""
    WorkerServer.rank = rank
    Path("/proc/thread-self/comm").write_text("pt_workerserver")
    worker_server.Server(("::", 0), WorkerServer).serve_forever()


class LiveRas(RasServer):
    """RAS whose counts are those of the ranks at this moment."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank.folder / "state.json", 28028)
        self.rank = rank

    def read_state(self) -> dict[str, Any]:
        """Return the state for a report."""
        wanted, launched = self.rank.state()["ras"], self.rank.launched()
        ranks = []
        for rank, count in enumerate(launched):
            place = json.loads((self.rank.folder / f"place-{rank}").read_text())
            ranks.append(place | {"counts": {"AllReduce": max(launched) if wanted == "equal" else count}})
        if wanted == "escapes":
            ranks[-1] |= {"missing": "dead", "host": "\x1b]0;gone\x07\x1b[2J"}
        mode = "answers" if wanted in ("counts", "equal", "escapes") else wanted
        return {"version": "2.30.7", "mode": mode, "communicators": [{"hash": "a1b2c3", "ranks": ranks}]}


def main() -> None:
    """Run one rank until it is killed."""
    rank = Rank(Path(sys.argv[1]))
    packages = rank.folder / "site-packages"
    sys.path.insert(0, str(packages))
    mapped = [
        mmap.mmap(os.open(packages / name, os.O_RDONLY), 0, access=mmap.ACCESS_READ)
        for name in PACKAGES
        if ".so" in name
    ]
    if rank.local_rank == 0:
        threading.Thread(target=LiveRas(rank).serve_forever, daemon=True).start()
    answer = rank.dump if rank.local_rank == WITH_PIPE else lambda: serve(rank)
    threading.Thread(target=answer, daemon=True).start()
    rank.train()
    del mapped


if __name__ == "__main__":
    main()
