"""The guard of the HTTP server: what it lets through to the application, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import pytest
from starlette.types import Message, Receive, Scope, Send

from gswarm_tui.server.guard import Guard
from gswarm_tui.server.tokens import Tokens, read_tokens, remove_tokens
from gswarm_tui.server.web import BrowserAccess

TOKENS = Tokens("the-control-token", "the-scrape-token", "the-watch-token")
CONTROL = {"authorization": f"Bearer {TOKENS.control}"}


async def echo(_: Scope, receive: Receive, send: Send) -> None:
    """Answer with the length of the body."""
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(body)).encode()})


async def ask(
    guarded: Guard,
    method: str = "GET",
    path: str = "/status",
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    body: Sequence[bytes] = (b"",),
    *,
    with_host: bool = True,
) -> tuple[int, dict[str, str], str]:
    """Send a request through the guard; return status, headers and body of the answer."""
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    if with_host and not any(name == "host" for name, _ in pairs):
        pairs.append(("host", "127.0.0.1:8091"))
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "scheme": "http",
        "headers": [(name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in pairs],
    }
    parts = list(body)
    sent: list[Message] = []

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Message) -> None:
        sent.append(message)

    await guarded(scope, receive, send)
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(each.get("body", b"") for each in sent).decode()


def refused(answer: tuple[int, dict[str, str], str]) -> tuple[int, str]:
    """Return status and sentence of a refusal."""
    sentence = json.loads(answer[2])["detail"]
    assert sentence.endswith(".")
    return answer[0], sentence


async def test_the_control_token_opens_everything() -> None:
    assert (await ask(Guard(echo, TOKENS), headers=CONTROL))[0] == 200
    assert (await ask(Guard(echo, TOKENS), path="/metrics", headers=CONTROL))[0] == 200


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer the-control-toke"},
        {"authorization": "Bearer the-control-token2"},
        {"authorization": f"Basic {TOKENS.control}"},
        {"authorization": TOKENS.control},
        {"cookie": f"token={TOKENS.control}"},
    ],
)
async def test_a_missing_or_wrong_token_is_refused(header: dict[str, str]) -> None:
    answer = await ask(Guard(echo, TOKENS), headers=header)
    assert refused(answer)[0] == 401
    assert answer[1]["www-authenticate"] == "Bearer"
    assert TOKENS.control not in str(answer)


async def test_requests_are_refused_once_the_token_is_removed() -> None:
    tokens = read_tokens("a-recording-of-this-test")
    guarded = Guard(echo, tokens)
    header = {"authorization": f"Bearer {tokens.control}"}
    assert (await ask(guarded, headers=header))[0] == 200
    remove_tokens(tokens.uid)
    for _ in range(2):
        status, why = refused(await ask(guarded, headers=header))
        assert (status, why) == (
            401,
            "The tokens of this recording were removed; restart the server for new ones.",
        )
        read_tokens(tokens.uid)  # of another server


@pytest.mark.parametrize("host", ["127.0.0.1:8091", "localhost:9999", "[::1]:8091", "LOCALHOST", "10.1.2.3"])
async def test_requests_to_addresses_and_localhost_are_served(host: str) -> None:
    assert (await ask(Guard(echo, TOKENS), headers={**CONTROL, "host": host}))[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8091", "127.0.0.1.evil.example", "localhost.x"]
)
async def test_a_foreign_host_is_refused_even_with_the_token(host: str) -> None:
    assert refused(await ask(Guard(echo, TOKENS), headers={**CONTROL, "host": host}))[0] == 421


@pytest.mark.parametrize("host", ["", "a b", "user@localhost", "localhost/x", "[::1", "localhost:x", "a,b"])
async def test_an_invalid_host_is_refused(host: str) -> None:
    assert refused(await ask(Guard(echo, TOKENS), headers={**CONTROL, "host": host}))[0] == 400


@pytest.mark.parametrize(("path", "header"), [("/%ff", "text"), ("/status", "\udcff")])
async def test_a_request_that_isnt_text_is_refused(path: str, header: str) -> None:
    assert refused(await ask(Guard(echo, TOKENS), path=path, headers={**CONTROL, "x": header}))[0] == 400


async def test_a_request_without_a_host_is_refused() -> None:
    assert refused(await ask(Guard(echo, TOKENS), headers=CONTROL, with_host=False))[0] == 400


async def test_pages_of_allowed_origins_may_read_answers() -> None:
    guarded = Guard(echo, TOKENS, ["https://dash.example"])
    status, headers, _ = await ask(guarded, headers={**CONTROL, "origin": "https://dash.example"})
    assert (status, headers["access-control-allow-origin"]) == (200, "https://dash.example")
    assert headers["vary"] == "Origin"
    refusal = await ask(guarded, headers={"origin": "https://dash.example"})
    assert refusal[0] == 401
    assert refusal[1]["access-control-allow-origin"] == "https://dash.example"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "https://dash.example.evil", "http://dash.example", "*"]
)
async def test_pages_of_other_origins_are_refused_even_with_the_token(origin: str) -> None:
    answer = await ask(Guard(echo, TOKENS, ["https://dash.example"]), headers={**CONTROL, "origin": origin})
    assert refused(answer)[0] == 403
    assert "access-control-allow-origin" not in answer[1]


async def test_a_preflight_needs_no_token_but_an_allowed_origin() -> None:
    guarded = Guard(echo, TOKENS, ["https://dash.example"])
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    status, headers, _ = await ask(guarded, "OPTIONS", headers={**asked, "origin": "https://dash.example"})
    assert status == 204
    assert "POST" in headers["access-control-allow-methods"]
    assert "Authorization" in headers["access-control-allow-headers"]
    assert (await ask(guarded, "OPTIONS", headers={**asked, "origin": "https://evil.example"}))[0] == 403
    assert (await ask(guarded, "OPTIONS", headers={"origin": "https://dash.example"}))[0] == 401


async def test_a_proxy_may_name_the_host_of_an_allowed_origin() -> None:
    guarded = Guard(echo, TOKENS, ["https://dash.example"])
    assert (await ask(guarded, headers={**CONTROL, "host": "dash.example"}))[0] == 200


async def test_a_body_reaches_the_application() -> None:
    header = {**CONTROL, "content-length": "2001"}
    assert (await ask(Guard(echo, TOKENS), "POST", headers=header, body=[b"a" * 2001]))[2] == "2001"


async def test_answers_are_never_cached_or_interpreted() -> None:
    headers = (await ask(Guard(echo, TOKENS), headers=CONTROL))[1]
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"


async def test_a_login_for_a_page_opens_nothing_of_the_api() -> None:
    for token in (TOKENS.watch, *BrowserAccess(TOKENS, "http://127.0.0.1:8092").keys.values()):
        header = {"authorization": f"Bearer {token}"}
        assert refused(await ask(Guard(echo, TOKENS), headers=header))[0] == 401
