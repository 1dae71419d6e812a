"""``gswarm-tui status``: print the state of each running gswarm-tui."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from gswarm_tui.commands.head_choice import SHORT_ID, find_heads, head_parser
from gswarm_tui.common.errors import print_notice, printable
from gswarm_tui.common.quantities import elapsed, energy, file_size, percent, plural, watts
from gswarm_tui.control.client import Head, NoHeadError
from gswarm_tui.printing.json_output import print_json, with_times


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the state of the running recorders; return 1 if one doesn't answer. Raises UserError."""
    parser = head_parser(
        "status",
        "[options]",
        "Print the state of your running gswarm-tui on this machine: recording, nodes, GPUs, rows written, "
        "running sessions.",
        usual="all that are being written",
    )
    arguments = parser.read(args)
    try:
        heads = find_heads(arguments, environ)
    except NoHeadError:
        if arguments.json:
            print("[]")
        raise
    hanging = [head for head in heads if head.hangs]
    if arguments.json:
        print_json([_object(head) for head in heads])
    elif texts := ["\n".join(_lines(head)) for head in heads if not head.hangs]:
        print("\n\n".join(texts))
    for head in hanging:
        print_notice(f"{head.describe_hang()}.")
    return 1 if hanging else 0


def _object(head: Head) -> dict[str, Any]:
    if head.hangs:
        path = None if head.path is None else str(head.path)
        return {"answers": False, "pid": head.pid, "path": path, "uid": head.uid or None}
    sessions = [with_times(session) for session in head.status.get("sessions", ())]
    return {"answers": True, **with_times(head.status), "sessions": sessions}


def _lines(head: Head) -> Iterator[str]:
    """Yield the lines about one recorder."""
    status = head.status
    what = [f"recording {head.uid[:SHORT_ID]}"] if head.uid else []
    what += [head.job] if head.job else []
    yield printable(" · ".join([str(head.path or "nothing is recorded"), *what]))
    if "now" not in status:
        yield f"process {head.pid}, another version of gswarm-tui"
        return
    began = datetime.fromtimestamp(status["started_at"]).astimezone()
    yield (
        f"running for {elapsed(status['now'] - status['started_at'])}, since {began:%Y-%m-%d %H:%M:%S} · "
        f"process {head.pid} on {printable(status['host'])}"
    )
    yield ""
    states = ", ".join(f"{count:,} {state}" for state, count in status["states"].items())
    yield f"nodes     {states}"
    util = f"utilisation {percent(status['mean_util_pct'])}"
    used = f"{watts(status['power_w'])} · {energy(status['energy_j'])}"
    yield f"GPUs      {status['gpus']:,}, {status['busy_gpus']:,} busy · {util} · {used}"
    late = f", {status['lag_ms']:.0f} ms late" if status["lag_ms"] else ""
    yield f"sampling  every {status['interval_ms'] / 1000:g} s{late} · {', '.join(status['metrics'])}"
    if (finding := status.get("finding")) is not None:
        more = status["findings"] - 1
        yield f"finding   {printable(finding['sentence'])}" + (f" (and {more} more)" if more else "")
    if status["rows"] is not None:
        waiting = f", {plural(status['waiting'], 'event')} to write" if status["waiting"] else ""
        yield f"file      {plural(status['rows'], 'row')}, {file_size(status['file_bytes'])}{waiting}"
    for index, session in enumerate(status["sessions"]):
        figures = f"{elapsed(session['duration_s'])} · utilisation {percent(session['mean_util_pct'])}"
        yield f"{'' if index else 'sessions':8}  {printable(session['name'])}, {figures}"
    if status["error"]:
        yield f"problem   {printable(status['error'])}"
