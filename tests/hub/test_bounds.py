"""A Hub that sends without end, too slowly, or what becomes a path or a secret: bounded in bytes, time and places."""

from __future__ import annotations

import gzip
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_hub
import numpy as np
import pytest
from fake_hub import FakeHub, commit_of
from tiny_model import FILES, WORD

from minibert.errors import HubError
from minibert.hub import transfer, watch
from minibert.hub.repository import resolve

LARGEST = 1_000_000  # here, for what has 134 MB elsewhere
BUFFERS = 8_000_000  # bytes that are under way in the sockets of this machine when a client hangs up


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAUSE", 0.01)
    monkeypatch.setattr(watch, "LARGEST", LARGEST)


def read_word(whole: bool) -> Any:
    repository = resolve("org/tiny")
    return (repository.whole_checkpoint() if whole else repository.checkpoint()).table("word", np.dtype("f4")).array()


READERS: dict[str, tuple[Callable[[], Any], str, int]] = {  # what reads, which requests, how many come before
    "the commit": (lambda: resolve("org/tiny").commit, "/api/models/", 0),
    "a small file": (lambda: resolve("org/tiny").file("config.json"), "config.json", 0),
    "the header": (lambda: resolve("org/tiny").checkpoint(), "model.safetensors", 0),
    "a tensor": (lambda: read_word(whole=False), "model.safetensors", 1),
    "the weights": (lambda: read_word(whole=True), "model.safetensors", 0),
}
ENDLESS = {
    "in chunks": (fake_hub.endless, "GET"),
    "announced": (fake_hub.announced(10**15), "GET"),
    "announced everywhere": (fake_hub.announced(10**15), None),
}


def not_kept(home: Path) -> None:
    large = [path for path in home.rglob("*") if path.is_file() and path.stat().st_size > 2 * LARGEST]
    assert large == []


# of weights that are announced so large the disk decides
@pytest.mark.parametrize(
    ("fault", "reader"), sorted(set(itertools.product(ENDLESS, READERS)) - {("announced everywhere", "the weights")})
)
def test_a_body_without_end_is_read_no_further_than_asked(hub: FakeHub, home: Path, fault: str, reader: str) -> None:
    read, pattern, skip = READERS[reader]
    change, method = ENDLESS[fault]
    hub.misbehave(pattern, change, skip=skip, method=method)
    with pytest.raises(HubError, match=r"expected (at most )?\d+ bytes, found|cannot fetch it"):
        read()
    assert hub.sent < LARGEST + BUFFERS
    not_kept(home)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("status", [302, 404, 418])
def test_the_body_of_a_refusal_or_a_redirect_is_not_read_without_end(
    hub: FakeHub, home: Path, status: int, reader: str
) -> None:
    read, pattern, skip = READERS[reader]

    def fault(hub: FakeHub, request: fake_hub.Request, answer: fake_hub.Answer) -> fake_hub.Answer:
        headers = {"Location": hub.endpoint + "/elsewhere"} if status == 302 else {}
        if "elsewhere" in request.path:
            return answer
        return fake_hub.endless(hub, request, fake_hub.Answer(status, headers))

    hub.misbehave(pattern, fault, skip=skip, method="GET")
    with pytest.raises(HubError, match=f"status {status}|expected 65536 bytes|no such"):
        read()
    assert hub.sent < LARGEST + BUFFERS
    not_kept(home)


@pytest.mark.parametrize("reader", READERS)
def test_what_was_packed_is_refused_before_it_is_unpacked(hub: FakeHub, home: Path, reader: str) -> None:
    read, pattern, skip = READERS[reader]
    bomb = gzip.compress(bytes(50_000_000), 1)

    def fault(hub: FakeHub, request: fake_hub.Request, answer: fake_hub.Answer) -> fake_hub.Answer:
        answer.headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(bomb))}
        answer.content, answer.start, answer.stop = bomb, 0, len(bomb)
        return answer

    hub.misbehave(pattern, fault, skip=skip, method="GET")
    with pytest.raises(HubError, match="expected bytes as they are, found Content-Encoding: gzip"):
        read()
    assert {request.encoding for request in hub.requests} == {"identity"}  # nor was it asked for
    not_kept(home)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("head", [False, True])
def test_a_drip_is_given_up(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, reader: str, head: bool) -> None:
    read, pattern, skip = READERS[reader]
    monkeypatch.setattr(transfer, "QUIET", 0.6)
    monkeypatch.setattr(transfer, "FIRST_ANSWER", 0.6)
    hub.misbehave(pattern, fake_hub.drip(20, head), skip=skip, method="GET")
    started = time.monotonic()
    with pytest.raises(HubError, match=r"has not answered for 0\.6 seconds"):
        read()
    assert time.monotonic() - started < 10  # a drip of the whole body would take minutes


def test_a_slow_line_is_waited_for_as_long_as_it_brings_something(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "QUIET", 1.0)
    monkeypatch.setattr(watch, "SLOWEST", 100)  # each second: a sixth of what comes
    hub.misbehave("config.json", fake_hub.drip(600), method="GET")
    started = time.monotonic()
    path = resolve("org/tiny").file("config.json")
    assert path is not None and path.read_bytes() == FILES["config.json"]
    assert time.monotonic() - started > 2 * transfer.QUIET


def test_a_fetch_that_was_given_up_stops(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    earlier = set(threading.enumerate())
    monkeypatch.setattr(transfer, "QUIET", 0.3)
    hub.misbehave("model.safetensors", fake_hub.drip(20), method="GET")
    with pytest.raises(HubError):
        read_word(whole=True)
    limit = time.monotonic() + 10
    while any(thread.name == "minibert-hub" for thread in set(threading.enumerate()) - earlier):
        assert time.monotonic() < limit
        time.sleep(0.02)
    assert not any(path.is_symlink() for path in home.rglob("model.safetensors"))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("size", [1000, 700_000])
def test_more_or_fewer_bytes_than_announced_are_not_taken(
    hub: FakeHub, home: Path, size: int, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content-Length lies in either direction, and Content-Range does not."""
    hub.misbehave("model.safetensors", fake_hub.announced(size), skip=0 if whole else 1, method="GET")
    with pytest.raises(HubError, match=r"expected \d+ bytes, found|cannot fetch it"):
        read_word(whole)
    hub.forget()
    assert np.array_equal(read_word(whole), WORD)


@pytest.mark.parametrize("sent_on", [False, True])
def test_weights_are_as_large_as_they_are_announced(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, sent_on: bool
) -> None:
    monkeypatch.setattr(watch, "LARGEST", 100_000)  # for the rest; these have 513,000
    if sent_on:
        hub.misbehave("model.safetensors", fake_hub.redirect_to_second)
    assert np.array_equal(read_word(whole=True), WORD)


# -- what a server says becomes no path --------------------------------------------------------------------------


@pytest.mark.parametrize("commit", ["../../x", "main", "A" * 40, commit_of("x") + "/..", ""])
def test_a_commit_that_is_none(hub: FakeHub, home: Path, commit: str) -> None:
    hub.repositories["org/tiny"].revisions["main"] = commit
    with pytest.raises(HubError, match=r"does not answer as a Hub does|has no revision"):
        read_word(whole=False)
    assert not home.exists()


@pytest.mark.parametrize("whole", [False, True])
def test_a_commit_in_a_header_that_is_none(hub: FakeHub, home: Path, whole: bool) -> None:
    hub.misbehave("model.safetensors", fake_hub.with_header("X-Repo-Commit", "../../../x"))
    with pytest.raises(HubError, match=r"expected commit .*found X-Repo-Commit: \.\./\.\./\.\./x"):
        read_word(whole)
    assert not [path for path in home.rglob("*") if path.name == "x"]


@pytest.mark.parametrize("tag", ['"../../../../x"', "../x", '"a/b"', "..", "a\\b"])
@pytest.mark.parametrize("header", ["ETag", "X-Linked-Etag"])
def test_an_etag_that_is_a_path(hub: FakeHub, home: Path, tag: str, header: str) -> None:
    hub.misbehave("config.json", fake_hub.with_header(header, tag))
    with pytest.raises(HubError, match="expected an ETag that can name a file"):
        resolve("org/tiny").file("config.json")
    assert not list(home.parent.rglob("x"))


@pytest.mark.parametrize("listing", ['{"rfilename": 7}', '{"rfilename": null}', "[]", '"config.json"'])
def test_a_list_of_files_that_is_none(hub: FakeHub, listing: str) -> None:
    about = f'{{"id": "org/tiny", "sha": "{commit_of("x")}", "siblings": [{listing}]}}'.encode()
    hub.misbehave("/api/", lambda *_: fake_hub.Answer(200, {"Content-Length": str(len(about))}, 0, len(about), about))
    with pytest.raises(HubError, match="does not answer as a Hub does"):
        resolve("org/tiny")


@pytest.mark.parametrize("name", ["../../other", "a/b/c", "", 7])
def test_a_new_name_that_is_none(hub: FakeHub, name: object) -> None:
    about = fake_hub._json({"id": name, "sha": commit_of("x"), "siblings": []})
    hub.misbehave("/api/", lambda *_: about)
    with pytest.raises(HubError, match="does not answer as a Hub does"):
        resolve("org/tiny")


SIZE = len(FILES["model.safetensors"])


@pytest.mark.parametrize(
    "header",
    [
        "bytes 0-" + "9" * 5000 + "/" + "9" * 5000,
        "bytes 0-32767/\u0669\u0669".encode().decode("latin-1"),
        "bytes -1-32767/500000",
        f"bytes 1-32767/{SIZE}",
        f"bytes 0-32768/{SIZE}",
        f"bytes 0-32766/{SIZE}",
        "",
    ],
)
def test_a_content_range_that_is_another_one(hub: FakeHub, header: str) -> None:
    hub.misbehave("model.safetensors", fake_hub.with_header("Content-Range", header))
    with pytest.raises(HubError, match=r"expected (status 206 and a Content-Range|bytes 0-32767)"):
        read_word(whole=False)


@pytest.mark.parametrize("after", ["\xb2", "9" * 5000, "-1", "1e3", "soon"])
def test_a_retry_after_that_is_no_number_is_none(hub: FakeHub, after: str) -> None:
    hub.misbehave("/api/", fake_hub.status(429, retry_after=after))
    with pytest.raises(HubError, match=r"refuses further requests for now \(status 429\)"):
        resolve("org/tiny")
    assert len(hub.requests) == transfer.RETRIES + 1


def test_a_servers_words_are_in_one_line_and_obeyed_by_no_terminal(hub: FakeHub) -> None:
    hub.misbehave("/api/", fake_hub.status(418, x_error_message="tea\x1b]0;title\x07 \t pot" + "!" * 5000))
    with pytest.raises(HubError, match=r"refuses with status 418 \(tea\\x1b]0;title\\x07 pot!+\.\.\.\)") as error:
        resolve("org/tiny")
    assert len(str(error.value)) < 500
