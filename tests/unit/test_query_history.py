"""The history of SQL queries."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.common.query_history import QueryHistory, history_path

QUERIES = st.lists(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), min_size=1))


@given(QUERIES)
def test_history_returns_every_query_unchanged(queries: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history = QueryHistory(Path(folder) / "history")
        for query in queries:
            history.add(query)
        assert history.read() == queries


def test_user_without_home_has_no_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(_number: int) -> object:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert history_path() is None
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_path() == tmp_path / "gswarm-tui" / "sql-history"


def test_history_that_cannot_be_written_is_empty(tmp_path: Path) -> None:
    for path in (None, tmp_path, tmp_path / "file" / "below"):
        (tmp_path / "file").write_text("")
        history = QueryHistory(path)
        history.add("SELECT 1")
        assert history.read() == []


def test_history_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "history").symlink_to(tmp_path / "elsewhere")
    QueryHistory(tmp_path / "history").add("SELECT 1")
    assert not (tmp_path / "elsewhere").exists()


def test_long_history_is_read_from_its_end(tmp_path: Path) -> None:
    history = QueryHistory(tmp_path / "history")
    for number in range(3000):
        history.add(f"SELECT {number:0100}")
    assert 1000 < len(history.read()) < 3000
    assert history.read()[-1] == f"SELECT {2999:0100}"
    assert all(len(query) == 107 for query in history.read()[1:])
