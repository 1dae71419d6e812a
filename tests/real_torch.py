"""A trace of a real PyTorch: two ranks on the CPU below torchrun, recorded, traced and imported.

Takes 5.4 GB of disk and some minutes the first time: ``python -m tests.real_torch FOLDER``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

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


def main() -> int:
    """Run it in a folder; return 0 if both ranks were traced and imported."""
    folder = Path(sys.argv[1]).absolute()
    python = folder / "torch" / "bin" / "python"
    if not python.exists():
        venv.create(folder / "torch", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "torch"], check=True)
    (folder / "train.py").write_text(TRAIN)
    db = folder / f"run-{os.getpid()}.duckdb"
    gswarm = [sys.executable, "-m", "gswarm_tui"]
    torchrun = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    recording = subprocess.Popen(
        [*gswarm, "record", "--launcher", "local", "--db", str(db), "--", *torchrun],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert recording.stdout is not None
    for line in recording.stdout:
        if "training" in line:
            break
    traced = subprocess.run([*gswarm, "trace", "--db", str(db), *sys.argv[2:]], check=False)
    recording.communicate()
    subprocess.run([*gswarm, "sql", "--db", str(db), QUERY], check=True)
    return traced.returncode or recording.returncode


if __name__ == "__main__":
    sys.exit(main())
