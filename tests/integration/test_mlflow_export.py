"""``export --format mlflow``: the run that MLflow's own client reads back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gswarm_tui.cli import main
from gswarm_tui.fleet.events import Event, EventLogged, SessionStarted, SessionStopped
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, introduced, record

pytest.importorskip("mlflow")
pytest.importorskip("alembic")


@pytest.mark.filterwarnings("default")  # the client that reads back uses deprecated parts of its libraries
def test_a_session_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    events: list[Event] = [introduced("gpu03"), introduced("gpu+04")]
    for seq in range(1, 41):
        for name in ("gpu03", "gpu+04"):
            rows = [gpu_row(util_pct=2 * seq, power_w=300), gpu_row(util_pct=None)]
            events.append(arrived(seq, rows, name, ts=T0 + seq))
    marks = json.dumps({"acc@1": 0.5, "a/../b": 1.5, "π": 3.5, "energy_j": 4.5})
    events += [
        SessionStarted("1", T0 + 10, "train", T0 + 10),
        EventLogged(T0 + 20, "mark", "info", "epoch", detail=marks),
        SessionStopped("1", T0 + 40, T0 + 40),
    ]
    record(tmp_path / "run.duckdb", events, INFO, ended_at=T0 + 41)
    assert main(["export", "train", "--format", "mlflow"]) == 0
    assert "nothing was sent" in capsys.readouterr().err
    assert main(["export", "train", "--format", "mlflow", "--force"]) == 0
    # Under another name, a database may hold the user's own runs.
    shutil.copytree("train.mlflow", "mine")
    assert main(["export", "train", "--format", "mlflow", "--force", "-o", "mine"]) == 2
    assert "mine may hold more than an export" in capsys.readouterr().err
    assert main(["export", "train", "--format", "mlflow", "-o", "what?"]) == 2
    assert "MLflow takes no ? and % in the path" in capsys.readouterr().err

    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/train.mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("gswarm-tui")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "train"
    assert (run.info.start_time, run.info.end_time) == (1000 * (T0 + 10), 1000 * (T0 + 40))
    assert run.data.params["nodes"] == "['gpu03', 'gpu+04']"
    assert "gswarm-tui" in run.data.tags
    assert run.data.metrics["summary/util_mean_pct"] == pytest.approx(51)
    marked = [run.data.metrics[f"summary/marks/{name}"] for name in ("acc_1", "a/_/b", "π", "energy_j")]
    assert marked == [0.5, 1.5, 3.5, 4.5]
    history = client.get_metric_history(run.info.run_id, "gpu03/0.util_pct")
    assert [(one.step, one.value, one.timestamp) for one in history] == [
        (step, value, 1000 * (T0 + 20 + 10 * step)) for step, value in enumerate([31, 51, 71])
    ]
    assert run.data.metrics["gpu_04/0.power_w"] == 300
    assert "gpu03/1.util_pct" not in run.data.metrics
