"""A name on a Hub -> files and tables, through the real client: what is fetched, from where, and what it costs."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from encoder_files import CASE
from fake_hub import FakeHub, commit_of, drip, environment, late, quick_pauses, status, use
from huggingface_hub import hf_hub_download
from limits import CHILD_SECONDS
from safetensors.numpy import save

import minibert
from minibert.errors import HubError
from minibert.files.writing import write_output
from minibert.hub import remote
from minibert.hub.repository import resolve

ROWS, WIDTH = 400, 320
RANDOM = np.random.default_rng(0)
TENSORS = {
    "embeddings.word": RANDOM.normal(size=(ROWS, WIDTH)).astype(np.float32),
    "embeddings.norm": RANDOM.normal(size=WIDTH).astype(np.float32),
    "encoder.large": RANDOM.normal(size=(1000, WIDTH)).astype(np.float32),
}
WORD = TENSORS["embeddings.word"]
FILES = {"config.json": b'{"model_type": "bert"}', "tokenizer.json": b"{}", "model.safetensors": save(TENSORS)}
FLOAT32 = np.dtype("float32")


@pytest.fixture
def hub(hub: FakeHub) -> FakeHub:
    hub.add("org/tiny", FILES)
    return hub


def rows(name: str, ids: list[int], lazy: bool = True, **options: object) -> np.ndarray:
    return resolve(name, **options).checkpoint(lazy).table("embeddings.word", FLOAT32).rows(np.array(ids))


# -- names, revisions, files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["org/tiny", "gpt2"])
def test_one_word_names_work_as_others_do(hub: FakeHub, name: str) -> None:
    hub.add(name, FILES, commit=commit_of("newest"))
    repository = resolve(name)
    assert repository.commit == commit_of("newest")
    assert len(hub.requests) == 1
    config = repository.file("config.json")
    assert config is not None
    assert config.read_bytes() == FILES["config.json"]
    assert repository.file("vocab.txt") is None and len(hub.requests) == 3  # what is not there costs nothing
    assert np.array_equal(rows(name, [7, 3]), WORD[[7, 3]])


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/7", "main", commit_of("org/tiny")])
def test_a_branch_a_tag_a_pull_request_and_a_commit(hub: FakeHub, revision: str) -> None:
    hub.repositories["org/tiny"].revisions |= {"v1.0": commit_of("org/tiny"), "refs/pr/7": commit_of("org/tiny")}
    repository = resolve("org/tiny", revision)
    assert [request.path.partition("?")[0] for request in hub.requests] == (
        [] if revision == commit_of("org/tiny") else [f"/api/models/org/tiny/revision/{quote(revision, safe='')}"]
    )
    assert repository.commit == commit_of("org/tiny")
    assert np.array_equal(rows("org/tiny", [1], revision=revision), WORD[[1]])
    hub.forget()
    assert np.array_equal(rows("org/tiny", [1], revision=revision, local_files_only=True), WORD[[1]])
    assert hub.requests == []


def test_threads_ask_once_for_the_list_of_files(hub: FakeHub) -> None:
    repository = resolve("org/tiny", commit_of("org/tiny"))
    hub.misbehave("/api/", late(0.2))
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(repository.file, ["vocab.txt", "merges.txt"])) == [None, None]
    assert len(hub.requests) == 1


def test_a_renamed_model_is_followed(hub: FakeHub) -> None:
    hub.add("old/name", {}, renamed="org/tiny")
    repository = resolve("old/name")
    assert repository.file("config.json") is not None
    assert np.array_equal(rows("old/name", [5]), WORD[[5]])


def test_header_and_rows_are_of_one_commit(hub: FakeHub) -> None:
    table = resolve("org/tiny").checkpoint(lazy=True).table("embeddings.word", FLOAT32)
    # main moves on between header and rows
    other = save({name: tensor + 1 for name, tensor in TENSORS.items()})
    before = hub.repositories["org/tiny"]
    hub.add("org/tiny", {**FILES, "model.safetensors": other}, commit=commit_of("newer"))
    with pytest.raises(HubError, match="RevisionNotFound"):  # gone, and nothing of the newer commit is taken for it
        table.rows(np.array([300]))
    hub.repositories["org/tiny"] = before
    assert np.array_equal(table.rows(np.array([300])), WORD[[300]])
    hub.add("org/tiny", {**FILES, "model.safetensors": other}, commit=commit_of("newer"))
    assert np.array_equal(rows("org/tiny", [3]), WORD[[3]] + 1)


# -- few bytes, few requests -------------------------------------------------------------------------------------


def test_only_what_is_asked_for_is_sent(hub: FakeHub) -> None:
    checkpoint = resolve("org/tiny").checkpoint(lazy=False)
    assert np.array_equal(checkpoint.table("embeddings.word", FLOAT32).array(), WORD)
    assert np.array_equal(checkpoint.table("embeddings.norm", FLOAT32).array(), TENSORS["embeddings.norm"])
    ranges = hub.asked("model.safetensors")
    assert len(ranges) == 2  # the header, which holds the vector too, and the table
    assert sum(request.sent for request in ranges) <= WORD.nbytes + WIDTH * 4 + 3 * remote.BLOCK


def test_a_second_run_asks_only_for_the_commit(hub: FakeHub) -> None:
    assert np.array_equal(rows("org/tiny", [9, 4, 300]), WORD[[9, 4, 300]])
    assert resolve("org/tiny").file("config.json") is not None
    hub.forget()
    assert np.array_equal(rows("org/tiny", [300, 9]), WORD[[300, 9]])
    assert resolve("org/tiny").file("config.json") is not None
    assert [request.path.partition("?")[0] for request in hub.requests] == ["/api/models/org/tiny/revision/main"] * 2
    hub.forget()
    assert np.array_equal(rows("org/tiny", [300, 9], revision=commit_of("org/tiny")), WORD[[300, 9]])
    assert hub.requests == []


def test_only_the_shards_that_hold_what_is_asked_for(hub: FakeHub) -> None:
    shards = {f"model-{i}-of-3.safetensors": save({name: TENSORS[name]}) for i, name in enumerate(TENSORS, 1)}
    index = {"weight_map": dict(zip(TENSORS, shards, strict=True))}
    hub.add("org/shards", {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(), **shards})
    checkpoint = resolve("org/shards").checkpoint(lazy=True)
    assert set(checkpoint.names) == set(TENSORS)
    assert np.array_equal(checkpoint.table("embeddings.word", FLOAT32).rows(np.array([8])), WORD[[8]])
    assert np.array_equal(checkpoint.table("embeddings.norm", FLOAT32).array(), TENSORS["embeddings.norm"])
    assert not hub.asked("model-3-of-3")
    hub.forget()
    assert np.array_equal(rows("org/shards", [8], local_files_only=True), WORD[[8]])
    assert hub.requests == []


def test_two_commits_are_apart_and_ranges_lie_where_they_are_told(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert np.array_equal(rows("org/tiny", [2]), WORD[[2]])
    assert (tmp_path / "home" / "assets" / "minibert" / "models--org--tiny" / commit_of("org/tiny")).is_dir()
    other = {**FILES, "model.safetensors": save({name: tensor * 2 for name, tensor in TENSORS.items()})}
    hub.add("org/tiny", other, commit=commit_of("second"))
    assert np.array_equal(rows("org/tiny", [2]), WORD[[2]] * 2)
    shutil.rmtree(tmp_path / "home" / "assets")
    monkeypatch.setenv("MINIBERT_CACHE", str(tmp_path / "elsewhere"))
    assert np.array_equal(rows("org/tiny", [2]), WORD[[2]] * 2)
    assert (tmp_path / "elsewhere").is_dir() and not (tmp_path / "home" / "assets").exists()


# -- the Hub's own cache -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [False, True])
def test_a_file_in_the_hubs_cache_is_mapped_where_it_lies(hub: FakeHub, tmp_path: Path, sharded: bool) -> None:
    if sharded:
        index = json.dumps({"weight_map": dict.fromkeys(TENSORS, "one.safetensors")}).encode()
        files = {"config.json": b"{}", "model.safetensors.index.json": index, "one.safetensors": save(TENSORS)}
        hub.add("org/tiny", files)
    for file in hub.repositories["org/tiny"].files:
        hf_hub_download("org/tiny", file, cache_dir=tmp_path / "home" / "hub", endpoint=hub.endpoint)
    for options, requests in [
        ({"revision": commit_of("org/tiny")}, 0),  # first, while we have noted nothing ourselves
        ({}, 1),
        ({"local_files_only": True}, 0),
    ]:
        hub.forget()
        repository = resolve("org/tiny", **options)
        checkpoint = repository.checkpoint()
        table = checkpoint.table("embeddings.word", FLOAT32)
        assert repository.file("config.json") is not None
        assert np.array_equal(table.array(), WORD)
        assert not table.array().flags.owndata
        assert len(hub.requests) == requests
        place = Path(checkpoint.tensor("embeddings.word").file)
        assert tmp_path / "home" / "hub" in place.parents


def test_a_cache_that_has_the_config_alone_is_not_a_model_without_weights(hub: FakeHub, tmp_path: Path) -> None:
    hf_hub_download("org/tiny", "config.json", cache_dir=tmp_path / "home" / "hub", endpoint=hub.endpoint)
    repository = resolve("org/tiny", commit_of("org/tiny"), local_files_only=True)
    assert repository.file("vocab.txt") is None
    with pytest.raises(HubError, match=r"model\.safetensors: not in the cache, and local_files_only is set"):
        repository.checkpoint()


def test_a_shard_that_was_not_opened_is_never_written_over(hub: FakeHub, tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"embeddings.word": "a.safetensors", "rest": "b.safetensors"}}).encode()
    hub.add("org/two", {"model.safetensors.index.json": index, "a.safetensors": FILES["model.safetensors"]} | {
        "b.safetensors": save({"rest": np.zeros(3, np.float32)})
    })  # fmt: skip
    cache = tmp_path / "home" / "hub"
    paths = [
        hf_hub_download("org/two", file, cache_dir=cache, endpoint=hub.endpoint)
        for file in hub.repositories["org/two"].files
    ]
    rows("org/two", [1])
    with pytest.raises(ValueError, match="a file of the model that is read here"):
        write_output(paths[2], b"mine")


FOLDERS = {  # where whole files lie: of a caller, of a variable, of the client
    "cache_folder": ({"cache_folder": "mine"}, {"SENTENCE_TRANSFORMERS_HOME": "theirs"}, "mine"),
    "SENTENCE_TRANSFORMERS_HOME": ({}, {"SENTENCE_TRANSFORMERS_HOME": "theirs"}, "theirs"),
    "neither": ({}, {}, "home/hub"),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_whole_files_lie_where_they_are_told(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As sentence-transformers passes them on: `cache_folder`, or else its variable, in place of the Hub's cache."""
    options, variables, where = FOLDERS[kind]
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    files = {path.name: path for path in CASE["bert"].folder.iterdir()}
    hub.add("org/bert", files)
    with minibert.load_encoder("org/bert", **options) as encoder:
        again = pickle.loads(pickle.dumps(encoder))
    want = {tmp_path / where / "models--org--bert" / "snapshots" / commit_of("org/bert") / "model.safetensors"}
    assert {path for path in tmp_path.rglob("model.safetensors") if path.is_symlink()} == want
    hub.forget()
    with again, minibert.load("org/bert", local_files_only=True, **options) as layer:
        assert np.array_equal(layer([5, 6]), again.embeddings([5, 6]))
    assert not hub.asked("")
    refs = hf_hub_download("org/bert", "config.json", cache_dir=tmp_path / where, local_files_only=True)
    assert Path(refs).is_file()  # the client finds it by its branch too


def test_a_list_that_is_known_tells_what_the_cache_lacks(hub: FakeHub) -> None:
    """Offline a file that the Hub has is not taken for an absent one: without its settings a vector would be wrong."""
    hub.add("org/tiny", {**FILES, "modules.json": b"[]"})
    rows("org/tiny", [2])
    repository = resolve("org/tiny", local_files_only=True)
    assert repository.file("vocab.txt") is None
    with pytest.raises(HubError, match=r"modules\.json: not in the cache, and local_files_only is set"):
        repository.file("modules.json")


def test_ranges_that_no_disk_takes_are_done_without(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("MINIBERT_CACHE", str(tmp_path / "file" / "below"))  # cannot be made, not even by root
    assert np.array_equal(rows("org/tiny", [9, 4]), WORD[[9, 4]])
    use(monkeypatch, hub.endpoint, tmp_path / "file" / "home")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(HubError, match=r"config\.json: NotADirectoryError"):
        resolve("org/tiny").file("config.json")


# -- the Hub is down ---------------------------------------------------------------------------------------------


def test_where_the_hub_is_down_the_last_known_commit_stands_in(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_pauses(monkeypatch)
    rows("org/tiny", [9, 4])
    hub.misbehave("/api/", status(503))
    assert np.array_equal(rows("org/tiny", [4]), WORD[[4]])
    with pytest.raises(HubError, match="503") as error:
        rows("org/tiny", [300])
    assert str(error.value).count("`extract`") == 1  # advice once


# -- several processes -------------------------------------------------------------------------------------------


def test_two_processes_at_once_share_one_cache(hub: FakeHub, tmp_path: Path) -> None:
    """Real variables, real processes: both get the right rows, and a third one needs no Hub."""
    code = (
        "import sys, numpy as np; from minibert.hub.repository import resolve; "
        "table = resolve('org/tiny').checkpoint(lazy=True).table('embeddings.word', np.dtype('float32')); "
        "sys.stdout.buffer.write(table.rows(np.arange(0, 300, 3)).tobytes())"
    )
    hub.misbehave("model.safetensors", drip(2_000_000))
    env = environment(hub.endpoint, tmp_path / "processes", MINIBERT_CACHE=str(tmp_path / "ours"))
    pair = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) for _ in range(2)]
    for process in pair:
        assert process.communicate(timeout=CHILD_SECONDS)[0] == WORD[0:300:3].tobytes()
        assert process.returncode == 0
    assert (tmp_path / "ours").is_dir()
    hub.forget()
    offline = env | {"HF_HUB_OFFLINE": "1"}
    third = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=offline, timeout=CHILD_SECONDS, check=True
    )
    assert third.stdout == WORD[0:300:3].tobytes()
    assert hub.requests == []
