"""Reports: the page has the summary's figures, loads nothing, and escapes names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gswarm_agent.frame import ERROR, INFO, WARNING, ProcessSample
from gswarm_tui import cli
from gswarm_tui.analysis import periods
from gswarm_tui.analysis.summary_data import Summary, summarize
from gswarm_tui.analysis.summary_text import share
from gswarm_tui.common.quantities import energy, mebibytes
from gswarm_tui.fleet.events import Event, EventLogged, SessionChanged, SessionStarted, SessionStopped
from gswarm_tui.fleet.program import program
from gswarm_tui.reporting.report import build_report
from gswarm_tui.store.querying.file_source import FileSource
from tests.integration.plot_recording import record_training
from tests.unit.store_recording import T0, arrived, gpu_row, host_row, introduced, process_row, record

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime.fromisoformat("2026-03-02 15:00")
HOSTILE = "\"><script>alert('x')</script><img src=http://evil/ onerror=alert(1)> &amp; <!-- </title></style>"
VOID = {"meta", "br", "hr"}


class Page(HTMLParser):
    """The elements and texts of a page; refuses what isn't nested well."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not data.strip():
            return
        self.texts.append((self.open[-1] if self.open else "", data))
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def table(self, *heads: str) -> list[dict[str, str]]:
        """Return the rows of the table with these headings."""
        for rows in self.tables:
            if set(heads) <= set(rows[0]):
                return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
        raise AssertionError(f"no table with {heads}")

    def text_of(self, tag: str = "") -> str:
        return " ".join(" ".join(text for where, text in self.texts if not tag or where == tag).split())

    def after(self, term: str) -> str:
        """Return the text that follows a term of a list."""
        at = next(at for at, found in enumerate(self.texts) if found == ("dt", term))
        return self.texts[at + 1][1]


def report(path: Path, name: str = "") -> str:
    with closing(FileSource(path)) as source:
        return build_report(source, periods.find_period(source, name), NOW, BERLIN, "0.1.0").html()


def summary(path: Path, name: str = "") -> Summary:
    with closing(FileSource(path)) as source:
        return summarize(source, periods.find_period(source, name))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_training(tmp_path_factory.mktemp("report") / "run.duckdb", nodes=6, gpus=4, seconds=660)


@pytest.fixture(scope="module")
def written(training: Path) -> str:
    return report(training, "full_training")


def test_report_has_the_figures_of_the_summary(training: Path, written: str) -> None:
    page, found = Page(written), summary(training, "full_training")
    whole = found.whole
    assert whole is not None
    assert page.after("GPUs") == "24"
    assert page.after("Utilisation") == f"{whole.util_mean_pct:.1f} %"
    rows = page.table("GPU", "util %")
    assert len(rows) == len(found.gpus) == 24
    for row, gpu in zip(rows, found.gpus, strict=True):
        assert row["GPU"] == f"{gpu.node}:{gpu.gpu_index}"
        assert row["util %"] == f"{gpu.util_mean_pct:.0f}"
        assert row["energy"] == energy(gpu.energy_j)
        assert row["coverage"] == share(gpu.coverage)
    assert [row["memory"] for row in rows] == [mebibytes(gpu.mem_used_max_mib) for gpu in found.gpus]
    nodes = page.table("node", "util %")
    assert [row["node"] for row in nodes] == [f"gpu0{number}" for number in range(1, 7)]


def test_findings_and_the_ledger_are_named(written: str) -> None:
    page = Page(written)
    texts = [text for _, text in page.texts]
    ledger = texts[texts.index("Findings") + 1]
    assert sum(map(int, re.findall(r"(\d+) %", ledger))) == 100
    assert "GPU-" in ledger


def test_report_has_no_scripts_and_no_external_resources(written: str) -> None:
    page = Page(written)
    names = {tag for tag, _ in page.elements}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert "://" not in written
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", written)
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("href", "src", "xlink:href"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/png;base64,"))
    (policy,) = (a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert len(written) < 2_000_000


def test_report_lists_events(written: str) -> None:
    page = Page(written)
    assert page.text_of("h1") == "full_training"
    assert "2026-03-02 15:00:10 – 15:10:" in page.text_of("p")
    assert "CET (UTC+0100)" in page.text_of("p")
    assert "job 4711 · cluster tiny · gpu[01-06] · recorded by ada" in page.text_of("p")
    events = page.table("severity", "node", "message")
    assert ("error", "gpu06", "link lost") in {(row["severity"], row["node"], row["kind"]) for row in events}
    assert any("XID 79" in row["message"] and row["node"] == "gpu01:2" for row in events)
    marks = page.table("mark", "values")
    assert [row["mark"] for row in marks] == [f"epoch {number}" for number in range(1, 9)]
    assert marks[0]["values"] == "loss 2.61, images_s 4100"
    assert page.after("Command") == "gswarm-tui --job 4711"
    hardware = page.table("driver", "CUDA", "kernel")
    assert sum("H100" in row["GPUs"] for row in hardware) == len(hardware) >= 1
    assert {"Busy", "Energy", "Coverage", "Bubbles"} <= {text for where, text in page.texts if where == "dt"}


def test_report_names_incomplete_coverage(written: str) -> None:
    page = Page(written)
    assert "1 of 6 nodes was not covered completely" in page.text_of("p")


def hostile_events() -> Iterator[Event]:
    process = ProcessSample(
        gpu=0, pid=7, user=HOSTILE, command=HOSTILE, rank=0, local_rank=0, row=process_row(sm_pct=5)
    )
    yield introduced("n1", capabilities={"ib": HOSTILE})
    yield SessionStarted("s", T0, HOSTILE, T0)
    yield SessionChanged("s", T0, note=HOSTILE)
    for seq in range(1, 31):
        rows = [gpu_row(util_pct=seq), gpu_row(util_pct=50)]
        yield arrived(seq, rows, host=host_row(cpu_pct=5), processes=(process,) if seq == 3 else None)
    yield EventLogged(T0 + 5, "xid", ERROR, HOSTILE, "n1", 0, HOSTILE)
    yield EventLogged(T0 + 6, "mark", INFO, HOSTILE, "n1", detail='{"<b>loss</b>": 1, "other": "<i>"}')
    yield EventLogged(T0 + 7, "late", WARNING, HOSTILE)
    yield SessionStopped("s", T0 + 30, T0 + 30)


def test_names_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    record(path, hostile_events())
    page = Page(report(path))
    allowed = {"html", "head", "meta", "title", "style", "body", "main", "header", "footer"}
    allowed |= {"h1", "h2", "h3", "p", "dl", "dt", "dd", "div", "small", "figure", "figcaption", "code"}
    allowed |= {"table", "thead", "tbody", "tr", "th", "td", "details", "summary"}
    allowed |= {"svg", "g", "path", "use", "defs", "text", "tspan", "image", "rect", "pattern", "clippath"}
    assert {tag for tag, _ in page.elements} <= allowed
    assert page.text_of("h1") == HOSTILE
    assert any(HOSTILE in row["message"] for row in page.table("severity", "message"))
    assert page.table("command")[0]["command"] == program(HOSTILE)
    assert page.table("mark")[0]["values"] == "<b>loss</b> 1, other <i>"
    assert HOSTILE in page.table("missing metric and reason")[0]["missing metric and reason"]


def test_report_command_writes_the_page(
    training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", f"{training}:evaluation"]) == 0
    assert capsys.readouterr() == ("evaluation.html\n", "")
    assert Page((tmp_path / "evaluation.html").read_text()).text_of("h1") == "evaluation"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-o", "x.pdf"], "x.pdf doesn't end in .html; name an HTML file with -o."),
        (["-o", "/nowhere/x.html"], "no folder /nowhere; create it, or name another one with -o."),
        (["nothing"], 'has no session "nothing"'),
        (["evaluation", "training"], 'has no session "evaluation training"'),
    ],
)
def test_report_mistake_prints_one_sentence(
    training: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert cli.main(["report", "--db", str(training), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_running_session_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    frames = [arrived(seq, [gpu_row(util_pct=40), None]) for seq in range(1, 31)]
    record(path, [introduced(), SessionStarted("s", T0, "train", T0), *frames])

    with closing(FileSource(path)) as source:
        source.running = True
        fields: dict[str, Any] = vars(periods.find_period(source))
        period = periods.Period(**{**fields, "ended_at": None})
        page = Page(build_report(source, period, NOW, BERLIN, "0.1.0").html())
    assert "Still running; state at 2026-03-02 16:00:00." in page.text_of("p")
    assert page.text_of("small").startswith("so far")
