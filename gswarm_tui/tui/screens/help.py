"""Help: what a screen shows, its keys, the meaning of its words and signs, and the filter language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT
from gswarm_tui.tui.actions import (
    ASK,
    COMPARISON,
    ENTER,
    EVENTS,
    FINDING,
    FINDINGS,
    FLEET,
    GPU,
    GROUPS,
    NODE,
    PAST,
    PROFILE,
    REPLAY,
    RUNS,
    SESSION,
    SESSIONS,
    SQL,
    TRACE,
    actions_of,
)
from gswarm_tui.tui.drawing.spans import Line, Span
from gswarm_tui.tui.drawing.text import wrap
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import Dialog
from gswarm_tui.tui.widgets.lines import Bar

Entries = Sequence[tuple[str, str]]


_BUSY = f"GPUs with a utilisation of {BUSY_FROM_PCT:g} % or more"
_FIGURES: Entries = (
    ("utilisation", "share of time in which any kernel (or copy) ran, over all samples of single GPUs"),
    ("p95", "95 of 100 samples are at or below this"),
    ("busy", f"share of the measured time with a utilisation of {BUSY_FROM_PCT:g} % or more"),
    ("GPU-min", "minutes added up over GPUs: 8 GPUs for one minute are 8 GPU-min"),
    ("bubbles", "idle phases of a GPU between busy ones, as a share of the time from first to last busy one"),
    ("throttled", "share of the measured time with clocks held down, for the longest cause"),
    ("energy", "growth of the GPUs' energy counters, else power × time; of boards, not nodes"),
    ("coverage", "share of the GPU time that samples cover"),
)

WORDS: dict[str, Entries] = {
    FLEET: (
        ("nodes 3/4", "nodes that send fresh data, out of all; n goes to the next finding or lost node"),
        ("busy 30/32", f"{_BUSY}, out of your job's GPUs on live nodes"),
        ("util", "mean utilisation: share of time in which any kernel (or copy) ran"),
        ("kW, kWh", "power of all GPUs now; energy they used since the recording began"),
        ("mem", "GPU memory in use, out of the total; on a node's row, host memory in use"),
        ("lowest util", "the GPU with the lowest utilisation now"),
        ("lag", "delay of the newest sample on the node with the longest delay"),
        ("rec", "time recorded so far, rows in the file and its size"),
        ("rank", "ranks of the job's processes on the node's GPUs"),
        ("last 5 min", "history of the mean over the node's GPUs"),
        ("cpu, iowait", "shares of CPU time: in use; idle while waiting for disks"),
        ("GB/s in/out", "received and sent by the node: InfiniBand if it has any, else network"),
    ),
    NODE: (
        ("GPU util 0 to …", "metric that is plotted below the table, and the ends of its scale"),
        ("every, late", "time between samples; delay of the newest one"),
        ("clock", "how far the node's clock is ahead of this machine's"),
    ),
    GPU: (("mean min max", "mean, minimum and maximum in the plotted time"),),
    FINDINGS: (
        ("gpu04:5 · …", "who, since when, by which numbers, at what cost, and what to do"),
        ("≈ 11 %", "share of the run's GPU time that it has cost so far, at most"),
        ("GPU time", "the job's GPU time by cause; the shares add up to 100 %"),
        ("unexplained", "time without samples, and time that no rule explains"),
    ),
    FINDING: (
        ("≈ 11 %", "share of the run's GPU time that it has cost so far, at most"),
        ("peers", "GPUs of the job in the same slot of other nodes; all where nodes are fewer than four"),
        ("found nothing", "rules that have found nothing so far"),
    ),
    ASK: (
        ("cannot tell", "the step named no rank; the line below says why"),
        ("not asked", "a step before it decided"),
    ),
    SESSIONS: (
        ("util, power", "mean over all GPUs and the session's time"),
        ("energy", "used by all GPUs in the session, from their energy counters"),
        ("partial", "nodes whose samples don't cover the whole session"),
    ),
    EVENTS: (
        ("time", "when it happened; in a line for several events, when the latest did"),
        ("gpu", "index of the GPU on its node, as nvidia-smi counts"),
        ("details", "reason, and what to do about it"),
        ("in 7 lines", "events of one kind and minute share a line; z lists each event"),
        ("within 9 s", "time from the first to the latest event of the line"),
    ),
    SESSION: _FIGURES,
    PROFILE: (
        ("total, share", "time of all calls of this name; share in the total of the view"),
        ("no kernel", "share of the capture in which no kernel of the profile ran on the GPU"),
        ("difference", "longest minus shortest time of the kernel on a rank; ratio of the two"),
    ),
    TRACE: (
        ("compute", "time in which compute kernels ran"),
        ("communication", "time in which collectives ran and nothing computed"),
        ("copy, idle", "time in which only copies ran; time in which nothing ran"),
        ("overlapped", "time in which collectives and compute kernels ran at once"),
        ("for rank", "rank that joined the collective last: the others waited for it"),
    ),
    COMPARISON: (
        ("speed-up", "how many times as fast as the first session, for the same work"),
        ("efficiency", "speed-up divided by the number of GPUs, relative to the first session"),
        ("energy ratio", "energy divided by that of the first session"),
        ("balance", "mean of the GPUs' utilisations divided by the highest of them"),
        *_FIGURES,
    ),
    RUNS: (
        ("name", "session that makes up most of the run, else its job, else its file"),
        ("01:12:40+", "it is still recorded"),
        ("01:12:40?", "its recorder was killed"),
        ("+2", "number of other findings"),
    ),
    SQL: (("rows in 0.1 s", "number of rows, and time that the query took"),),
}

_WITH_NODES = (FLEET, NODE, GPU)
_WITH_PLOTS = (*_WITH_NODES, FINDING)
_WITH_EVENTS = (FLEET, EVENTS, SESSION)
_WITH_FINDINGS = (FLEET, FINDINGS, FINDING)
_WITH_TABLES = (NODE, GPU, SESSIONS, EVENTS, SESSION, COMPARISON, PROFILE, TRACE, RUNS, SQL)
_SIGNS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("–", "not measured: the GPU or its driver doesn't report it; in SQL, NULL", ()),
    ("98", "faint: filtered out, stale or not in your job", (FLEET,)),
    ("● live", "the node sends fresh data", (NODE, GPU)),
    ("… connecting", "no data yet", _WITH_NODES),
    ("≈ stale", "no data for three intervals; the last numbers are faint", _WITH_NODES),
    ("‼ unhealthy", "connected, but no data for half a minute", _WITH_NODES),
    ("╳ lost", "the connection broke: reason, what to do, time of the next attempt", _WITH_NODES),
    ("╳ unreachable", "never connected so far: reason, what to do, next attempt", _WITH_NODES),
    ("■ ended", "the node's agent was stopped", _WITH_NODES),
    ("● ○", "running session, ended session", (SESSIONS, SESSION)),
    ("■", "profile", (SESSIONS,)),
    ("▲", "throttled GPU; beside a node's name: one of its GPUs is throttled", (FLEET, NODE)),
    ("W a i c s", "key c: working, waiting for others, waiting for input, checkpoint, starting", (FLEET,)),
    ("T H . ?", "key c: throttled, hung, idle, unexplained", (FLEET,)),
    ("!", "a GPU that a finding names; beside a node's name: one of its GPUs", (FLEET,)),
    ("╳ ▲ ·", "finding that ends the job, that costs time, that costs nothing", _WITH_FINDINGS),
    ("╳ ● ?", "a rank is behind; all ranks move; no step can tell", (ASK,)),
    ("[▂]", "GPU or node that the finding names, among its peers", (FINDING,)),
    ("▲ ╳", "warning, error", _WITH_EVENTS),
    ("·", "information", (EVENTS,)),
    ("▁▄█", "curve or bar up to the end of the scale; no samples leave a gap", _WITH_PLOTS),
    ("┊ ◆", "mark in a plot; start of the finding", _WITH_PLOTS),
    ("╵−5 min", "how long before now, or before the time shown, at the position of the sign", _WITH_PLOTS),
    ("▸", "row under the cursor", (FLEET, FINDINGS, *_WITH_TABLES)),
    ("▄ █", "scroll bar at the right edge: more rows above or below", _WITH_TABLES),
    ("‹ ›", "more columns on that side; arrows scroll", _WITH_TABLES),
    ("…", "text cut for lack of room; columns and keys that don't fit are left out", ()),
    ("● rec  ○", "recording; not recording", ()),
    ("SIMULATED", "nodes of --demo", ()),
    (f"{ENTER} ^r", "the Enter key; Ctrl and R together", ()),
    ("← → ↑ ↓", "arrow keys", ()),
)
_PLAYED_SIGNS: Entries = (
    ("► ‖ ■", "playing, paused, at the end"),
    ("━ ●", "part played so far; time shown"),
    ("◆ ▲ ╳", "mark, warning and error on the timeline"),
    ("├ ┤", "a session, from its start to its end"),
    ("1×", "speed"),
    ("PAST", "how far back you look while recording continues"),
    ("REPLAY", "time of the recording, speed and file"),
)
FILTERS: Entries = (
    ("util<5", "a metric by its short or full name: < <= > >= = !="),
    ("mem<75", "number in the unit that screens show: GiB"),
    ("gpu03 gpu0*", "nodes by a part of their name or a pattern; gpu03:5 a GPU"),
    ("state:lost", "nodes; also live, stale, unhealthy, unreachable, connecting, ended"),
    ("state:throttled", "throttled GPUs; state: lists all states"),
    ("user:ada", "also node: command: wchan: model: job: nccl:; gpu: rank: with 0-3"),
    ("mine", "GPUs that your job was granted"),
    ("a b  a|b  !a", "and, or, not; parentheses group"),
)

WIDTH, WORD_WIDTH, FRAME = 75, 18, 5
"""Cells of a line on a terminal of 80 columns, of its first column, and of the frame with its scroll bar."""
LEAST_MEANING = 10
"""Cells of a meaning on the narrowest terminal, which cuts the lines."""


def help_lines(screen: type[ViewerScreen], mode: str, cells: int) -> list[Line]:
    """Return what a screen shows (its docstring), its actions, its signs and the filter language."""
    screen_name = screen.SCREEN
    room = max(WORD_WIDTH + LEAST_MEANING, min(WIDTH, cells - FRAME))
    lines: list[Line] = [[Span(line)] for line in wrap(screen.__doc__ or "", room)]
    sections: list[tuple[str, Entries]] = [("On this screen", WORDS[screen_name])]
    for group in GROUPS:
        actions = [action for action in actions_of(screen_name, mode) if action.group == group]
        sections.append((group, [(action.keys_shown, action.help) for action in actions]))
    signs = [(sign, what) for sign, what, screens in _SIGNS if not screens or screen_name in screens]
    sections.append(("Signs", [*signs, *(_PLAYED_SIGNS if mode in (PAST, REPLAY) else ())]))
    if screen_name == FLEET:
        sections.append(("Filter", FILTERS))
    for title, entries in sections:
        if entries:
            lines += [[], [Span(title, "title")]]
        for what, text in entries:
            first, *more = wrap(text, room - WORD_WIDTH)
            lines.append([Span(f"  {what:<{WORD_WIDTH - 2}}", "key"), Span(first)])
            lines += [[Span(" " * WORD_WIDTH + line)] for line in more]
    return lines


class HelpScreen(Dialog[None]):
    """Help for a screen and mode."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,f1,enter,ctrl+c", "cancel")]
    DEFAULT_CSS = "HelpScreen > Vertical { max-width: 100%; max-height: 100%; }"

    def __init__(self, screen: type[ViewerScreen], mode: str) -> None:
        super().__init__(f"help: {screen.SCREEN}")
        self._explained = screen
        self._mode = mode

    def compose(self) -> ComposeResult:
        """Scrollable lines in a frame that names the keys for it."""
        with self.box() as box, VerticalScroll():
            box.border_subtitle = "esc close  ↓ PgDn scroll"
            yield Bar(*help_lines(self._explained, self._mode, self.app.size.width))
