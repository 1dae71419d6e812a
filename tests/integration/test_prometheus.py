"""A real Prometheus scrapes a recorder; rules, dashboard and exposition pass its own checks."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from tests.cluster.running import wait_until
from tests.integration.sshd import free_port

CONTRIB = Path(__file__).parents[2] / "contrib"
CONFIGURATION = CONTRIB / "prometheus" / "prometheus.yml"
RULES = CONTRIB / "prometheus" / "alerts.yml"
PAGE = (CONTRIB.parent / "docs" / "guide" / "prometheus.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((CONTRIB / "grafana" / "gswarm-tui.json").read_text())
VARIABLES = DASHBOARD["templating"]["list"][1:]
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
SCRAPE_S = 1


class Served(NamedTuple):
    """A recorder with an HTTP server: the port and the scrape token."""

    port: int
    token: str

    def get(self, path: str = "/metrics", **headers: str) -> tuple[Mapping[str, str], bytes]:
        """Return headers and body of the answer. Raises HTTPError."""
        request = Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        request.add_header("Authorization", f"Bearer {self.token}")
        with urlopen(request, timeout=30) as answer:
            return answer.headers, answer.read()


def program(name: str) -> str:
    """Return the path of a program of the distribution's prometheus package."""
    found = shutil.which(name)
    assert found, f"no {name}: apt-get install prometheus"
    return found


@contextmanager
def running(*words: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the block."""
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, **options) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a recorder of two simulated nodes, whose samples can be scraped."""
    folder, port = tmp_path_factory.mktemp("served"), free_port()
    environ = {
        **os.environ,
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder),
        "XDG_RUNTIME_DIR": str(folder),
    }
    words = "-m", "gswarm_tui", "record", "--demo", "2x2", "--http", f"127.0.0.1:{port}"
    log = folder / "log"
    with (
        log.open("w") as file,
        running(sys.executable, *words, cwd=folder, env=environ, stderr=file),
    ):
        tokens = folder / "gswarm-tui" / "tokens"
        wait_until(lambda: [*tokens.glob("*.scrape")], "a token", log)
        (token,) = tokens.glob("*.scrape")
        recorder = Served(port, token.read_text().strip())
        wait_until(lambda: b"gswarm_gpu_energy_joules_total{" in answered(recorder), "the first samples", log)
        yield recorder


def answered(served: Served) -> bytes:
    """Return the metrics, nothing while the server starts."""
    try:
        return served.get()[1]
    except (HTTPError, URLError, ConnectionError):
        return b""


class Prometheus(NamedTuple):
    """A Prometheus that scrapes a recorder."""

    port: int

    def data(self, call: str, **parameters: str) -> Any:
        """Return the data of a call of its HTTP API."""
        with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{call}?{urlencode(parameters)}") as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        """Return the values of a query's series."""
        return [float(series["value"][1]) for series in self.data("query", query=expression)["result"]]

    def ready(self) -> bool:
        """Return whether it has evaluated what the dashboard's rates need."""
        try:
            return bool(self.values("increase(gswarm_recorder_rows_total[10s]) > 0"))
        except (URLError, ConnectionError):
            return False


@pytest.fixture(scope="module")
def prometheus(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run a Prometheus with the repository's configuration until it has scraped the recorder a few times."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    shutil.copy(RULES, folder)
    (folder / "scrape-token").write_text(served.token + "\n")
    config = re.sub(r"_interval: \d+s", f"_interval: {SCRAPE_S}s", CONFIGURATION.read_text())
    (folder / "prometheus.yml").write_text(config.replace("127.0.0.1:8091", f"127.0.0.1:{served.port}"))
    log = folder / "log"
    words = (
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with log.open("w") as file, running(*words, stderr=file, env={**os.environ, "GOMAXPROCS": "1"}):
        scraping = Prometheus(port)
        wait_until(scraping.ready, "scrapes", log)
        yield scraping


def test_prometheus_scrapes_the_recorder_with_the_scrape_token(prometheus: Prometheus) -> None:
    (target,) = prometheus.data("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert prometheus.values("gswarm_recorder_up") == [1]
    assert prometheus.values("sum(gswarm_node_up)") == [2]
    assert prometheus.values("count by (UUID, gpu, hostname, modelName) (gswarm_gpu_power_watts)") == [1] * 4
    help_text = prometheus.data("metadata", metric="gswarm_gpu_power_watts")["gswarm_gpu_power_watts"]
    assert help_text == [{"type": "gauge", "help": "Power drawn by the board", "unit": ""}]


def test_each_query_of_the_dashboard_returns_series(prometheus: Prometheus) -> None:
    assert len(QUERIES) > 40
    assert [query for query in QUERIES if not prometheus.values(filled(query))] == []


def test_panels_of_the_dashboard_have_places_of_their_own() -> None:
    taken = Counter(
        (place["x"] + column, place["y"] + line)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for column in range(place["w"])
        for line in range(place["h"])
    )
    assert max(taken.values()) == 1
    assert max(column for column, _ in taken) < 24
    assert max(Counter(panel["id"] for panel in DASHBOARD["panels"]).values()) == 1


def filled(query: str) -> str:
    """Return a query of the dashboard with all of each variable's values."""
    for variable in VARIABLES:
        query = query.replace(f"${variable['name']}", variable["allValue"])
    return query.replace("$__rate_interval", "10s")


@pytest.mark.parametrize("query", re.findall(r"```promql\n(.+?)\n```", PAGE, re.DOTALL))
def test_each_query_of_the_page_is_valid(prometheus: Prometheus, query: str) -> None:
    assert prometheus.data("query", query=query)["resultType"] == "vector"


def test_the_page_shows_the_configuration_that_is_scraped_with() -> None:
    assert f"```yaml\n{CONFIGURATION.read_text()}```\n" in PAGE


def test_the_variables_of_the_dashboard_list_recorder_and_nodes(
    prometheus: Prometheus, served: Served
) -> None:
    lists = {}
    for variable in VARIABLES:
        ((selector, label),) = re.findall(r"label_values\((.+), (\w+)\)", variable["definition"])
        lists[label] = prometheus.data(f"label/{label}/values", **{"match[]": filled(selector)})
    assert lists == {"instance": [f"127.0.0.1:{served.port}"], "hpc_job": [], "hostname": ["sim01", "sim02"]}


def test_prometheus_evaluates_all_alert_rules(prometheus: Prometheus) -> None:
    rules = [rule for group in prometheus.data("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == RULES.read_text().count("alert:")
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []


@pytest.mark.parametrize(
    "words", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")], ids=" ".join
)
def test_alert_rules_pass_promtool(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [program("promtool"), *words], cwd=RULES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_exposition_passes_promtool_but_for_a_label_of_dcgm_exporter(served: Served) -> None:
    _, text = served.get()
    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=text, capture_output=True, check=False
    )
    found = {line.split(maxsplit=1)[1] for line in done.stderr.decode().splitlines()}
    assert found == {"label names should be written in 'snake_case' not 'camelCase'"}
    without = re.sub(rb',modelName="[^"]*"', b"", text)
    done = subprocess.run([program("promtool"), "check", "metrics"], input=without, check=False)
    assert done.returncode == 0


def test_gzip_is_sent_to_those_who_ask(served: Served) -> None:
    headers, packed = served.get(**{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert b"gswarm_node_up{" in gzip.decompress(packed)


def test_scrape_token_reads_metrics_and_nothing_else(served: Served) -> None:
    with pytest.raises(HTTPError, match="403"):
        served.get("/status")
    with pytest.raises(HTTPError, match="401"):
        served._replace(token="guessed").get()
