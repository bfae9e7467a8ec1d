"""The tests marked network, against a Hub on this machine whose files have the real names, sizes and layouts.

The authors cannot reach the Hub. These tests show that the first run there does not fail for a reason of the code or of
the tests. A few numbers are chosen so that the printed ones come out.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import test_network
from command_line import Patch
from fake_hub import FakeHub, use
from printed_models import (
    FACTS,
    OTHERS,
    RERANKER,
    add_as_on_the_hub,
    write_bert_tokenizer,
    write_gpt2_tokenizer,
    write_layout,
)

import minibert

pytestmark = pytest.mark.slow


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: Patch) -> Iterator[FakeHub]:
    """At the end the client's copies go: they have no holes."""
    with FakeHub() as hub:
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        yield hub
        assert not [request.path for name in OTHERS for request in hub.asked(f"/resolve/[^/]+/{name}$")]
    shutil.rmtree(tmp_path)


def test_position_rows_by_their_hashes(hub: FakeHub, tmp_path: Path, monkeypatch: Patch) -> None:
    tables = write_layout(tmp_path / "bert", "bert-base-uncased")
    rows = tables["bert.embeddings.position_embeddings.weight"][:7]
    rows[:] = np.random.default_rng(0).standard_normal(rows.shape)
    hashes = [hashlib.sha256(row.tobytes()).hexdigest() for row in rows]
    monkeypatch.setitem(FACTS, "bert-base-uncased", {"rows_sha256": hashes})
    add_as_on_the_hub(hub, "bert-base-uncased", tmp_path / "bert")
    test_network.test_position_rows_by_their_hashes()


@pytest.mark.parametrize("text", test_network.FILLED)
def test_words_for_a_mask(text: str, hub: FakeHub, minilm: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """The bias of the head alone makes the logits: those of one text."""
    folder, wanted = tmp_path / "bert", test_network.FILLED[text]
    bias = write_layout(folder, "bert-base-uncased")["cls.predictions.bias"]
    ids = minibert.load(minilm).tokenize(" ".join(wanted))["input_ids"][0][1:-1]
    bias[:] = np.log((1 - sum(wanted.values())) / (len(bias) - len(wanted)))
    bias[ids] = np.log(list(wanted.values()))
    add_as_on_the_hub(hub, "bert-base-uncased", write_bert_tokenizer(folder, minilm))
    monkeypatch.setattr(test_network, "FILLED", {text: wanted})
    test_network.test_words_for_a_mask()


def test_a_text_goes_on(hub: FakeHub, tmp_path: Path) -> None:
    """Each position has a direction of its own, and so has the token that comes next there."""
    folder = tmp_path / "gpt2"
    tensors = write_layout(folder, "gpt2")
    tokenizer = write_gpt2_tokenizer(folder)
    begun, written = (tokenizer.encode(text).ids for text in (test_network.BEGUN, test_network.WRITTEN + "\n" * 40))
    for place, token in enumerate(written[:40], len(begun) - 1):
        tensors["wpe.weight"][place, place] = 100
        tensors["wte.weight"][token, place] = 1
    tensors["ln_f.weight"][:] = 1
    tokenizer.save(str(folder / "tokenizer.json"))
    add_as_on_the_hub(hub, "gpt2", folder)
    test_network.test_a_text_goes_on()


def test_the_printed_scores_of_six_documents(hub: FakeHub, minilm: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """All have the first one's score, and stay in their order."""
    folder, score = tmp_path / "reranker", test_network.SCORES[0][1]
    write_layout(folder, RERANKER)["classifier.bias"][:] = score
    add_as_on_the_hub(hub, RERANKER, write_bert_tokenizer(folder, minilm))
    monkeypatch.setattr(test_network, "SCORES", [(number, score) for number in range(6)])
    test_network.test_the_printed_scores_of_six_documents()


def test_the_page_s_code_writes_the_folder_of_real_values(hub: FakeHub, tmp_path: Path, monkeypatch: Patch) -> None:
    table = write_layout(tmp_path / "bert", "bert-base-uncased")["bert.embeddings.position_embeddings.weight"]
    table[:] = np.random.default_rng(0).standard_normal(table.shape)
    write_layout(tmp_path / "gpt2", "gpt2")
    write_gpt2_tokenizer(tmp_path / "gpt2")
    for model, folder in (("bert-base-uncased", "bert"), ("gpt2", "gpt2")):
        add_as_on_the_hub(hub, model, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "scripts" / "reference" / "README.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, page.name, "exec"), {})
    assert np.array_equal(np.load("real-values/bert_base_uncased_position_embeddings.npy"), table)
    for name in ("vocab.json", "merges.txt"):
        written = tmp_path / "real-values" / "tokenizers" / f"gpt2_{name}"
        assert written.read_bytes() == (tmp_path / "gpt2" / name).read_bytes()


@pytest.mark.reference
def test_the_whole_of_t5_small_beside_transformers(hub: FakeHub, tmp_path: Path) -> None:
    tensors = write_layout(tmp_path / "t5", "t5-small")
    for name, tensor in tensors.items():
        generator = np.random.default_rng(len(name))
        tensor[:] = 1 if "norm" in name else 0.05 * generator.standard_normal(tensor.shape, np.float32)
    add_as_on_the_hub(hub, "t5-small", tmp_path / "t5")
    test_network.test_the_whole_of_t5_small_beside_transformers()
