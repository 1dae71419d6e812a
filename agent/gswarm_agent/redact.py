"""Removes secrets from command lines.

It hides the value of a flag, variable or field whose name ends like that of a secret (``--hf-token X``,
``WANDB_API_KEY=X``, ``"password": "X"``), a URL's password, an Authorization header, and tokens with a known
shape. It can't recognise other secrets.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List

HIDDEN = "***"

_NAME = (
    r"(?:token|passw(?:or)?d|passphrase|[_-]pwd|secret|credentials?|auth|signature|[?&]sig"
    r"|(?:api|access|account|auth|private|secret)[_.-]?key)"
)
_VALUE = r"""(?:"[^"]*"|'[^']*'|["']?[^\s"'&;]+)"""
_ENDS_AS_NAME = re.compile(rf"{_NAME}\Z", re.IGNORECASE)
# Each begins with a word that is rare, so that no text, however long and strange, makes the search slow.
_IN_TEXT = (
    re.compile(rf"""({_NAME}["']?\s?[=:]\s?)({_VALUE})""", re.IGNORECASE),
    re.compile(rf"((?<!\S)--?[\w.-]{{0,64}}{_NAME}\s+)(?!-)({_VALUE})", re.IGNORECASE),
    re.compile(r"""(authorization["']?\s?[=:]\s?["']?(?:\w+\s)?)([^\s"']+)""", re.IGNORECASE),
    re.compile(r"(://[^/\s:@]*:)([^/\s]+)(?=@)"),
    re.compile(
        r"(\b)((?:hf_|gh[opsru]_|github_pat_)\w{16,}|(?:glpat|xox[abeprs])-[\w-]{10,}"
        r"|sk-(?:[a-z]{2,6}-)?\w{20,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
    ),
)


def redact(words: Iterable[str]) -> List[str]:
    """Return the words of a command line with secrets replaced by ``HIDDEN``."""
    shown: List[str] = []
    secret_follows = False
    for word in words:
        name, is_set, _ = word.partition("=")
        if secret_follows and not word.startswith("-"):
            shown.append(HIDDEN)
        elif is_set and len(name.split()) == 1 and _ENDS_AS_NAME.search(name):
            shown.append(f"{_redact_text(name)}={HIDDEN}")
        else:
            shown.append(_redact_text(word))
        secret_follows = word.startswith("-") and not is_set and bool(_ENDS_AS_NAME.search(word))
    return shown


def _redact_text(text: str) -> str:
    """Redact one word, which may be a whole shell line, a URL or JSON."""
    for pattern in _IN_TEXT:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text
