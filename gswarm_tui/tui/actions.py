"""Table of all actions: key bindings, footer, help and the command palette are made from it.

Textual looks for an action with ``screens`` on the screen, for any other on the app.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from textual.binding import Binding, BindingType
from textual.keys import format_key

from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME

FLEET, NODE, GPU, SESSIONS, EVENTS = "fleet", "node", "gpu", "sessions", "events"
SQL, SESSION, COMPARISON, PROFILE = "sql", "session", "comparison", "profile"
TRACE, ASK = "trace", "ask"
FINDINGS, FINDING = "findings", "finding"
RUNS = "runs"
SCREENS = (
    *(FLEET, NODE, GPU, FINDINGS, FINDING, SESSIONS, EVENTS),
    *(SQL, SESSION, COMPARISON, PROFILE, TRACE, ASK, RUNS),
)
_WITH_WIDE_TABLE = (EVENTS, SQL, SESSIONS, SESSION, COMPARISON, PROFILE, RUNS)
_ABOVE_FLEET = tuple(screen for screen in SCREENS if screen not in (FLEET, SQL))
_OTHERS = tuple(screen for screen in SCREENS if screen not in (FINDINGS, FINDING, SQL))
ENTER = "⏎"
_QUIT = ("ctrl+q", "ctrl+c")

LIVE, PAST, REPLAY, QUERY = "live", "past", "replay", "query"
MODES = (LIVE, PAST, REPLAY, QUERY)
"""The live fleet, its past while recording continues, a finished recording, or only a SQL screen."""
_OF_A_FLEET = (LIVE, PAST, REPLAY)
_PLAYED = (PAST, REPLAY)
_RECORDED = (LIVE, PAST)

_CHANGES = (
    "start_session stop_session undo_stop rename note mark sample_every switch_metrics trace "
    "dismiss_finding ask_job ask_steps force_step"
)
_CHANGING = frozenset(_CHANGES.split())

MOVING, VIEWING, PLAYBACK = "Moving", "View", "Playback"
RECORDING, PROGRAM = "Sessions", "Program"
GROUPS = (VIEWING, MOVING, PLAYBACK, RECORDING, PROGRAM)

QUICK_METRICS = (
    *(("1", "util_pct"), ("2", "mem_used_mib"), ("3", "power_w"), ("4", "temp_c"), ("5", "sm_clock_mhz")),
    *(("6", "mem_util_pct"), ("7", "nvlink_tx_mb_s"), ("8", "pcie_rx_mb_s"), ("9", "clock_reasons")),
    ("0", "cpu_pct"),
)


def _label(metric: str) -> str:
    return GPU_BY_NAME[metric].label if metric in GPU_BY_NAME else f"node {HOST_BY_NAME[metric].label}"


@dataclass(frozen=True)
class Action:
    """A command of the user, with its keys and texts.

    Args:
        name: Textual's name of the action, with its arguments.
        keys: Keys that run it, by Textual's names.
        help: Verb and object, for the help and the palette.
        group: Heading in the help.
        screens: Screens that have it; empty for all.
        footer: Position in the footer; 0 leaves it out.
        label: Word for the footer.
        shown: Keys as the footer prints them, where that differs.
        modes: Modes that have it; empty for all.
        palette: Whether the palette lists it.
        priority: Whether it also works in dialogs.
        words: Other words for it, by which the palette finds it.
        in_sql: Whether an action of all screens works on the SQL screen, where keys type a query.
    """

    name: str
    keys: tuple[str, ...]
    help: str
    group: str
    screens: tuple[str, ...] = ()
    footer: int = 0
    label: str = ""
    shown: str = ""
    modes: tuple[str, ...] = ()
    palette: bool = True
    priority: bool = False
    words: str = ""
    in_sql: bool = False

    @property
    def needs_recording(self) -> bool:
        """Whether it does nothing while nothing is recorded."""
        return self.group in (PLAYBACK, RECORDING) or self.name in ("sessions", "sql")

    @property
    def changes(self) -> bool:
        """Whether it changes the recording or writes files, which a read-only screen refuses."""
        return self.name in _CHANGING

    @property
    def keys_shown(self) -> str:
        """All keys as the screen prints them."""
        return " ".join(key_name(key) for key in self.keys)


def _move(where: str, keys: tuple[str, ...], text: str, screens: tuple[str, ...]) -> Action:
    return Action(f"move('{where}')", keys, text, MOVING, screens, palette=False)


def _moves(where: str, keys: tuple[str, ...], text: str, screens: tuple[str, ...]) -> tuple[Action, Action]:
    """Return a movement on screens; on the SQL screen letters type a query."""
    rest = tuple(screen for screen in screens if screen != SQL)
    return _move(where, keys, text, rest), _move(where, keys[:1], text, (SQL,))


# A table that is read by action, so arguments share lines.
# fmt: off
ACTIONS: tuple[Action, ...] = (
    # Moving
    *_moves("up", ("up", "k"), "Go up one row", SCREENS),
    *_moves("down", ("down", "j"), "Go down one row", SCREENS),
    _move("left", ("left", "h"), "Go one GPU left", (FLEET,)),
    _move("right", ("right", "l"), "Go one GPU right", (FLEET,)),
    _move("page_up", ("pageup",), "Go up one page", SCREENS),
    _move("page_down", ("pagedown",), "Go down one page", SCREENS),
    *_moves("first", ("home", "g"), "Go to first row", SCREENS),
    *_moves("last", ("end", "G"), "Go to last row", SCREENS),
    Action("move('left')", ("left", "h"), "Show previous GPU", MOVING, (GPU,)),
    Action("move('right')", ("right", "l"), "Show next GPU", MOVING, (GPU,), 58, "GPU", "← →"),
    Action("move('left')", ("left", "h"), "Show previous metric", VIEWING, (NODE,)),
    Action("move('right')", ("right", "l"), "Show next metric", VIEWING, (NODE,), 58, "metric", "← →"),
    *_moves("left", ("left", "h"), "Scroll left", _WITH_WIDE_TABLE),
    *_moves("right", ("right", "l"), "Scroll right", _WITH_WIDE_TABLE),
    Action("next_match", ("n",), "Go to next match, finding or lost node", MOVING, (FLEET,),
           words="problem down dead silent"),
    Action("drop_filter", ("escape",), "Clear filter", MOVING, (FLEET,), words="reset all search"),
    Action("open", ("enter",), "Open selection", MOVING, (FLEET, NODE), 5, "open", words="details node"),
    Action("open", ("enter",), "Open finding", MOVING, (FINDINGS,), 8, "open"),
    Action("open", ("enter",), "Go to its GPU or node, and time", MOVING, (FINDING,), 8, "go there"),
    Action("open", ("enter",), "Go to event's time", MOVING, (EVENTS,), 8, "go there"),
    Action("open", ("enter",), "Open session or profile", MOVING, (SESSIONS,), 8, "open"),
    Action("open", ("enter",), "Go to session start or event", MOVING, (SESSION,), 8, "go there"),
    Action("open", ("enter",), "Open run, or show its command", MOVING, (RUNS,), 8, "open"),
    Action("open", ("enter",), "Ask step by step, or open the answer", MOVING, (ASK,), 8, "ask or open"),
    Action("back", ("escape", "q"), "Go back", MOVING, _ABOVE_FLEET, 5, "back"),
    Action("back", ("escape",), "Cancel query, else go back", MOVING, (SQL,), 5, "back", modes=_OF_A_FLEET),
    Action("back", ("escape",), "Cancel query", MOVING, (SQL,), 12, "cancel", modes=(QUERY,)),
    Action("fleet", ("f",), "Show fleet", MOVING, modes=_OF_A_FLEET, words="heatmap overview home start"),
    Action("findings", ("exclamation_mark",), "Show findings", MOVING, (), 59, "findings", modes=_OF_A_FLEET,
           words="why slow problem diagnose culprit ledger outliers worst"),
    Action("sessions", ("S",), "Show sessions", MOVING, (), 60, "sessions", modes=_OF_A_FLEET,
           words="list runs intervals summary plot report export"),
    Action("events", ("e",), "Show events", MOVING, (), 62, "events", modes=_OF_A_FLEET, words="log errors"),
    Action("sql", ("Q",), "Query recording with SQL", MOVING, (), 63, "SQL", modes=_OF_A_FLEET),
    Action("runs", ("R",), "Show all your runs", MOVING, modes=_OF_A_FLEET, words="list recordings former"),
    # View
    Action("step_metric(-1)", ("left_square_bracket",), "Show previous metric", VIEWING, (FLEET,)),
    Action("step_metric(1)", ("right_square_bracket",), "Show next metric", VIEWING, (FLEET,), 40,
           "metric", "[ ]"),
    Action("pick_metric", ("m",), "Choose metric from list", VIEWING, (FLEET, NODE), words="colour"),
    *(Action(f"metric('{name}')", (key,), f"Show {_label(name)}", VIEWING, (FLEET, NODE), palette=False)
      for key, name in QUICK_METRICS),
    Action("filter", ("slash",), "Filter: util<5 & power>300", VIEWING, (FLEET,), 50, "filter",
           words="search find grep idle nodes"),
    Action("order", ("o",), "Sort by name, state, rank, metric", VIEWING, (FLEET,), 65, "sort"),
    Action("colour_causes", ("c",), "Colour by cause of time", VIEWING, (FLEET,), words="ledger waiting"),
    Action("expand", ("z",), "List all findings, or the first", VIEWING, (FINDINGS,), 56, "all"),
    Action("dismiss_finding", ("d",), "Dismiss finding, or undo that", VIEWING, (FINDINGS, FINDING), 55,
           "dismiss"),
    Action("zoom", ("z",), "Change size of GPUs", VIEWING, (FLEET,), words="zoom bigger smaller larger"),
    Action("step_view(1)", ("tab",), "Show next view", VIEWING, (NODE, GPU, SESSION, PROFILE, TRACE), 56,
           "view"),
    Action("step_view(-1)", ("shift+tab",), "Show previous view", VIEWING,
           (NODE, GPU, SESSION, PROFILE, TRACE)),
    Action("step_span", ("z",), "Change plotted time", VIEWING, (NODE, GPU), 57, "time", words="range zoom"),
    Action("filter", ("slash",), "Filter events by text", VIEWING, (EVENTS,), 50, "filter", words="search"),
    Action("severity", ("v",), "Filter events by severity", VIEWING, (EVENTS,), 55, "severity"),
    Action("group", ("z",), "Group or list single events", VIEWING, (EVENTS,), 56, "group", words="expand"),
    Action("run_query", ("ctrl+r", "f5"), f"Run query ({ENTER} after ; also runs)", VIEWING, (SQL,), 8,
           "run"),
    Action("recipes", ("ctrl+o", "f2"), "Show example queries", VIEWING, (SQL,), 9, "recipes"),
    Action("undo", ("ctrl+z",), "Undo change of query", VIEWING, (SQL,), words="restore revert"),
    Action("step_focus", ("tab", "shift+tab"), "Switch between editor and result", VIEWING, (SQL,), 10,
           "editor/result"),
    Action("open", ("enter",), "Show whole row, run example", VIEWING, (SQL,), 11, "whole row"),
    Action("suspend_process", ("ctrl+z",), "Suspend; fg in the shell continues", VIEWING, words="background"),
    Action("theme", ("t",), "Switch theme", VIEWING, words="colours colors dark light contrast"),
    Action("redraw", ("ctrl+l",), "Redraw screen", VIEWING, priority=True, in_sql=True, words="refresh"),
    # Playback
    Action("play", ("space",), "Look back while recording continues", PLAYBACK, (), 64, "look back",
           modes=(LIVE,), words="pause freeze rewind history past replay stop"),
    Action("play", ("space",), "Play or pause", PLAYBACK, (), 6, "play/pause", modes=_PLAYED, words="stop"),
    Action("return_to_now", ("N",), "Return to now", PLAYBACK, (), 7, "now", modes=(PAST,), words="live"),
    Action("step(-1)", ("comma",), "Step back one interval", PLAYBACK, (), 30, "step", ", .", modes=_PLAYED),
    Action("step(1)", ("full_stop",), "Step forward one interval", PLAYBACK, modes=_PLAYED),
    Action("skip(-10)", ("less_than_sign",), "Go back 10 s", PLAYBACK, (), 32, "10 s", "< >", modes=_PLAYED),
    Action("skip(10)", ("greater_than_sign",), "Go forward 10 s", PLAYBACK, modes=_PLAYED),
    Action("jump(-1)", ("b",), "Go to previous event", PLAYBACK, (), 34, "event", "b w", modes=_PLAYED),
    Action("jump(1)", ("w",), "Go to next event", PLAYBACK, modes=_PLAYED),
    Action("go_to", ("T",), "Look back to a time", PLAYBACK, modes=(LIVE,), words="seek jump history past"),
    Action("go_to", ("T",), "Go to a time", PLAYBACK, (), 36, "go to", modes=_PLAYED, words="seek jump"),
    Action("speed(-1)", ("minus",), "Play slower", PLAYBACK, (), 38, "speed", "- +", modes=_PLAYED),
    Action("speed(1)", ("plus",), "Play faster", PLAYBACK, modes=_PLAYED),
    # Sessions
    Action("start_session", ("s",), "Start session", RECORDING, (), 10, "start", modes=(LIVE,), words="new"),
    Action("start_session", ("s",), "Start session at time shown", RECORDING, (), 10, "start", modes=(PAST,)),
    Action("start_session", ("s",), "Name interval as session", RECORDING, (), 10, "session",
           modes=(REPLAY,)),
    Action("stop_session", ("x",), "Stop session", RECORDING, (), 20, "stop", modes=(LIVE,), words="end"),
    Action("undo_stop", ("u",), "Undo stop within 10 s", RECORDING, modes=_RECORDED, words="revert"),
    Action("rename", ("r",), "Rename session", RECORDING, (SESSIONS,), 26, "rename", modes=(LIVE, REPLAY)),
    Action("note", ("n",), "Edit session's note", RECORDING, (SESSIONS,), 27, "note", modes=(LIVE, REPLAY)),
    *(Action("compare", ("c",), "Compare with another session", RECORDING, screens, footer, "compare",
             words="diff") for screens, footer in (((SESSIONS,), 24), ((SESSION,), 9))),
    Action("mark", ("M",), "Mark a moment", RECORDING, (), 66, "mark", modes=_RECORDED, words="note epoch"),
    Action("trace", ("K",), "Trace PyTorch ranks", RECORDING, modes=_RECORDED, words="kineto profiler"),
    *(Action("ask_job", ("A",), "Ask the job which rank is behind", RECORDING, screens, footer, "ask job",
             modes=(LIVE,), words="who rank hang stuck stacks ras")
      for screens, footer in (((FINDINGS, FINDING), 9), (_OTHERS, 0))),
    Action("ask_steps('')", ("a",), "Ask again, step by step", RECORDING, (ASK,), 9, "again", modes=(LIVE,)),
    *(Action(f"ask_steps('{number}')", (number,), f"Ask by step {number} only", RECORDING, (ASK,),
             9 if number == "1" else 0, "one step", "1-5", (LIVE,), palette=False) for number in "12345"),
    Action("force_step", ("F",), "Ask NCCL before 2.29.2, too", RECORDING, (ASK,), 9, "force",
           modes=(LIVE,)),
    # Program
    Action("sample_every", ("i",), "Change sampling interval", PROGRAM, modes=(LIVE,), words="rate hz"),
    Action("switch_metrics", ("I",), "Switch metric groups", PROGRAM, modes=(LIVE,), words="counters cost"),
    Action("detach", ("D",), "Leave screen, keep recording", PROGRAM, modes=_RECORDED, words="background"),
    Action("command_palette", ("colon", "ctrl+p"), "Find command", PROGRAM, (), 70, "command", palette=False),
    Action("help", ("question_mark", "f1"), "Show keys and signs", PROGRAM, (), 80, "help", in_sql=True),
    *(
        Action("quit", keys, text, PROGRAM, screens, 90, "quit", modes=modes, words="exit close leave stop")
        for text, modes in (("Quit; ends recording unless attached", _RECORDED), ("Quit", (REPLAY, QUERY)))
        for keys, screens in ((("q", *_QUIT), (FLEET,)), (_QUIT, (*_ABOVE_FLEET, SQL)))
    ),
)
# fmt: on

_WRONG_MODE = {
    LIVE: "works only while looking back; space looks back",
    PAST: "doesn't work while looking back; N returns to now",
    REPLAY: "works only while recording",
    QUERY: "works only on the other screens",
}
"""Why an action of other modes has no effect in a mode."""

_KEY_NAMES = {"enter": ENTER, "pageup": "PgUp", "pagedown": "PgDn", "home": "Home", "end": "End"}


def key_name(key: str) -> str:
    """Return a key as the screen prints it: "/" for "slash", "^q" for "ctrl+q"."""
    return f"^{key[5:]}" if key.startswith("ctrl+") else _KEY_NAMES.get(key) or format_key(key)


def is_typed(key: str) -> bool:
    """Whether a key types a character."""
    return key in ("space", "enter") or len(key_name(key)) == 1


def actions_of(screen: str, mode: str = LIVE) -> list[Action]:
    """Return the actions of a screen, then those that every screen has."""
    possible = [a for a in ACTIONS if not a.modes or mode in a.modes]
    common = [a for a in possible if not a.screens and (a.in_sql or screen != SQL)]
    return [a for a in possible if screen in a.screens] + common


@functools.cache
def possible(name: str, mode: str, screen: str, read_only: bool) -> bool:
    """Whether a screen has an action in a mode, by its name without arguments; unknown ones are possible.

    A ``read_only`` screen has no actions that change the recording or write files.
    """
    named = [a for a in ACTIONS if a.name.partition("(")[0] == name]
    here = [a for a in actions_of(screen, mode) if a in named and not (read_only and a.changes)]
    return bool(here) or not named


def reason_for_no_effect(key: str, screen: str, mode: str, *, read_only: bool) -> str:
    """Return why a key of the table does nothing here and now, empty for a key that isn't in the table."""
    having = [a for a in ACTIONS if key in a.keys]
    here = [a for a in having if not a.screens or screen in a.screens]
    if not having:
        return ""
    if not here:
        names = [name for name in SCREENS if any(name in a.screens for a in having)]
        return f"{key_name(key)} works only on: {', '.join(names)}"
    if read_only and any(a.changes for a in here):
        return "this screen is read-only: it shows the recording and changes nothing"
    why = "doesn't work on the SQL screen" if screen == SQL else _WRONG_MODE[mode]
    return f"{key_name(key)} {why}"


def bindings_of(screen: str = "") -> list[BindingType]:
    """Return a screen's key bindings, without a name those of the app."""
    actions = [a for a in ACTIONS if (screen in a.screens if screen else not a.screens)]
    written = {(",".join(a.keys), a.name): a for a in actions}
    return [
        Binding(keys, name, a.help, show=False, priority=a.priority) for (keys, name), a in written.items()
    ]
