"""What was asked in SQL before, as it is kept."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.history import FileHistory

from gswarm_tui.common.query_history import QueryHistory, history_path

QUERIES = st.lists(st.text(st.characters(exclude_characters="\r", exclude_categories=["Cs"]), min_size=1))


@given(QUERIES)
def test_every_query_comes_back_whole_and_a_file_of_the_prompt_before_is_read(queries: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept, before = Path(folder) / "kept", Path(folder) / "before"
        for query in queries:
            QueryHistory(kept).add(query)
            FileHistory(str(before)).store_string(query)
        assert QueryHistory(kept).read() == queries
        assert QueryHistory(before).read() == queries


def test_without_a_home_there_is_no_place_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(_number: int) -> object:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert history_path() is None
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_path() == tmp_path / "gswarm-tui" / "sql-history"


def test_where_nothing_can_be_kept_asking_goes_on(tmp_path: Path) -> None:
    for path in (None, tmp_path, tmp_path / "file" / "below"):
        (tmp_path / "file").write_text("")
        asked = QueryHistory(path)
        asked.add("SELECT 1")
        assert asked.read() == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").symlink_to(tmp_path / "elsewhere")
    QueryHistory(tmp_path / "kept").add("SELECT 1")
    assert not (tmp_path / "elsewhere").exists()


def test_of_a_long_file_the_newest_are_read(tmp_path: Path) -> None:
    asked = QueryHistory(tmp_path / "kept")
    for number in range(3000):
        asked.add(f"SELECT {number:0100}")
    assert 1000 < len(asked.read()) < 3000
    assert asked.read()[-1] == f"SELECT {2999:0100}"
    assert all(len(query) == 107 for query in asked.read()[1:])
