"""Tokens and passwords reach the Hub, and no message, no folder's name and no other host. Of files of another user the
error names the path that cannot be read, and never calls a file absent or damaged.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fake_hub
import numpy as np
import pytest
from command_line import Patch
from encoder_files import CASE
from fake_hub import FakeHub, environment, files_of, run, use
from huggingface_hub import constants
from tiny_model import WORD

import minibert
from minibert.errors import HubError
from minibert.hub.repository import resolve

pytestmark = pytest.mark.usefixtures("quick")


def read(whole: bool = False, revision: str | None = None) -> np.ndarray:
    repository = resolve("org/tiny", revision)
    assert repository.file("config.json") is not None
    opened = repository.checkpoint(whole=True) if whole else repository.checkpoint(lazy=True)
    return opened.table("word", np.dtype("f4")).rows(np.array([7]))


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


def test_a_range_is_asked_for_by_the_name_and_version_alone(hub: FakeHub) -> None:
    """It hides what the client's header tells about the machine, and has the version of the package."""
    read()
    assert {request.agent for request in hub.requests if request.range} == {f"minibert/{minibert.__version__}"}


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


def test_a_tokens_file_that_is_a_folder(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "home" / "token").mkdir(parents=True)
    with pytest.raises(HubError, match=r"IsADirectoryError: .*home/token"):
        read()


def test_the_token_stays_here_where_the_user_says_so(hub: FakeHub, monkeypatch: Patch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    read()
    assert {request.authorization for request in hub.requests} == {None}


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
