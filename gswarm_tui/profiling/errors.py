"""Errors of reports: one sentence each, with the file and what to do."""

from __future__ import annotations

from gswarm_tui.common.errors import UserError


class ReportError(UserError):
    """The report can't be imported; the message says why, and what to do."""
