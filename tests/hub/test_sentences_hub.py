"""Sentence vectors of a model on the Hub: which files are fetched, and when."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import VOCAB, numbers, same_bits
from fake_hub import FakeHub, commit_of
from reference_files import REFERENCE
from static_folders import static_folder

import minibert

USELESS = ("pytorch_model.bin", "onnx/model.onnx", "README.md", "2_Dense/pytorch_model.bin", "train_script.py")


def put(hub: FakeHub, name: str | Path, useless: tuple[str, ...] = USELESS) -> None:
    folder = REFERENCE / name
    files: dict[str, bytes | Path] = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("calls.json", "vectors.safetensors")
    }
    hub.add(f"org/{folder.name}", files | dict.fromkeys(useless, b"x" * 1000))


def fetched(hub: FakeHub) -> set[str]:
    found = (re.search(r"/resolve/[^/]+/(.+)$", request.path) for request in hub.requests if request.method == "GET")
    return {match[1] for match in found if match}


def test_only_what_is_needed_is_fetched(hub: FakeHub) -> None:
    name = "sentences-dense"
    put(hub, name)
    encoder = minibert.load_encoder(f"org/{name}")
    at_once = {
        "modules.json", "config.json", "model.safetensors", "1_Pooling/config.json", "2_Dense/config.json",
        "2_Dense/model.safetensors", "3_Normalize/config.json", "sentence_bert_config.json",
        "config_sentence_transformers.json", "tokenizer_config.json",
    }  # fmt: skip
    assert fetched(hub) == at_once  # the settings are computed here, or the model is refused now
    found = encoder.encode(["we lived", "clouds"])
    assert fetched(hub) == {*at_once, "tokenizer.json"}
    hub.forget()
    encoder.encode("the", normalize_embeddings=True)
    assert hub.requests == []
    again = minibert.load_encoder(f"org/{name}", local_files_only=True).encode(["we lived", "clouds"])
    assert hub.requests == []
    assert same_bits(found, again)
    assert same_bits(found, minibert.load_encoder(REFERENCE / name).encode(["we lived", "clouds"]))


def sparse(encoder: minibert.Encoder) -> list[np.ndarray]:
    vector = encoder.encode_sparse("we")
    return [vector.ids, vector.weights]


PAIRS = [("we", "the clouds"), ("a", "b")]
KINDS: dict[str, tuple[Callable[[minibert.Encoder], Any], set[str]]] = {  # folder -> a call, and files that it fetches
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
    found = compute(minibert.load_encoder(f"org/{name}"))
    assert needed <= fetched(hub) and fetched(hub).isdisjoint(USELESS)
    hub.forget()
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


def test_a_path_that_leaves_the_model_is_not_asked_for(hub: FakeHub) -> None:
    modules = b'[{"type": "sentence_transformers.models.Transformer", "path": "../../other/resolve/main"}]'
    hub.add("org/bad", {"modules.json": modules, "config.json": b"{}"})
    with pytest.raises(minibert.CheckpointError):
        minibert.load_encoder("org/bad")
    assert fetched(hub) == {"modules.json"}
