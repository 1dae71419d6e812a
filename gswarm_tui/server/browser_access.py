"""Access of browsers: a link's token is exchanged for a cookie, which says who may change the recording."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from enum import Enum


class Permission(Enum):
    """Permission of a screen in a browser: to change the recording, or only to watch."""

    WATCH = "watch"
    CONTROL = "control"


class BrowserAccess:
    """Tokens of one recording and the cookies that they are exchanged for.

    A cookie is a keyed hash, so that it is valid after a restart of the server and reveals no token.
    """

    def __init__(self, uid: str, tokens: Mapping[Permission, str]) -> None:
        self.cookie_name = f"gswarm-tui-{uid[:8]}"
        self._tokens = tokens
        self._cookies = {
            permission: hmac.digest(token.encode(), f"browser {uid}".encode(), "sha256").hex()
            for permission, token in tokens.items()
        }

    def of_token(self, token: str) -> Permission | None:
        """Return what a link's token permits, None for a wrong one."""
        return _find(token, self._tokens)

    def of_cookie(self, cookie: str) -> Permission | None:
        """Return what a cookie permits, None for a wrong one."""
        return _find(cookie, self._cookies)

    def token(self, permission: Permission) -> str:
        """Return the token for a permission."""
        return self._tokens[permission]

    def cookie(self, permission: Permission) -> str:
        """Return the cookie for a permission."""
        return self._cookies[permission]


def _find(given: str, known: Mapping[Permission, str]) -> Permission | None:
    """Return the permission with this secret, None without one; takes equally long for all."""
    digest = hashlib.sha256(given.encode()).digest()
    found = [
        permission
        for permission, secret in known.items()
        if hmac.compare_digest(digest, hashlib.sha256(secret.encode()).digest())
    ]
    return found[0] if found else None
