"""Host lists expand into node names, and errors name the invalid part."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gswarm_tui.slurm.hosts import MAX_NODES, HostListError, expand, fold

labels = st.from_regex(r"[a-z]{1,4}[0-9]{0,4}(-[a-z0-9]{1,3})?", fullmatch=True)
names = st.lists(labels, min_size=1, max_size=3).map(".".join)
ranges = st.tuples(st.integers(0, 400), st.integers(0, 30), st.integers(1, 4))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gpu01", "gpu02"], ["gpu01", "gpu02"]),
        (["gpu[01-03,07]"], ["gpu01", "gpu02", "gpu03", "gpu07"]),
        (["a,b", "c"], ["a", "b", "c"]),
        (["gpu[1-2],login", "gpu3,gpu[10-11]"], ["gpu1", "gpu2", "login", "gpu3", "gpu10", "gpu11"]),
        (
            ["rack[1-2]n[08-09]-ib.cluster.org"],
            [f"rack{r}n0{n}-ib.cluster.org" for r in (1, 2) for n in (8, 9)],
        ),
        (["gpu[3,1,2]"], ["gpu3", "gpu1", "gpu2"]),
        (["gpu[01-02][03-04]"], ["gpu0103", "gpu0104", "gpu0203", "gpu0204"]),
        (["node[8-012]"], ["node8", "node9", "node10", "node11", "node12"]),
        # As scontrol show hostnames prints it: three brackets count from the left, after the last.
        (
            ["c[0-1]b[0-1]n[0-1]"],
            [f"c{c}b{b}n{n}" for b in (0, 1) for c in (0, 1) for n in (0, 1)],
        ),
        (["n[0-6/2]"], ["n0", "n2", "n4", "n6"]),
        (["n10,n9,n10", "n9"], ["n10", "n9"]),
        (["n1,n01"], ["n1", "n01"]),
        (["gpu01\ngpu02\n"], ["gpu01", "gpu02"]),
        (["a,,b,", ""], ["a", "b"]),
        (["10.0.0.[1-2]", "under_score"], ["10.0.0.1", "10.0.0.2", "under_score"]),
        ([], []),
    ],
)
def test_host_lists_expand(words: list[str], expected: list[str]) -> None:
    assert expand(words) == tuple(expected)


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("a,gpu[1-", """--nodes: "gpu[1-" is invalid: missing bracket."""),
        ("gpu1]", """--nodes: "gpu1]" is invalid: illegal closing bracket."""),
        ("n[9-1]", """--nodes: "n[9-1]" is invalid: the range "9-1" is empty."""),
        ("n[1-3/0]", """--nodes: "n[1-3/0]" is invalid: the range "1-3/0" is empty."""),
        ("n[a-b]", """--nodes: "n[a-b]" is invalid: "a-b" isn't a number or a range."""),
        (
            "-oProxyCommand=id",
            """--nodes: "-oProxyCommand=id" is invalid: a node name can't start with a dash.""",
        ),
        ("b,$(id)", """--nodes: "$(id)" is invalid: a node name can't contain "$"."""),
        ("a\x1bc", """--nodes: "a\\x1bc" is invalid: a node name can't contain "\\x1b"."""),
        ("two..dots", """--nodes: "two..dots" is invalid: it isn't a host name."""),
        ("x" * 64, """--nodes: "%s…" is invalid: it isn't a host name.""" % ("x" * 59)),
        ("fe80::1%eth0", """--nodes: "fe80::1%eth0" is invalid: a node name can't contain ":"."""),
    ],
)
def test_error_names_the_invalid_part(word: str, sentence: str) -> None:
    with pytest.raises(HostListError) as caught:
        expand([word])
    assert str(caught.value) == sentence


@pytest.mark.parametrize("operator", list("@!&^*?%/\\;|<>`'\"~#=+{}()"))
def test_clustershell_and_shell_syntax_is_refused(operator: str) -> None:
    for word in (f"n1{operator}n2", f"n[1-2]{operator}", f"{operator}all"):
        with pytest.raises(HostListError):
            expand([word])


@pytest.mark.parametrize("word", ["n[1-99999999999]", "n[1-1000]m[1-1000]p[1-1000]", "n[1-100000],m1"])
def test_too_long_list_is_refused_before_expansion(word: str) -> None:
    with pytest.raises(HostListError, match=f"{MAX_NODES:,}"):
        expand([word])


def test_error_names_the_source_of_the_list() -> None:
    with pytest.raises(HostListError, match=r"^SLURM_JOB_NODELIST: "):
        expand(["n["], "SLURM_JOB_NODELIST")


@given(
    st.sampled_from(["n", "rack-2.n", "a_b"]),
    st.lists(ranges, min_size=1, max_size=4),
    st.sampled_from(["", "-ib", ".x"]),
)
def test_ranges_expand_to_all_numbers(
    prefix: str, given_ranges: list[tuple[int, int, int]], suffix: str
) -> None:
    text, expected = [], set()
    for first, length, step in given_ranges:
        last = first + length
        text.append(f"{first:04}-{last:04}/{step}")
        expected |= {f"{prefix}{number:04}{suffix}" for number in range(first, last + 1, step)}
    found = expand([f"{prefix}[{','.join(text)}]{suffix}"])
    assert set(found) == expected


@given(st.lists(names, unique=True, max_size=30))
def test_expanding_a_folded_list_returns_the_same_names(given_names: list[str]) -> None:
    assert expand([",".join(given_names)]) == tuple(given_names)
    assert sorted(expand([fold(given_names)])) == sorted(given_names)


@given(st.lists(st.one_of(st.text(max_size=20), st.text("n1-9[],/-:.@* ", max_size=20)), max_size=4))
@example(["n[1-999999999999999999/999999999999999999]"])
@example(["[1-2]" * 40])
def test_any_text_expands_to_host_names_or_raises(words: list[str]) -> None:
    said, found = "", tuple[str, ...]()
    try:
        found = expand(words)
    except HostListError as error:
        said = str(error)
    assert said.isprintable()
    assert len(set(found)) == len(found)
    for name in found:
        assert name.isascii()
        assert not name.startswith("-")
        assert all(character.isalnum() or character in "._-:" for character in name)


def test_fold_keeps_ip_addresses() -> None:
    assert fold(["gpu02", "fe80::2", "gpu01", "fe80::1"]) == "gpu[01-02],fe80::2,fe80::1"
    assert fold([]) == ""
