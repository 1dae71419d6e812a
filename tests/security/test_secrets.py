"""Secrets on command lines: invented ones of every known kind are hidden, ordinary lines stay unchanged."""

from __future__ import annotations

import random
import shlex
import string
import time

import pytest

from gswarm_agent.redact import HIDDEN, redact

HEX, UPPER, ALNUM = (
    "0123456789abcdef",
    string.ascii_uppercase + "234567",
    string.ascii_letters + string.digits,
)
WORD, DASHED = ALNUM + "_", ALNUM + "_-"

# What issues the token, how it begins, its other characters and their number. They are put together here, so
# that no scanner of repositories takes them for real ones.
ISSUED = [
    ("Anthropic", "sk-ant-api03-", DASHED, 95),
    ("Anthropic administration", "sk-ant-admin01-", DASHED, 95),
    ("OpenAI project", "sk-proj-", DASHED, 156),
    ("OpenAI service account", "sk-svcacct-", DASHED, 124),
    ("OpenAI, old", "sk-", ALNUM, 48),
    ("OpenRouter", "sk-or-v1-", HEX, 64),
    ("Hugging Face", "hf_", string.ascii_letters, 34),
    ("Hugging Face organization", "api_org_", string.ascii_letters, 34),
    ("NVIDIA NGC", "nvapi-", DASHED, 64),
    ("Groq", "gsk_", ALNUM, 52),
    ("Replicate", "r8_", ALNUM, 37),
    ("Perplexity", "pplx-", ALNUM, 48),
    ("xAI", "xai-", ALNUM, 80),
    ("Databricks", "dapi", HEX, 32),
    ("AWS key", "AKIA", UPPER, 16),
    ("AWS session", "ASIA", UPPER, 16),
    ("Google", "AIza", DASHED, 35),
    ("Google OAuth", "ya29.", DASHED, 60),
    ("Google client", "GOCSPX-", DASHED, 28),
    ("Azure client", "a1b8Q~", ALNUM, 34),
    ("GitHub", "ghp_", ALNUM, 36),
    ("GitHub app", "ghs_", ALNUM, 36),
    ("GitHub, fine-grained", "github_pat_", WORD, 82),
    ("GitLab", "glpat-", DASHED, 20),
    ("GitLab runner", "glrt-", DASHED, 20),
    ("npm", "npm_", ALNUM, 36),
    ("PyPI", "pypi-AgEIcHlwaS5vcmc", DASHED, 120),
    ("Slack bot", "xoxb-", string.digits, 24),
    ("Slack app", "xapp-1-A0", ALNUM, 60),
    ("Vault", "hvs.", DASHED, 95),
    ("Stripe", "sk_" + "live_", ALNUM, 24),
    ("JWT", "eyJhbGciOiJI.eyJzdWIiOiIx.", DASHED, 43),
]


def issued(start: str, alphabet: str, length: int) -> str:
    """Return an invented token whose last character can't end a word."""
    body = random.Random(start).choices(alphabet, k=length)
    return start + "".join(body)[:-1] + ("7" if "7" in alphabet else "Q")


@pytest.mark.parametrize(
    ("start", "alphabet", "length"), [each[1:] for each in ISSUED], ids=lambda x: str(x)[:16]
)
def test_issued_token_is_hidden_wherever_it_stands(start: str, alphabet: str, length: int) -> None:
    token = issued(start, alphabet, length)
    for words in (
        ["serve", token],
        ["serve", "--use", token, "--lr", "3"],
        [f"--use={token}"],
        ["sh", "-c", f"cd x; USE={token} serve '{token}' && serve --use \"{token}\""],
        ["serve", f'{{"use": "{token}", "lr": 3}}'],
        ["serve", f"https://host/path/{token}/x?use={token}&lr=3"],
    ):
        shown = "\0".join(redact(words))
        assert token[len(start) :] not in shown
        assert HIDDEN in shown
        assert ("lr" in shown) == ("lr" in "".join(words).replace(token, "")), "nothing else is hidden"


SECRET = "hunter2zq7"


@pytest.mark.parametrize(
    "line",
    [
        "t --pass § --lr 3",
        "t --pass=§",
        "t --pw=§",
        "t --pw §",
        "t --db-pass §",
        "env DB_PASS=§ t",
        "env PGPASS=§ MYSQL_PWD=§ t",
        "env AZURE_DEVOPS_EXT_PAT=§ t",
        "t --bearer §",
        "t --bearer=§",
        "curl -u me:§ https://host/x",
        "curl -ume:§ https://host/x",
        "curl --user me:§ https://host/x",
        "curl --user=me:§ https://host/x",
        "curl --proxy-user me:§ https://host/x",
        "curl -u 'me:§ and more' https://host/x",
        "curl -H 'Authorization: Basic §' host",
        "curl -H 'X-Auth: Bearer §abcdefgh' host",
        "curl -H 'X-Api-Key: §' -H 'PRIVATE-TOKEN: §' -H 'Cookie: session=§' host",
        "wget --http-password=§ --ftp-password § https://host/x",
        "openssl x -passin pass:§",
        "t --client-secret § --signing-key § --passphrase § --cookie § --jwt § --creds me:§",
        "git clone https://§@host/x.git",
        "pip install git+https://§@host/x.git@v1",
        "pip install --index-url https://me:§@host:8443/simple t",
        "t postgres://u:p§/w@h/n",
        "t postgres://u:§/w@h:5432/n?x=1",
        "t --db postgresql+psycopg://u@corp:§@h/n",
        "t redis://:§@h:6379/0",
        "t http://h:80,https://me:§@h2/x",
        "t 'amqp://me:a@§@h'",
        "t https://host/x?key=§&lr=3",
        "t https://hooks.slack.com/services/T0/B0/§",
        "t https://discord.com/api/webhooks/123/§",
        "t 'DefaultEndpointsProtocol=https;AccountName=n;AccountKey=§==;EndpointSuffix=x'",
        "t 'Driver=x;Uid=me;Pwd=§;'",
        't \'{"pass": "§", "user": "me"}\'',
        r"sh -c 'export DB_PASS=§\ §; t'",
        "sh -c 'DB_PASS=\"a §\" t'",
        "sh -c \"curl -u me:'§ x' host\"",
        "t '-----BEGIN RSA PRIVATE KEY-----\nS\n-----END RSA PRIVATE KEY-----'",
    ],
)
def test_secret_is_hidden_as_words_and_as_a_shell_line(line: str) -> None:
    line = line.replace("§", SECRET)
    words = shlex.split(line)
    for shown in (redact(words), redact(["sh", "-c", line])):
        assert SECRET not in "\0".join(shown)
        assert HIDDEN in "\0".join(shown)


ORDINARY = """
torchrun --nnodes=4 --nproc-per-node 8 --rdzv-id 4711 --rdzv-backend c10d --rdzv-endpoint gpu01:29500 train.py
/opt/conda/bin/python3.11 -u /home/alice/llm/train.py --config conf/llama3-70b.yaml --lr 3e-4 --local_rank=3
python -u -m torch.distributed.run --master_addr=10.0.0.1 --master_port 29500 main.py data.path=/data/c4@v2
python -m deepspeed.launcher.runner --hostfile /home/alice/hosts --include localhost:0,1 t.py --deepspeed z
accelerate launch --config_file a.yaml --main_process_port 29501 run.py --model_name meta-llama/Llama-3.1-70B
srun --user alice --jobid 4711 --ntasks-per-node=8 --cpu-bind=mask_cpu:0x1,0x2
srun --export=ALL,NCCL_DEBUG=INFO ./a.out
sbatch --account=ab0123 --qos normal -p gpu -N 4 --gres=gpu:a100:4 --mail-user alice@example.org j.sh
vllm serve meta-llama/Llama-3.1-8B --max-num-batched-tokens 8192 --tokenizer-mode auto --tokenizer hf/x
t --max-tokens 100 --max_token 2048 --num-token 4096 --eos_token </s> --pad_token [PAD]
t --bos-token=<s> --stop-token-ids 5
t --use_auth_token True --trust-remote-code --auth none --n-pass 2 --two_pass=true --bypass x --compass=north
python secret.py token train --password --lr 3
t --password-file /run/secrets/db --token-file=/run/token --passes 3 --pass-through yes --key name --keys a,b
git checkout 46c801e0d9806635a64ad0968a7050c84b95d020 -- src/main.c
docker run --gpus all -u 1000:1000 --user 1000:100 -p 8888:8888 nvcr.io/nvidia/pytorch:24.05-py3
apptainer exec --nv docker://nvcr.io/nvidia/pytorch:24.05-py3 python t.py
apptainer exec img@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08.sif
ssh -J alice@login -p 2222 alice@gpu01.cluster.example.org:/home/alice rsync -a alice@gpu01:/data/ .
pip install git+ssh://git@github.com:22/org/repo.git@v1.2 git+https://github.com/org/repo@main
git clone git@github.com:org/repo.git
wget https://host:8443/path/@scope/pkg.tgz http://localhost:8000/v1/a@b https://host/?mail=a@b
t --init tcp://node1:29500 hdfs://alice@namenode/x abfss://data@acct.dfs.core.windows.net/x s3://bucket/a@b
nsys profile -t cuda,nvtx -o run_%h_%p --capture-range=cudaProfilerApi python t.py --author me
ray start --head --port=6379 --node-ip-address=10.0.0.1 --object-store-memory 1000000000
env PWD=/home/alice OMP_NUM_THREADS=8 CUDA_VISIBLE_DEVICES=0,1 XLA_FLAGS=--xla_gpu=4 python t.py
/scratch/sk-learn-experiments-2024/run.py --run-name task-proj-llama-70b-baseline --tag risk-model-v2
t --id 3fa85f64-5717-4562-b3fc-2c963f66afa6 --sha d41d8cd98f00b204e9800998ecf8427e
t --tag npm_package_dependencies_x
t --secretary x --passenger y --token_embedding_dim 512 --spawn --pws --cookies-enabled --pat x --path=a/b:c
python -c import\\ torch;\\ print(torch.cuda.device_count())
./lammps -k on g 4 -sf kk -in in.reaxc.hns -v x 8 -u metal
gswarm-tui --nodes gpu[01-04] --user alice --jump hop:2222 --interval 0.5 --db run.duckdb
""".strip().splitlines()


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_line_is_not_changed(line: str) -> None:
    assert redact(line.split(" ")) == line.split(" ")
    assert redact(["sh", "-c", line]) == ["sh", "-c", line]


HARD = [
    "://a:", "@", "://@", "a", "-", "-u ", "-u a:", "-u 'a:", '-u "a:', "--user ", "--user\t", "-u\n",
    "--token ", "token=", 'token="', "token='\"", "token=\\", "token=<", "token=[A", "pass",
    "authorization: ", "bearer ", "sk-", "eyJ", "eyJaaaaaaaa.", "SG.aaaaaaaaaaaaaaaa", "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----",
    "MN-_",
    "pat", "0123456789abcdef", "1234567890", "\\", '"', "'\"", " ", "~", "1Q~", "AKIA", "a.b-", "dp.pt.",
]  # fmt: skip


@pytest.mark.parametrize("piece", HARD)
def test_no_command_line_makes_redaction_slow(piece: str) -> None:
    text = piece * (32_768 // len(piece))
    start = time.process_time()
    redact(["x", text, f"--token {text}"])
    assert time.process_time() - start < 1.5, "the time grows with the square of the length"
