"""A Hub that misbehaves: each read has the right numbers or one clear `HubError`, and no wrong byte is kept. Tokens and
passwords reach the Hub, and no message, no name of a folder and no other host.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_hub
import numpy as np
import pytest
from command_line import Patch
from encoder_files import CASE
from fake_hub import FakeHub, commit_of, environment, files_of, run, status, use
from huggingface_hub import constants
from tiny_model import FILES, WORD

import minibert
from minibert.errors import CheckpointError, HubError
from minibert.hub.repository import resolve

FLOAT32 = np.dtype("float32")
SIZE = len(FILES["model.safetensors"])
WAYS = ("is written ./", "hf auth login", "HF_TOKEN", "HF_HUB_OFFLINE=1", "HF_ENDPOINT", "hf download",
        "`minibert extract`")  # fmt: skip
NAMED = r"org/tiny at main, model\.safetensors: "
pytestmark = pytest.mark.usefixtures("quick")


def read_config() -> Any:
    return resolve("org/tiny").file("config.json")


def read_rows() -> Any:
    return resolve("org/tiny").checkpoint(lazy=True).table("word", FLOAT32).rows(ROWS).tolist()


def read_table(**options: Any) -> Any:
    return resolve("org/tiny", **options).checkpoint().table("word", FLOAT32).array().tolist()


ROWS = np.array([30, 7, 200])
# reader -> its call, the right value, and the number of requests before the disturbed ones
READERS = {
    "the header": (lambda: list(resolve("org/tiny").checkpoint().names), ["rest", "word"], 0),
    "rows": (read_rows, WORD[ROWS].tolist(), 1),
    "a tensor": (read_table, WORD.tolist(), 1),
}
# a reader, a fault, how often it happens, and whether the reader gets over it
AGAIN = [
    *(("rows", status(code), 1, True) for code in (429, 503)),  # which come by several requests
    *((reader, fake_hub.cut(1), 1, True) for reader in READERS),
    *(("a tensor", fault, times, times == 3) for fault in (status(500), fake_hub.cut(100)) for times in (3, 4)),
]


@pytest.mark.parametrize(("reader", "fault", "times", "passes"), AGAIN)
def test_a_range_is_asked_for_three_times_again_and_no_more(
    hub: FakeHub, reader: str, fault: fake_hub.Fault, times: int, passes: bool
) -> None:
    read, expected, skip = READERS[reader]
    hub.misbehave("model.safetensors", fault, times, skip)
    if passes:
        assert read() == expected
    else:
        with pytest.raises(HubError, match=NAMED):
            read()
    assert hub.rules[0].times <= 0  # the fault has really happened
    assert reader == "rows" or len(hub.asked("model.safetensors")) == skip + min(times, 3) + 1


# what mirrors have been seen to do; sizes: missing bytes are never zeros
ONE_TRY = {
    "403": status(403), "a page": fake_hub.garbage, "other bytes": fake_hub.wrong_content_range,
    "no Content-Range": fake_hub.with_header("Content-Range", ""), "too short": fake_hub.short_body,
    **{f"bytes of {size}": fake_hub.total(size) for size in (SIZE - 100, SIZE + 100, 10**12)},
}  # fmt: skip


@pytest.mark.parametrize("fault", ONE_TRY)
@pytest.mark.parametrize("reader", READERS)
def test_a_wrong_answer_is_never_taken(hub: FakeHub, fault: str, reader: str) -> None:
    read, expected, skip = READERS[reader]
    hub.misbehave("model.safetensors", ONE_TRY[fault], skip=skip)
    with pytest.raises(HubError if skip or "bytes of" not in fault else CheckpointError, match=NAMED):
        read()
    hub.forget()
    assert read() == expected  # and nothing of it was kept


# -- one wording, whatever refuses ---------------------------------------------------------------------------------


def refuses(words: str, call: Callable[[], Any]) -> str:
    with pytest.raises(HubError, match=words) as error:
        call()
    told = str(error.value)
    assert all(told.count(way) == 1 for way in WAYS), told
    assert len(told) < 1100 and "\n" not in told and "\x1b" not in told
    return told


TEA = status(418, x_error_message="tea\x1b]0;t\x07 pot" + "!" * 5000)
WEIGHTS = "model.safetensors"
TOLD: list[tuple[str, fake_hub.Fault, Callable[[], Any], str]] = [
    ("", status(500), read_config, r"org/tiny at main: HfHubHTTPError: Server error '500"),
    ("", status(429, retry_after="600"), read_config, "429"),
    ("", status(403), read_config, "403 Forbidden"),
    ("", fake_hub.garbage, read_config, "org/tiny at main: JSONDecodeError"),
    ("", TEA, read_config, r"418 .*tea\\x1b\]0;t\\x07 p"),
    ("config.json", status(404, x_error_code="EntryNotFound"), read_config, r"config\.json: RemoteEntryNotFound"),
    (WEIGHTS, status(401), lambda: resolve("org/tiny").checkpoint(whole=True).names, r"model\.safetensors: "),
]


@pytest.mark.parametrize(("pattern", "fault", "read", "words"), TOLD)
def test_a_failure_is_told_in_the_clients_words(
    hub: FakeHub, pattern: str, fault: fake_hub.Fault, read: Callable[[], Any], words: str
) -> None:
    hub.misbehave(pattern, fault)
    refuses(words, read)


def test_an_absent_a_private_and_a_gated_model(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "./org/absent)" in refuses(r"org/absent at main: RepositoryNotFound", lambda: resolve("org/absent"))
    hub.repositories["org/tiny"].private = True
    for token in ("", "hf_wrong"):
        monkeypatch.setenv("HF_TOKEN", token)
        refuses("RepositoryNotFound", read_rows)
    hub.add("org/tiny", FILES, gated=True)
    for read in (read_config, read_rows):
        assert f"see {hub.endpoint}/org/tiny" in refuses("gated", read)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert read_rows() == WORD[ROWS].tolist()
    monkeypatch.delenv("HF_TOKEN")
    assert read_table(token="hf_right") == WORD.tolist()


def test_a_revision_that_is_gone_is_not_replaced_by_what_is_cached(hub: FakeHub) -> None:
    read_rows()
    refuses("org/tiny at v9: RevisionNotFound", lambda: resolve("org/tiny", "v9"))
    refuses("RevisionNotFound", lambda: resolve("org/tiny", commit_of("gone")).file("config.json"))
    del hub.repositories["org/tiny"].revisions["main"]
    refuses("org/tiny at main: RevisionNotFound", read_rows)


@pytest.mark.parametrize("name", ["a//b", "-x/y", "a b", "org/tiny.git", "a..b", "org/a--b", "a/../b", "", "a/b/c"])
@pytest.mark.parametrize("offline", [False, True])
def test_what_cannot_be_a_name(hub: FakeHub, name: str, offline: bool) -> None:
    with pytest.raises(HubError, match=r"not in the cache" if offline else "HFValidationError"):
        resolve(name, None, offline)
    assert hub.requests == []


@pytest.mark.parametrize("commit", ["../../x", "main", "A" * 40, commit_of("x") + "/..", ""])
def test_a_commit_that_is_none(hub: FakeHub, tmp_path: Path, commit: str) -> None:
    hub.repositories["org/tiny"].revisions["main"] = commit
    refuses("is no commit|RevisionNotFound", read_table)
    assert not (tmp_path / "home").exists()


def test_a_model_without_safetensors_and_an_index_that_is_none(hub: FakeHub) -> None:
    hub.add("org/old", {"config.json": b"{}", "pytorch_model.bin": b"..."})
    with pytest.raises(HubError, match=r"pytorch_model\.bin"):
        resolve("org/old").checkpoint()
    hub.add("org/odd", {"config.json": b"{}", "model.safetensors.index.json": b"[1"})
    with pytest.raises(CheckpointError, match=r"org/odd at main, model\.safetensors\.index\.json: not an index"):
        resolve("org/odd").checkpoint()


@pytest.mark.parametrize("revision", [None, commit_of("org/tiny")])
@pytest.mark.parametrize("kind", ["refused", "silent", "http://hub.invalid"])
def test_no_hub(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, revision: str | None) -> None:
    hub.misbehave("", fake_hub.silent)
    use(monkeypatch, {"refused": fake_hub.refused(), "silent": hub.endpoint}.get(kind, kind), tmp_path / "home")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.5)
    refuses("Connect|Timeout", lambda: resolve("org/tiny", revision).file("config.json"))


# -- tokens, and files of other users ------------------------------------------------------------------------------


def read(whole: bool = False) -> np.ndarray:
    repository = resolve("org/tiny")
    assert repository.file("config.json") is not None
    return repository.checkpoint(lazy=not whole, whole=whole).table("word", FLOAT32).rows(np.array([7]))


@pytest.mark.parametrize("whole", [False, True])
def test_a_token_reaches_no_other_host_and_stands_nowhere(
    hub: FakeHub, monkeypatch: Patch, tmp_path: Path, whole: bool
) -> None:
    hub.repositories["org/tiny"].gated = True
    monkeypatch.setenv("HF_TOKEN", " hf_right\n")
    hub.misbehave("model.safetensors", fake_hub.redirect_to_second)
    assert np.array_equal(read(whole), WORD[[7]])
    seen = {(request.host, request.authorization) for request in hub.requests}
    assert seen == {("first", "Bearer hf_right"), ("second", None)}
    asked = {host: {request.range for request in hub.requests if request.host == host} for host in ("first", "second")}
    assert asked["second"] <= asked["first"]
    assert whole or None not in asked["second"]
    kept = list((tmp_path / "home").rglob("*"))
    assert kept
    assert not [path for path in kept if "hf_right" in str(path)]
    assert not [path for path in kept if path.is_file() and b"hf_right" in path.read_bytes()]


ENDPOINTS = ["https://user:se/cret@hub.invalid", "user:secret@hub", "https://user:secret@[::1", "https://secret@hub",
             "ftp://hub", "https://:80", "https://hub:port", "https://[::1"]  # fmt: skip


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_endpoint_that_is_none_or_holds_a_password_is_refused_and_not_shown(
    monkeypatch: Patch, tmp_path: Path, endpoint: str
) -> None:
    use(monkeypatch, endpoint, tmp_path)
    with pytest.raises(HubError, match="HF_ENDPOINT") as error:
        resolve("org/tiny")
    assert "cret" not in str(error.value)


NO_TOKENS = ["hf_gehe\u00efm", "hf_\u2028geheim", "hf_ge heim", "hf_\x07geheim", "hf_geheim\x7f", "\udce9geheim"]


@pytest.mark.parametrize("token", NO_TOKENS)
@pytest.mark.parametrize("where", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "home/token"])
def test_a_token_that_is_none_is_named_by_its_place(
    hub: FakeHub, monkeypatch: Patch, tmp_path: Path, token: str, where: str
) -> None:
    if where == "home/token":
        (tmp_path / "home").mkdir()
        (tmp_path / where).write_bytes(token.encode("utf-8", "surrogateescape"))
    else:
        monkeypatch.setenv(where, token)
    said = rf"token .*{where.replace('HUGGING_FACE_HUB', 'HF')}|UnicodeDecodeError"
    with pytest.raises(HubError, match=said) as error:
        read()
    assert "geh" not in str(error.value)
    assert hub.requests == []


def test_the_token_stays_here_where_the_user_says_so_and_a_range_names_the_package_alone(
    hub: FakeHub, monkeypatch: Patch
) -> None:
    """The client's own header would tell about the machine."""
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    read()
    assert {request.authorization for request in hub.requests} == {None}
    assert {request.agent for request in hub.requests if request.range} == {f"minibert/{minibert.__version__}"}


def test_a_callers_token_goes_before_the_users_and_into_no_pickle(hub: FakeHub, monkeypatch: Patch) -> None:
    hub.add("org/bert", files_of(CASE["bert"].folder), private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with minibert.load_encoder("org/bert", token="hf_right") as encoder, minibert.load("org/bert", token="hf_right"):
        held = pickle.dumps(encoder)
    assert {request.authorization for request in hub.requests} == {"Bearer hf_right"}
    assert b"hf_right" not in held


NOBODY = 65534
SNAPSHOTS = "home/hub/models--org--bert/snapshots"
PATHS = {  # the closed path, the model's name, the path in the message
    "a folder": ("models/bert", "./models/bert", "./models/bert;"),
    "a folder above": ("models", "./models/bert", "./models/bert;"),
    "a name that is a folder": ("models/bert", "models/bert", "models/bert;"),
    "a config": ("models/bert/config.json", "./models/bert", "./models/bert/config.json;"),
    "the weights": ("models/bert/model.safetensors", "./models/bert", "./models/bert/model.safetensors;"),
    "the Hub's cache": ("home/hub", "org/bert", "{}/home/hub/models--org--bert/refs;"),
    "a model in the cache": (SNAPSHOTS, "org/bert", f"{{}}/{SNAPSHOTS}"),
}
FILL = "import minibert, sys; minibert.load_encoder(sys.argv[1])"
LOAD_AS_NOBODY = f"""
import minibert, os, sys
minibert.load_encoder({str(CASE["bert"].folder)!r})  # what is imported on the way may be closed to the other user
import minibert.hub.repository, huggingface_hub.constants
os.setuid({NOBODY})
try: minibert.load_encoder(sys.argv[1], local_files_only=True)
except minibert.CheckpointError as error: print(error)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users may read, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("kind", PATHS)
def test_who_may_not_read_which_path(place: Path, kind: str) -> None:
    closed, name, named = PATHS[kind]
    env = environment("http://hub.invalid", place / "home", HF_HUB_DISABLE_PROGRESS_BARS="1")
    if name == "org/bert":
        with FakeHub() as hub:
            hub.add(name, files_of(CASE["bert"].folder))
            run(FILL, env | {"HF_ENDPOINT": hub.endpoint}, name, cwd=place)
    else:
        shutil.copytree(CASE["bert"].folder, place / "models" / "bert")
    (place / closed).chmod(0)
    said = run(LOAD_AS_NOBODY, env, name, cwd=place)
    assert said.startswith(f"user {NOBODY} may not read {named.format(place)}"), said
    assert "fetch" not in said and "no such" not in said
