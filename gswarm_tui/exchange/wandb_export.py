"""Export to an offline run of Weights & Biases. Nothing is sent: ``wandb sync`` does that."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from gswarm_tui.analysis.periods import Period
from gswarm_tui.common.errors import UserError
from gswarm_tui.exchange.tracked_run import describe, points
from gswarm_tui.store.querying.results import QuerySource


def write_wandb(
    source: QuerySource, period: Period, folder: Path, report: Callable[[float], None], *, all_gpus: bool
) -> int:
    """Write a run into ``folder``/wandb; return the number of points. Raises UserError, StoreError."""
    # Variables of the job would name its own run, an API key or a server.
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        del os.environ[name]
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    try:
        import wandb
    except ImportError:
        raise UserError("this format needs wandb; install the extra gswarm-tui[wandb].") from None
    # On a full disk, wandb's own log would print tracebacks.
    logging.raiseExceptions = False
    run, began = describe(source, period), period.bounds[0]
    settings = wandb.Settings(
        mode="offline",
        host="",
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    written = 0
    try:
        begun = wandb.init(
            project="gswarm-tui",
            name=run.name,
            dir=str(folder),
            config=run.config,
            tags=run.tags,
            settings=settings,
        )
        begun.define_metric("time_s")
        begun.define_metric("*", step_metric="time_s")
        for step, passed, values in points(source, period, all_gpus=all_gpus):
            report(min(1.0, passed / max(1.0, period.seconds)))
            begun.log({**values, "time_s": passed, "_timestamp": began + passed}, step=step)
            written += len(values)
        begun.summary.update(run.summary)
        begun.finish()
        # On a full disk, wandb loses the rest without an error. Then this file can't be written either.
        (probe := folder / "probe").write_bytes(bytes(1024 * 1024))
        probe.unlink()
    except wandb.Error as error:
        raise UserError(f"wandb can't write the run: {error}.") from error
    finally:
        wandb.teardown()
        logging.raiseExceptions = True
    return written
