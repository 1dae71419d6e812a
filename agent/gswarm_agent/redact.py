"""Removes secrets from command lines.

It hides the value of a flag, variable or field whose name ends like that of a secret (``--hf-token X``,
``DB_PASS=X``, ``"password": "X"``), the password after a user (``-u me:X``), user and password of a URL, an
Authorization header, and tokens of services that training jobs use. It can't recognise other secrets, such as
the password after the ``-p`` of mysql.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List

HIDDEN = "***"

_NAME = (
    r"(?:(?<!max[_-])(?<!min[_-])(?<!num[_-])(?<!per[_-])token|passw(?:or)?d|passphrase|passcode|[?&;_-]pwd"
    r"|secret|credentials?|(?<![a-z])creds?|auth|signature|[?&]sig|[?&]key|bearer|cookie|jwt"
    r"|(?:api|access|account|auth|private|secret|signing|encryption|license|service|subscription|db)[_.-]?key)"
)
# Only as a whole word or after a few others, because of bypass and compass.
_SHORT_NAME = r"(?:(?:(?<![a-z])|db|key|store|user|root|admin|pg|my|ssh)pass|(?<![a-z])pw|(?-i:_PAT))"
_ANY_NAME = rf"(?:{_NAME}|{_SHORT_NAME})"
# Switches, small numbers and the special tokens of language models are no secrets.
_HARMLESS = r"(?:true|false|none|null|yes|no|on|off|\d{1,2}|<[^<>\s]*>|\[[A-Z]+\])"
_NOT_HARMLESS = rf"""(?!["']?{_HARMLESS}["']?(?![^\s"'&;|,)}}\]]))"""
_QUOTED = r"""\"[^"]*"|'[^']*'"""
_QUOTED_WORD = r"""\"[^"\s]*"|'[^'\s]*'"""  # after other text, a quote before a space may end an earlier one
_VALUE = (
    rf"""(?:(?:{_QUOTED})(?:{_QUOTED_WORD}|\\.|[^\s"'&;\\,\]}})])*"""
    rf"""|(?:\\.|[^\s"'&;\\])(?:{_QUOTED_WORD}|\\.|[^\s"'&;\\])*|["'][^\s"'&;]*)"""
)
_SCHEME = r"(?:(?:bearer|basic|token)\s+)?"

_ENDS_AS_NAME = re.compile(rf"{_ANY_NAME}\Z", re.IGNORECASE)
_IS_HARMLESS = re.compile(rf"{_HARMLESS}\Z", re.IGNORECASE)
_TAKES_USER = re.compile(r"(?:-u|-U|--(?:proxy-)?user)\Z")
# `docker run -u 1000:1000` has numbers of a user and a group; an address has its port or // after the colon.
_USER = r"""(?!\d+:\d+(?![^\s"']))[^\s:/"'=]+:(?!//)"""
_USER_AND_PASSWORD = re.compile(rf"({_USER})[^\0]+")
_AFTER_USER_FLAG = r"(?<!\S)(?:-[uU]\s*|--(?:proxy-)?user(?:\s+|=))"
# Each begins with a word that is rare, so that no text, however long and strange, makes the search slow.
_IN_TEXT = (
    re.compile(rf"""({_NAME}["']?\s?[=:]\s?{_SCHEME}){_NOT_HARMLESS}{_VALUE}""", re.IGNORECASE),
    re.compile(
        rf"""({_SHORT_NAME}["']?\s?=\s?|(?<![\w-])pass(?:word)?["']?\s?:\s?){_NOT_HARMLESS}{_VALUE}""",
        re.IGNORECASE,
    ),
    re.compile(rf"((?<!\S)--?[\w.-]{{0,64}}{_ANY_NAME}\s+)(?!-){_NOT_HARMLESS}{_VALUE}", re.IGNORECASE),
    re.compile(r"""(authorization["']?\s?[=:]\s?["']?(?:\w+\s)?)[^\s"']+""", re.IGNORECASE),
    re.compile(r"(\bbearer\s+)[\w.~+/=-]{16,}", re.IGNORECASE),
    re.compile(rf"({_AFTER_USER_FLAG}\"{_USER})[^\"]+"),
    re.compile(rf"({_AFTER_USER_FLAG}'{_USER})[^']+"),
    re.compile(rf"""({_AFTER_USER_FLAG}{_USER}){_VALUE}"""),
    re.compile(
        r"(hooks\.slack\.com/\w+/|discord(?:app)?\.com/api/webhooks/|\.webhook\.office\.com/\w+/)[^\s\"']+"
    ),
    # Passwords in the URLs of databases may hold / and @. The URLs of pages and repositories have ports, and
    # @ in their paths; their user may be a token.
    re.compile(r"""((?<!http)(?<!https)(?<!ftp)(?<!ssh)://[^\s/:"']{0,200}:)[^\s"']{1,200}(?=@)"""),
    re.compile(r"""((?:https?|ftp|ssh)://[^\s/:"']{0,200}:)[^\s/"']+(?=@)"""),
    re.compile(r"""((?:https?|ftp)://)[^\s/:@"']+(?=@)"""),
    re.compile(r"(-----BEGIN[ A-Z0-9_-]{0,100}PRIVATE KEY(?: BLOCK)?-----)[\s\S]+?(?=-----END|\Z)"),
)

# Each form: the beginning of the token, and a pattern for the rest. Lengths are lower bounds: a hidden word
# does no harm, and a shown secret does.
_FORMS = (
    (r"(?:sk|rk|pk)[-_](?:ant|proj|svcacct|admin|or|live|test|prod)[-_]|sk-(?=\w{20})", r"[\w-]{10,}"),
    (r"hf_|api_org_", r"\w{16,}"),
    (r"(?:nvapi|xai|pplx|gsk|r8|tgp_v1|wandb_v1|lsv2_[ps]t)[-_]", r"[\w-]{20,}"),
    (r"(?:AKIA|ASIA|ABIA|ACCA)", r"[A-Z0-9]{16}"),
    (r"AIza|ya29\.|GOCSPX-", r"[\w-]{20,}"),
    (r"[\w~.]{3}\dQ~", r"[\w~.-]{31,34}"),
    (r"gh[opsru]_|github_pat_", r"\w{16,}"),
    (r"gl(?:pat|dt|ft|imt|agent|oas|ptt|rt|soat|cbt|ffct)-", r"[\w.-]{10,}"),
    (r"npm_(?=[A-Za-z0-9]{20})|pypi-Ag", r"[\w-]{8,}"),
    (r"xox[abeoprs][-.]|xapp-", r"[\w-]{10,}"),
    (r"dapi|hv[bsr]\.", r"[\w-]{20,}"),
    (r"eyJ[\w-]{8,}\.eyJ", r"[\w-]{8,}\.[\w-]*"),
)
_TOKEN = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(f'(?:{start}){rest}' for start, rest in _FORMS)})")


def redact(words: Iterable[str]) -> List[str]:
    """Return the words of a command line with secrets replaced by ``HIDDEN``."""
    shown: List[str] = []
    before = ""
    for word in words:
        name, is_set, value = word.partition("=")
        if before and _ENDS_AS_NAME.search(before) and not word.startswith("-"):
            shown.append(_hide(word))
        elif _TAKES_USER.match(before) and (found := _USER_AND_PASSWORD.match(word)):
            shown.append(f"{found[1]}{HIDDEN}")
        elif is_set and len(name.split()) == 1 and _ENDS_AS_NAME.search(name):
            shown.append(f"{_redact_text(name)}={_hide(value)}")
        else:
            shown.append(_redact_text(word))
        before = word if word.startswith("-") and not is_set else ""
    return shown


def _hide(value: str) -> str:
    return value if _IS_HARMLESS.match(value) else HIDDEN


def _redact_text(text: str) -> str:
    """Redact one word, which may be a whole shell line, a URL or JSON."""
    for pattern in _IN_TEXT:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return _TOKEN.sub(HIDDEN, text)
