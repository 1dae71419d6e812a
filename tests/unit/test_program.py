"""Names of programs: what a process runs comes first, not its interpreter."""

from __future__ import annotations

import pytest

from gswarm_tui.fleet.program import program

CONDA = "/home/ada/miniconda3/envs/llm/bin"


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (f"{CONDA}/python3.11 -u /home/ada/train.py --config a.yaml", "train.py --config a.yaml"),
        (f"{CONDA}/python -W ignore -X dev -m pkg.mod --lr 1", "pkg.mod --lr 1"),
        (f"{CONDA}/python {CONDA}/torchrun --nproc-per-node 8 train.py -m 1", "train.py -m 1"),
        ("python -m torch.distributed.run --nproc-per-node=8 -m pkg.train", "pkg.train"),
        ("bash -c cd /data && source env.sh && SEED=1 exec python train.py --lr 1", "train.py --lr 1"),
        ("srun -n8 numactl -m 0 ./wrap.sh python train.py --lr 1", "train.py --lr 1"),
        ("nsys profile -o out mpirun -np 4 bash /home/ada/run.sh fast", "run.sh fast"),
        ("uv run accelerate launch --module pkg.train --lr 1", "pkg.train --lr 1"),
        (f"{CONDA}/python {CONDA}/vllm serve m", "vllm serve m"),
        (f"{CONDA}/python -c import torch", "python -c import torch"),
        ("./build/app --n 3", "app --n 3"),
        ("./bench_flash 8192", "bench_flash 8192"),
        ("/opt/app --ssh push 8", "app --ssh push 8"),
        ("python", "python"),
        ("/bin/bash -l", "bash -l"),
        ("VLLM::EngineCore", "VLLM::EngineCore"),
        ("python " + 3000 * "-W ", "python " + 3000 * "-W "),
    ],
)
def test_script_or_module_comes_first(command: str, shown: str) -> None:
    assert program(command) == shown
