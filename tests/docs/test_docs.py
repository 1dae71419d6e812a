"""The documentation is correct: generated parts are current, links have targets, commands and SQL run."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gswarm_agent import folder as agent_folder
from gswarm_tui.cli import main
from gswarm_tui.control import registry
from gswarm_tui.control.intents import StartSession
from gswarm_tui.options.arguments import parse, parse_record
from gswarm_tui.options.command_table import COMMAND_NAMES
from gswarm_tui.store.sql.schema import SCHEMA_VERSION
from gswarm_tui.tui.actions import ACTIONS, key_name
from tests.docs.example import DATABASE, record_example
from tests.docs.generated import DOCS, ROOT, pages, regenerated, rule_pages
from tests.integration.test_control import RunningHead
from tests.kineto_standin import write_trace
from tests.nsys_standin import write_standin
from tests.tui.client import carry_out

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
PICTURE = re.compile(r"!\[[^\]]+\]\(([^)\s]+)\)")
CONTROLLING = {"status", "nodes", "session", "mark", "interval", "metrics", "recording"}
NEEDS_A_TERMINAL_OR_A_RUN = {
    "attach",
    "doctor",
    "replay",
    "profile",
    "record",
    "serve",
    "trace",
    "who",
    "stacks",
    "thin",
    "trial",
    "web",
    *CONTROLLING,
}
ZENSICAL = Path(sys.executable).with_name("zensical")


@dataclass(frozen=True)
class Fence:
    """A fenced block of a page."""

    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.splitlines()[0]}"


def fences(*languages: str) -> list[Fence]:
    return [
        Fence(page, language, re.sub(f"(?m)^{indent}", "", text))
        for page in pages()
        for indent, language, text in FENCE.findall(page.read_text())
        if language in languages
    ]


def commands() -> Iterator[list[str]]:
    """Yield the words of every gswarm-tui command of the pages, shell expansions replaced."""
    for fence in fences("console"):
        yield from commands_in(fence)


def commands_in(fence: Fence) -> Iterator[list[str]]:
    for line in fence.text.splitlines():
        if line.startswith("$ "):
            command = line.removeprefix("$ ").replace("$(scontrol show hostnames)", "gpu01 gpu02")
            words = shlex.split(command, comments=True)
            if Path(words[0]).name == "gswarm-tui":
                yield words[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the pages name: a recording, its export, and a query."""
    folder = tmp_path_factory.mktemp("docs")
    record_example(folder)
    (folder / "queries.sql").write_text("FROM sessions; FROM marks;")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["export", "--db", DATABASE, "--format", "parquet", "-o", "run.parquet"]) == 0
        (folder / "runs").mkdir()
        for name in ("one", "two"):
            shutil.copy(DATABASE, path := folder / "runs" / f"{name}.duckdb")
            with duckdb.connect(str(path)) as connection:
                connection.execute("UPDATE recordings SET uid = ?", [name])
        assert main(["export", "--append", "all.parquet", "runs/*.duckdb"]) == 0
    for name in ("rack00", "gswarm-job4711"):
        shutil.copytree(folder / "run.parquet", folder / f"{name}.parquet")
    return folder


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_generated_parts_are_current(page: Path) -> None:
    text = page.read_text()
    assert regenerated(text) == text, "run `python -m tests.docs`"


def test_each_rule_has_its_page_and_no_other_kind_has_one() -> None:
    made = rule_pages()
    written = {path: path.read_text() for path in (DOCS / "findings").glob("*_*.md")}
    written |= {path: path.read_text() for path in made if path.is_file()}
    assert written == made, "run `python -m tests.docs`, and remove pages of rules that are gone"


def test_the_page_on_the_schema_has_its_version() -> None:
    assert f"\nSchema version {SCHEMA_VERSION}. " in (DOCS / "reference" / "schema.md").read_text()


def test_pictures_exist() -> None:
    pictures = [(page, picture) for page in pages() for picture in PICTURE.findall(page.read_text())]
    assert len(pictures) > 10
    assert [picture for page, picture in pictures if not (page.parent / picture).is_file()] == []
    # The site holds only what lies below docs/, also by its path.
    outside = [
        (page.name, picture)
        for page, picture in pictures
        if DOCS in page.parents and not Path(os.path.normpath(page.parent / picture)).is_relative_to(DOCS)
    ]
    assert outside == []


def test_every_picture_is_shown_on_a_page() -> None:
    shown = {
        (page.parent / picture).resolve() for page in pages() for picture in PICTURE.findall(page.read_text())
    }
    assert {*(ROOT / "screenshots").glob("*.png"), *(ROOT / "screenshots").glob("*.gif")} - shown == set()


def test_readme_has_the_two_marked_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    for mark in ("main job", "test command"):
        assert re.search(rf"<!-- {mark} -->\n```console\npython3 -m venv .+\n```\n", readme)


@pytest.mark.parametrize("page", ["README.md", "docs/guide/keys.md"])
def test_the_ten_keys_are_keys_of_the_program(page: str) -> None:
    text = (ROOT / page).read_text()
    (table,) = re.findall(r"^\| key \| action \|\n\|---\|---\|\n((?:\|.+\n)+)", text, re.MULTILINE)
    keys = {key for row in table.splitlines() for key in re.findall(r"`(.+?)`", row.split(" | ")[0])}
    assert len(table.splitlines()) == 10
    assert keys - {key_name(key) for action in ACTIONS for key in action.keys} == set()


def test_links_of_pages_outside_the_site_lead_to_files_and_headings() -> None:
    broken = []
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        for link in LINK.findall((ROOT / name).read_text()):
            path, _, anchor = link.partition("#")
            if "://" in link:
                continue
            target = ROOT / (path or name)
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{name}: {link}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_navigation_or_linked() -> None:
    navigation = re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text())
    reachable = {DOCS / page for page in navigation}
    for page in pages():
        reachable |= {
            (page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(page.read_text())
        }
    assert set(DOCS.rglob("*.md")) - reachable == set()


def test_the_site_builds_unless_a_link_is_broken(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    status, printed = build_site(tmp_path)
    assert status == 0, printed
    assert (tmp_path / "site" / "index.html").is_file()
    shown = {picture.name for picture in (DOCS / "screenshots").iterdir()}
    assert {picture.name for picture in (tmp_path / "site" / "screenshots").iterdir()} == shown
    with (tmp_path / "docs" / "index.md").open("a") as index:
        index.write("\n[a page](missing.md) [an anchor](guide/sql.md#missing)\n")
    status, printed = build_site(tmp_path)
    assert status != 0, printed
    assert "page does not exist" in printed
    assert "anchor does not exist" in printed


def build_site(folder: Path) -> tuple[int, str]:
    """Build the changed pages of a copy of the documentation; return the exit status and the output."""
    built = subprocess.run(
        [ZENSICAL, "build", "--strict"],
        cwd=folder,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return built.returncode, built.stdout + built.stderr


@pytest.mark.parametrize("fence", fences("sql"), ids=str)
def test_sql_runs(
    fence: Fence, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    if "read_parquet" in fence.text:
        with duckdb.connect() as connection:
            assert connection.execute(fence.text).fetchall()
    else:
        assert main(["sql", fence.text, "--db", DATABASE, "--format", "json"]) == 0
        json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "fence",
    [fence for fence in fences("python") if '("all.parquet/' in fence.text and "spark" not in fence.text],
)
def test_other_programs_read_exports_as_documented(fence: Fence, folder: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", fence.text], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("gpu01") == 2, "one of each run"


def test_the_notebook_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(folder / DATABASE, tmp_path / "run.duckdb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    found: dict[str, Any] = {}
    notebook = json.loads((ROOT / "contrib" / "notebook" / "epochs.ipynb").read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), found)
    assert list(found["epochs"]["mark"][:3]) == ["epoch 2", "epoch 3", "epoch 4"]
    assert (found["epochs"]["energy_kwh"] > 0.1).all()


def test_commands_run_on_a_recording(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    shutil.rmtree("all.parquet")
    ran = set()
    for words in commands():
        if not words or words[0] not in COMMAND_NAMES or words[0] in NEEDS_A_TERMINAL_OR_A_RUN:
            continue
        if words == ["sql"] or words[:2] == ["recover", "ID"]:
            continue
        if words[0] == "import" and words[1].endswith(".json.gz"):
            write_trace(tmp_path / words[1])
        elif words[0] == "import" and words[1].endswith(".nsys-rep"):
            words[1] = str(write_standin(tmp_path / f"{words[1]}.sqlite"))
        elif words[0] == "import":
            shutil.copytree(tmp_path / "run.parquet", tmp_path / words[1], dirs_exist_ok=True)
        if words[0] == "export" and "parquet" in words:
            words.append("--force")
        assert main(words) == 0, words
        ran.add(words[0])
    assert ran == set(COMMAND_NAMES) - NEEDS_A_TERMINAL_OR_A_RUN


def test_recording_without_a_screen_prints_what_the_page_shows(tmp_path: Path) -> None:
    (words,) = (words for words in commands() if words[:3] == ["record", "--demo", "2x4"])
    assert words[-2:] == ["sleep", "3"]
    sleep = tmp_path / "sleep"
    sleep.write_text("#!/bin/sh\nread until_the_nodes_send_data\n")
    sleep.chmod(0o700)
    page = (DOCS / "guide" / "batch-jobs.md").read_text()
    sending, ended = "gswarm-tui: 2 nodes send data, 8 GPUs\n", "gswarm-tui: sleep ended with status 0 after "
    with subprocess.Popen(
        [sys.executable, "-m", "gswarm_tui", *words[:-2], str(sleep)],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        assert sending in iter(running.stderr.readline, "")
        out, printed = running.communicate("now\n")
    assert (running.returncode, out) == (0, "")
    assert ended in printed
    assert sending in page
    assert f"{ended}3" in page


async def test_commands_control_a_running_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "SHARED", str(tmp_path / "shared"))
    monkeypatch.setattr(agent_folder, "PARENTS", (str(tmp_path / "agents"),))
    (tmp_path / "agents").mkdir(mode=0o700)
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(tmp_path / name))
    ran = set()
    for number, fence in enumerate(fences("console")):
        words_of_fence = [words for words in commands_in(fence) if words and words[0] in CONTROLLING]
        if not words_of_fence:
            continue
        here = tmp_path / str(number)
        here.mkdir()
        monkeypatch.chdir(here)
        running = RunningHead(here / DATABASE, os.environ)
        await running.control.start()
        carry_out(running.hub, StartSession("another"))
        for words in words_of_fence:
            done = await run_beside(running, words)
            assert done == 0, (words, capsys.readouterr().err)
            ran.add(words[0])
        await running.close()
    assert ran == CONTROLLING


async def run_beside(running: RunningHead, words: list[str]) -> int:
    """Run a command while the head answers, and close the head if the command ends it."""
    doing = asyncio.create_task(asyncio.to_thread(main, words))
    ended = asyncio.create_task(running.end_requested.wait())
    await asyncio.wait({doing, ended}, return_when=asyncio.FIRST_COMPLETED)
    if running.end_requested.is_set():
        await running.close()
    ended.cancel()
    return await doing


def test_commands_that_watch_nodes_are_valid() -> None:
    watching = [words for words in commands() if not words or words[0] not in COMMAND_NAMES]
    assert len(watching) > 3
    for words in watching:
        if "--version" not in words:
            parse(words, {"HOME": "/nonexistent"})


def test_commands_of_the_pages_can_be_pasted_into_zsh() -> None:
    # zsh refuses a command with a pattern that no file matches; a loop over files is meant as one.
    lines = [line for each in fences("console") for line in each.text.splitlines() if line.startswith("$ ")]
    bare = {line: re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", line) for line in lines if "$ for " not in line}
    assert [line for line, unquoted in bare.items() if re.search(r"[\[?]", unquoted)] == []


def test_pages_install_by_name_from_a_folder_only() -> None:
    texts = "\n".join(page.read_text() for page in pages())
    named = re.findall(r"pip (?:install|download)[^`\n]* '?gswarm-tui\b", texts)
    assert named
    assert [each for each in named if "--no-index" not in each] == []


def test_every_command_is_described_on_a_page() -> None:
    described = {words[0] for words in commands() if words}
    assert set(COMMAND_NAMES) - described == set()


def test_settings_are_flags_and_keys_of_the_config_file() -> None:
    page = (DOCS / "reference" / "configuration.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)`", page, re.MULTILINE)
    assert len(rows) > 10
    for key, flag in rows:
        words = [value if word == "PATH" else word for word in shlex.split(flag) if (value := "run.duckdb")]
        words = ["dark" if key == "theme" and word == "NAME" else word for word in words]
        words = ["power" if key == "metric" and word == "NAME" else word for word in words]
        if key == "ssh_config":
            words[1] = str(DOCS / "index.md")
        reads = parse_record if key == "arm" else parse
        reads([word.rstrip(",") for word in words][: 1 + (words[0][-1] != ",")], {"HOME": "/nonexistent"})


@pytest.mark.parametrize("fence", fences("toml"), ids=str)
def test_config_files_are_valid(fence: Fence, tmp_path: Path) -> None:
    assert tomllib.loads(fence.text)
    config = tmp_path / "config.toml"
    config.write_text(fence.text)
    parse(["--config", str(config)], {"HOME": "/nonexistent"})


@pytest.mark.parametrize("fence", fences("python"), ids=str)
def test_python_is_valid(fence: Fence) -> None:
    compile(fence.text, str(fence), "exec")


@pytest.mark.parametrize("fence", fences("bash"), ids=str)
def test_shell_scripts_are_valid(fence: Fence) -> None:
    subprocess.run(["bash", "-n"], input=fence.text, text=True, check=True)


def test_troubleshooting_symptoms_are_messages_of_the_program() -> None:
    page = (DOCS / "guide" / "troubleshooting.md").read_text()
    symptoms = re.findall(r"^\| `([^|]+?)` \|", page, re.MULTILINE)
    assert len(symptoms) > 20
    messages = list(message_templates())
    literal = "\n".join("…".join(parts) for parts in messages)
    filled_in = [re.compile(".+".join(map(re.escape, parts))) for parts in messages if len(parts) > 1]
    assert [s for s in symptoms if s not in literal and not any(p.search(s) for p in filled_in)] == []


def message_templates() -> Iterator[list[str]]:
    """Yield the constant parts of each text of the program that is long enough to be a message."""
    for root in (ROOT / "gswarm_tui", ROOT / "agent"):
        for path in root.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    text = "".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    text = node.value
                else:
                    continue
                if len(text) >= 12:
                    yield text.split("\0")
