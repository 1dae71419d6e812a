"""Architecture: imports between rooms point one way, and each library is imported in one room."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gswarm_tui.fleet.events import EVENT_KINDS
from gswarm_tui.launch.bundle import own_bundle
from tests.agent_pythons import agent_pythons

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "agent"
SPOKEN_BY_ALL = {
    "gswarm_agent",
    "gswarm_agent.block",
    "gswarm_agent.frame",
    "gswarm_agent.metrics",
    "gswarm_agent.redact",
    "gswarm_agent.wire",
    "gswarm_agent.wire_payload",
}

# What each room may import of this project, itself and what all speak apart. The longest name counts.
ROOMS: dict[str, set[str]] = {
    "gswarm_agent": {"gswarm_agent"},
    "gswarm_agent.probes": set(),
    "gswarm_agent.block": set(),
    "gswarm_agent.frame": set(),
    "gswarm_agent.metrics": set(),
    "gswarm_agent.wire": set(),
    "gswarm_agent.wire_payload": set(),
    "gswarm_tui": {"gswarm_tui.commands.recording_choice", "gswarm_tui.store.querying.results"},
    "gswarm_tui.common": set(),
    "gswarm_tui.common.private_files": {"gswarm_agent.folder", "gswarm_tui.common"},
    "gswarm_tui.options": {"gswarm_tui.common"},
    "gswarm_tui.slurm": {"gswarm_tui.common"},
    "gswarm_tui.doctor": {"gswarm_tui.common", "gswarm_tui.slurm", "gswarm_tui.store.duckdb_internals"},
    "gswarm_tui.fleet": {"gswarm_tui.common"},
    "gswarm_tui.insight": {"gswarm_tui.common", "gswarm_tui.fleet"},
    "gswarm_tui.insight.recorded": {
        "gswarm_tui.common",
        "gswarm_tui.fleet",
        "gswarm_tui.insight",
        "gswarm_tui.store",
    },
    "gswarm_tui.launch": {"gswarm_agent"},
    "gswarm_tui.link": {"gswarm_tui.common", "gswarm_tui.fleet", "gswarm_tui.launch"},
    "gswarm_tui.store": {"gswarm_tui.common"},
    "gswarm_tui.store.figures": {"gswarm_tui.fleet"},
    "gswarm_tui.store.sql": {
        "gswarm_tui.store.figures",
        "gswarm_tui.fleet",
        "gswarm_tui.store.duckdb_internals",
        "gswarm_tui.store.errors",
    },
    "gswarm_tui.store.querying": {
        "gswarm_tui.common",
        "gswarm_tui.store.duckdb_internals",
        "gswarm_tui.store.errors",
        "gswarm_tui.store.sql",
    },
    "gswarm_tui.store.recording": {
        "gswarm_tui.store.figures",
        "gswarm_tui.fleet",
        "gswarm_tui.store.duckdb_internals",
        "gswarm_tui.store.errors",
        "gswarm_tui.store.reading",
        "gswarm_tui.store.querying",
        "gswarm_tui.store.sql",
    },
    "gswarm_tui.store.reading": {
        "gswarm_tui.store.figures",
        "gswarm_tui.fleet",
        "gswarm_tui.store.duckdb_internals",
        "gswarm_tui.store.errors",
        "gswarm_tui.store.querying",
        "gswarm_tui.store.sql",
    },
    "gswarm_tui.store.transfer": {
        "gswarm_tui.store.figures",
        "gswarm_tui.store.duckdb_internals",
        "gswarm_tui.store.errors",
        "gswarm_tui.store.querying",
        "gswarm_tui.store.recording",
        "gswarm_tui.store.sql",
    },
    "gswarm_tui.analysis": {"gswarm_tui.common", "gswarm_tui.fleet", "gswarm_tui.slurm", "gswarm_tui.store"},
    "gswarm_tui.runs": {
        "gswarm_agent.mark",
        "gswarm_tui.analysis",
        "gswarm_tui.common",
        "gswarm_tui.fleet",
        "gswarm_tui.insight",
        "gswarm_tui.slurm",
        "gswarm_tui.store",
    },
    "gswarm_tui.playback": {"gswarm_tui.common", "gswarm_tui.fleet"},
    "gswarm_tui.playback.recorded_source": {
        "gswarm_tui.common",
        "gswarm_tui.fleet",
        "gswarm_tui.playback",
        "gswarm_tui.store",
    },
    "gswarm_tui.asking": {
        "gswarm_agent.asking",
        "gswarm_tui.common",
        "gswarm_tui.fleet",
        "gswarm_tui.link",
        "gswarm_tui.store.sql",
    },
    "gswarm_tui.control": {
        "gswarm_agent",
        "gswarm_tui.asking",
        "gswarm_tui.common",
        "gswarm_tui.fleet",
        "gswarm_tui.link.hub",
        "gswarm_tui.link.tracing",
        "gswarm_tui.store",
    },
    "gswarm_tui.server": {
        "gswarm_tui.insight",
        "gswarm_agent",
        "gswarm_tui.common",
        "gswarm_tui.control",
        "gswarm_tui.fleet",
        "gswarm_tui.options",
        "gswarm_tui.printing.cells",
        "gswarm_tui.printing.json_output",
        "gswarm_tui.store",
    },
    "gswarm_tui.printing": {"gswarm_tui.common", "gswarm_tui.fleet", "gswarm_tui.store"},
    "gswarm_tui.plotting": {
        "gswarm_tui.analysis",
        "gswarm_tui.common",
        "gswarm_tui.fleet",
        "gswarm_tui.slurm",
        "gswarm_tui.store",
    },
    "gswarm_tui.reporting": {
        "gswarm_tui.insight",
        "gswarm_tui.analysis",
        "gswarm_tui.common",
        "gswarm_tui.fleet",
        "gswarm_tui.plotting",
        "gswarm_tui.slurm",
        "gswarm_tui.store",
    },
    "gswarm_tui.exchange": {
        "gswarm_tui.analysis",
        "gswarm_tui.common",
        "gswarm_tui.fleet",
        "gswarm_tui.store",
    },
    "gswarm_tui.profiling": {
        "gswarm_tui.common",
        "gswarm_tui.control",
        "gswarm_tui.exchange.json_stream",
        "gswarm_tui.launch",
        "gswarm_tui.options",
        "gswarm_tui.slurm",
        "gswarm_tui.store",
    },
    "gswarm_tui.trials": {
        "gswarm_agent",
        "gswarm_tui.analysis",
        "gswarm_tui.common",
        "gswarm_tui.control",
        "gswarm_tui.fleet",
        "gswarm_tui.insight",
        "gswarm_tui.profiling",
        "gswarm_tui.slurm",
        "gswarm_tui.store",
    },
    "gswarm_tui.tui": {
        "gswarm_tui.insight",
        "gswarm_agent.mark",
        "gswarm_tui.analysis",
        "gswarm_tui.common",
        "gswarm_tui.control.intents",
        "gswarm_tui.fleet",
        "gswarm_tui.link.hub",
        "gswarm_tui.playback",
        "gswarm_tui.printing.cells",
        "gswarm_tui.runs",
        "gswarm_tui.store.sql.recipes",
    },
    "gswarm_tui.run": {
        "gswarm_agent",
        "gswarm_tui.analysis",
        "gswarm_tui.asking",
        "gswarm_tui.common",
        "gswarm_tui.control",
        "gswarm_tui.doctor",
        "gswarm_tui.fleet",
        "gswarm_tui.insight",
        "gswarm_tui.launch",
        "gswarm_tui.link",
        "gswarm_tui.options",
        "gswarm_tui.printing",
        "gswarm_tui.playback",
        "gswarm_tui.runs",
        "gswarm_tui.server",
        "gswarm_tui.slurm",
        "gswarm_tui.store",
        "gswarm_tui.tui",
    },
    "gswarm_tui.commands": {"gswarm_agent.mark", "gswarm_tui"},
    "gswarm_tui.cli": {"gswarm_tui"},
    "gswarm_tui.__main__": {"gswarm_tui"},
}

# Where each library may be imported, and nowhere else.
HOMES: dict[str, set[str]] = {
    "argcomplete": {"gswarm_tui.commands.completion"},
    "asyncssh": {"gswarm_tui.launch.ssh"},
    "dask": {"gswarm_tui.runs"},
    "dask_jobqueue": {"gswarm_tui.runs"},
    "distributed": {"gswarm_tui.runs"},
    "duckdb": {"gswarm_tui.store"},
    "fastapi": {"gswarm_tui.server"},
    "prometheus_client": {"gswarm_tui.server.exposition"},
    "pydantic": {"gswarm_tui.server"},
    "starlette": {"gswarm_tui.server"},
    "textual_serve": {"gswarm_tui.server.web"},
    "uvicorn": {"gswarm_tui.server"},
    "textual": {"gswarm_tui.tui"},
    "rich": {"gswarm_tui.tui", "gswarm_tui.printing"},
    "ijson": {"gswarm_tui.exchange.json_stream"},
    "jinja2": {"gswarm_tui.reporting"},
    "markupsafe": {"gswarm_tui.reporting"},
    "matplotlib": {"gswarm_tui.plotting"},
    "alembic": {"gswarm_tui.exchange.mlflow_export"},
    "mlflow": {"gswarm_tui.exchange.mlflow_export"},
    "sqlalchemy": {"gswarm_tui.exchange.mlflow_export"},
    "wandb": {"gswarm_tui.exchange.wandb_export"},
    "numpy": {
        "gswarm_tui.control.profiles",
        "gswarm_tui.exchange",
        "gswarm_tui.fleet",
        "gswarm_tui.insight",
        "gswarm_tui.plotting",
        "gswarm_tui.profiling",
        "gswarm_tui.server",
        "gswarm_tui.store",
        "gswarm_tui.tui",
    },
    "ClusterShell": {"gswarm_tui.slurm.hosts"},
    "msgpack": {"gswarm_agent.wire", "gswarm_agent.wire_payload", "gswarm_tui.control"},
    "platformdirs": {"gswarm_tui.common.paths"},
}


# Lines of each room's files, rounded up to the next 25.
LINES: dict[str, int] = {
    "gswarm_agent": 4_550,
    "gswarm_agent.asking": 900,
    "gswarm_agent.probes": 4_600,
    "gswarm_tui": 175,
    "gswarm_tui.analysis": 1_525,
    "gswarm_tui.asking": 1_275,
    "gswarm_tui.commands": 3_725,
    "gswarm_tui.common": 875,
    "gswarm_tui.control": 2_250,
    "gswarm_tui.doctor": 400,
    "gswarm_tui.exchange": 950,
    "gswarm_tui.fleet": 3_350,
    "gswarm_tui.insight": 4_300,
    "gswarm_tui.launch": 1_750,
    "gswarm_tui.link": 1_400,
    "gswarm_tui.options": 1_200,
    "gswarm_tui.playback": 450,
    "gswarm_tui.plotting": 1_150,
    "gswarm_tui.printing": 625,
    "gswarm_tui.profiling": 2_100,
    "gswarm_tui.reporting": 425,
    "gswarm_tui.run": 2_800,
    "gswarm_tui.runs": 1_290,
    "gswarm_tui.server": 2_225,
    "gswarm_tui.slurm": 475,
    "gswarm_tui.store": 7_375,
    "gswarm_tui.trials": 925,
    "gswarm_tui.tui": 8_750,
}


def modules_in(folder: Path) -> dict[str, Path]:
    """Return the modules of a package by their full names."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


AGENT_MODULES = modules_in(AGENT / "gswarm_agent")
MODULES = AGENT_MODULES | modules_in(ROOT / "gswarm_tui")


def imported(path: Path) -> Iterator[str]:
    """Return the modules that a file imports anywhere; ``from a import b`` is a.b if that is a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path} imports by a relative name"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


def within(name: str, rooms: set[str]) -> bool:
    """Return whether a module is one of these packages or inside one."""
    return any(name == room or name.startswith(room + ".") for room in rooms)


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_only_rooms_that_its_room_may_import(name: str) -> None:
    room = max((room for room in ROOMS if within(name, {room})), key=len)
    assert room != "gswarm_tui" or name == "gswarm_tui", "a new room has to say what it may import"
    for used in imported(MODULES[name]):
        top = used.partition(".")[0]
        if top in {"gswarm_agent", "gswarm_tui"}:
            assert used in SPOKEN_BY_ALL or within(used, ROOMS[room] | {room}), f"{name} imports {used}"
        elif top not in sys.stdlib_module_names:
            assert within(name, HOMES.get(top, set())), f"{name} imports {used}"


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with several members, each sorted."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for used in arrows.get(waiting.pop(), ()):
                if used not in seen:
                    seen.add(used)
                    waiting.append(used)
        return seen

    reached = {name: reachable(name) for name in arrows}
    components = {
        frozenset({name, *(other for other in reached[name] if name in reached.get(other, ()))})
        for name in arrows
    }
    return sorted(sorted(component) for component in components if len(component) > 1)


def test_a_circle_of_imports_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [["a", "b", "c"]]


def test_no_modules_import_each_other_in_a_circle() -> None:
    used = {name: {each for each in imported(path) if each in MODULES} for name, path in MODULES.items()}
    assert circles({name: each - {name} for name, each in used.items()}) == []


def test_no_rooms_import_each_other_in_a_circle() -> None:
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    with_rooms = {package.rpartition(".")[0] for package in packages}

    def room(name: str) -> str:
        """Return a module's package; a module beside packages is a room of its own."""
        package = name if name in packages else name.rpartition(".")[0]
        return name if package in with_rooms else package

    arrows: dict[str, set[str]] = {room(name): set() for name in MODULES}
    for name, path in MODULES.items():
        arrows[room(name)] |= {room(used) for used in imported(path) if used in MODULES} - {room(name)}
    assert circles(arrows) == []


def test_nvml_is_named_by_the_modules_of_nvidia_only() -> None:
    names = [name for name, path in AGENT_MODULES.items() if re.search("pynvml|nvitop", path.read_text())]
    assert names
    assert all(name.startswith("gswarm_agent.probes.gpus.nvidia") for name in names)


def test_a_class_name_has_one_meaning() -> None:
    homes: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.ClassDef):
                homes.setdefault(statement.name, []).append(name)
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_every_kind_of_event_is_listed() -> None:
    places = {"EventLogged": 1, "log": 0, "warn": 0}
    written = set()
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                place = places.get(ast.unparse(node.func).rpartition(".")[2], len(node.args))
                written |= {
                    argument.value
                    for argument in node.args[place : place + 1]
                    if isinstance(argument, ast.Constant)
                }
    assert "reboot" in written
    assert written <= EVENT_KINDS


def test_protocol_modules_import_each_other_in_one_order() -> None:
    own = {
        name: {used for used in imported(MODULES[f"gswarm_agent.{name}"]) if used in MODULES}
        for name in (
            "metrics",
            "block",
            "frame",
            "wire_payload",
            "wire",
        )
    }
    assert own == {
        "metrics": set(),
        "block": set(),
        "frame": {"gswarm_agent.block", "gswarm_agent.metrics"},
        "wire_payload": {"gswarm_agent.block", "gswarm_agent.frame", "gswarm_agent.metrics"},
        "wire": {
            "gswarm_agent.frame",
            "gswarm_agent.metrics",
            "gswarm_agent.wire_payload",
        },
    }


def loaded(names: list[str], watched: set[str]) -> str:
    """Return which watched packages a new Python has loaded after importing these modules."""
    script = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print(sorted({watched!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_without_the_screen_nothing_loads_textual() -> None:
    screens = {"gswarm_tui.tui", "gswarm_tui.printing", "gswarm_tui.__main__"}
    headless = [name for name in MODULES if not within(name, screens)]
    headless = [name for name in headless if not name.startswith("gswarm_agent")]
    assert loaded(headless, {"textual", "rich"}) == "[]"


def test_query_commands_import_neither_numpy_nor_asyncio() -> None:
    words = [f"gswarm_tui.commands.{word}" for word in ("sql", "sessions", "summary", "compare")]
    assert loaded(words, {"asyncio", "numpy"}) == "[]"


@pytest.fixture(scope="module")
def travelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with only the files that are sent to a node."""
    folder = tmp_path_factory.mktemp("bundle")
    for name, content in own_bundle().files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.mark.parametrize("python", agent_pythons().values())
def test_the_agent_runs_from_its_bundle_alone(python: str, travelled: Path) -> None:
    names = list(AGENT_MODULES)
    script = (
        f"import sys; sys.path.insert(0, {str(travelled)!r})\n"
        "import importlib\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "sys.exit(sys.modules['gswarm_agent.__main__'].main(['--version']))\n"
    )
    done = subprocess.run(
        [python, "-I", "-S", "-B", "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("gswarm-agent ")


@pytest.mark.parametrize("name", AGENT_MODULES)
def test_the_agent_is_written_in_python_3_9(name: str) -> None:
    tree = ast.parse(AGENT_MODULES[name].read_text(), feature_version=(3, 9))
    assert [f"line {node.lineno}: {ast.unparse(node)}" for node in evaluated(tree) if is_newer(node)] == []


def evaluated(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that are evaluated, which excludes annotations."""
    for field, value in ast.iter_fields(tree):
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and field not in {"annotation", "returns"}:
                if isinstance(node, ast.expr):
                    yield node
                yield from evaluated(node)


def is_newer(node: ast.expr) -> bool:
    """Return whether an expression fails on Python 3.9: newer keywords, and unions of types as values."""
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        new = {"dataclass": {"slots", "kw_only"}, "zip": {"strict"}}.get(called, set())
        return any(keyword.arg in new for keyword in node.keywords)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        types = {"int", "float", "str", "bytes", "bool", "list", "dict", "tuple", "set", "None"}
        return any(ast.unparse(side) in types for side in (node.left, node.right))
    return False


def test_syntax_that_python_3_9_lacks_is_found() -> None:
    lines = [
        "A = int | float",
        "@dataclass(slots=True)",
        "class B:",
        "    c: int | None",
        "zip(d, strict=True)",
        "e | f",
    ]
    newer = [node.lineno for node in evaluated(ast.parse("\n".join(lines))) if is_newer(node)]
    assert newer == [1, 2, 5]


def lines_of_rooms() -> dict[str, int]:
    lines: dict[str, int] = {}
    for top in (ROOT / "gswarm_tui", AGENT / "gswarm_agent"):
        for path in top.rglob("*.py"):
            folders = path.relative_to(top).parts[:-1]
            room = ".".join([top.name, *folders[:1]])
            lines[room] = lines.get(room, 0) + path.read_text().count("\n")
    return lines


def test_no_room_outgrows_its_budget() -> None:
    larger = {room: n for room, n in lines_of_rooms().items() if n > LINES.get(room, 0)}
    assert not larger, (
        f"{larger} lines are more than LINES allows: remove what is no longer needed, or raise the number in "
        "LINES in a commit whose message says which user met the case and why nothing could go instead"
    )
