"""Export to a database of MLflow with one run. Nothing is sent: ``mlflow ui`` shows it."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from posixpath import normpath

from gswarm_tui.analysis.periods import Period
from gswarm_tui.common.errors import UserError
from gswarm_tui.exchange.tracked_run import describe, points
from gswarm_tui.store.querying.results import QuerySource

_AT_ONCE = 1000
"""MLflow takes no more metrics in one batch."""


def write_mlflow(
    source: QuerySource, period: Period, folder: Path, report: Callable[[float], None], *, all_gpus: bool
) -> int:
    """Write ``folder``/mlflow.db; return the number of values. Raises UserError, StoreError."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with warnings.catch_warnings():
        # MLflow warns about its own use of other libraries, which the user can't change.
        warnings.simplefilter("ignore")
        try:
            import alembic  # noqa: F401 (MLflow needs it for the database)
            from mlflow.entities import Metric, Param
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
            from sqlalchemy.exc import SQLAlchemyError
        except ImportError:
            raise UserError("this format needs MLflow; install the extra gswarm-tui[mlflow].") from None
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if {"?", "%"} & set(str(folder.absolute())):
            raise UserError("MLflow takes no ? and % in the path of a database; name another folder with -o.")
        run, began = describe(source, period), period.bounds[0]
        written = 0
        try:
            client = MlflowClient(tracking_uri=f"sqlite:///{folder.absolute()}/mlflow.db")
            made = client.create_run(
                client.create_experiment("gswarm-tui", artifact_location="mlflow-artifacts:/"),
                start_time=round(1000 * began),
                tags=dict.fromkeys(run.tags, "true"),
                run_name=run.name,
            )

            def log(values: dict[str, float], passed: float, step: int) -> None:
                at = round(1000 * (began + passed))
                metrics = [Metric(_metric_name(name), value, at, step) for name, value in values.items()]
                for first in range(0, len(metrics), _AT_ONCE):
                    client.log_batch(made.info.run_id, metrics[first : first + _AT_ONCE])

            params = [Param(key, str(value)) for key, value in run.config.items()]
            client.log_batch(made.info.run_id, params=params)
            for step, passed, values in points(source, period, all_gpus=all_gpus):
                report(min(1.0, passed / max(1.0, period.seconds)))
                log(values, passed, step)
                written += len(values)
            log({f"summary/{name}": value for name, value in run.summary.items()}, period.seconds, 0)
            client.set_terminated(made.info.run_id, end_time=round(1000 * period.bounds[1]))
        except (MlflowException, SQLAlchemyError) as error:
            why = str(getattr(error.__cause__, "orig", error)).partition("\n")[0]
            raise UserError(f"MLflow can't write the run: {why}") from error
    return written


def _metric_name(name: str) -> str:
    """Return a name that MLflow takes, a relative path of letters, digits and ``_./ :-``: acc_1 for acc@1."""
    return normpath(re.sub(r"[^\w./ :-]|\.\.", "_", name)[:250])
