"""Kinds of the events of a trial: its plan, and the outcome of a run, as JSON in the details.

Imports nothing, because queries of recordings start quickly.
"""

TRIAL_PLANNED, TRIAL_RUN = "trial_planned", "trial_run"
TRIAL_KINDS = (TRIAL_PLANNED, TRIAL_RUN)
