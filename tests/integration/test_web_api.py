"""The web API on a real recorder: each call, gswarm-profiler's ones, and all examples of the page."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gswarm_agent.metrics import GPU_METRICS
from gswarm_tui.printing.json_output import findings_object
from gswarm_tui.server.requests import MAX_QUERIES
from tests.served import ServedRecorder, served
from tests.unit.store_recording import T0, finding, query

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "web-api.md"
ORIGIN = "https://dashboard.example.org"
NAME = "NVIDIA H100 80GB HBM3 (simulated)"


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRecorder]:
    with served(tmp_path_factory.mktemp("served"), "--http-origin", ORIGIN) as running:
        yield running


def examples() -> list[str]:
    """Return the page's curl commands, in order."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ curl")]


# gswarm-profiler


def test_status_has_the_documented_fields(recorder: ServedRecorder) -> None:
    status = recorder.get("/status")
    assert status["total_gpus"] == 8
    assert status["connected_clients"] == ["sim01", "sim02"]
    assert status["gpu_info"]["sim02"][3] == {
        "id": f"sim02:3:{NAME}",
        "name": NAME,
        "physical_idx": 3,
        "hostname": "sim02",
    }
    assert status["enable_bandwidth_profiling"] is True
    assert status["enable_nvlink_profiling"] is True
    assert status["is_profiling"] is True
    assert status["active_sessions"] == ["recording"]
    assert status["frame_id_counter"] > 0
    assert isinstance(status["freq"], int)
    assert isinstance(status["output_filename"], str)


def test_information_and_clients_have_the_documented_fields(recorder: ServedRecorder) -> None:
    assert recorder.get("/") == {"message": "GSwarm Profiler HTTP API", "version": "0.1.0"}
    clients = recorder.get("/clients")
    assert clients["total_clients"] == 2
    assert clients["clients"][0]["client_id"] == clients["clients"][0]["hostname"] == "sim01"
    assert clients["clients"][0]["gpu_count"] == len(clients["clients"][0]["gpus"]) == 4


def test_latest_metrics_are_percent_and_list_the_connections(recorder: ServedRecorder) -> None:
    latest = recorder.get("/metrics/latest")
    gpus = [gpu for client in latest["client_data"].values() for gpu in client["gpus_metrics"]]
    assert len(gpus) == 8
    assert max(gpu["gpu_util"] for gpu in gpus) > 1
    assert all(0 <= gpu["mem_util"] <= 100 for gpu in gpus)
    watts = [gpu["extra_metrics"]["power_w"] for gpu in gpus]
    assert watts == [round(power, 3) for power in watts], "no noise of single precision"
    assert all(gpu["dram_bw_gbps_rx"] < 100 and gpu["nvlink_bw_gbps_tx"] < 1000 for gpu in gpus)
    links = latest["client_data"]["sim01"]["p2p_links"]
    assert {(one["local_gpu_physical_id"], one["remote_gpu_physical_id"]) for one in links} == {
        (a, b) for a in range(4) for b in range(4) if a != b
    }
    assert links[0]["type"] == "NV18"
    assert links[0]["aggregated_max_bandwidth_gbps"] > 0
    assert 0 < latest["client_data"]["sim01"]["system_metrics"]["dram_util"] <= 100


def test_sessions_overlap_and_each_is_exported_when_it_stops(recorder: ServedRecorder) -> None:
    (recorder.folder / "outer.json").write_text("somebody's file")
    start, stop = "/profiling/start", "/profiling/stop"
    outer = recorder.call("POST", start, {"name": "outer", "report_metrics": ["gpu_utilization"]}).json
    assert outer == {"success": True, "message": "Profiling started.", "output_file": "outer-2.json"}
    unnamed = recorder.call("POST", start, {}).json["output_file"]
    assert re.fullmatch(r"gswarm_profiler_\d{8}_\d{6}\.json", unnamed)
    within_a_second = recorder.call("POST", start, {}).json
    assert within_a_second["success"]
    recorder.call("POST", stop, {"name": within_a_second["output_file"].removesuffix(".json")})
    again = recorder.call("POST", start, {"name": "outer"}).json
    assert (again["success"], again["message"]) == (False, "A session of this name is running: outer.")
    seen = recorder.get("/status")["frame_id_counter"]
    recorder.eventually(
        lambda: recorder.get("/status")["frame_id_counter"] > seen + 1, "samples in the sessions"
    )

    stopped = recorder.call("POST", stop, {"name": "outer"}).json
    assert stopped["message"] == "Profiling stopped. Data saved to outer-2.json"
    recorder.call("POST", stop, {"name": unnamed.removesuffix(".json")})
    missing = recorder.call("POST", stop, {"name": "outer"}).json
    assert missing["success"] is False
    assert missing["message"].startswith('"outer" has already ended')

    recorder.eventually((recorder.folder / unnamed).exists, "both exports")
    content = json.loads((recorder.folder / "outer-2.json").read_text())
    assert content["session_name"] == "outer"
    assert content["frames"]
    assert (recorder.folder / "outer.json").read_text() == "somebody's file"
    listed = recorder.get("/profiling/sessions")
    assert listed["total_sessions"] == len(listed["sessions"]) >= 3
    session = next(one for one in listed["sessions"] if one["name"] == "outer")
    assert (session["is_active"], session["output_file"]) == (False, "outer-2.json")


def test_a_metric_that_is_off_cant_be_reported(recorder: ServedRecorder) -> None:
    groups = recorder.get("/api/v1/metrics")
    recorder.call("PUT", "/api/v1/metrics", {"groups": []})
    try:
        answer = recorder.call("POST", "/profiling/start", {"report_metrics": ["gpu_dram_bandwidth"]}).json
    finally:
        recorder.call("PUT", "/api/v1/metrics", groups)
    assert answer == {
        "success": False,
        "message": "gpu_dram_bandwidth isn't measured; switch the metric group pcie on first.",
        "output_file": None,
    }


def test_recorded_times_become_a_mark(recorder: ServedRecorder) -> None:
    times = {"app_name": "llm", "queue_time": 0.5, "processing_time": 2, "other_time": {"load": 1.5}}
    answer = recorder.call("POST", "/profiling/record", times).json
    assert answer["message"] == "Time consumption recorded successfully"
    mark = recorder.get("/api/v1/events?kind=mark&limit=1")["events"][0]
    assert mark["message"] == "llm"
    assert mark["detail"] == {"load": 1.5, "queue_time": 0.5, "processing_time": 2.0}
    negative = recorder.call("POST", "/profiling/record", times | {"queue_time": -1})
    assert (negative.status, negative.detail) == (400, "Invalid request data")


# /api/v1


def test_a_node_is_described_whole(recorder: ServedRecorder) -> None:
    node = recorder.get("/api/v1/nodes/sim02")
    assert (node["node"], node["state"], node["simulated"]) == ("sim02", "live", True)
    assert {metric.name for metric in GPU_METRICS} <= node["gpus"][0].keys()
    recorder.eventually(lambda: bool(recorder.get("/api/v1/nodes/sim02")["processes"]), "processes")
    missing = recorder.call("GET", "/api/v1/nodes/sim9")
    assert missing.status == 404
    assert missing.detail.startswith('There is no node "sim9"; perhaps you meant sim0')


def test_gpus_of_all_nodes_are_listed(recorder: ServedRecorder) -> None:
    gpus = recorder.get("/api/v1/gpus")["gpus"]
    assert [(gpu["node"], gpu["gpu_index"]) for gpu in gpus] == [
        (node, index) for node in ("sim01", "sim02") for index in range(4)
    ]
    assert {gpu["node"] for gpu in recorder.get("/api/v1/gpus?node=sim02")["gpus"]} == {"sim02"}


def test_findings_are_those_of_diagnose_as_documented(recorder: ServedRecorder) -> None:
    recorder.eventually(lambda: sum(recorder.get("/api/v1/findings")["ledger"].values()) > 0, "a look")
    found = recorder.get("/api/v1/findings")
    unknown = finding(kind="cannot_tell", severity="note", node=None, gpu=None)
    listed = findings_object([finding(until=T0 + 20), unknown], {"ib_mb_s": ["n1"]}, {"working": 5400})
    assert found.keys() == listed.keys()
    assert [one["until"] for one in listed["findings"]] == ["2027-01-15T08:00:20.000000Z"]
    assert [one["kind"] for one in listed["cannot_tell"]] == ["cannot_tell"]
    assert listed["ledger"] == {"working": 1.5}
    status = recorder.get("/api/v1/recording")
    assert (status["findings"] == 0) == (status["finding"] is None)


def test_sessions_are_started_in_the_past_changed_and_stopped(recorder: ServedRecorder) -> None:
    recording = recorder.get("/api/v1/recording")
    body = {"name": "whole", "started_at": recording["started_at"], "note": "all of it"}
    started = recorder.call("POST", "/api/v1/sessions", body)
    assert started.status == 201
    assert (started.json["name"], started.json["started_at"]) == ("whole", recording["started_at"])
    path = f"/api/v1/sessions/{started.json['session_id']}"
    assert recorder.call("PATCH", path, {"name": "warm-up/all"}).json["name"] == "warm-up/all"
    by_name = "/api/v1/sessions/warm-up%2Fall"
    assert recorder.call("PATCH", by_name, {"note": ""}).json["note"] == ""
    assert recorder.call("PATCH", f"{by_name}/stop", {"note": ""}).status == 405
    stopped = recorder.call("POST", f"{by_name}/stop").json
    assert (stopped["ended_at"] is not None, stopped["provisional"]) == (True, False)
    summary = "SELECT energy_j FROM session_summary WHERE session = 'warm-up/all' AND scope = 'all'"
    ((energy_j,),) = recorder.call("POST", "/api/v1/query", {"sql": summary}).json["rows"]
    assert energy_j == pytest.approx(stopped["energy_j"]), "the file has the last samples, too"
    later = recorder.get("/api/v1/recording")["rows"] + 20
    recorder.eventually(lambda: recorder.get("/api/v1/recording")["rows"] > later, "more samples")
    assert recorder.get("/api/v1/sessions")["sessions"][-1]["energy_j"] == stopped["energy_j"]
    again = recorder.call("POST", f"{path}/stop")
    assert (again.status, "has already ended" in again.detail) == (409, True)
    early = recorder.call("POST", "/api/v1/sessions", {"started_at": "2020-01-01T00:00:00Z"})
    assert (early.status, "The time isn't in the recording" in early.detail) == (409, True)


def test_what_is_changed_here_is_what_the_recording_has(recorder: ServedRecorder) -> None:
    recorder.call("PUT", "/api/v1/interval", {"interval_ms": 300})
    assert recorder.get("/api/v1/interval") == {"interval_ms": 300}
    assert recorder.get("/status")["freq"] == 300
    recorder.call("PUT", "/api/v1/interval", {"interval_ms": 1000})
    changes = recorder.get("/api/v1/events?kind=interval_changed")["events"]
    assert {"old_ms": 300, "new_ms": 1000} in [event["detail"] for event in changes]


def test_sql_is_limited_in_rows_time_and_reach(recorder: ServedRecorder) -> None:
    def run(**body: object) -> tuple[int, object]:
        answer = recorder.call("POST", "/api/v1/query", body)
        return answer.status, answer.detail if answer.status >= 400 else answer.json

    assert run(sql="SELECT 1 AS a, NULL::INTEGER AS b, 'x' AS c") == (
        200,
        {
            "columns": [
                {"name": "a", "type": "INTEGER"},
                {"name": "b", "type": "INTEGER"},
                {"name": "c", "type": "VARCHAR"},
            ],
            "rows": [[1, None, "x"]],
            "truncated": False,
        },
    )
    status, result = run(sql="SELECT * FROM range(1000000)", max_rows=3)
    assert (status, result["rows"], result["truncated"]) == (200, [[0], [1], [2]], True)  # type: ignore[index]
    slow = "SELECT count(*) FROM range(10000000000) a, range(1000) b"
    assert run(sql=slow, timeout_s=0.2) == (400, "The query took longer than 0.2 s and was cancelled.")
    began = time.monotonic()
    for _ in range(MAX_QUERIES):
        leaving = http.client.HTTPConnection("127.0.0.1", recorder.port)
        header = {"Authorization": f"Bearer {recorder.token}", "Content-Type": "application/json"}
        leaving.request("POST", "/api/v1/query", json.dumps({"sql": slow, "timeout_s": 60}), header)
        recorder.get("/status")
        leaving.close()
    recorder.eventually(lambda: run(sql="SELECT 1")[0] == 200, "the end of queries whose clients left")
    assert time.monotonic() < began + 30, "they ended by their time limit"
    long = "SELECT repeat('x', 10000) FROM range(4000)"
    assert run(sql=long, max_rows=4000)[1]["truncated"]  # type: ignore[index]
    large = "SELECT len(array_agg(range)) FROM range(4000000000)"
    assert run(sql=large, timeout_s=60) == (
        400,
        "The query needs more memory than it may use; aggregate more, or query fewer rows at a time.",
    )
    for sql in ("DROP TABLE samples", "SELECT * FROM read_csv('/etc/passwd')", "SELECT 1; SELECT 2", "SELEC"):
        status, sentence = run(sql=sql)
        assert (status, str(sentence)[-1]) == (400, "."), sql


def test_readers_of_the_stream_get_each_new_state(recorder: ServedRecorder) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", recorder.port, timeout=60)
    header = {"Authorization": f"Bearer {recorder.token}"}
    connection.request("GET", "/api/v1/frames?metrics=util_pct,cpu_pct", headers=header)
    answer = connection.getresponse()
    assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"
    numbers, times = [], []
    for _ in range(2):
        lines = [answer.readline().decode().rstrip() for _ in range(4)]
        numbers.append(int(lines[0].removeprefix("id: ")))
        assert (lines[1], lines[3]) == ("event: frame", "")
        state = json.loads(lines[2].removeprefix("data: "))
        times.append(state["at"])
        assert [node["node"] for node in state["nodes"]] == ["sim01", "sim02"]
        assert state["nodes"][0]["gpus"][0].keys() == {"gpu_index", "util_pct"}
        assert state["nodes"][0]["host"].keys() == {"cpu_pct"}
    connection.close()
    assert numbers[0] < numbers[1]
    assert times[0] < times[1]
    unknown = recorder.call("GET", "/api/v1/frames?metrics=util")
    assert (unknown.status, '"util" isn\'t a metric' in unknown.detail) == (400, True)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("DELETE", "/status", None, 405),
        ("POST", "/api/v1/marks", "{", 422),
        pytest.param("POST", "/api/v1/marks", "[" * 100_000, 400, id="deep"),
        pytest.param("POST", "/api/v1/marks", '{"name": ' + "9" * 5000 + "}", 400, id="long number"),
        ("POST", "/api/v1/marks", {"name": 3}, 422),
        ("POST", "/api/v1/marks", {"name": "m", "extra": 1}, 422),
        ("POST", "/api/v1/marks", '{"name": "m", "values": {"a": NaN}}', 422),
        ("POST", "/api/v1/marks", '{"name": "\\ud800"}', 422),
        ("POST", "/api/v1/sessions", {"name": "two\nlines"}, 400),
        ("POST", "/api/v1/sessions", {"name": "x" * 201}, 422),
        ("POST", "/api/v1/sessions", {"started_at": 12}, 422),
        ("POST", "/profiling/start", {"name": "../../etc/passwd\0"}, 400),
        ("POST", "/profiling/start", {"report_metrics": ["gpu_temperature"]}, 422),
        ("PUT", "/api/v1/interval", {"interval_ms": 1}, 422),
        ("PUT", "/api/v1/interval", {"interval_ms": True}, 422),
        ("PUT", "/api/v1/metrics", {"groups": ["gpu"]}, 422),
        ("GET", "/api/v1/events?limit=0", None, 422),
        ("GET", "/api/v1/events?kind=zzz", None, 400),
        ("GET", "/api/v1/nodes/%00", None, 404),
        ("GET", "/api/v1/gpus?node=sim9", None, 404),
        ("POST", "/profiling/record", {"app_name": "a", "queue_time": "1", "processing_time": 1}, 422),
    ],
)
def test_bad_input_is_answered_with_a_sentence(
    recorder: ServedRecorder, method: str, path: str, body: object, status: int
) -> None:
    answer = recorder.call(method, path, body)
    assert answer.status == status, answer
    assert answer.detail.endswith("."), answer
    assert "Traceback" not in answer.text


def test_unknown_kind_of_event_is_refused_with_those_that_there_are(recorder: ServedRecorder) -> None:
    refusal = recorder.call("GET", "/api/v1/events?kind=zzz").detail
    assert refusal.startswith(
        '"zzz" isn\'t a kind of event; these are: abandoned, allocation, asked, clock, '
    ), refusal
    kinds = refusal.removesuffix(".").partition(": ")[2].split(", ")
    assert {"mark", "reboot", "xid"} < set(kinds)
    assert recorder.get("/api/v1/events?kind=reboot") == {"events": []}, "one that there may be"


def test_invalid_bodies_are_explained(recorder: ServedRecorder) -> None:
    def explained(body: object, **headers: str) -> str:
        return recorder.call("POST", "/api/v1/marks", body, headers=headers).detail

    form = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl -d sends it
    needed = "The body must be a JSON object, sent with the header Content-Type: application/json."
    assert explained('{"name": "epoch"}', **form) == explained([]) == explained(None) == needed
    assert explained("{") == "The body isn't valid JSON."
    assert explained({}) == "name: A value is needed."
    assert explained({"name": "epoch", "value": 1}) == "value: There is no such value."
    assert explained({"name": "epoch", "values": {"loss": [1]}}) == (
        "values.loss: a value must be a finite number or a text."
    )


# The page


def test_every_curl_example_of_the_page_works(recorder: ServedRecorder) -> None:
    auth = f'auth() {{ echo "Authorization: Bearer $(cat {recorder.token_file})"; }}'
    for example in examples():
        command = example.replace("http://127.0.0.1:8091", recorder.url)
        if command.startswith("curl -N"):  # a stream, which has no end
            command = f"{command} | head -n 3"
        done = subprocess.run(
            ["bash", "-c", f"{auth}\n{command}"],
            cwd=recorder.folder,  # an export is written there
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout, command
        assert '"detail":"' not in done.stdout, (command, done.stdout)
        assert '"success":false' not in done.stdout, (command, done.stdout)


def test_the_page_has_an_example_of_every_call(recorder: ServedRecorder) -> None:
    called = set()
    for example in examples():
        path = re.search(r"127\.0\.0\.1:8091(/[^'? ]*)", example)
        assert path is not None
        method = re.search(r"-X ([A-Z]+)", example)
        sends = "--json" in example or " -d " in example
        called.add((method[1] if method else "POST" if sends else "GET", path[1]))
    table = PAGE.read_text()
    for path, methods in recorder.get("/api/v1/openapi.json")["paths"].items():
        if path == "/metrics":  # on the page about Prometheus
            continue
        pattern = re.sub(r"\\\{[a-z]+\\\}", "[^/]+", re.escape(path))
        for method in methods:
            assert f"`{method.upper()} {path}`" in table
            assert any(m == method.upper() and re.fullmatch(pattern, p) for m, p in called), (method, path)


def test_the_python_example_of_the_page_works(recorder: ServedRecorder) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = example.replace("http://127.0.0.1:8091", recorder.url)
    script = script.replace("0fd1c412-3db2-4339-b4e9-e50194c5119e", recorder.token_file.name)
    script = script.replace(
        'Path.home() / ".local/state/gswarm-tui/tokens"', f"Path({str(recorder.token_file.parent)!r})"
    )
    done = subprocess.run(["python3", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["sim01", "live"], ["sim02", "live"]]


def test_a_page_of_the_allowed_origin_can_do_what_its_example_does(recorder: ServedRecorder) -> None:
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    preflight = recorder.call("OPTIONS", "/profiling/start", token="-", headers=asked)
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    answer = recorder.call("POST", "/profiling/start", {"name": "experiment_1"}, headers={"Origin": ORIGIN})
    assert answer.json["success"]
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    recorder.call("POST", "/profiling/stop", {"name": "experiment_1"})


def test_the_recording_missed_no_sample_meanwhile(recorder: ServedRecorder) -> None:
    assert all(node["lost_frames"] == 0 for node in recorder.get("/api/v1/nodes")["nodes"])
    recorder.end()
    gaps = "SELECT count(*) FROM events WHERE kind = 'gap'"
    assert query(recorder.folder / "run.duckdb", gaps) == [(0,)]
    assert not recorder.token_file.exists()
