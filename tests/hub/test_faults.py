"""A Hub that misbehaves: each time the right numbers, or a `HubError` that says what to do, within seconds."""

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
from fake_hub import FakeHub, commit_of, quick_pauses, use
from tiny_model import FILES, WORD

from minibert.errors import HubError
from minibert.files.writing import write_output
from minibert.hub import transfer
from minibert.hub.repository import resolve

# the longest allowed, pauses at full length; measured 10.5 where half of what is left comes each time, which is a gain
SECONDS = 12.0
FIRST_ANSWER = transfer.FIRST_ANSWER  # as it is for users
BUSY = 6.0  # seconds that a busy machine may add; where our own limit is lost, the client waits for 10
FLOAT32 = np.dtype("float32")


@pytest.fixture
def hub(hub: FakeHub) -> Iterator[FakeHub]:
    started = time.perf_counter()  # `quick_pauses` lets time.monotonic run ahead
    yield hub
    assert time.perf_counter() - started < SECONDS


def read_config() -> bytes:
    path = resolve("org/tiny").file("config.json")
    assert path is not None
    return path.read_bytes()


def read_rows() -> np.ndarray[Any, Any]:
    return resolve("org/tiny").checkpoint(lazy=True).table("word", FLOAT32).rows(np.array([30, 7, 200]))


def read_whole() -> np.ndarray[Any, Any]:
    return resolve("org/tiny").checkpoint().table("word", FLOAT32).array()


class Reader(NamedTuple):
    """What is read, what it has to be, and which requests (after how many others) are disturbed meanwhile."""

    read: Callable[[], Any]
    expected: Any
    pattern: str
    skip: int = 0


PASSING_STATUSES = (408, 429, 500, 502, 503, 504)
READERS = {
    "the commit": Reader(lambda: resolve("org/tiny").commit, commit_of("org/tiny"), "/api/models/"),
    "a small file": Reader(read_config, FILES["config.json"], "config.json"),
    "the header": Reader(lambda: list(resolve("org/tiny").checkpoint().names), ["rest", "word"], "model.safetensors"),
    "rows": Reader(lambda: read_rows().tolist(), WORD[[30, 7, 200]].tolist(), "model.safetensors", skip=1),
    "a tensor": Reader(lambda: read_whole().tolist(), WORD.tolist(), "model.safetensors", skip=1),
}

PASSING = {
    "500 twice": (fake_hub.status(500), 2),
    "503 once": (fake_hub.status(503), 1),
    "429 with a short Retry-After": (fake_hub.status(429, retry_after="1"), 1),
    "429 without Retry-After": (fake_hub.status(429), 1),
    "late": (fake_hub.late(0.1), 3),
    "redirect": (fake_hub.redirect_to_second, None),
    "cut once": (fake_hub.cut(100), 1),
    "short once": (fake_hub.short_body, 1),
    "slow": (fake_hub.drip(2_000_000), None),
}


NOT_SEEN = {  # the Hub redirects no answer of its own; half of an answer that says it is whole is no JSON
    ("redirect", "the commit"),
    ("short once", "the commit"),
}


@pytest.mark.parametrize(("fault", "reader"), sorted(set(itertools.product(PASSING, READERS)) - NOT_SEEN))
def test_what_passes_by_itself_is_waited_out(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, fault: str, reader: str
) -> None:
    waited = quick_pauses(monkeypatch)
    read, expected, pattern, skip = READERS[reader]
    change, times = PASSING[fault]
    hub.misbehave(pattern, change, times, skip, method="GET" if fault in ("cut once", "short once") else None)
    assert read() == expected
    assert times is None or fault == "late" or hub.rules[0].times <= 0  # the fault has really happened
    assert fault != "429 with a short Retry-After" or max(waited) >= 1
    assert sum(waited) < SECONDS


@pytest.mark.parametrize("reader", ["a small file", "a tensor"])
@pytest.mark.parametrize("times", [3, 4])
@pytest.mark.parametrize("fault", [fake_hub.status(500), fake_hub.cut(1), fake_hub.short_body])
def test_three_retries_and_no_more(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, fault: fake_hub.Fault, times: int, reader: str
) -> None:
    """Ours alone: the client, which has retries of its own, gets no failure to see."""
    monkeypatch.setattr(transfer, "GAINED", 1 << 30)
    waited = quick_pauses(monkeypatch)
    read, expected, pattern, skip = READERS[reader]
    hub.misbehave(pattern, fault, times, skip, method="GET")
    if times == 3:
        assert read() == expected
    else:
        with pytest.raises(HubError):
            read()
    assert len(hub.asked(pattern, "GET")) == skip + 4
    assert waited == [0.5, 1.0, 2.0]


LASTING = {
    "500 for ever": (fake_hub.status(500), "status 500|cannot fetch it"),
    "429 with a long Retry-After": (fake_hub.status(429, retry_after="600"), "try again in 600 seconds.*hf auth login"),
    "403": (fake_hub.status(403), "status 403.*HF_TOKEN"),
    "418": (fake_hub.status(418), "status 418"),
    "a login page": (fake_hub.garbage, "does not answer as a Hub does|cannot fetch it|wrong answer"),
    "cut at once, for ever": (fake_hub.cut(1), "cannot fetch it"),
    "half of the rest, for ever": (fake_hub.short_body, r"expected \d+ bytes, found|cannot fetch it|as a Hub does"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("fault", LASTING)
def test_what_does_not_pass_is_explained(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, fault: str, reader: str
) -> None:
    waited = quick_pauses(monkeypatch)
    read, _, pattern, skip = READERS[reader]
    change, message = LASTING[fault]
    hub.misbehave(pattern, change, skip=skip, method="GET" if "cut" in fault or "half" in fault else None)
    with pytest.raises(HubError, match=message) as error:
        read()
    assert "org/tiny" in str(error.value)
    assert sum(waited) < SECONDS


WRONG = {  # a fault, the message, and how many answers are right before it
    "other bytes": (fake_hub.wrong_content_range, "expected bytes 0-32767, found Content-Range: bytes 1-32768", 0),
    "no Content-Range": (fake_hub.no_content_range, "expected status 206 and a Content-Range", 0),
    "another commit": (fake_hub.other_commit, "expected commit .*X-Repo-Commit: ", 0),
    "other bytes after the header": (fake_hub.wrong_content_range, "wrong answer", 1),
    "another version after the header": (fake_hub.wrong_etag, "changed the file under one commit", 1),
    "another size after the header": (fake_hub.wrong_size, "changed the file under one commit", 1),
    "another commit after the header": (fake_hub.other_commit, "expected commit", 1),
}


@pytest.mark.parametrize("fault", WRONG)
@pytest.mark.parametrize("read", [read_rows, read_whole])
def test_a_wrong_answer_is_never_taken(hub: FakeHub, fault: str, read: Callable[[], Any]) -> None:
    change, message, skip = WRONG[fault]
    hub.misbehave("model.safetensors", change, skip=skip)
    with pytest.raises(HubError, match=message):
        read()
    hub.forget()
    assert np.array_equal(read_rows(), WORD[[30, 7, 200]])  # and nothing of it was kept


@pytest.mark.parametrize("change", [fake_hub.wrong_etag, fake_hub.wrong_size])
def test_a_version_that_changes_in_the_middle_of_a_cut_transfer_is_not_patched_together(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, change: fake_hub.Fault
) -> None:
    quick_pauses(monkeypatch)
    hub.misbehave("model.safetensors", fake_hub.cut(200_000), times=1, skip=1)
    hub.misbehave("model.safetensors", change, skip=2)
    with pytest.raises(HubError, match="expected version"):
        read_whole()


def test_a_transfer_that_was_cut_goes_on_where_it_was_cut(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_pauses(monkeypatch)
    hub.misbehave("model.safetensors", fake_hub.cut(100_000), skip=1)  # every time: six pieces, each a gain
    assert np.array_equal(read_whole(), WORD)
    assert sum(request.sent for request in hub.asked("model.safetensors")) < 1.2 * len(FILES["model.safetensors"])


def test_the_hubs_own_name_of_a_version_counts_where_it_sends_on(hub: FakeHub) -> None:
    """The hosts behind it name what they store in ways of their own."""

    def elsewhere(hub: FakeHub, request: fake_hub.Request, answer: fake_hub.Answer) -> fake_hub.Answer:
        if request.host == "second":
            answer.headers["ETag"] = f'"{len(hub.requests)}"'
        return answer

    hub.misbehave("model.safetensors", fake_hub.redirect_to_second)
    hub.misbehave("model.safetensors", elsewhere)
    assert np.array_equal(read_whole(), WORD)


@pytest.mark.parametrize("code", sorted(PASSING_STATUSES))
def test_statuses_that_pass(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    quick_pauses(monkeypatch)
    hub.misbehave("/api/", fake_hub.status(code), times=1)
    assert resolve("org/tiny").commit == commit_of("org/tiny")


def test_who_has_answered_once_is_given_more_time(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = resolve("org/tiny")
    monkeypatch.setattr(transfer, "FIRST_ANSWER", 0.3)
    hub.misbehave("model.safetensors", fake_hub.late(1.0), times=1)
    repository.checkpoint()  # another request to the same Hub


def test_the_first_answer_alone_is_wanted_soon(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def later(hub: FakeHub, request: fake_hub.Request, answer: fake_hub.Answer) -> fake_hub.Answer:
        return fake_hub.late(2.0)(hub, request, answer) if request.host == "second" else answer

    hub.misbehave("model.safetensors", later, times=2)
    hub.misbehave("model.safetensors", fake_hub.redirect_to_second)
    monkeypatch.setattr(transfer, "FIRST_ANSWER", 1.0)
    resolve("org/tiny", commit_of("org/tiny"), local_files_only=False).part("model.safetensors", (0, 9), print)


def test_a_pause_is_no_silence(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "QUIET", 1.0)
    monkeypatch.setattr(transfer, "PAUSE", 1.5)
    hub.misbehave("config.json", fake_hub.status(503), times=1)
    assert read_config() == FILES["config.json"]


@pytest.mark.parametrize("reader", READERS)
def test_a_hub_that_goes_silent_is_given_up(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    monkeypatch.setattr(transfer, "QUIET", 0.4)
    monkeypatch.setattr(transfer, "FIRST_ANSWER", 0.4)
    read, _, pattern, skip = READERS[reader]
    hub.misbehave(pattern, fake_hub.silent, skip=skip)
    with pytest.raises(HubError, match=r"has not answered for 0\.4 seconds"):
        read()


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
    assert np.array_equal(read_rows(), WORD[[30, 7, 200]])


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


# -- nobody there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", [None, commit_of("org/tiny")])
@pytest.mark.parametrize("kind", ["refused", "black hole", "no such host"])
def test_no_hub_costs_three_seconds_and_names_the_other_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, revision: str | None
) -> None:
    monkeypatch.setattr(transfer, "PAUSE", 60.0)  # where nobody has ever answered, nobody is asked again
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
    for way in ("a folder", "local_files_only", "`extract`", "HF_ENDPOINT"):
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


def test_importing_the_http_library_is_no_silence_of_the_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_by: list[threading.Thread] = []
    session = huggingface_hub.get_session

    def get_session() -> Any:
        asked_by.append(threading.current_thread())
        return session()

    monkeypatch.setattr(huggingface_hub, "get_session", get_session)
    read_config()
    assert asked_by[0] is threading.current_thread()  # before the thread whose silence is measured


def test_the_wait_can_be_made_longer(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "FIRST_ANSWER", 0.2)
    hub.misbehave("/api/", fake_hub.silent)
    with pytest.raises(HubError, match="HF_HUB_ETAG_TIMEOUT=30 waits longer"):
        read_rows()
    hub.forget()
    hub.misbehave("/api/", fake_hub.late(0.5))
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", f"{fake_hub.PATIENCE:g}")
    assert np.array_equal(read_rows(), WORD[[30, 7, 200]])


# -- the client's own downloads ----------------------------------------------------------------------------------


def read_weights() -> np.ndarray[Any, Any]:
    return resolve("org/tiny").whole_checkpoint().table("word", FLOAT32).array()


@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (RuntimeError("Task error: CAS Client Error"), None, "RuntimeError: Task error: CAS Client Error"),
        (ValueError("Force download failed"), ConnectionResetError("why"), "ConnectionResetError: why"),
    ],
)
def test_what_the_client_raises_is_explained(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, error: Exception, cause: Exception | None, said: str
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise error from cause

    quick_pauses(monkeypatch)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fails)
    with pytest.raises(HubError, match=rf"cannot fetch it from .* \({said}\)"):
        read_weights()


def test_what_a_first_attempt_left_is_not_taken_for_a_beginning(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest client adds the whole file to the piece that it has where the server gives no parts."""
    from huggingface_hub import constants

    quick_pauses(monkeypatch)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.misbehave("model.safetensors", fake_hub.no_range)
    hub.misbehave("model.safetensors", fake_hub.cut(50_000), times=1, method="GET")
    assert np.array_equal(read_weights(), WORD)


def test_what_was_fetched_is_written_over_by_nobody(hub: FakeHub) -> None:
    path = resolve("org/tiny").file("config.json")
    assert path is not None
    with pytest.raises(ValueError, match="a file of the model that is read here"):
        write_output(path, b"mine")
    assert path.read_bytes() == FILES["config.json"]


def test_what_comes_past_the_session_is_no_silence_of_the_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's fast downloads have connections of their own; only its request before them is seen."""
    monkeypatch.setattr(transfer, "QUIET", 0.4)
    download = huggingface_hub.hf_hub_download

    def slowly(*arguments: Any, **options: Any) -> Any:
        path = download(*arguments, **options)
        fake_hub.sleep(1.0)
        return path

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", slowly)
    assert np.array_equal(read_weights(), WORD)


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
    assert np.array_equal(read_weights(), WORD)
    assert seen == [(404, b"EntryNotFound")] * 1
    read_config()
    hooks = huggingface_hub.get_session().event_hooks
    assert [len([hook for hook in hooks[kind] if "minibert" in hook.__module__]) for kind in hooks] == [1, 1]
