"""Redaction: which words of a command line are hidden, and which stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.redact import HIDDEN, redact


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            ["python", "t.py", "--hf-token", "abc", "--lr", "3"],
            ["python", "t.py", "--hf-token", "***", "--lr", "3"],
        ),
        (["t.py", "--password=my pass phrase"], ["t.py", "--password=***"]),
        (["env", "WANDB_API_KEY=abc", "python"], ["env", "WANDB_API_KEY=***", "python"]),
        (["AWS_SECRET_ACCESS_KEY=abc", "MYSQL_PWD=abc"], ["AWS_SECRET_ACCESS_KEY=***", "MYSQL_PWD=***"]),
        (
            ["sh", "-c", "cd x && HF_TOKEN=abc t --api_key abc --lr 3"],
            ["sh", "-c", "cd x && HF_TOKEN=*** t --api_key *** --lr 3"],
        ),
        (["sh", "-c", "export TOKEN='a b'; run"], ["sh", "-c", "export TOKEN=***; run"]),
        (["x", '{"api_key": "a b", "lr": 1}'], ["x", '{"api_key": ***, "lr": 1}']),
        (
            ["x", "db://me:p@ss@host:5432/n", "db://host:80/x"],
            ["x", "db://me:***@host:5432/n", "db://host:80/x"],
        ),
        (["get", "https://h/k?lr=1&X-Amz-Signature=abc"], ["get", "https://h/k?lr=1&X-Amz-Signature=***"]),
        (["curl", "-H", "Authorization: Bearer abc.def"], ["curl", "-H", "Authorization: Bearer ***"]),
        (
            ["git", "clone", "https://ghp_0123456789abcdefghij@github.com/x"],
            ["git", "clone", "https://***@github.com/x"],
        ),
        (["x", "hf_0123456789abcdefghij", "sk-proj-0123456789abcdefghij"], ["x", "***", "***"]),
    ],
)
def test_secrets_are_hidden(words: list[str], shown: list[str]) -> None:
    assert redact(words) == shown


@given(
    st.lists(st.text(max_size=30)), st.sampled_from(["--token", "--HF-TOKEN", "-password", "--db.api_key"])
)
def test_a_secret_is_hidden_wherever_it_stands(words: list[str], flag: str) -> None:
    secret = "zq7zq7zq7"
    for said in ([flag, secret], [f"{flag}={secret}"], [f"run {flag} {secret} {flag}={secret}"]):
        shown = redact([*words, *said, *words])
        assert secret not in "\0".join(shown)
        assert HIDDEN in "\0".join(shown)
        assert len(shown) == 2 * len(words) + len(said)
