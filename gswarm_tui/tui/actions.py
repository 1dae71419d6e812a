"""Table of all actions: key bindings, footer, help and the command palette are made from it.

Textual looks for an action with ``screens`` on the screen, for any other on the app.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME

FLEET, NODE, GPU, SESSIONS, EVENTS = "fleet", "node", "gpu", "sessions", "events"
SQL, SESSION, COMPARISON = "sql", "session", "comparison"
SCREENS = (FLEET, NODE, GPU, SESSIONS, EVENTS, SQL, SESSION, COMPARISON)
_WITH_WIDE_TABLE = (SQL, SESSION, COMPARISON)

LIVE, PAST, REPLAY, QUERY = "live", "past", "replay", "query"
MODES = (LIVE, PAST, REPLAY, QUERY)
"""The live fleet, its past while recording continues, a finished recording, or only a SQL screen."""
_OF_A_FLEET = (LIVE, PAST, REPLAY)
_PLAYED = (PAST, REPLAY)
_RECORDED = (LIVE, PAST)

MOVING, VIEWING, PLAYBACK = "Moving", "View", "Playback"
RECORDING, PROGRAM = "Sessions", "Program"
GROUPS = (VIEWING, MOVING, PLAYBACK, RECORDING, PROGRAM)

QUICK_METRICS = (
    ("1", "util_pct"),
    ("2", "mem_used_mib"),
    ("3", "power_w"),
    ("4", "temp_c"),
    ("5", "sm_clock_mhz"),
    ("6", "mem_util_pct"),
    ("7", "nvlink_tx_mb_s"),
    ("8", "pcie_rx_mb_s"),
    ("9", "clock_reasons"),
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
        label: Word for the footer.
        help: Verb and object, for the help and the palette.
        group: Heading in the help.
        screens: Screens that have it; empty for all.
        footer: Position in the footer; 0 leaves it out.
        shown: Keys as the footer prints them, where that differs.
        palette: Whether the palette lists it.
        modes: Modes that have it; empty for all.
        priority: Whether it also works in dialogs.
    """

    name: str
    keys: tuple[str, ...]
    label: str
    help: str
    group: str
    screens: tuple[str, ...] = ()
    footer: int = 0
    shown: str = ""
    palette: bool = True
    modes: tuple[str, ...] = ()
    priority: bool = False

    @property
    def keys_shown(self) -> str:
        """All keys as the screen prints them."""
        return " ".join(key_name(key) for key in self.keys)


def _move(where: str, keys: tuple[str, ...], label: str, text: str, screens: tuple[str, ...]) -> Action:
    return Action(f"move('{where}')", keys, label, text, MOVING, screens, palette=False)


ACTIONS: tuple[Action, ...] = (
    # Moving
    _move("up", ("up", "k"), "up", "Go up one row", SCREENS),
    _move("down", ("down", "j"), "down", "Go down one row", SCREENS),
    _move("left", ("left", "h"), "left", "Go one GPU left", (FLEET,)),
    _move("right", ("right", "l"), "right", "Go one GPU right", (FLEET,)),
    _move("page_up", ("pageup",), "page up", "Go up one page", SCREENS),
    _move("page_down", ("pagedown",), "page down", "Go down one page", SCREENS),
    _move("first", ("home", "g"), "first", "Go to first row", SCREENS),
    _move("last", ("end", "G"), "last", "Go to last row", SCREENS),
    Action("move('left')", ("left", "h"), "GPU", "Show previous GPU", MOVING, (GPU,)),
    Action("move('right')", ("right", "l"), "GPU", "Show next GPU", MOVING, (GPU,), 58, "← →"),
    Action("move('left')", ("left", "h"), "metric", "Show previous metric", VIEWING, (NODE,)),
    Action("move('right')", ("right", "l"), "metric", "Show next metric", VIEWING, (NODE,), 58, "← →"),
    _move("left", ("left", "h"), "columns", "Scroll left", _WITH_WIDE_TABLE),
    _move("right", ("right", "l"), "columns", "Scroll right", _WITH_WIDE_TABLE),
    Action("next_trouble", ("n",), "next problem", "Go to next node not live", MOVING, (FLEET,)),
    Action("drop_filter", ("escape",), "all", "Clear filter", MOVING, (FLEET,)),
    Action("open", ("enter",), "open", "Open selection", MOVING, (FLEET, NODE), 5, "⏎"),
    Action("open", ("enter",), "go there", "Go to event's time", MOVING, (EVENTS,), 8, "⏎"),
    Action("open", ("enter",), "open", "Open session", MOVING, (SESSIONS,), 8, "⏎"),
    Action("open", ("enter",), "go there", "Go to session start or event", MOVING, (SESSION,), 8, "⏎"),
    Action(
        "back",
        ("escape",),
        "back",
        "Go back",
        MOVING,
        (NODE, GPU, SESSIONS, EVENTS, SESSION, COMPARISON),
        5,
        "esc",
    ),
    Action(
        "back", ("escape",), "back", "Cancel query, else go back", MOVING, (SQL,), 5, "esc", modes=_OF_A_FLEET
    ),
    Action("back", ("escape",), "cancel", "Cancel query", MOVING, (SQL,), 12, "esc", modes=(QUERY,)),
    Action("fleet", ("f",), "fleet", "Show fleet", MOVING, modes=_OF_A_FLEET),
    Action("sessions", ("S",), "sessions", "Show sessions", MOVING, (), 60, modes=_OF_A_FLEET),
    Action("events", ("e",), "events", "Show events", MOVING, (), 62, modes=_OF_A_FLEET),
    Action("sql", ("Q",), "SQL", "Query recording with SQL", MOVING, (), 63, modes=_OF_A_FLEET),
    # View
    Action("step_metric(-1)", ("left_square_bracket",), "metric", "Show previous metric", VIEWING, (FLEET,)),
    Action(
        "step_metric(1)",
        ("right_square_bracket",),
        "metric",
        "Show next metric",
        VIEWING,
        (FLEET,),
        40,
        "[ ]",
    ),
    Action("pick_metric", ("m",), "pick metric", "Choose metric from list", VIEWING, (FLEET, NODE)),
    *(
        Action(
            f"metric('{name}')", (key,), name, f"Show {_label(name)}", VIEWING, (FLEET, NODE), palette=False
        )
        for key, name in QUICK_METRICS
    ),
    Action("filter", ("slash",), "filter", "Filter: util<5 & power>300", VIEWING, (FLEET,), 50),
    Action("order", ("o",), "sort", "Sort by name, state, metric", VIEWING, (FLEET,), 61),
    Action("zoom", ("z",), "zoom", "Change size of GPUs", VIEWING, (FLEET,)),
    Action("step_view(1)", ("tab",), "view", "Show next view", VIEWING, (NODE, GPU, SESSION), 56),
    Action("step_view(-1)", ("shift+tab",), "view", "Show previous view", VIEWING, (NODE, GPU, SESSION)),
    Action("step_span", ("z",), "time", "Change plotted time", VIEWING, (NODE, GPU), 57),
    Action("filter", ("slash",), "filter", "Filter events by text", VIEWING, (EVENTS,), 50),
    Action("severity", ("v",), "severity", "Filter events by severity", VIEWING, (EVENTS,), 55),
    Action("run_query", ("ctrl+r", "f5"), "run", "Run query (⏎ after ; also runs)", VIEWING, (SQL,), 8),
    Action("recipes", ("ctrl+o", "f2"), "recipes", "Show example queries", VIEWING, (SQL,), 9),
    Action(
        "step_focus",
        ("tab", "shift+tab"),
        "editor/result",
        "Switch between editor and result",
        VIEWING,
        (SQL,),
        10,
    ),
    Action("open", ("enter",), "whole row", "Show whole row, run example", VIEWING, (SQL,), 11, "⏎"),
    Action("theme", ("t",), "theme", "Switch theme", VIEWING),
    Action("redraw", ("ctrl+l",), "redraw", "Redraw screen", VIEWING, priority=True),
    # Playback
    Action(
        "play",
        ("space",),
        "look back",
        "Look back while recording continues",
        PLAYBACK,
        (),
        64,
        modes=(LIVE,),
    ),
    Action("play", ("space",), "play/pause", "Play or pause", PLAYBACK, (), 6, modes=_PLAYED),
    Action("return_to_now", ("N",), "now", "Return to now", PLAYBACK, (), 7, modes=(PAST,)),
    Action("step(-1)", ("comma",), "step", "Step back one interval", PLAYBACK, (), 30, ", .", modes=_PLAYED),
    Action("step(1)", ("full_stop",), "step", "Step forward one interval", PLAYBACK, modes=_PLAYED),
    Action("skip(-10)", ("less_than_sign",), "10 s", "Go back 10 s", PLAYBACK, (), 32, "< >", modes=_PLAYED),
    Action("skip(10)", ("greater_than_sign",), "10 s", "Go forward 10 s", PLAYBACK, modes=_PLAYED),
    Action("jump(-1)", ("b",), "event", "Go to previous event", PLAYBACK, (), 34, "b w", modes=_PLAYED),
    Action("jump(1)", ("w",), "event", "Go to next event", PLAYBACK, modes=_PLAYED),
    Action("go_to", ("T",), "go to", "Look back to a time", PLAYBACK, modes=(LIVE,)),
    Action("go_to", ("T",), "go to", "Go to a time", PLAYBACK, (), 36, modes=_PLAYED),
    Action("speed(-1)", ("minus",), "speed", "Play slower", PLAYBACK, (), 38, "- +", modes=_PLAYED),
    Action("speed(1)", ("plus",), "speed", "Play faster", PLAYBACK, modes=_PLAYED),
    # Sessions
    Action("start_session", ("s",), "start", "Start session", RECORDING, (), 10, modes=_RECORDED),
    Action("stop_session", ("x",), "stop", "Stop session", RECORDING, (), 20, modes=(LIVE,)),
    Action("rename", ("r",), "rename", "Rename session", RECORDING, (SESSIONS,), 26, modes=(LIVE,)),
    Action("note", ("n",), "note", "Edit session's note", RECORDING, (SESSIONS,), 27, modes=(LIVE,)),
    Action("pick", ("p",), "pick", "Pick session for comparison", RECORDING, (SESSIONS,), 22),
    Action("compare", ("c",), "compare", "Compare picked sessions", RECORDING, (SESSIONS,), 24),
    Action("compare", ("c",), "compare", "Compare with another session", RECORDING, (SESSION,), 9),
    Action("mark", ("M",), "mark", "Mark a moment", RECORDING, (), 66, modes=_RECORDED),
    # Program
    Action("faster", ("plus",), "faster", "Sample more often", PROGRAM, modes=(LIVE,)),
    Action("slower", ("minus",), "slower", "Sample less often", PROGRAM, modes=(LIVE,)),
    Action("command_palette", ("colon", "ctrl+p"), "command", "Find command", PROGRAM, (), 70, palette=False),
    Action("help", ("question_mark", "f1"), "help", "Show keys and signs", PROGRAM, (), 80),
    Action(
        "quit", ("q", "ctrl+q", "ctrl+c"), "quit", "End recording and quit", PROGRAM, (), 90, modes=_RECORDED
    ),
    Action("quit", ("q", "ctrl+q", "ctrl+c"), "quit", "Quit", PROGRAM, (), 90, modes=(REPLAY, QUERY)),
)

_KEY_NAMES = {
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "comma": ",",
    "full_stop": ".",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "plus": "+",
    "minus": "-",
    "enter": "⏎",
    "escape": "esc",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "home": "Home",
    "end": "End",
    "space": "space",
}


_TYPED = {"space", "enter"} | {
    name for name, shown in _KEY_NAMES.items() if not shown[0].isalpha() and len(name) > 3
}


def is_typed(key: str) -> bool:
    """Whether a key types a character."""
    return len(key) == 1 or key in _TYPED


def key_name(key: str) -> str:
    """Return a key as the screen prints it: "/" for "slash", "^q" for "ctrl+q"."""
    return f"^{key[5:]}" if key.startswith("ctrl+") else _KEY_NAMES.get(key, key)


def actions_of(screen: str, mode: str = LIVE) -> list[Action]:
    """Return the actions of a screen, then those that every screen has."""
    possible = [a for a in ACTIONS if not a.modes or mode in a.modes]
    return [a for a in possible if screen in a.screens] + [a for a in possible if not a.screens]


def footer_of(screen: str, mode: str = LIVE) -> list[Action]:
    """Return the actions of a screen's footer, in order."""
    return sorted((a for a in actions_of(screen, mode) if a.footer), key=lambda a: a.footer)


def possible(name: str, mode: str) -> bool:
    """Whether a mode has an action, by its name without arguments; unknown actions count as possible."""
    modes = [a.modes for a in ACTIONS if a.name.partition("(")[0] == name]
    return not modes or any(not one or mode in one for one in modes)


def _bindings(actions: Iterable[Action]) -> list[BindingType]:
    written = {(",".join(a.keys), a.name): a for a in actions}
    return [
        Binding(keys, name, a.label, show=False, priority=a.priority) for (keys, name), a in written.items()
    ]


def bindings_of(screen: str) -> list[BindingType]:
    """Return a screen's key bindings."""
    return _bindings(a for a in ACTIONS if screen in a.screens)


def bindings_everywhere() -> list[BindingType]:
    """Return the app's key bindings."""
    return _bindings(a for a in ACTIONS if not a.screens)
