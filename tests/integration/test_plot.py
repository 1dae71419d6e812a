"""Plots: pixels, texts and bins match the recording."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import cache
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from PIL import Image

from gswarm_agent.frame import WARNING
from gswarm_agent.metrics import GPU_BY_SHORT
from gswarm_tui import cli
from gswarm_tui.analysis import periods
from gswarm_tui.common.errors import UserError
from gswarm_tui.fleet.events import Event, EventLogged, SessionStarted, SessionStopped
from gswarm_tui.plotting import style
from gswarm_tui.plotting.figure import FigureBuilder, draw, figure_bytes
from gswarm_tui.plotting.grid import MetricGrid, load_grids
from gswarm_tui.plotting.metric_choice import choose_metrics
from gswarm_tui.plotting.plot_data import PlotData, load_plot_data
from gswarm_tui.plotting.timescale import clock_ticks
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.recorder import FileWriter
from tests.integration.plot_recording import record_training
from tests.unit.store_recording import INFO as WHAT
from tests.unit.store_recording import T0, arrived, gpu_row, host_row, introduced, query, record

BERLIN = ZoneInfo("Europe/Berlin")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_training(tmp_path_factory.mktemp("plot") / "run.duckdb", nodes=6, gpus=2, seconds=660)


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def session(name: str, begin: float, end: float | None) -> list[Event]:
    started: list[Event] = [SessionStarted(name, T0 + begin, name, T0 + begin)]
    return started + ([SessionStopped(name, T0 + end, T0 + end)] if end is not None else [])


def small(path: Path, *more: Event, name: str = "train") -> Path:
    """Record a session of 60 s: GPU 0 always at 0 %, GPU 1 at 100 % and without samples from 20 s to 40 s."""
    if not more and name == "train":
        path.write_bytes(_small())
    else:
        record(path, [introduced(), *session(name, 0.0, 60.0), *_frames(), *more])
    return path


@cache
def _small() -> bytes:
    with TemporaryDirectory() as folder:
        record(path := Path(folder, "run.duckdb"), [introduced(), *session("train", 0.0, 60.0), *_frames()])
        return path.read_bytes()


def _frames() -> list[Event]:
    return [
        arrived(
            seq,
            [gpu_row(util_pct=0), None if 20 < seq <= 40 else gpu_row(util_pct=100)],
            host=host_row(cpu_pct=50.0),
        )
        for seq in range(1, 61)
    ]


def material(path: Path, name: str = "", metric: str = "util") -> PlotData:
    with closing(FileSource(path)) as source:
        return load_plot_data(source, periods.find_period(source, name), choose_metrics([metric]))


def grid(path: Path, metric: str) -> MetricGrid:
    with closing(FileSource(path)) as source:
        return grid_of_source(source, periods.find_period(source), metric, most=1500)


def grid_of_source(source: FileSource, period: periods.Period, metric: str, *, most: int) -> MetricGrid:
    return load_grids(source, period, [GPU_BY_SHORT[metric]], host=False, most=most)[0]


def svg_texts(data: bytes) -> list[str]:
    tree = ElementTree.fromstring(data)
    return ["".join(text.itertext()).strip() for text in tree.iter(f"{SVG}text")]


def drawn(what: PlotData, kind: str, zone: ZoneInfo = BERLIN) -> bytes:
    return draw(what, zone, kind)


def test_plot_names_session_nodes_metrics_marks_and_times(training: Path) -> None:
    with closing(FileSource(training)) as source:
        period = periods.find_period(source, "full_training")
        made = load_plot_data(source, period, choose_metrics(), ["loss"])
    texts = svg_texts(drawn(made, "svg"))
    assert "full_training" in texts
    assert {"epoch 1", "epoch 8", "loss (from marks)"} <= set(texts)
    assert {"gpu01", "gpu06", "GPU util (%)", "Power (W)", "Memory used (GiB)"} <= set(texts)
    assert {"link lost", "xid"} <= set(texts)
    assert "local time, CET (UTC+0100)" in texts
    assert {"15:02", "15:10"} <= set(texts)  # 14:00 UTC
    assert any(text.startswith("2026-03-02 15:00:10 – 15:10:") for text in texts)
    assert any("job 4711" in text and "6 nodes, 12 × NVIDIA H100" in text for text in texts)


def test_time_ticks_are_at_their_times(training: Path) -> None:
    """The tick "15:05" is 290 s after the start at 15:00:10."""
    made = material(training, "full_training")
    with style.plot_style():
        figure = FigureBuilder(made, BERLIN).draw()
        (axes,) = (one for one in figure.axes if one.get_xlabel())
        ticks = {
            label.get_text(): place
            for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        }
    assert ticks["15:04"] == pytest.approx(230)
    assert ticks["15:10"] == pytest.approx(590)


def test_missing_data_is_hatched(tmp_path: Path) -> None:
    made = material(small(tmp_path / "run.duckdb"))
    with style.plot_style():
        figure = FigureBuilder(made, BERLIN).draw()
        picture = Image.open(BytesIO(figure_bytes(figure, "png", "train"))).convert("RGB")
    (axes,) = (one for one in figure.axes if one.images and len(one.get_xlim()) and one.get_xlim()[1] == 60)
    box = axes.get_position()

    def pixel(at_s: float, row: int) -> tuple[int, ...]:
        x = (box.x0 + box.width * at_s / 60) * picture.width
        y = (1 - box.y1 + box.height * (row + 0.7) / 2) * picture.height
        return tuple(picture.getpixel((round(x), round(y))))  # type: ignore[arg-type]

    zero, full = tuple(style.RAMP[0][:3]), tuple(style.RAMP[-1][:3])
    assert pixel(5.5, 0) == pixel(30.5, 0) == zero
    assert pixel(5.5, 1) == pixel(50.5, 1) == full
    grey = {tuple(bytes.fromhex(colour[1:])) for colour in (style.NO_DATA, style.NO_DATA_LINES)}
    around = {pixel(at, 1) for at in np.linspace(24, 36, 40)}
    assert around & grey
    assert not around & {zero, full}


def uneven(path: Path, seed: int) -> Path:
    """Record frames at uneven times, some lost, some GPUs silent, in a session that starts between frames."""
    rng = random.Random(seed)
    at, seq = 0.0, 0
    events: list[Event] = [introduced()]
    for _ in range(150):
        seq += 1 + (rng.random() < 0.08) * rng.randrange(1, 9)
        at += rng.choice((0.1, 0.5, 1.0, 1.037, 2.5, 11.0))
        rows = [None if rng.random() < 0.1 else gpu_row(util_pct=rng.randrange(101)) for _ in range(2)]
        events.append(arrived(seq, rows, ts=T0 + at))
    record(path, [*events, *session("train", 7.3, at - 11.7)], ended_at=T0 + at + 1)
    return path


@pytest.fixture(scope="module", params=[1, 2])
def uneven_recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return uneven(tmp_path_factory.mktemp("bins") / "run.duckdb", request.param)


@pytest.mark.parametrize("most", [7, 60, 1500])
def test_bins_weight_samples_by_covered_time(uneven_recording: Path, most: int) -> None:
    """Compare with sums in Python: each sample's weight is the overlap of its interval with the bin."""
    path = uneven_recording
    with closing(FileSource(path)) as source:
        period = periods.find_period(source)
        mean = grid_of_source(source, period, "util", most=most)
    samples = query(path, "SELECT gpu_id, ts, interval_ms, util_pct FROM gpu_samples")
    count = mean.values.shape[1]
    assert count <= most
    weights, sums = np.zeros((2, count)), np.zeros((2, count))
    ids = sorted({row[0] for row in samples})
    for gpu, ts, interval_ms, value in samples:
        end = (ts - period.started_at).total_seconds()
        begin = max(0.0, end - (interval_ms or 0.001) / 1000)
        end = min(end, period.seconds)
        for at in range(count):
            shared = min(end, (at + 1) * mean.width_s) - max(begin, at * mean.width_s)
            if shared > 5e-7:
                row = ids.index(gpu)
                weights[row, at] += shared
                sums[row, at] += shared * value
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(mean.values, sums / weights, rtol=2e-3, atol=0.02)


@pytest.mark.parametrize("seconds", [1, 2, 4, 30, 3600, 3 * 86_400])
def test_no_tick_has_the_label_of_the_one_before(seconds: int) -> None:
    labels = [label for _, label in clock_ticks(datetime.fromisoformat("2026-03-02 14:00:10"), seconds, UTC)]
    assert labels
    assert all(before != after for before, after in pairwise(labels))


def test_512_gpus_are_one_image_with_thinned_names(tmp_path: Path) -> None:
    nodes = [f"gpu{number:03}" for number in range(1, 65)]
    events: list[Event] = [introduced(node, gpus=8) for node in nodes]
    events += [
        arrived(seq, [gpu_row(util_pct=(seq * 7 + gpu) % 100) for gpu in range(8)], node=node)
        for seq in range(1, 21)
        for node in nodes
    ]
    path = tmp_path / "run.duckdb"
    record(path, [*events, *session("train", 0, 20)])
    data = drawn(material(path), "svg")
    tree = ElementTree.fromstring(data)
    assert len(list(tree.iter(f"{SVG}image"))) == 2  # it and its key
    named = [text for text in svg_texts(data) if text in nodes]
    assert 20 <= len(named) < 64
    places = [
        float(text.get("y", "") or re.findall(r"[\d.]+", text.get("transform", ""))[1])
        for text in tree.iter(f"{SVG}text")
        if "".join(text.itertext()).strip() in nodes
    ]
    assert min(b - a for a, b in pairwise(places)) > 6  # points: a line of text


def test_pdf_embeds_fonts(tmp_path: Path) -> None:
    data = drawn(material(small(tmp_path / "run.duckdb")), "pdf")
    assert data.startswith(b"%PDF")
    assert b"/FontFile2" in data
    assert b"/Type3" not in data


def test_names_are_drawn_literally(tmp_path: Path) -> None:
    name = "<b>a $\\frac{1}{2}$ & 学習"
    path = small(tmp_path / "run.duckdb", name=name)
    made = material(path, name)
    assert name in svg_texts(drawn(made, "svg"))
    assert drawn(made, "png")
    assert drawn(made, "pdf")


def test_plot_command_writes_each_file(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_berlin: None
) -> None:
    names = [str(tmp_path / f"a.{kind}") for kind in ("pdf", "png", "svg")]
    out = [word for name in names for word in ("-o", name)]
    assert cli.main(["plot", f"{training}:full_training", *out, "--curve", "util,cpu"]) == 0
    assert capsys.readouterr().out.splitlines() == names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pdf", "a.png", "a.svg"]
    texts = svg_texts((tmp_path / "a.svg").read_bytes())
    assert {"CPU of nodes (%)", "local time, CET (UTC+0100)"} <= set(texts)
    assert any(text.startswith("Each point is the mean of") for text in texts)


def test_default_file_name_is_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small(tmp_path / "run.duckdb", name="../my run/2 (bf16)")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plot", "--db", str(path)]) == 0
    assert capsys.readouterr().out == "my-run-2-bf16.pdf\n"
    assert (tmp_path / "my-run-2-bf16.pdf").read_bytes().startswith(b"%PDF")


def test_command_says_what_the_plot_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [gpu_row(util_pct=5), gpu_row(util_pct=6)]
    frames = [arrived(seq, rows) for seq in range(1, 31)]
    other: list[Event] = [introduced("n2"), *(arrived(seq, rows, node="n2") for seq in range(1, 4))]
    warnings = [
        EventLogged(T0 + at, kind, WARNING, "", "n1") for at in range(5, 8) for kind in ("late", "stale")
    ]
    warnings.append(EventLogged(T0 + 9, "late", WARNING, "", "n1"))
    record(tmp_path / "run.duckdb", [introduced(), *session("train", 0, 30), *frames, *other, *warnings])
    assert cli.main(["plot", "train", "-o", "x.svg"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "x.svg\n"
    assert printed.err.splitlines() == [
        "gswarm-tui: train is partial: 1 of 2 nodes cover all of it; n2 covers 6.7 % (hatched).",
    ]
    assert {"late", "× 4", "stale", "× 3"} <= set(svg_texts((tmp_path / "x.svg").read_bytes()))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--metric", "utl"], 'unknown metric "utl"; perhaps you meant util.'),
        (["--metric", "zzzz"], 'unknown metric "zzzz"; choose from util, memutil, mem,'),
        (["--metric", "power"], "has no samples of power; gswarm-tui sql 'FROM event_log'"),
        (["--metric", "util,power,diskr"], "has no samples of power, diskr; gswarm-tui sql 'FROM event_log'"),
        (["--heatmap", "reasons"], "reasons is a set of reasons; draw the shares of time thrpower, thrtherm"),
        (["--curve", "energy"], "energy is a counter, which plots don't draw; gswarm-tui sql"),
        (["--value", "loss"], 'no mark of "train" has a value "loss"; there are none.'),
        (["-o", "x.gif"], 'x.gif has the suffix ".gif"; name a .pdf, .png or .svg file.'),
        (["-o", "plot"], "plot has no suffix; name a .pdf, .png or .svg file."),
        (["-o", "/nowhere/x.pdf"], "no folder /nowhere; create it, or name another one with -o."),
        (["evaluation"], 'has no session "evaluation"'),
    ],
)
def test_plot_mistake_prints_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    path = small(tmp_path / "run.duckdb")
    assert cli.main(["plot", "--db", str(path), *words]) == 2
    assert sentence in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["run.duckdb"]


def test_session_without_data_prints_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    frames = [arrived(seq, [gpu_row(util_pct=5), None]) for seq in range(1, 11)]
    events = [*session("empty", 5, 5), *session("later", 50, 60)]
    record(path, [introduced(), *frames, *events])
    with pytest.raises(UserError, match=r'^"empty" has no data: it ended when it began\.$'):
        material(path, "empty")
    with pytest.raises(UserError, match=r'^"later" in .*run\.duckdb has no samples of util; gswarm-tui sql'):
        material(path, "later")


def test_running_session_is_drawn_as_of_now(tmp_path: Path) -> None:
    recorder = FileWriter(tmp_path / "run.duckdb", WHAT, lambda _status: None)
    recorder.open()
    try:
        frames = [arrived(seq, [gpu_row(util_pct=5), None]) for seq in range(1, 31)]
        recorder.submit([introduced(), *session("train", 0, None), *frames])
        deadline = time.monotonic() + 30
        while recorder.status().waiting and time.monotonic() < deadline:
            time.sleep(0.02)
        with closing(recorder.queries()) as source:
            made = load_plot_data(source, periods.find_period(source), choose_metrics(["util"]))
    finally:
        recorder.close(None)
    assert made.running
    assert any("30 s so far" in text for text in svg_texts(drawn(made, "svg")))
    assert any("30 s, interrupted" in text for text in svg_texts(drawn(material(recorder.path), "svg")))
