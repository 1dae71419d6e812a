"""Error and texts that all readers of reports share; the texts hide paths and secrets.

A report holds the whole environment of the job. Only names of kernels, calls and ranges, and the tool's
messages are taken from it, and all of them pass through ``clean_text``.
"""

from __future__ import annotations

import re

from gswarm_agent.redact import redact
from gswarm_tui.common.errors import UserError

LONGEST = 4_000
"""Characters of a name; a demangled kernel of nested templates has thousands."""
LONGEST_READ = 4 * LONGEST
"""Characters of a name that are read; secrets and folders among them are removed before it is shortened."""

_SEGMENT = r"[^\s/'\"<>|]"
_FOLDERS = re.compile(
    # In quotes or from the beginning on, folders may have spaces.
    rf"""(?:^|(?<=["']))~?(?:/+{_SEGMENT}+(?:\s{_SEGMENT}+)*)+/+(?={_SEGMENT})"""
    rf"""|(?:file:/*(?=/)|(?<![\w.~)\]>/$}}-])(?:~\w*|\.\.?|\$\{{?\w+\}}?)?)(?:/+{_SEGMENT}+)+/+(?={_SEGMENT})"""
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class ReportError(UserError):
    """The report can't be imported; the message says why with the file, and what to do."""


def clean_text(text: str) -> str:
    """Return a text with the last part of each path, without secrets and control characters."""
    plain = _CONTROL.sub(" ", text[:LONGEST_READ])
    short = _FOLDERS.sub("", redact([plain])[0])
    return short if len(short) <= LONGEST else short[: LONGEST - 1] + "…"
