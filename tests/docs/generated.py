"""The generated parts of the documentation: keys, commands, metrics, schema, recipes, decisions.

A page holds a part between ``<!-- NAME -->`` and ``<!-- /NAME -->``.
"""

from __future__ import annotations

import io
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path

import duckdb
import pytest

from gswarm_agent.metrics import (
    GPU_METRICS,
    HOST_METRICS,
    METRIC_GROUPS,
    MOUNT_METRICS,
    PORT_METRICS,
    PROCESS_METRICS,
    REASON_NAMES,
    Metric,
)
from gswarm_tui.cli import main
from gswarm_tui.fleet.findings import Evidence
from gswarm_tui.insight.catalogue import BY_KIND
from gswarm_tui.insight.notes import evidence_text
from gswarm_tui.insight.rule import Rule
from gswarm_tui.options.command_table import COMMANDS
from gswarm_tui.server.exposition import (
    FINDING_FAMILIES,
    GPU_FAMILIES,
    HOST_FAMILIES,
    INFO_FAMILIES,
    LEDGER_FAMILIES,
    LISTING_FAMILIES,
    NODE_FAMILIES,
    RECORDER_FAMILIES,
)
from gswarm_tui.store.sql.recipes import RECIPES
from gswarm_tui.store.sql.schema import TABLES
from gswarm_tui.store.sql.views import described, view_statements
from gswarm_tui.tui.actions import (
    ACTIONS,
    GROUPS,
    LIVE,
    PAST,
    QUERY,
    REPLAY,
    SCREENS,
    SQL,
    Action,
    key_name,
)
from tests.docs.example import example_output, trial_output
from tests.jobs.examples import EXAMPLES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HELP_COLUMNS = "100"
MODE_NAMES = {LIVE: "live", PAST: "looking back", REPLAY: "replay", QUERY: "gswarm-tui sql"}


def pages() -> list[Path]:
    """Return every Markdown page of the repository's documentation."""
    return [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md")), *sorted(DOCS.rglob("*.md"))]


def _table(header: str, rows: list[str]) -> str:
    columns = header.count("|") - 1
    return "\n".join([header, "|" + "---|" * columns, *rows])


def keys() -> str:
    """Return one table of actions for each group of keys; the ten keys for metrics are one row."""
    parts = []
    for group in GROUPS:
        rows: dict[str, None] = {}
        for action in ACTIONS:
            if action.group != group:
                continue
            if action.name.startswith("metric("):
                rows[f"| `1` … `9` `0` | Show one of ten metrics | {_where(action)} |"] = None
            else:
                written = " ".join(f"`{key_name(key)}`" for key in action.keys)
                rows[f"| {written} | {action.help} | {_where(action)} |"] = None
        parts.append(f"## {group}\n\n" + _table("| keys | action | where |", list(rows)))
    return "\n\n".join(parts)


def _where(action: Action) -> str:
    here = action.screens or tuple(one for one in SCREENS if action.in_sql or one != SQL)
    others = [one for one in SCREENS if one not in here]
    screens = "all screens" + (f" but {' and '.join(others)}" if others else "")
    if len(others) > 2:
        screens = ", ".join(here)
    if not action.modes or {LIVE, PAST, REPLAY} <= set(action.modes):
        return screens
    if action.modes == (LIVE, PAST):
        return f"{screens}, while recording"
    return f"{screens}, {' and '.join(MODE_NAMES[mode] for mode in action.modes)}"


def commands() -> str:
    """Return the help text of gswarm-tui and of each of its commands."""
    parts = [f"## gswarm-tui\n\n```text\n{_help()}\n```"]
    parts += [f"## gswarm-tui {one.name}\n\n```text\n{_help(one.name)}\n```" for one in COMMANDS]
    return "\n\n".join(parts)


def _help(*words: str) -> str:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), suppress(SystemExit):
        patch.setenv("COLUMNS", HELP_COLUMNS)
        main([*words, "--help"])
    return out.getvalue().strip()


def metrics() -> str:
    """Return the tables of all metrics: column, unit, kind, period, name in filters, meaning, source."""

    def table(title: str, metrics_of_table: tuple[Metric, ...], *, short: bool = True) -> str:
        rows = [
            f"| `{m.name}` |{f' `{m.short}` |' * short} {m.unit} | {m.kind} | {m.group} "
            f"| {f'{m.period_s:g} s' if m.period_s else 'each sample'} | {m.meaning} | {_cell(m.source)} |"
            for m in metrics_of_table
        ]
        header = f"| column |{' short name |' * short} unit | kind | group | period | meaning | source |"
        return f"## {title}\n\n" + _table(header, rows)

    return "\n\n".join(
        [
            table("Each GPU (gpu_samples)", GPU_METRICS),
            table("Each node (host_samples)", HOST_METRICS),
            table("Each GPU process (process_samples)", PROCESS_METRICS),
            table("Each network port (port_samples)", PORT_METRICS, short=False),
            table("Each file system of the job (mount_samples)", MOUNT_METRICS, short=False),
        ]
    )


def prometheus_metrics() -> str:
    """Return the tables of all metrics for Prometheus."""
    subjects = {"GPUs": GPU_FAMILIES, "Hosts": HOST_FAMILIES, "Nodes": NODE_FAMILIES}
    subjects |= {"Ports": LISTING_FAMILIES["ports"], "File systems": LISTING_FAMILIES["mounts"]}
    subjects["Findings"] = (*FINDING_FAMILIES, *LEDGER_FAMILIES)
    subjects["The recorder"] = (*RECORDER_FAMILIES, *INFO_FAMILIES)
    return "\n\n".join(
        f"### {subject}\n\n"
        + _table("| metric | type | meaning |", [f"| `{f.series}` | {f.kind} | {f.help} |" for f in families])
        for subject, families in subjects.items()
    )


def metric_groups() -> str:
    """Return the table of metric groups."""
    rows = [f"| `{name}` | {measures} |" for name, measures in METRIC_GROUPS.items()]
    return _table("| group | what it measures |", rows)


def clock_reasons() -> str:
    """Return the meanings of the bits of clock_reasons."""
    return _table("| bit | reason |", [f"| `{bit:#x}` | {name} |" for bit, name in REASON_NAMES.items()])


def tables() -> str:
    """Return the columns of each table of a recording."""
    parts = []
    for table in TABLES:
        rows = [f"| `{c.name}` | {c.type} | {_cell(c.meaning)} |" for c in table.columns]
        parts.append(
            f"### {table.name}\n\n{table.meaning}.\n\n" + _table("| column | type | meaning |", rows)
        )
    return "\n\n".join(parts)


def views() -> str:
    """Return the columns of each view of a recording, as DuckDB reports them."""
    return "\n\n".join(_views())


def _views() -> Iterator[str]:
    with duckdb.connect() as connection:
        for statement in (*(table.create for table in TABLES), *view_statements(), *described()):
            connection.execute(statement)
        found = connection.execute(
            "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal ORDER BY view_oid"
        ).fetchall()
        for name, comment in found:
            columns = connection.execute(
                "SELECT column_name, data_type, comment FROM duckdb_columns() WHERE table_name = ? "
                "ORDER BY column_index",
                [name],
            ).fetchall()
            rows = [f"| `{column}` | {kind} | {_cell(meaning)} |" for column, kind, meaning in columns]
            yield f"### {name}\n\n{comment.rstrip('.')}.\n\n" + _table("| column | type | meaning |", rows)


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")


def recipes() -> str:
    """Return the recipes of the SQL screen, each with its title."""
    return "\n".join(f"### {recipe.title}\n\n```sql\n{recipe.sql}\n```\n" for recipe in RECIPES).rstrip()


def decisions() -> str:
    """Return the list of decision records with their status."""
    rows = []
    for page in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        text = page.read_text()
        title = re.search(r"^# (\d+)\. (.+)$", text, re.MULTILINE)
        status = re.search(r"^\W*Status\W+(.+?)\W*$", text, re.MULTILINE)
        if title is None or status is None:
            raise ValueError(f"{page} needs a line '# NNN. Title' and a line 'Status: …'")
        rows.append(f"| [{title[1]}]({page.name}) | {title[2]} | {status[1]} |")
    return _table("| number | decision | status |", rows)


def findings() -> str:
    """Return the table of all rules, with a link to the page of each."""
    rows = [
        f"| [`{one.kind}`]({one.kind}.md) | {one.title} | {one.severity} | {one.window} |"
        for one in BY_KIND.values()
    ]
    return _table("| kind | finding | severity | window |", rows)


def rule_pages() -> dict[Path, str]:
    """Return the page of each rule by its path: why, signals, threshold, what to do, when it is wrong."""
    return {DOCS / "findings" / f"{one.kind}.md": _rule_page(one) for one in BY_KIND.values()}


def _rule_page(rule: Rule) -> str:
    signals = ", ".join(f"`{signal}`" for signal in rule.signals)
    advice = rule.advice.format(node="the node", gpu="the GPU", nodes="these nodes")
    facts = [
        f"| kind, severity | `{rule.kind}`, {rule.severity} |",
        f"| order | {rule.stage} |",
        f"| signals | {signals} |",
        f"| window | {rule.window} |",
        f"| threshold | {_cell(rule.threshold)} |",
        f"| source | {_cell(rule.source)} |",
    ]
    return f"""# {rule.title}

{rule.why}
{_example(rule.kind)}
{_table("| | |", facts)}

## What to do

{advice.rstrip(".")}.

## When it is silent

{rule.silent_if}

## When it is wrong

{rule.wrong_when}

All rules: [Findings](index.md).
"""


def _example(kind: str) -> str:
    """Return a finding of a modelled job as the list on the screen has it; nothing for kinds without one."""
    if (example := json.loads(EXAMPLES.read_text()).get(kind)) is None:
        return ""
    evidence = evidence_text(Evidence(**one) for one in example["evidence"])
    lines = [*textwrap.wrap(example["sentence"], 96), "", *textwrap.wrap(evidence, 96)]
    return "\nIn a modelled job on 4 nodes with 8 GPUs each:\n\n```text\n" + "\n".join(lines) + "\n```\n"


def nginx_configuration() -> str:
    """Return the example for nginx."""
    return _contributed("nginx/gswarm-tui.conf", "nginx")


def caddy_configuration() -> str:
    """Return the example for Caddy."""
    return _contributed("caddy/Caddyfile", "caddy")


def slurm_counters_settings() -> str:
    """Return the settings of the scripts that lend counters to jobs."""
    return _contributed("slurm-counters/counters.conf", "bash")


def _contributed(name: str, language: str) -> str:
    return f"```{language}\n{(ROOT / 'contrib' / name).read_text()}```"


_POWER_QUERY = (
    "SELECT node, gpu_index, max(power_w) FROM samples GROUP BY ALL "
    "ORDER BY max(power_w) DESC, node, gpu_index LIMIT 3"
)
PARTS: dict[str, Callable[[], str]] = {
    "keys": keys,
    "commands": commands,
    "metrics": metrics,
    "clock reasons": clock_reasons,
    "metric groups": metric_groups,
    "prometheus metrics": prometheus_metrics,
    "nginx configuration": nginx_configuration,
    "caddy configuration": caddy_configuration,
    "slurm-counters settings": slurm_counters_settings,
    "tables": tables,
    "views": views,
    "recipes": recipes,
    "decisions": decisions,
    "findings": findings,
    "sessions output": partial(example_output, "sessions"),
    "summary output": partial(example_output, "summary", "train"),
    "compare output": partial(example_output, "compare", "train", "train-2"),
    "trial output": trial_output,
    "sql output": partial(example_output, "sql", _POWER_QUERY),
}


def regenerated(text: str) -> str:
    """Return a page's text with its generated parts made from the program as it is now."""
    for name, make in PARTS.items():
        part = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
        if part.search(text):
            before, after = part.split(text, maxsplit=1)
            text = f"{before}\n{make()}\n\n{after}"
    return text
