"""The server of the page that computes: its access and its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from limits import CHILD_SECONDS
from served import Address, Answer, live_served

import minibert
from minibert.http_guard import REST
from minibert.show.live import MOST_CONNECTIONS, Live, LiveServer

SMALL_GPT2 = Path(__file__).parents[2] / "scripts" / "study" / "gpt2-words"
STATE = {"text": "wonderfu"}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Address, LiveServer, Live]]:
    live = Live(minibert.load_encoder(SMALL_GPT2))
    with live_served(live, lambda: live.page("wonderfu")) as (address, server):
        yield address, server, live


def asked(running: tuple[Address, LiveServer, Live], name: str, body: Any, **headers: str) -> Answer:
    address, server, _ = running
    return address.ask(f"/{name}", body, **{"Authorization": f"Bearer {server.token}", **headers})


def test_the_page_and_a_state(running: tuple[Address, LiveServer, Live]) -> None:
    address, server, live = running
    page = address.ask(f"/?token={server.token}")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert server.token not in page.body.decode(), "only the address has it"
    assert page.headers["referrer-policy"] == "no-referrer" and page.headers["cache-control"] == "no-store"
    found = asked(running, "state", STATE)
    assert found.status == 200 and found.json == json.loads(json.dumps(live.state(STATE)))
    assert asked(running, "cell", {"state": STATE, "block": 0, "head": 1, "query": 3, "key": 2}).json["seen"]


def test_every_answer_has_the_headers_of_the_page(running: tuple[Address, LiveServer, Live], monkeypatch: Any) -> None:
    """An answer without the token, an unknown address and a fault of the server too."""
    address, server, _ = running
    monkeypatch.setattr(server, "page", lambda: 1 / 0)
    found = [
        asked(running, "state", STATE), asked(running, "state", b"{"), address.ask("/"), address.ask("/?token=wrong"),
        address.ask("/state", STATE), asked(running, "state", STATE, Authorization="Bearer x"),
        asked(running, "nothing", {}), address.ask("/state"), address.ask(f"/?token={server.token}"),
    ]  # fmt: skip
    assert [each.status for each in found] == [200, 400, 401, 401, 401, 401, 404, 404, 500]
    assert "whole address" in found[2].json["error"]["message"]
    for each in found:
        assert each.headers["x-frame-options"] == "DENY" and each.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("error", "printed"), [(ConnectionResetError(), False), (KeyError("lost"), True)])
def test_a_client_that_leaves_prints_no_traceback(
    error: Exception, printed: bool, running: tuple[Address, LiveServer, Live], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise error
    except type(error):
        running[1].handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) is printed


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.168.0.3", ""])
def test_another_name_than_this_machine_s_is_refused(host: str, running: tuple[Address, LiveServer, Live]) -> None:
    address, server, _ = running
    assert address.ask(f"/?token={server.token}", Host=host).status in (400, 403)
    assert asked(running, "state", STATE, Host=host).status in (400, 403)
    for path in ("/state/", "//evil.example", "/other"):  # a redirect would repeat the name
        found = address.ask(path, Host=host)
        assert found.status == 403 and "location" not in found.headers


def test_a_page_of_another_origin_is_refused(running: tuple[Address, LiveServer, Live]) -> None:
    address, server, _ = running
    own = f"http://127.0.0.1:{address.port}"
    assert asked(running, "state", STATE, Origin=own).status == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        found = asked(running, "state", STATE, Origin=origin)
        assert found.status == 403 and "access-control-allow-origin" not in found.headers
    preflight = address.ask("/state", method="OPTIONS", Origin="http://evil.example")
    assert preflight.status == 501 and "access-control-allow-origin" not in preflight.headers
    assert address.ask(f"/?token={server.token}", Host=f"localhost:{address.port}").status == 200


def test_what_cannot_be_is_refused(running: tuple[Address, LiveServer, Live]) -> None:
    found = {
        body: asked(running, "state", body).status
        for body in (b"{", b'{"text": "a", "text": "b"}', b'{"text": "a", "heads": [[9, 9]]}', b"[" * 300_000)
    }
    assert list(found.values()) == [400, 400, 400, 413]
    assert asked(running, "state", b" " * REST).status == 413  # the client has sent all of it before it reads


@pytest.mark.parametrize("body", ["%s", '{"text": %s}', '{"text": "a", "heads": %s}'])
def test_json_that_is_nested_deeply_is_misuse(body: str, running: tuple[Address, LiveServer, Live]) -> None:
    """The nesting is too deep for the parser, for the check of the state, or for the message."""
    for depth in range(900, 1000, 4):
        assert asked(running, "state", (body % ("[" * depth + "]" * depth)).encode()).status == 400


def test_the_token_is_looked_at_before_the_body(running: tuple[Address, LiveServer, Live]) -> None:
    """This client sends no byte of a body."""
    with closing(HTTPConnection("127.0.0.1", running[0].port, timeout=CHILD_SECONDS)) as connection:
        connection.putrequest("POST", "/state")
        connection.putheader("Content-Length", str(REST))
        connection.endheaders()
        assert connection.getresponse().status == 401


def test_connections_have_a_bound(running: tuple[Address, LiveServer, Live]) -> None:
    address, server, _ = running

    def opened() -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", address.port, timeout=CHILD_SECONDS)
        connection.request("GET", f"/?token={server.token}")
        return connection

    with ExitStack() as stack:
        held = [stack.enter_context(closing(opened())) for _ in range(MOST_CONNECTIONS)]
        assert {connection.getresponse().read()[:9] for connection in held} == {b"<!doctype"}
        assert not server.free.acquire(blocking=False)
        waiting = stack.enter_context(closing(opened()))
        held[0].close()
        assert waiting.getresponse().status == 200
