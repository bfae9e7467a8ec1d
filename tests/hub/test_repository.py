"""A name on a Hub -> files and tables, through the real client: the requests and their bytes; and for sentence vectors
which files are fetched, and when.
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from checkpoints import VOCAB, numbers, same_bits, write_shards
from command_line import Patch
from encoder_files import CASE
from fake_hub import FakeHub, commit_of, environment, files_of, late, run, status, use
from huggingface_hub import hf_hub_download
from reference_files import REFERENCE
from safetensors.numpy import load_file, save
from static_folders import static_folder
from tiny_model import FILES, WORD

import minibert
from minibert.errors import CheckpointError, HubError
from minibert.files.writing import write_output
from minibert.hub.repository import WITHOUT_OWNER, full_name, resolve

FLOAT32 = np.dtype("float32")
OTHER = {**FILES, "model.safetensors": save({"word": WORD + 1, "rest": np.zeros(100, np.float32)})}
INDEX = json.dumps({"weight_map": {"word": "a.safetensors", "rest": "b.safetensors"}}).encode()
SHARDS = {"config.json": b"{}", "model.safetensors.index.json": INDEX, "a.safetensors": save({"word": WORD})}


def rows(name: str, ids: list[int], lazy: bool = True, **options: object) -> np.ndarray:
    return resolve(name, **options).checkpoint(lazy).table("word", FLOAT32).rows(np.array(ids))


# -- names, revisions, files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", ["v1.0", "refs/pr/7", "main", commit_of("org/tiny")])
def test_a_branch_a_tag_a_pull_request_and_a_commit(hub: FakeHub, revision: str) -> None:
    hub.repositories["org/tiny"].revisions |= {"v1.0": commit_of("org/tiny"), "refs/pr/7": commit_of("org/tiny")}
    repository, known = resolve("org/tiny", revision), revision == commit_of("org/tiny")
    assert repository.commit == commit_of("org/tiny")
    asked = [request.path.partition("?")[0] for request in hub.requests]
    assert asked == ([] if known else [f"/api/models/org/tiny/revision/{quote(revision, safe='')}"])
    # after the list of files has come, an absent one costs no request
    assert repository.file("vocab.txt") is None and len(hub.requests) == 1
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
    assert resolve("old/name").file("config.json") is not None
    assert np.array_equal(rows("old/name", [5]), WORD[[5]])


def test_header_and_rows_are_of_one_commit(hub: FakeHub) -> None:
    table = resolve("org/tiny").checkpoint(lazy=True).table("word", FLOAT32)
    before = hub.repositories["org/tiny"]
    hub.add("org/tiny", OTHER, commit=commit_of("newer"))  # main moves on between header and rows
    with pytest.raises(HubError, match="RevisionNotFound"):  # gone, and nothing of the newer commit is taken for it
        table.rows(np.array([300]))
    hub.repositories["org/tiny"] = before
    assert np.array_equal(table.rows(np.array([300])), WORD[[300]])


def test_names_without_an_owner(hub: FakeHub, tmp_path: Path, monkeypatch: Patch) -> None:
    """As sentence-transformers completes names; old models have no owner, and a folder of that name comes first."""
    folder = CASE["bert"].folder
    for name in ("sentence-transformers/tiny-L6", "gpt2", "BERT-base-uncased", "someone/tiny"):
        hub.add(name, {each: folder / each for each in ("config.json", "model.safetensors")})
        short = name.removeprefix("sentence-transformers/")
        with minibert.load_encoder(short) as encoder, minibert.load(short, local_files_only=True) as layer:
            assert np.array_equal(layer([5, 6]), encoder.embeddings([5, 6]))
    assert {request.path.split("/")[3] for request in hub.asked("/api/models/sentence")} == {"sentence-transformers"}
    assert all(full_name(name) == name for name in WITHOUT_OWNER)
    with pytest.raises(HubError):
        minibert.load_encoder("mine")
    sent = [pickle.dumps(minibert.load_encoder(name)) for name in ("gpt2", "someone/tiny")]
    (tmp_path / "tiny-L6").symlink_to(folder)
    (tmp_path / "gpt2").touch()
    (tmp_path / "someone" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    hub.forget()
    with minibert.load_encoder("tiny-L6") as encoder:
        assert encoder.dim
        for name in ("gpt2", "someone/tiny"):
            with pytest.raises(CheckpointError):
                minibert.load(name)
        for each in sent:  # names a commit
            assert np.array_equal(pickle.loads(each).embeddings([5, 6]), encoder.embeddings([5, 6]))
    assert not hub.asked("")


def test_only_the_shards_that_hold_what_is_asked_for(hub: FakeHub) -> None:
    hub.add("org/shards", SHARDS)
    checkpoint = resolve("org/shards").checkpoint(lazy=True)
    assert set(checkpoint.names) == {"word", "rest"}
    assert np.array_equal(checkpoint.table("word", FLOAT32).rows(np.array([8])), WORD[[8]])
    hub.forget()
    assert np.array_equal(rows("org/shards", [8], local_files_only=True), WORD[[8]])
    assert hub.requests == []


def test_two_commits_are_apart_and_ranges_lie_where_they_are_told(
    hub: FakeHub, tmp_path: Path, monkeypatch: Patch
) -> None:
    assert np.array_equal(rows("org/tiny", [2]), WORD[[2]])
    assert (tmp_path / "home" / "assets" / "minibert" / "models--org--tiny" / commit_of("org/tiny")).is_dir()
    hub.add("org/tiny", OTHER, commit=commit_of("second"))
    assert np.array_equal(rows("org/tiny", [2]), WORD[[2]] + 1)
    shutil.rmtree(tmp_path / "home" / "assets")
    monkeypatch.setenv("MINIBERT_CACHE", str(tmp_path / "elsewhere"))
    assert np.array_equal(rows("org/tiny", [2]), WORD[[2]] + 1)
    assert (tmp_path / "elsewhere").is_dir() and not (tmp_path / "home" / "assets").exists()


# -- the Hub's own cache -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharded", [False, True])
def test_a_file_in_the_hubs_cache_is_mapped_where_it_lies(hub: FakeHub, tmp_path: Path, sharded: bool) -> None:
    """They are never overwritten, not even a shard that was not opened."""
    if sharded:
        hub.add("org/tiny", SHARDS | {"b.safetensors": save({"rest": np.zeros(3, np.float32)})})
    cache = tmp_path / "home" / "hub"
    for file in hub.repositories["org/tiny"].files:
        hf_hub_download("org/tiny", file, cache_dir=cache, endpoint=hub.endpoint)
    for options, requests in [
        ({"revision": commit_of("org/tiny")}, 0),  # first, while we have noted nothing ourselves
        ({}, 1),
        ({"local_files_only": True}, 0),
    ]:
        hub.forget()
        repository = resolve("org/tiny", **options)
        checkpoint = repository.checkpoint()
        array = checkpoint.table("word", FLOAT32).array()
        config = repository.file("config.json")
        assert np.array_equal(array, WORD) and not array.flags.owndata
        assert len(hub.requests) == requests
        assert cache in Path(checkpoint.tensor("word").file).parents
    held = [path for path in cache.rglob("*.*") if path.is_symlink()]
    assert config in held and len(held) == len(hub.repositories["org/tiny"].files)
    for path in held:
        with pytest.raises(ValueError):
            write_output(path, b"mine")


FOLDERS = {  # the folder of whole files: the caller's, a variable's, the client's
    "cache_folder": ({"cache_folder": "mine"}, {"SENTENCE_TRANSFORMERS_HOME": "theirs"}, "mine"),
    "SENTENCE_TRANSFORMERS_HOME": ({}, {"SENTENCE_TRANSFORMERS_HOME": "theirs"}, "theirs"),
    "neither": ({}, {}, "home/hub"),
}


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("kind", FOLDERS)
def test_whole_files_lie_where_they_are_told(
    hub: FakeHub, tmp_path: Path, monkeypatch: Patch, kind: str, sharded: bool
) -> None:
    """As in sentence-transformers: `cache_folder`, or else its variable, replaces the Hub's cache."""
    options, variables, where = FOLDERS[kind]
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    folder, weights = CASE["bert"].folder, ["model.safetensors"]
    if sharded:
        tensors = load_file(folder / "model.safetensors")
        parts = [{name: tensors[name] for name in sorted(tensors)[start::2]} for start in (0, 1)]
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        folder = write_shards(tmp_path / "shards", config, parts)
        weights = [path.name for path in folder.glob("*.safetensors")]
    hub.add("org/bert", files_of(folder))
    want = CASE["bert"].load()([5, 6])
    with minibert.load_encoder("org/bert", **options) as encoder:
        assert np.array_equal(encoder([5, 6]), want)
        again = pickle.loads(pickle.dumps(encoder))
    whole = tmp_path / where / "models--org--bert" / "snapshots" / commit_of("org/bert")
    held = {path for path in tmp_path.rglob("*.safetensors") if path.is_symlink()}
    assert held == {whole / name for name in weights}
    hub.forget()
    with again, minibert.load("org/bert", local_files_only=True, **options) as layer:
        assert np.array_equal(again([5, 6]), want) and np.array_equal(layer([5, 6]), again.embeddings([5, 6]))
    assert not hub.asked("")
    refs = hf_hub_download("org/bert", "config.json", cache_dir=tmp_path / where, local_files_only=True)
    assert Path(refs).is_file()  # the client finds it by its branch too


def test_a_file_that_the_hub_has_does_not_count_as_absent_offline(hub: FakeHub, tmp_path: Path) -> None:
    """Without its settings a vector would be wrong. A cache that has the config alone is no model without weights."""
    hf_hub_download("org/tiny", "config.json", cache_dir=tmp_path / "home" / "hub", endpoint=hub.endpoint)
    repository = resolve("org/tiny", commit_of("org/tiny"), local_files_only=True)
    assert repository.file("vocab.txt") is None
    with pytest.raises(HubError, match=r"model\.safetensors"):
        repository.checkpoint()
    hub.add("org/tiny", {**FILES, "modules.json": b"[]"})
    rows("org/tiny", [2])
    repository = resolve("org/tiny", local_files_only=True)
    assert repository.file("vocab.txt") is None
    with pytest.raises(HubError, match=r"modules\.json"):
        repository.file("modules.json")


def test_ranges_that_no_disk_takes_are_done_without(hub: FakeHub, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("MINIBERT_CACHE", str(tmp_path / "file" / "below"))  # cannot be made, not even by root
    assert np.array_equal(rows("org/tiny", [9, 4]), WORD[[9, 4]])
    use(monkeypatch, hub.endpoint, tmp_path / "file" / "home")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(HubError, match=r"config\.json: NotADirectoryError"):
        resolve("org/tiny").file("config.json")


@pytest.mark.usefixtures("quick")
def test_where_the_hub_is_down_the_last_known_commit_stands_in(hub: FakeHub) -> None:
    rows("org/tiny", [9, 4])
    hub.misbehave("/api/", status(503))
    assert np.array_equal(rows("org/tiny", [4]), WORD[[4]])
    with pytest.raises(HubError, match="503") as error:
        rows("org/tiny", [300])
    assert str(error.value).count("`minibert extract`") == 1  # advice once


def test_two_processes_at_once_share_one_cache(hub: FakeHub, tmp_path: Path) -> None:
    """With real variables and processes: both get the right rows, and a third process needs no Hub."""
    code = (
        "import numpy as np; from minibert.hub.repository import resolve; "
        "table = resolve('org/tiny').checkpoint(lazy=True).table('word', np.dtype('float32')); "
        "print(table.rows(np.arange(0, 300, 3)).tobytes().hex())"
    )
    hub.misbehave("model.safetensors", late(0.1))
    env = environment(hub.endpoint, tmp_path / "processes", MINIBERT_CACHE=str(tmp_path / "ours"))
    want = WORD[0:300:3].tobytes().hex() + "\n"
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(partial(run, code), [env, env])] == [want, want]
    assert (tmp_path / "ours").is_dir()
    hub.forget()
    assert run(code, env | {"HF_HUB_OFFLINE": "1"}) == want
    assert hub.requests == []


USELESS = ("pytorch_model.bin", "onnx/model.onnx", "README.md", "2_Dense/pytorch_model.bin", "train_script.py")


def put(hub: FakeHub, name: str | Path, useless: tuple[str, ...] = USELESS) -> None:
    folder = REFERENCE / name
    hub.add(f"org/{folder.name}", {**files_of(folder), **dict.fromkeys(useless, b"x" * 1000)})


def fetched(hub: FakeHub) -> set[str]:
    found = (re.search(r"/resolve/[^/]+/(.+)$", request.path) for request in hub.requests if request.method == "GET")
    return {match[1] for match in found if match}


def sparse(encoder: minibert.Encoder) -> list[np.ndarray]:
    vector = encoder.encode_sparse("we")
    return [vector.ids, vector.weights]


PAIRS = [("we", "the clouds"), ("a", "b")]
DENSE = {
    "modules.json", "config.json", "model.safetensors", "1_Pooling/config.json", "2_Dense/config.json",
    "2_Dense/model.safetensors", "3_Normalize/config.json", "sentence_bert_config.json",
    "config_sentence_transformers.json", "tokenizer_config.json",
}  # fmt: skip
KINDS: dict[str, tuple[Callable[[minibert.Encoder], Any], set[str]]] = {  # folder -> a call, and files that it fetches
    "sentences-dense": (lambda encoder: encoder.encode(["we lived", "clouds"]), {*DENSE, "tokenizer.json"}),
    "sentences-cls": (lambda encoder: encoder.encode(["we"]), {"0_Transformer/model.safetensors"}),
    "late-fixed": (lambda encoder: encoder.encode_query(["we", "the clouds"]), set()),
    "late-pylate": (lambda encoder: encoder.encode_query(["we", "the clouds"]), set()),
    "late-stanford": (lambda encoder: encoder.encode_query(["we", "the clouds"]), {"artifact.metadata"}),
    "uses-reranker": (lambda encoder: encoder.predict(PAIRS), set()),
    "uses-reranker-logits": (lambda encoder: encoder.predict(PAIRS), set()),
    "uses-sparse-sum": (sparse, {"1_SpladePooling/config.json"}),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_model_of_the_hub_is_its_folder(hub: FakeHub, name: str) -> None:
    """With modules.json and without it: the files of its use are fetched, no others, and later no file at all."""
    compute, needed = KINDS[name]
    put(hub, name)
    encoder = minibert.load_encoder(f"org/{name}")
    if name == "sentences-dense":
        assert fetched(hub) == DENSE  # the settings are computed here, or the model is refused now
    found = compute(encoder)
    assert needed <= fetched(hub) and fetched(hub).isdisjoint(USELESS)
    assert name != "sentences-dense" or fetched(hub) == needed
    hub.forget()
    compute(encoder)
    again = compute(minibert.load_encoder(f"org/{name}", local_files_only=True))
    assert hub.requests == []
    for each in zip(found, again, compute(minibert.load_encoder(REFERENCE / name)), strict=True):
        assert same_bits(*each[:2]) and same_bits(*each[1:])


@pytest.mark.parametrize("inside", ["", "0_StaticEmbedding"])
def test_of_a_static_model_only_the_rows_of_the_texts_are_fetched(hub: FakeHub, tmp_path: Path, inside: str) -> None:
    """With `lazy` the rows of a call are fetched together, other tensors whole; the bits are the folder's."""
    rows, shared = numbers(VOCAB, 2000), dict(mapping=np.arange(VOCAB)[::-1], weights=np.linspace(1, 2, VOCAB))
    folder = static_folder(tmp_path / "model", inside, normalized=True, embeddings=rows, **shared)
    put(hub, folder, useless=())
    texts = ["we lived above", "the clouds above"]
    want = minibert.load_encoder(folder).encode(texts)
    encoder = minibert.load_encoder(f"org/{folder.name}", lazy=True)
    assert same_bits(encoder.encode(texts), want)
    hub.forget()
    assert same_bits(pickle.loads(pickle.dumps(encoder)).encode(texts), want) and hub.requests == []  # in the cache
    alike = ["a " * 1000, "b " * 1100]  # two tiles: their rows, which are neighbours, are fetched together
    assert same_bits(encoder.encode(alike), minibert.load_encoder(folder).encode(alike))
    (request,) = hub.requests
    assert request.path.endswith("model.safetensors") and 2 * 4 * 2000 <= hub.sent < 4 * 4 * 2000
    whole = minibert.load_encoder(f"org/{folder.name}")
    assert same_bits(whole.encode(texts), want)
    assert same_bits(minibert.load(f"org/{folder.name}")([[5]])[0, 0], rows[-6] * np.float32(shared["weights"][5]))
    hub.forget()
    shutil.rmtree(tmp_path / "home" / "assets")  # as if another program had fetched the files
    options: dict[str, Any] = dict(revision=commit_of(f"org/{folder.name}"), local_files_only=True)
    assert same_bits(minibert.load_encoder(f"org/{folder.name}", **options).encode(texts), want) and hub.requests == []
