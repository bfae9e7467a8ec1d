"""A Hub that misbehaves: each time the right numbers, or a `HubError` that says what to do, soon and in few bytes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fake_hub
import huggingface_hub
import numpy as np
import pytest
from fake_hub import FakeHub, commit_of, quick_pauses, status, use
from tiny_model import FILES, WORD

from minibert.errors import HubError
from minibert.files.writing import write_output
from minibert.hub import transfer, watch
from minibert.hub.repository import resolve
from minibert.hub.transfer import Version

# the longest allowed, pauses at full length; measured 10.5 where half of what is left comes each time, which is a gain
SECONDS = 12.0
FIRST_ANSWER = transfer.FIRST_ANSWER  # as it is for users
BUSY = 6.0  # seconds that a busy machine may add; where our own limit is lost, the client waits for 10
LARGEST = 1_000_000  # here, for what has 134 MB elsewhere
BUFFERS = 20_000_000  # bytes under way in the sockets of this machine when a client hangs up; measured 4 for a request
FLOAT32 = np.dtype("float32")
SIZE = len(FILES["model.safetensors"])


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were meant, each of them shortened."""
    return quick_pauses(monkeypatch)


@pytest.fixture
def hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(watch, "LARGEST", LARGEST)
    started = time.perf_counter()  # `quick_pauses` lets time.monotonic run ahead
    yield hub
    assert time.perf_counter() - started < SECONDS


def read_config() -> bytes:
    path = resolve("org/tiny").file("config.json")
    assert path is not None
    return path.read_bytes()


def read_rows() -> Any:
    return resolve("org/tiny").checkpoint(lazy=True).table("word", FLOAT32).rows(np.array([30, 7, 200])).tolist()


def read_table() -> Any:
    return resolve("org/tiny").checkpoint().table("word", FLOAT32).array().tolist()


def read_weights() -> Any:
    return resolve("org/tiny").whole_checkpoint().table("word", FLOAT32).array().tolist()


class Reader(NamedTuple):
    """What is read, what it has to be, and which requests (after how many others) are disturbed meanwhile."""

    read: Callable[[], Any]
    expected: Any
    pattern: str
    skip: int = 0


READERS = {
    "the commit": Reader(lambda: resolve("org/tiny").commit, commit_of("org/tiny"), "/api/models/"),
    "a small file": Reader(read_config, FILES["config.json"], "config.json"),
    "the header": Reader(lambda: list(resolve("org/tiny").checkpoint().names), ["rest", "word"], "model.safetensors"),
    "rows": Reader(read_rows, WORD[[30, 7, 200]].tolist(), "model.safetensors", skip=1),
    "a tensor": Reader(read_table, WORD.tolist(), "model.safetensors", skip=1),
    "the weights": Reader(read_weights, WORD.tolist(), "model.safetensors"),
}


# a fault; the method, where it is one of a body, which a HEAD has not; how often
PASSING = {
    "500 twice": (status(500), None, 2),
    **{f"{code} once": (status(code), None, 1) for code in (408, 502, 503, 504)},
    "429 with a short Retry-After": (status(429, retry_after="1"), None, 1),
    "429 without Retry-After": (status(429), None, 1),
    "late": (fake_hub.late(0.1), None, 3),
    "redirect": (fake_hub.redirect_to_second, None, None),
    "cut once": (fake_hub.cut(100), "GET", 1),
    "short once": (fake_hub.short_body, "GET", 1),
    "slow": (fake_hub.drip(2_000_000), None, None),
}
NOT_SEEN = {  # the Hub redirects no answer of its own; half of an answer that says it is whole is no JSON
    ("redirect", "the commit"),
    ("short once", "the commit"),
}


@pytest.mark.parametrize(("fault", "reader"), sorted(set(itertools.product(PASSING, READERS)) - NOT_SEEN))
def test_what_passes_by_itself_is_waited_out(hub: FakeHub, waited: list[float], fault: str, reader: str) -> None:
    read, expected, pattern, skip = READERS[reader]
    change, method, times = PASSING[fault]
    hub.misbehave(pattern, change, times, skip, method)
    assert read() == expected
    assert times is None or fault == "late" or hub.rules[0].times <= 0  # the fault has really happened
    assert fault != "429 with a short Retry-After" or max(waited) >= 1
    assert sum(waited) < SECONDS


@pytest.mark.parametrize("reader", ["a small file", "a tensor"])
@pytest.mark.parametrize("times", [3, 4])
@pytest.mark.parametrize("fault", [status(500), fake_hub.cut(1), fake_hub.short_body])
def test_three_retries_and_no_more(
    hub: FakeHub, waited: list[float], monkeypatch: pytest.MonkeyPatch, fault: fake_hub.Fault, times: int, reader: str
) -> None:
    """Ours alone: the client, which has retries of its own, gets no failure to see."""
    monkeypatch.setattr(transfer, "GAINED", 1 << 30)
    read, expected, pattern, skip = READERS[reader]
    hub.misbehave(pattern, fault, times, skip, method="GET")
    if times == 3:
        assert read() == expected
    else:
        with pytest.raises(HubError):
            read()
    assert len(hub.asked(pattern, "GET")) == skip + 4
    assert waited == [0.5, 1.0, 2.0]


def endless(code: int) -> fake_hub.Fault:
    """An error or a redirect whose body never ends."""

    def fault(hub: FakeHub, request: fake_hub.Request, answer: fake_hub.Answer) -> fake_hub.Answer:
        headers = {"Location": hub.endpoint + "/elsewhere"} if code == 302 else {}
        return fake_hub.endless(hub, request, fake_hub.Answer(code, headers))

    return fault


NO_END = r"expected \d+ bytes, found|cannot fetch it"
SILENCE = r"has not answered for 0\.6 seconds"
LASTING = {
    "500 for ever": (status(500), None, "status 500|cannot fetch it"),
    "429 with a long Retry-After": (status(429, retry_after="600"), None, "try again in 600 seconds.*hf auth login"),
    "429 with no number": (status(429, retry_after="9" * 5000), None, r"status 429, too many requests\. Wait"),
    "403": (status(403), None, "status 403.*HF_TOKEN"),
    "418": (status(418), None, "status 418"),
    "a login page": (fake_hub.garbage, None, "does not answer as a Hub does|cannot fetch it|wrong answer"),
    "cut at once": (fake_hub.cut(1), "GET", "cannot fetch it"),
    "half of the rest": (fake_hub.short_body, "GET", r"bytes more, found the end|cannot fetch it|as a Hub does"),
    "endless": (fake_hub.endless, "GET", NO_END),
    "announced as endless": (fake_hub.announced(10**15), "GET", NO_END),
    "an endless redirect": (endless(302), "GET", NO_END),
    "an endless 404": (endless(404), "GET", "status 404"),
    "packed": (fake_hub.with_header("Content-Encoding", "gzip"), "GET", "found Content-Encoding: gzip"),
    "a drip": (fake_hub.drip(20), "GET", SILENCE),
    "a dripping head": (fake_hub.drip(20, head=True), "GET", SILENCE),
    "silent": (fake_hub.silent, "GET", SILENCE),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("fault", LASTING)
def test_what_does_not_pass_is_explained_and_kept_small(
    hub: FakeHub, waited: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, reader: str
) -> None:
    change, method, message = LASTING[fault]
    if message is SILENCE:
        for name in ("QUIET", "FIRST_ANSWER"):
            monkeypatch.setattr(transfer, name, 0.6)
    read, _, pattern, skip = READERS[reader]
    hub.misbehave(pattern, change, skip=skip, method=method)
    with pytest.raises(HubError, match=message) as error:
        read()
    assert "org/tiny" in str(error.value)
    assert sum(waited) < SECONDS
    assert hub.sent < LARGEST + BUFFERS
    assert {request.encoding for request in hub.requests} == {"identity"}
    kept = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert max(kept, default=0) < 2 * LARGEST


WRONG = {  # a fault, the message, and how many answers are right before it
    "other bytes": (fake_hub.wrong_content_range, "expected bytes 0-32767, found Content-Range: bytes 1-32768", 0),
    "no Content-Range": (fake_hub.with_header("Content-Range", ""), "expected status 206 and a Content-Range", 0),
    "a later first byte": (fake_hub.with_header("Content-Range", f"bytes 1-32767/{SIZE}"), "expected bytes 0-32767", 0),
    "one byte more": (fake_hub.with_header("Content-Range", f"bytes 0-32768/{SIZE}"), "expected bytes 0-32767", 0),
    "one byte less": (fake_hub.with_header("Content-Range", f"bytes 0-32766/{SIZE}"), "expected bytes 0-32767", 0),
    "no numbers": (fake_hub.with_header("Content-Range", "bytes 0-" + "9" * 5000 + "/1"), "expected status 206", 0),
    "another commit": (fake_hub.other_commit, "expected commit .*X-Repo-Commit: ", 0),
    "other bytes after the header": (fake_hub.wrong_content_range, "wrong answer", 1),
    "no ranges after the header": (fake_hub.no_range, "expected status 206 .*found status 200", 1),
    "another version after the header": (fake_hub.with_header("ETag", '"other"'), "changed the file under one", 1),
    "another size after the header": (fake_hub.wrong_size, "changed the file under one commit.*delete .*org--tiny", 1),
    "another commit after the header": (fake_hub.other_commit, "expected commit", 1),
    "a wrong length after the header": (fake_hub.announced(1000), r"cannot fetch it|bytes( more)?, found", 1),
    "more bytes after the header": (fake_hub.announced(700_000), r"expected \d+ bytes( more)?, found", 1),
}


@pytest.mark.usefixtures("waited")
@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("read", [read_rows, read_table])
def test_a_wrong_answer_is_never_taken(hub: FakeHub, fault: str, read: Callable[[], Any]) -> None:
    change, message, skip = WRONG[fault]
    hub.misbehave("model.safetensors", change, skip=skip, method="GET")
    with pytest.raises(HubError, match=message):
        read()
    hub.forget()
    assert read_rows() == WORD[[30, 7, 200]].tolist()  # and nothing of it was kept


@pytest.mark.usefixtures("waited")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (fake_hub.announced(1000), "cannot fetch it"),
        (fake_hub.announced(700_000), r"cannot fetch it|bytes( more)?, found"),
        (fake_hub.other_commit, "expected commit"),
        (fake_hub.with_header("ETag", '"../../../../x"'), "expected an ETag that can name a file"),
        (fake_hub.with_header("X-Linked-Etag", "a\\b"), "expected an ETag that can name a file"),
    ],
)
def test_a_wrong_file_is_never_taken(hub: FakeHub, tmp_path: Path, fault: fake_hub.Fault, message: str) -> None:
    hub.misbehave("model.safetensors", fault, method="GET" if "fetch" in message else None)
    with pytest.raises(HubError, match=message):
        read_weights()
    assert not list(tmp_path.rglob("x"))
    hub.forget()
    assert read_weights() == WORD.tolist()


@pytest.mark.usefixtures("waited")
@pytest.mark.parametrize("change", [fake_hub.with_header("ETag", '"other"'), fake_hub.wrong_size])
def test_a_version_that_changes_while_a_cut_transfer_goes_on(hub: FakeHub, change: fake_hub.Fault) -> None:
    hub.misbehave("model.safetensors", fake_hub.cut(200_000), times=1, skip=1)
    hub.misbehave("model.safetensors", change, skip=2)
    with pytest.raises(HubError, match="expected version"):
        read_table()


@pytest.mark.usefixtures("waited")
def test_a_transfer_that_was_cut_goes_on_where_it_was_cut(hub: FakeHub) -> None:
    hub.misbehave("model.safetensors", fake_hub.cut(100_000), skip=1)  # every time: six pieces, each a gain
    assert read_table() == WORD.tolist()
    assert sum(request.sent for request in hub.asked("model.safetensors")) < 1.2 * SIZE


def test_the_hubs_own_name_of_a_version_counts_where_it_sends_on(hub: FakeHub) -> None:
    """The hosts behind it name what they store in ways of their own."""

    def elsewhere(hub: FakeHub, request: fake_hub.Request, answer: fake_hub.Answer) -> fake_hub.Answer:
        if request.host == "second":
            answer.headers["ETag"] = f'"{len(hub.requests)}"'
        return answer

    hub.misbehave("model.safetensors", fake_hub.redirect_to_second)
    hub.misbehave("model.safetensors", elsewhere)
    assert read_table() == WORD.tolist()


@pytest.mark.parametrize("sent_on", [False, True])
def test_weights_are_as_large_as_they_are_announced(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, sent_on: bool
) -> None:
    monkeypatch.setattr(watch, "LARGEST", 100_000)  # for the rest; these have 513,000
    if sent_on:
        hub.misbehave("model.safetensors", fake_hub.redirect_to_second)
    assert read_weights() == WORD.tolist()


# -- how long it is waited -----------------------------------------------------------------------------------------


def test_a_slow_line_is_waited_for_as_long_as_it_brings_something(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "QUIET", 1.0)
    monkeypatch.setattr(watch, "SLOWEST", 100)  # each second: a sixth of what comes
    hub.misbehave("config.json", fake_hub.drip(600), method="GET")
    started = time.monotonic()
    assert read_config() == FILES["config.json"]
    assert time.monotonic() - started > 2 * transfer.QUIET


def test_a_fetch_that_was_given_up_stops(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    earlier = set(threading.enumerate())
    monkeypatch.setattr(transfer, "QUIET", 0.3)
    hub.misbehave("model.safetensors", fake_hub.drip(20), method="GET")
    with pytest.raises(HubError):
        read_weights()
    limit = time.monotonic() + 10
    while any(thread.name == "minibert-hub" for thread in set(threading.enumerate()) - earlier):
        assert time.monotonic() < limit
        time.sleep(0.02)
    assert not any(path.is_symlink() for path in tmp_path.rglob("model.safetensors"))


def test_the_first_answer_alone_is_wanted_soon(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of another request to the same Hub, nor that of the host to which it sends on."""

    def later(hub: FakeHub, request: fake_hub.Request, answer: fake_hub.Answer) -> fake_hub.Answer:
        return fake_hub.late(1.5)(hub, request, answer) if request.host == "second" else answer

    hub.misbehave("model.safetensors", later, times=2)
    hub.misbehave("model.safetensors", fake_hub.redirect_to_second)
    monkeypatch.setattr(transfer, "FIRST_ANSWER", 1.0)
    resolve("org/tiny", commit_of("org/tiny")).part("model.safetensors", (0, 9), Version("", Path()), print)
    repository = resolve("org/tiny")
    monkeypatch.setattr(transfer, "FIRST_ANSWER", 0.3)
    hub.misbehave("config.json", fake_hub.late(1.0), times=1)
    repository.file("config.json")


def test_a_pause_is_no_silence(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "QUIET", 1.0)
    monkeypatch.setattr(transfer, "PAUSE", 1.5)
    hub.misbehave("config.json", status(503), times=1)
    assert read_config() == FILES["config.json"]


def test_what_comes_past_the_session_is_no_silence_of_the_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's fast downloads have connections of their own; only its request before them is seen."""
    monkeypatch.setattr(transfer, "QUIET", 0.4)
    download = huggingface_hub.hf_hub_download

    def slowly(*arguments: Any, **options: Any) -> Any:
        path = download(*arguments, **options)
        fake_hub.sleep(1.0)
        return path

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", slowly)
    assert read_weights() == WORD.tolist()


def test_importing_the_http_library_is_no_silence_of_the_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_by: list[threading.Thread] = []
    session = huggingface_hub.get_session

    def get_session() -> Any:
        asked_by.append(threading.current_thread())
        return session()

    monkeypatch.setattr(huggingface_hub, "get_session", get_session)
    read_config()
    assert asked_by[0] is threading.current_thread()  # before the thread whose silence is measured


# -- the Hub says no ---------------------------------------------------------------------------------------------


def test_an_absent_model(hub: FakeHub) -> None:
    with pytest.raises(HubError, match=r"org/absent at main: .* knows no such model.*hf auth login.*\./org/absent"):
        resolve("org/absent")


def test_a_private_model(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/tiny"].private = True
    with pytest.raises(HubError, match=r"knows no such model, or it is private.*HF_TOKEN"):
        read_rows()
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError, match="or it is private"):
        read_rows()
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert read_rows() == WORD[[30, 7, 200]].tolist()


@pytest.mark.parametrize("read", [read_config, read_rows])
def test_a_gated_model(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any]) -> None:
    hub.repositories["org/tiny"].gated = True
    with pytest.raises(HubError, match=r"gated.*conditions at http://127.*/org/tiny, then log in with `hf auth login`"):
        read()
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    read()


@pytest.mark.parametrize("revision", ["v9", commit_of("gone")])
def test_a_revision_that_is_gone(hub: FakeHub, revision: str) -> None:
    with pytest.raises(HubError, match=rf"has no revision '{revision}'.*/org/tiny/commits"):
        resolve("org/tiny", revision).file("config.json")


def test_a_revision_that_is_gone_is_not_replaced_by_what_is_cached(hub: FakeHub) -> None:
    read_rows()
    del hub.repositories["org/tiny"].revisions["main"]
    with pytest.raises(HubError, match="has no revision 'main'"):
        read_rows()


def test_a_model_without_safetensors(hub: FakeHub) -> None:
    hub.add("org/old", {"config.json": b"{}", "pytorch_model.bin": b"..."})
    with pytest.raises(HubError, match=r"only pytorch_model\.bin: convert it once.*save_pretrained"):
        resolve("org/old").checkpoint()


@pytest.mark.parametrize("name", ["a//b", "-x/y", "a b", "org/tiny.git", "a..b", "org/a--b", "a/../b", "", "a/b/c"])
def test_what_cannot_be_a_name(hub: FakeHub, name: str) -> None:
    with pytest.raises(HubError, match=r"cannot be a name on the Hub.*A folder is written with \./"):
        resolve(name)
    assert hub.requests == []


@pytest.mark.parametrize("commit", ["../../x", "main", "A" * 40, commit_of("x") + "/..", ""])
def test_a_commit_that_is_none(hub: FakeHub, tmp_path: Path, commit: str) -> None:
    hub.repositories["org/tiny"].revisions["main"] = commit
    with pytest.raises(HubError, match=r"does not answer as a Hub does|has no revision"):
        read_table()
    assert not (tmp_path / "home").exists()


def test_a_servers_words_are_in_one_line_and_obeyed_by_no_terminal(hub: FakeHub) -> None:
    hub.misbehave("/api/", status(418, x_error_message="tea\x1b]0;title\x07 \t pot" + "!" * 5000))
    with pytest.raises(HubError, match=r"refuses with status 418 \(tea\\x1b]0;title\\x07 pot!+\.\.\.\)") as error:
        resolve("org/tiny")
    assert len(str(error.value)) < 500


# -- no Hub there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", [None, commit_of("org/tiny")])
@pytest.mark.parametrize("kind", ["refused", "black hole", "no such host"])
def test_no_hub_costs_three_seconds_and_names_the_other_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, revision: str | None
) -> None:
    monkeypatch.setattr(transfer, "PAUSE", 60.0)  # without a first answer there is no second try
    with fake_hub.black_hole() as hole:
        endpoint = {"refused": fake_hub.refused(), "black hole": hole, "no such host": "http://hub.invalid"}[kind]
        use(monkeypatch, endpoint, tmp_path / "home")
        monkeypatch.setattr(transfer, "FIRST_ANSWER", 0.5 if revision else FIRST_ANSWER)  # once in full is enough
        started = time.monotonic()
        with pytest.raises(HubError) as error:
            resolve("org/tiny", revision).file("config.json")
        seconds = time.monotonic() - started
    assert seconds < transfer.FIRST_ANSWER + BUSY
    if kind == "black hole":
        assert seconds > transfer.FIRST_ANSWER - 0.1
        assert f"has not answered for {transfer.FIRST_ANSWER} seconds" in str(error.value)
    if kind == "refused":
        assert "cannot fetch it from" in str(error.value)
    for way in ("a folder", "local_files_only", "`extract`", "hf download org/tiny", "HF_ENDPOINT"):
        assert way in str(error.value)


def test_rows_of_a_known_commit_wait_no_longer(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    read_rows()
    monkeypatch.setattr(transfer, "FIRST_ANSWER", 0.5)
    table = resolve("org/tiny", commit_of("org/tiny")).checkpoint(lazy=True).table("word", FLOAT32)
    hub.misbehave("", fake_hub.silent)
    started = time.monotonic()
    assert np.array_equal(table.rows(np.array([7])), WORD[[7]])  # cached
    with pytest.raises(HubError, match=r"has not answered for 0\.5 seconds"):
        table.rows(np.array([8]))
    assert time.monotonic() - started < transfer.FIRST_ANSWER + BUSY


def test_the_wait_can_be_made_longer(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FIRST_ANSWER", 0.2)
    hub.misbehave("/api/", fake_hub.silent)
    with pytest.raises(HubError, match="HF_HUB_ETAG_TIMEOUT=30 waits longer"):
        read_rows()
    hub.forget()
    hub.misbehave("/api/", fake_hub.late(0.5))
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", f"{fake_hub.PATIENCE:g}")
    assert read_rows() == WORD[[30, 7, 200]].tolist()


# -- the client's own downloads ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("hub", "waited")
@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (RuntimeError("Task error: CAS Client Error"), None, "RuntimeError: Task error: CAS Client Error"),
        (ValueError("Force download failed"), ConnectionResetError("why"), "ConnectionResetError: why"),
    ],
)
def test_what_the_client_raises_is_explained(
    monkeypatch: pytest.MonkeyPatch, error: Exception, cause: Exception | None, said: str
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise error from cause

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fails)
    with pytest.raises(HubError, match=rf"cannot fetch it from .* \({said}\)"):
        read_weights()


@pytest.mark.usefixtures("waited")
def test_what_a_first_attempt_left_is_not_taken_for_a_beginning(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest client adds the whole file to the piece that it has where the server gives no parts."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.misbehave("model.safetensors", fake_hub.no_range)
    hub.misbehave("model.safetensors", fake_hub.cut(50_000), times=1, method="GET")
    assert read_weights() == WORD.tolist()


def test_what_was_fetched_is_never_written_over(hub: FakeHub) -> None:
    path = resolve("org/tiny").file("config.json")
    assert path is not None
    with pytest.raises(ValueError, match="a file of the model that is read here"):
        write_output(path, b"mine")
    assert path.read_bytes() == FILES["config.json"]


def test_the_session_stays_the_users_own(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hooks are hung up once, and let pass what others ask meanwhile."""
    seen: list[tuple[int, bytes]] = []
    download = huggingface_hub.hf_hub_download

    def others() -> None:
        answer = huggingface_hub.get_session().get(f"{hub.endpoint}/nothing/of/ours")
        seen.append((answer.status_code, answer.headers["X-Error-Code"].encode()))

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        other = threading.Thread(target=others)
        other.start()
        other.join()
        return download(*arguments, **options)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", meanwhile)
    assert read_weights() == WORD.tolist()
    assert seen == [(404, b"EntryNotFound")] * 1
    read_config()
    hooks = huggingface_hub.get_session().event_hooks
    assert [len([hook for hook in hooks[kind] if "minibert" in hook.__module__]) for kind in hooks] == [1, 1]
