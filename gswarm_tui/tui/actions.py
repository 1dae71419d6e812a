"""Everything a person can do, once: key bindings, footer, help and the command palette are made from here.

An action is run by its ``name`` as Textual resolves it: on the screen for those with ``places``, on the app
for those without.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME

FLEET, NODE, GPU, SESSIONS, EVENTS = "fleet", "node", "gpu", "sessions", "events"
SQL, SESSION, COMPARISON = "sql", "session", "comparison"
PLACES = (FLEET, NODE, GPU, SESSIONS, EVENTS, SQL, SESSION, COMPARISON)
_SHEETS = (SQL, SESSION, COMPARISON)

LIVE, PAST, REPLAY = "live", "past", "replay"
MODES = (LIVE, PAST, REPLAY)
"""The modes: what nodes do now, what they did while the recording goes on, a recording that has ended."""

MOVING, LOOKING, PLAYBACK = "Moving", "Looking", "Playback"
RECORDING, PROGRAM = "Sessions", "Program"
GROUPS = (LOOKING, MOVING, PLAYBACK, RECORDING, PROGRAM)

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
    """One thing to do: the keys that do it, a word for the footer and a sentence for help and palette.

    ``places`` empty means everywhere, ``modes`` empty always. ``footer`` orders the footer's entries, 0
    leaves it out. ``shown`` is how the keys are written, where that isn't the keys themselves. ``palette`` is
    False for what only makes sense as a key. ``first`` ones work in questions, too.
    """

    name: str
    keys: tuple[str, ...]
    label: str
    help: str
    group: str
    places: tuple[str, ...] = ()
    footer: int = 0
    shown: str = ""
    palette: bool = True
    modes: tuple[str, ...] = ()
    first: bool = False

    @property
    def keys_shown(self) -> str:
        """All of its keys as they are written on screen."""
        return " ".join(key_name(key) for key in self.keys)


_PLAYED = (PAST, REPLAY)
_RECORDED = (LIVE, PAST)

ACTIONS: tuple[Action, ...] = (
    # Moving
    Action("move('up')", ("up", "k"), "up", "Go a row up", MOVING, PLACES, palette=False),
    Action("move('down')", ("down", "j"), "down", "Go a row down", MOVING, PLACES, palette=False),
    Action("move('left')", ("left", "h"), "left", "Go a GPU to the left", MOVING, (FLEET,), palette=False),
    Action(
        "move('right')", ("right", "l"), "right", "Go a GPU to the right", MOVING, (FLEET,), palette=False
    ),
    Action("move('page_up')", ("pageup",), "page up", "Go a page up", MOVING, PLACES, palette=False),
    Action("move('page_down')", ("pagedown",), "page down", "Go a page down", MOVING, PLACES, palette=False),
    Action("move('first')", ("home", "g"), "first", "Go to the first row", MOVING, PLACES, palette=False),
    Action("move('last')", ("end", "G"), "last", "Go to the last row", MOVING, PLACES, palette=False),
    Action("move('left')", ("left", "h"), "GPU", "Go to the GPU before", MOVING, (GPU,)),
    Action("move('right')", ("right", "l"), "GPU", "Go to the next GPU", MOVING, (GPU,), 58, "← →"),
    Action("move('left')", ("left", "h"), "metric", "Show the metric before", LOOKING, (NODE,)),
    Action("move('right')", ("right", "l"), "metric", "Show the next metric", LOOKING, (NODE,), 58, "← →"),
    Action(
        "move('left')",
        ("left", "h"),
        "columns",
        "Show the columns at the left",
        MOVING,
        _SHEETS,
        palette=False,
    ),
    Action(
        "move('right')",
        ("right", "l"),
        "columns",
        "Show the columns at the right",
        MOVING,
        _SHEETS,
        palette=False,
    ),
    Action("next_trouble", ("n",), "next trouble", "Go to the next node that isn't live", MOVING, (FLEET,)),
    Action("drop_filter", ("escape",), "all", "Drop the filter, show all nodes", MOVING, (FLEET,)),
    Action("open", ("enter",), "open", "Open what is under the cursor", MOVING, (FLEET, NODE), 5, "⏎"),
    Action("open", ("enter",), "go there", "Go to the time of the event", MOVING, (EVENTS,), 8, "⏎"),
    Action("open", ("enter",), "open", "Open the session", MOVING, (SESSIONS,), 8, "⏎"),
    Action("open", ("enter",), "go there", "Go to its start, or to the event", MOVING, (SESSION,), 8, "⏎"),
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
    Action("back", ("escape",), "back", "Cancel what is asked, else go back", MOVING, (SQL,), 5, "esc"),
    Action("fleet", ("f",), "fleet", "Go to the fleet", MOVING),
    Action("sessions", ("S",), "sessions", "Go to the sessions", MOVING, (), 60),
    Action("events", ("e",), "events", "Go to the events", MOVING, (), 62),
    Action("sql", ("Q",), "SQL", "Ask the recording in SQL", MOVING, (), 63),
    # Looking
    Action(
        "step_metric(-1)", ("left_square_bracket",), "metric", "Show the metric before", LOOKING, (FLEET,)
    ),
    Action(
        "step_metric(1)",
        ("right_square_bracket",),
        "metric",
        "Show the next metric",
        LOOKING,
        (FLEET,),
        40,
        "[ ]",
    ),
    Action("pick_metric", ("m",), "pick metric", "Choose the metric from a list", LOOKING, (FLEET, NODE)),
    *(
        Action(
            f"metric('{name}')", (key,), name, f"Show {_label(name)}", LOOKING, (FLEET, NODE), palette=False
        )
        for key, name in QUICK_METRICS
    ),
    Action(
        "filter",
        ("slash",),
        "filter",
        "Show only what matches, as in util<5 & power>300",
        LOOKING,
        (FLEET,),
        50,
    ),
    Action(
        "order",
        ("o",),
        "order",
        "Sort: as given, by name, by state, metric up, metric down",
        LOOKING,
        (FLEET,),
        61,
    ),
    Action("zoom", ("z",), "zoom", "Change how large a GPU is drawn", LOOKING, (FLEET,)),
    Action(
        "step_view(1)",
        ("tab",),
        "view",
        "Show the next view of this place",
        LOOKING,
        (NODE, GPU, SESSION),
        56,
    ),
    Action("step_view(-1)", ("shift+tab",), "view", "Show the view before", LOOKING, (NODE, GPU, SESSION)),
    Action(
        "step_span", ("z",), "time", "Plot a longer time, then the shortest again", LOOKING, (NODE, GPU), 57
    ),
    Action("filter", ("slash",), "filter", "Show only events that hold a text", LOOKING, (EVENTS,), 50),
    Action(
        "severity", ("v",), "severity", "Show all, warnings and errors, errors only", LOOKING, (EVENTS,), 55
    ),
    Action("ask", ("ctrl+r", "f5"), "run", "Ask it; ⏎ does, too, after a semicolon", LOOKING, (SQL,), 8),
    Action(
        "recipes", ("ctrl+o", "f2"), "recipes", "Show questions that have their query", LOOKING, (SQL,), 9
    ),
    Action(
        "step_focus", ("tab", "shift+tab"), "editor/answer", "Go to the answer, or back", LOOKING, (SQL,), 10
    ),
    Action("open", ("enter",), "whole row", "Show a row whole, or ask a recipe", LOOKING, (SQL,), 11, "⏎"),
    Action("theme", ("t",), "theme", "Next theme: dark, light, 16 colours", LOOKING),
    Action("redraw", ("ctrl+l",), "redraw", "Draw the screen anew", LOOKING, first=True),
    # Playback
    Action(
        "play", ("space",), "look back", "Look back, while recording goes on", PLAYBACK, (), 64, modes=(LIVE,)
    ),
    Action("play", ("space",), "play/pause", "Play or pause", PLAYBACK, (), 6, modes=_PLAYED),
    Action("return_to_now", ("N",), "now", "Return to now", PLAYBACK, (), 7, modes=(PAST,)),
    Action("step(-1)", ("comma",), "step", "Go back by one interval", PLAYBACK, (), 30, ", .", modes=_PLAYED),
    Action("step(1)", ("full_stop",), "step", "Go on by one interval", PLAYBACK, modes=_PLAYED),
    Action(
        "skip(-10)", ("less_than_sign",), "10 s", "Go back by 10 s", PLAYBACK, (), 32, "< >", modes=_PLAYED
    ),
    Action("skip(10)", ("greater_than_sign",), "10 s", "Go on by 10 s", PLAYBACK, modes=_PLAYED),
    Action("turn(-1)", ("b",), "event", "Go to the event before", PLAYBACK, (), 34, "b w", modes=_PLAYED),
    Action("turn(1)", ("w",), "event", "Go to the next event", PLAYBACK, modes=_PLAYED),
    Action("go_to", ("T",), "go to", "Look back to a time", PLAYBACK, modes=(LIVE,)),
    Action("go_to", ("T",), "go to", "Go to a time", PLAYBACK, (), 36, modes=_PLAYED),
    Action("speed(-1)", ("minus",), "speed", "Play slower", PLAYBACK, (), 38, "- +", modes=_PLAYED),
    Action("speed(1)", ("plus",), "speed", "Play faster", PLAYBACK, modes=_PLAYED),
    # Sessions
    Action(
        "start_session",
        ("s",),
        "start",
        "Start a session, now or in the past",
        RECORDING,
        (),
        10,
        modes=_RECORDED,
    ),
    Action("stop_session", ("x",), "stop", "Stop a session", RECORDING, (), 20, modes=(LIVE,)),
    Action(
        "rename", ("r",), "rename", "Give the session another name", RECORDING, (SESSIONS,), 26, modes=(LIVE,)
    ),
    Action("note", ("n",), "note", "Write a note to the session", RECORDING, (SESSIONS,), 27, modes=(LIVE,)),
    Action("pick", ("p",), "pick", "Pick the session to compare it, or drop it", RECORDING, (SESSIONS,), 22),
    Action("compare", ("c",), "compare", "Compare the sessions that are picked", RECORDING, (SESSIONS,), 24),
    Action("compare", ("c",), "compare", "Compare it with another session", RECORDING, (SESSION,), 9),
    Action(
        "mark",
        ("M",),
        "mark",
        "Mark a moment, now or in the past, with values",
        RECORDING,
        (),
        66,
        modes=_RECORDED,
    ),
    # Program
    Action("faster", ("plus",), "faster", "Sample more often", PROGRAM, modes=(LIVE,)),
    Action("slower", ("minus",), "slower", "Sample less often", PROGRAM, modes=(LIVE,)),
    Action(
        "command_palette",
        ("colon", "ctrl+p"),
        "command",
        "Find a command by its name",
        PROGRAM,
        (),
        70,
        palette=False,
    ),
    Action("help", ("question_mark", "f1"), "help", "Show all keys and signs", PROGRAM, (), 80),
    Action(
        "quit",
        ("q", "ctrl+q", "ctrl+c"),
        "quit",
        "End the recording and quit",
        PROGRAM,
        (),
        90,
        modes=_RECORDED,
    ),
    Action("quit", ("q", "ctrl+q", "ctrl+c"), "quit", "Quit", PROGRAM, (), 90, modes=(REPLAY,)),
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
    """Whether a key belongs to the text while one is typed."""
    return len(key) == 1 or key in _TYPED


def key_name(key: str) -> str:
    """How a key is written on screen: "/" for "slash", "^q" for "ctrl+q"."""
    return f"^{key[5:]}" if key.startswith("ctrl+") else _KEY_NAMES.get(key, key)


def actions_of(place: str, mode: str = LIVE) -> list[Action]:
    """What can be done in a place: its own actions, then those of everywhere."""
    possible = [a for a in ACTIONS if not a.modes or mode in a.modes]
    return [a for a in possible if place in a.places] + [a for a in possible if not a.places]


def footer_of(place: str, mode: str = LIVE) -> list[Action]:
    """The actions for a place's footer, in order."""
    return sorted((a for a in actions_of(place, mode) if a.footer), key=lambda a: a.footer)


def possible(name: str, mode: str) -> bool:
    """Whether an action makes sense in a mode; ``name`` is without its arguments. Unknown ones do."""
    modes = [a.modes for a in ACTIONS if a.name.partition("(")[0] == name]
    return not modes or any(not one or mode in one for one in modes)


def _bindings(actions: Iterable[Action]) -> list[BindingType]:
    written = {(",".join(a.keys), a.name): a for a in actions}
    return [Binding(keys, name, a.label, show=False, priority=a.first) for (keys, name), a in written.items()]


def bindings_of(place: str) -> list[BindingType]:
    """The key bindings for a place's screen."""
    return _bindings(a for a in ACTIONS if place in a.places)


def bindings_everywhere() -> list[BindingType]:
    """The key bindings for the app."""
    return _bindings(a for a in ACTIONS if not a.places)
