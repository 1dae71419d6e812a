"""Real PyTorch ranks on the CPU, recorded: traced, and asked which of them is behind.

Takes 5.4 GB of disk and some minutes the first time: ``python -m tests.real_torch FOLDER [CASE …]``. The
cases are ``trace`` and those of ``ASKED``, all by default. Other processes of yours with a rank disturb it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TRAIN = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("training", flush=True)
end = time.time() + 60
while True:
    optimizer.zero_grad(); model(torch.randn(64, 256)).pow(2).mean().backward(); optimizer.step()
    over = torch.tensor([float(time.time() > end)]); dist.all_reduce(over); time.sleep(0.02)
    if over.item(): break
"""
QUERY = """
SELECT rank, count(*) AS operators, count(DISTINCT name) AS names FROM trace_ops GROUP BY rank ORDER BY rank;
SELECT rank, count(*) AS iterations, avg(duration_ms) AS mean_ms FROM trace_ranks GROUP BY rank ORDER BY rank;
SELECT severity, message FROM event_log WHERE kind = 'trace';
"""
RANK = """
import os, sys, time, torch, torch.distributed as dist
case, server, rank = sys.argv[1], sys.argv[2], int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
if server == "worker server":
    from torch._C._distributed_c10d import _WorkerServer
    worker_server = _WorkerServer("::", 0)

def save_checkpoint():
    time.sleep(1000)

def evaluate():
    time.sleep(20)

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 40
    def __getitem__(self, index):
        if case == "input" and rank == 2 and index > 300:
            time.sleep(1000)
        time.sleep(0.0005)
        return torch.randn(64)

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, batch in enumerate(torch.utils.data.DataLoader(Samples(), batch_size=16)):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.005)
    if step == 10:
        print("training", flush=True)
    if step == 20 and case == "barrier":
        if rank == 3:
            save_checkpoint()
        dist.barrier()
    if step >= 20 and case == "late" and rank == 1:
        evaluate()
    if step == 20 and case == "dead":
        if rank == 1:
            os._exit(1)
        dist.distributed_c10d._get_default_store().wait(["checkpoint of rank 1"])
"""
RANKS = 4
START = f"""
for rank in $(seq 0 {RANKS - 1}); do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE={RANKS} MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT $0 rank.py "$@" &
done
trap 'kill -KILL $(jobs -p)' TERM
wait
"""
NO_ANSWER = '{"behind": [], "decided_by": "", "sentence": "no answer"}'
MOVED = None, "all ranks moved in the last second"
SERVER = "worker server"
ALL, PROCESSES, FLIGHT_RECORDER, STACKS = "all steps", "processes", "flight_recorder", "stacks"
ASKED: dict[str, dict[str, tuple[int | None, str]]] = {
    "healthy": {FLIGHT_RECORDER: MOVED, STACKS: MOVED},
    "barrier": {FLIGHT_RECORDER: (3, "barrier"), STACKS: (3, "save_checkpoint")},
    "input": {FLIGHT_RECORDER: (2, "all_reduce"), STACKS: (2, "__getitem__")},
    "dead": {PROCESSES: (1, "no process")},
    "late": {FLIGHT_RECORDER: (1, "all_reduce"), STACKS: (1, "evaluate")},
}
"""Steps that can tell, with the rank that each must name and a part of its sentence.

The first of them decides if all are asked. Gloo has a Flight Recorder only through the worker server.
"""


@contextmanager
def recorded(folder: Path, db: Path, command: Sequence[str]) -> Iterator[None]:
    """Record a command until its ranks train; end both."""
    words = [sys.executable, "-m", "gswarm_tui", "record", "--launcher", "local", "--db", str(db), "--"]
    recording = subprocess.Popen([*words, *command], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert recording.stdout is not None
    try:
        for line in recording.stdout:
            if "training" in line:
                break
        yield
    finally:
        recording.terminate()
        recording.communicate()


def gswarm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a gswarm-tui command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "gswarm_tui", *words], stdout=subprocess.PIPE, text=True, check=False
    )


def trace(folder: Path, python: Path) -> bool:
    """Trace two ranks below torchrun; return whether both were traced and imported."""
    (folder / "train.py").write_text(TRAIN)
    db = folder / f"trace-{time.time():.0f}.duckdb"
    torchrun = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    with recorded(folder, db, torchrun):
        traced = gswarm("trace", "--db", db)
    print(traced.stdout, gswarm("sql", "--db", db, QUERY).stdout)
    return traced.returncode == 0


def ask(folder: Path, python: Path, case: str, server: str) -> bool:
    """Ask four ranks by each step, with PyTorch's worker server or without; return whether all were right."""
    (folder / "rank.py").write_text(RANK)
    db = folder / f"{case}-{time.time():.0f}.duckdb"
    port = str(20_000 + time.time_ns() // 1000 % 10_000)
    right = True
    with recorded(folder, db, ["env", f"PORT={port}", "bash", "-c", START, str(python), case, server]):
        time.sleep(3)  # the rest of the 20 steps, and 1 s in which nothing moves
        steps = dict(ASKED[case])
        if server != SERVER:
            steps.pop(FLIGHT_RECORDER, None)
        first = next(iter(steps))
        for step, (rank, part) in {ALL: steps[first], **steps}.items():
            began = time.monotonic()
            only = [] if step == ALL else ["--step", step]
            printed = gswarm("who", "--json", "--db", db, *only).stdout
            answer: dict[str, Any] = json.loads(printed or NO_ANSWER)
            good = [one["rank"] for one in answer["behind"]] == [rank][: rank is not None]
            good = good and answer["decided_by"] == (first if step == ALL else step)
            good = good and part in answer["sentence"]
            print(f"{case}, {server}, by {step}: {'right' if good else 'WRONG'} after", end=" ")
            print(f"{time.monotonic() - began:.1f} s, by {answer['decided_by']}: {answer['sentence']}")
            right = right and good
    return right


def main() -> int:
    """Run the cases in a folder; return 0 if all were right."""
    folder, cases = Path(sys.argv[1]).absolute(), sys.argv[2:] or ["trace", *ASKED]
    python = folder / "torch" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "torch", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "torch"], check=True)
    right = [trace(folder, python) for case in cases if case == "trace"]
    servers = SERVER, "no server"
    right += [ask(folder, python, case, server) for case in cases if case in ASKED for server in servers]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
