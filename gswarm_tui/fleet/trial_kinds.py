"""Kinds of the events of a trial: its plan, the start of a run, and its outcome, as JSON in the details.

Imports nothing, because queries of recordings start quickly.
"""

TRIAL_PLANNED, TRIAL_RUN_STARTED, TRIAL_RUN = "trial_planned", "trial_run_started", "trial_run"
TRIAL_KINDS = (TRIAL_PLANNED, TRIAL_RUN_STARTED, TRIAL_RUN)
