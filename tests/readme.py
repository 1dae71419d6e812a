"""The parts of the README that come from the program: keys, metrics, SQL recipes.

``python -m tests.readme`` writes them anew; a test holds that they are true.
"""

from __future__ import annotations

import re
from pathlib import Path

from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS, PROCESS_METRICS, Metric
from gswarm_tui.store.sql.recipes import RECIPES
from gswarm_tui.tui.actions import ACTIONS, GROUPS, LIVE, PAST, REPLAY, key_name

MODES_IN_WORDS = {
    (): "",
    (LIVE,): ", live",
    (PAST,): ", looking back",
    (REPLAY,): ", replay",
    (LIVE, PAST): ", while recording",
    (PAST, REPLAY): ", replay and looking back",
}
README = Path(__file__).parent.parent / "README.md"


def keys() -> str:
    """A table of every action's keys, by group."""
    lines = ["| keys | what they do | where |", "|---|---|---|"]
    for group in GROUPS:
        for action in (
            a for a in ACTIONS if a.group == group and not a.name.startswith(("metric(", "move("))
        ):
            written = " ".join(f"`{key_name(key)}`" for key in action.keys)
            where = ", ".join(action.screens) if action.screens else "everywhere"
            where += MODES_IN_WORDS[action.modes]
            lines.append(f"| {written} | {action.help} | {where} |")
    lines[2:2] = [
        "| arrows, `h` `j` `k` `l`, `PgUp` `PgDn` `Home` `End`, mouse | Move | everywhere |",
        "| `←` `→` | Show another metric, another GPU | node, gpu |",
        "| `1` … `9` `0` | Show one of ten metrics at once; help names them | fleet, node |",
    ]
    return "\n".join(lines).replace("`|`", "`\\|`")


def metrics() -> str:
    """Tables of all metrics: column, unit, kind, meaning, source."""

    def table(title: str, of: tuple[Metric, ...]) -> str:
        head = [f"**{title}**", "", "| column | unit | kind | meaning | source |", "|---|---|---|---|---|"]
        rows = [
            f"| `{m.name}` | {m.unit} | {m.kind} | {m.meaning} | {m.source.replace('|', '&#124;')} |"
            for m in of
        ]
        return "\n".join([*head, *rows])

    return "\n\n".join(
        [
            table("Each GPU (`gpu_samples`)", GPU_METRICS),
            table("Each node (`host_samples`)", HOST_METRICS),
            table("Each GPU process (`process_samples`)", PROCESS_METRICS),
        ]
    )


def recipes() -> str:
    """The SQL recipes as the tests run them."""
    return "\n".join(recipe.markdown() for recipe in RECIPES).rstrip()


PARTS = {"keys": keys, "metrics": metrics, "recipes": recipes}


def written(text: str) -> str:
    """The README with its generated parts made anew."""
    for name, make in PARTS.items():
        place = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
        places = place.findall(text)
        if len(places) != 1:
            raise ValueError(f"README.md has {len(places)} places for {name}, not one")
        before, after = place.split(text)
        text = f"{before}{make()}\n{after}"
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
