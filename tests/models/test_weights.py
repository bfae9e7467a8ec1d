"""Weights as they are stored: mapped in narrow formats with the bits of converted ones; a LoRA adapter merged."""

from __future__ import annotations

import copy
import json
import math
import pickle
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, product
from pathlib import Path
from typing import Any
from unittest import mock

import checkpoints
import encoders
import numpy as np
import pytest
from checkpoints import change_json, numbers, same_bits
from encoder_files import CASE, TINY, EncoderCase
from head_files import HEAD_CASES, HeadCase
from peaks import peak
from safetensors.numpy import load_file, save_file

import minibert
from minibert import CheckpointError
from minibert.equations import fast
from minibert.equations.input_layer import Array
from minibert.families.parts.modules import Linear
from minibert.models.heads import heads
from minibert.models.heads.prediction import go_on
from minibert.models.open.load_encoder import open_vectors
from minibert.models.run import packing
from minibert.models.run.ready_blocks import KeyValueCache

IDS = np.arange(30).reshape(3, 10) % 20 + 5
MASK = np.array([[1] * 10, [1] * 4 + [0] * 6, [1] * 7 + [0] * 3])
NARROW = ("BF16", "F16")
same = partial(np.testing.assert_array_equal, strict=True)
ONE_ROW = 5e-6  # of logits, where BLAS adds a row's products in another order for another layout; measured 3e-7


def narrowed(folder: Path, into: Path, stored: str = "BF16", shift: int = 0) -> Path:
    shutil.copytree(folder, into, dirs_exist_ok=True)
    named = {name: checkpoints.as_stored(x, stored) for name, x in load_file(folder / "model.safetensors").items()}
    (into / "model.safetensors").write_bytes(checkpoints.pack(named, shift=shift))
    return into


def both(folder: Path, **options: Any) -> tuple[minibert.Encoder, minibert.Encoder]:
    """A model with its weights converted, and with weights that stay as they are stored."""
    converted, kept = (minibert.load_encoder(folder, low_memory=low, **options) for low in (False, True))
    assert stays(kept) and not stays(converted)
    return converted, kept


def maps(encoder: minibert.Encoder) -> list[Linear]:
    rows = encoder.embeddings.modules  # an input layer's projection is always converted
    return [module for path, module in encoder.modules.items() if isinstance(module, Linear) and path not in rows]


def stays(encoder: minibert.Encoder) -> bool:
    """Whether each weight of the blocks is converted for each use: then no two uses have the same array."""
    found = {module.weight is not module.weight for module in maps(encoder)}
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize(("case", "stored"), [*zip(TINY, cycle(NARROW), strict=False)], ids=str)
def test_every_row_s_bits_are_those_of_converted_weights(case: EncoderCase, stored: str, tmp_path: Path) -> None:
    """Shared blocks, transposed weights, older names for q, k and v in one weight, a gate beside what it gates."""
    converted, kept = both(narrowed(case.folder, tmp_path, stored))
    want, got = (encoder.trace(IDS, attention_mask=MASK) for encoder in (converted, kept))
    assert list(want) == list(got)
    for name in want:
        same(got[name], want[name])
    for ids in (IDS, IDS[:, :1], IDS[:1], IDS[:, :7]):  # one room after another, of other lengths
        same(kept(ids), converted(ids))
    same(kept(IDS, attention_mask=MASK), converted(IDS, attention_mask=MASK))
    assert repr(kept) == repr(converted)


@pytest.mark.parametrize("case", HEAD_CASES, ids=str)
def test_logits_too(case: HeadCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted, kept = both(narrowed(case.folder, tmp_path))
    assert converted.head(case.head).last.weight is converted.head(case.head).last.weight, "converted once"
    for weights in (heads.WEIGHTS, 40):
        monkeypatch.setattr(heads, "WEIGHTS", weights)
        same(kept.logits(IDS[:1], head=case.head), converted.logits(IDS[:1], head=case.head))
    want, got = (encoder.trace(IDS[:1], head=case.head)["logits"] for encoder in (converted, kept))
    same(got, want)


@pytest.mark.parametrize("name", ["gpt2", "qwen3", "mistral", "gemma3_text"])
def test_word_by_word_too(name: str, tmp_path: Path) -> None:
    caches = [(encoder, KeyValueCache()) for encoder in both(narrowed(CASE[name].folder, tmp_path))]
    for ids in ([5, 6, 7], [8], [9], [10, 11]):
        want, got = (go_on(encoder, ids, cache) for encoder, cache in caches)
        np.testing.assert_allclose(got, want, rtol=0, atol=ONE_ROW)


@pytest.mark.parametrize("shift", [0, 1])
def test_float32_stays_mapped_as_it_is_and_misaligned_is_not_copied(tmp_path: Path, shift: int) -> None:
    """What can be computed with where it is, is; what BLAS would have to copy is copied for each use."""
    folder = narrowed(CASE["bert"].folder, tmp_path, "F32", shift)
    converted, kept = (minibert.load_encoder(folder, low_memory=low) for low in (False, True))
    assert not stays(converted) and {module.weight.flags.owndata for module in maps(converted)} == {bool(shift)}
    assert not stays(kept) and {module.weight.flags.owndata for module in maps(kept)} == {False}
    same(kept(IDS), converted(IDS))


@pytest.mark.parametrize("stored", NARROW)
def test_float64_too_and_copies_keep_the_choice(stored: str, tmp_path: Path) -> None:
    converted, kept = both(narrowed(CASE["bert"].folder, tmp_path, stored), dtype="float64")
    assert kept(IDS).dtype == np.float64
    same(kept(IDS), converted(IDS))
    assert all(stays(each) for each in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))))


@pytest.mark.parametrize("tokens", [10, 128])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_and_callers_at_once(threads: int, tokens: int, tmp_path: Path) -> None:
    """Many tiles and few. Every thread has a room of its own: a shared one would hold another block's weight."""
    folder = narrowed(encoders.write(tmp_path / "wide", "bert"), tmp_path / "narrow")
    converted, kept = both(folder, threads=threads)
    texts = [" ".join(words) for words in product(("we lived above", "the", "clouds"), repeat=4)]
    with mock.patch.object(packing, "TILE_TOKENS", tokens), ThreadPoolExecutor(4) as pool:
        want = converted.encode(texts)
        for each in pool.map(kept.encode, [texts] * 6):
            same(each, want)
    same(kept.encode(texts[0]), converted.encode(texts[0]))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_in_the_middle(error: type[BaseException], tmp_path: Path) -> None:
    converted, kept = both(narrowed(CASE["qwen3"].folder, tmp_path), threads=2)
    breaks = mock.Mock(wraps=fast.linear, side_effect=[mock.DEFAULT] * 8 + [error] * 99)
    with mock.patch("minibert.models.run.ready_blocks.linear", breaks), pytest.raises(error):
        kept(IDS)
    same(kept(IDS), converted(IDS))


WIDE, BLOCKS = 192, 8
LARGEST = 4 * WIDE * 4 * WIDE  # bytes of a block's largest map in float32


@pytest.mark.parametrize("name", ["bert", "gpt2", "qwen3"])
def test_memory_is_that_of_one_weight(name: str, tmp_path: Path) -> None:
    """Measured: 2.2 to 2.4 times the largest weight; converted, each block alone takes three times as much."""
    usual = dict(hidden_size=WIDE, intermediate_size=4 * WIDE, num_hidden_layers=BLOCKS)
    sizes = {
        "gpt2": dict(n_embd=WIDE, n_inner=4 * WIDE, n_layer=BLOCKS), "bert": usual,
        "qwen3": usual | dict(head_dim=WIDE // 4),
    }  # fmt: skip
    folder = narrowed(encoders.write(tmp_path / "wide", name, **sizes[name]), tmp_path / "narrow")

    def load_and_call(low_memory: bool) -> None:
        with minibert.load_encoder(folder, low_memory=low_memory, threads=2) as encoder:
            encoder(IDS)
            encoder(IDS)

    load_and_call(False)  # what is imported once is there
    assert peak(lambda: load_and_call(False)) > 2 * BLOCKS * LARGEST
    assert peak(lambda: load_and_call(True)) < 3 * LARGEST


def test_memory_of_a_tied_word_table_is_that_of_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = 90_000
    table, config = 4 * words * encoders.DIM, dict(vocab_size=words, tie_word_embeddings=True)
    monkeypatch.setattr(heads, "WEIGHTS", 1 << 14)
    folder = narrowed(encoders.write(tmp_path / "wide", "qwen3", **config), tmp_path / "narrow")
    converted, kept = both(folder)
    for encoder in (converted, kept):
        encoder(IDS)
        assert encoder.heads == ("next_word",)
    assert peak(lambda: converted.logits(IDS[0, :1])) > table
    assert peak(lambda: kept.logits(IDS[0, :1])) < table / 4
    assert peak(lambda: kept.trace(IDS[0, :1], head="next_word")) < table / 4


PAIR_OF_IDS = np.array([[5, 6, 7, 8], [9, 3, 4, 10]])
CLOSE = 5e-6  # of hidden states up to 3, one order of additions beside another; measured: 1.1e-6
PLAIN = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none", "target_modules": ["query"]}
QUERY = "encoder.layer.0.attention.self.query"
A, B = numbers(2, encoders.DIM, seed=1), numbers(encoders.DIM, 2, seed=2)


def both_of(path: str) -> dict[str, Array]:
    return {f"{path}.lora_A.weight": A, f"{path}.lora_B.weight": B}


PRODUCT = both_of(QUERY)


def adapter(folder: Path, tensors: Mapping[str, Array] = PRODUCT, **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | settings), "utf-8")
    save_file({f"base_model.model.{name}": x for name, x in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


def merged(folder: Path, scale: float = 3, paths: Sequence[str] = (QUERY,), **named: Array) -> minibert.Encoder:
    """Add the product to these weights by hand; set other tensors."""
    stored = load_file(folder / "model.safetensors") | named
    stored |= {f"{path}.weight": stored[f"{path}.weight"] + np.float32(scale) * (B @ A) for path in paths}
    save_file(stored, folder / "model.safetensors")
    return minibert.load_encoder(folder)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 6 / 2), (True, 6 / 2**0.5)])
def test_the_product_is_added_to_the_weight(tmp_path: Path, rslora: bool, scale: float) -> None:
    folder = adapter(encoders.write(tmp_path / "model", "bert"), use_rslora=rslora)
    want = merged(encoders.write(tmp_path / "merged", "bert"), scale)(PAIR_OF_IDS)
    plain = minibert.load_encoder(encoders.write(tmp_path / "plain", "bert"))(PAIR_OF_IDS)
    for options in ({}, {"low_memory": True}, {"mmap": False}):
        found = minibert.load_encoder(folder, **options)(PAIR_OF_IDS)  # type: ignore[arg-type]
        assert np.abs(found - want).max() <= CLOSE < 1e-3 < np.abs(found - plain).max()
    assert same_bits(minibert.load(folder)(PAIR_OF_IDS), minibert.load(tmp_path / "plain")(PAIR_OF_IDS))
    change_json(tmp_path / "model" / "adapter_config.json", r=3)
    with pytest.raises(CheckpointError, match=r"\(2, 16\).*\(16, 2\)"):
        minibert.load_encoder(folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no adapter_model.safetensors"):
        minibert.load_encoder(folder)


def test_an_adapter_alone_opens_its_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = encoders.write(tmp_path / "base", "bert")
    alone = adapter(tmp_path / "alone", base_model_name_or_path="base")
    both = adapter(encoders.write(tmp_path / "both", "bert"))
    with minibert.load_encoder("alone") as encoder:
        assert same_bits(encoder(PAIR_OF_IDS), minibert.load_encoder(both)(PAIR_OF_IDS))
    assert {"model.safetensors", "adapter_model.safetensors"} <= open_vectors(alone).sha256().keys()  # the base's too
    with pytest.raises(CheckpointError):  # of a base that has an adapter itself
        minibert.load_encoder(adapter(tmp_path / "alone", base_model_name_or_path=str(both)))
    adapter(tmp_path / "alone", base_model_name_or_path="base")
    (base / "config.json").unlink()
    with pytest.raises(CheckpointError):
        minibert.load_encoder(alone)
    with pytest.raises(CheckpointError, match="'base_model_name_or_path'"):
        minibert.load_encoder(adapter(tmp_path / "none"))


@pytest.mark.parametrize("said", [False, True])
def test_the_base_s_layer_says_whether_a_product_is_transposed(tmp_path: Path, said: bool) -> None:
    """GPT-2's blocks store (in, out), its classifier (out, in); what PEFT writes is true of the last module alone."""
    path, score = "transformer.h.0.attn.c_proj", numbers(3, encoders.DIM, seed=5)
    scored = {"score.lora_A.weight": A, "score.lora_B.weight": B[:3]}
    base = encoders.write(tmp_path / "base", "gpt2", architectures=["GPT2ForSequenceClassification"], num_labels=3)
    merged(base, paths=(), **{"score.weight": score})
    settings: dict[str, Any] = dict(target_modules=["attn.c_proj", "score"], base_model_name_or_path=str(base))
    alone = adapter(tmp_path / "alone", both_of(path) | scored, **settings, fan_in_fan_out=said)
    found = minibert.load_encoder(alone).logits(PAIR_OF_IDS[:1])
    weight = load_file(base / "model.safetensors")["h.0.attn.c_proj.weight"] + 3 * (B @ A).T
    by_hand = merged(base, paths=(), **{"h.0.attn.c_proj.weight": weight, "score.weight": score + 3 * B[:3] @ A})
    assert np.abs(found - by_hand.logits(PAIR_OF_IDS[:1])).max() <= CLOSE


# settings narrower than the file, which has this map of both blocks and the one after it: what is left of them
CHOSEN: list[tuple[dict[str, Any], tuple[int, ...]]] = [
    ({"target_modules": ["query"]}, (0, 1)), ({"target_modules": ["uery", "0.attention.self.query"]}, (0,)),
    ({"target_modules": r".*\.1\..*query"}, (1,)), ({"layers_to_transform": 1}, (1,)),
    ({"layers_to_transform": [0], "layers_pattern": "layer"}, (0,)),
    ({"layers_to_transform": [0], "layers_pattern": ["h", "layer"], "exclude_modules": ["key"]}, (0,)),
    ({"layers_to_transform": [], "exclude_modules": r".*\.0\..*"}, (1,)),
    ({"target_modules": [QUERY], "layers_to_transform": [1]}, (0,)),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "blocks"), CHOSEN)
def test_the_maps_that_the_settings_name_are_changed_alone(
    tmp_path: Path, settings: dict[str, Any], blocks: tuple[int, ...]
) -> None:
    last = QUERY.replace(".0.", ".1.")
    tensors = PRODUCT | both_of(last) | both_of(QUERY.replace("query", "value"))
    found = minibert.load_encoder(adapter(encoders.write(tmp_path / "model", "bert"), tensors, **settings))
    by_hand = merged(encoders.write(tmp_path / "merged", "bert"), paths=[(QUERY, last)[i] for i in blocks])
    assert np.abs(found(PAIR_OF_IDS) - by_hand(PAIR_OF_IDS)).max() <= CLOSE


def test_a_classifier_s_adapter_brings_its_head(tmp_path: Path) -> None:
    """Three labels, as the saved tensor has; config.json of the base names another head, and two labels by default."""
    base = encoders.write(tmp_path / "base", "bert", architectures=["BertForMaskedLM"])
    pooler = {"pooler.dense.weight": numbers(16, 16, seed=3), "pooler.dense.bias": numbers(16, seed=4)}
    head = {"classifier.weight": numbers(3, 16, seed=5), "classifier.bias": numbers(3, seed=6)}
    settings = {"modules_to_save": ["classifier", "score"], "base_model_name_or_path": str(base), "revision": "main"}
    alone = adapter(tmp_path / "alone", both_of(f"bert.{QUERY}") | head, task_type="SEQ_CLS", **settings)
    with pytest.raises(CheckpointError):  # the map before it is nowhere, and no other head may take its place
        minibert.load_encoder(alone).logits(PAIR_OF_IDS)
    merged(base, paths=(), **pooler)
    found = minibert.load_encoder(alone).logits(PAIR_OF_IDS)
    change_json(base / "config.json", architectures=["BertForSequenceClassification"], num_labels=3)
    assert found.shape == (2, 3)
    assert np.abs(found - merged(base, **head).logits(PAIR_OF_IDS)).max() <= CLOSE


def test_a_saved_module_is_known_by_the_end_of_its_name(tmp_path: Path) -> None:
    """As PEFT knows it: "classifier" keeps DistilBERT's pre_classifier too, without which there is no head."""
    head = {"pre_classifier.weight": numbers(16, 16, seed=3), "pre_classifier.bias": numbers(16, seed=4),
            "classifier.weight": numbers(2, 16, seed=5), "classifier.bias": numbers(2, seed=6)}  # fmt: skip
    tensors = both_of("distilbert.transformer.layer.0.attention.q_lin") | head
    settings: dict[str, Any] = dict(target_modules=["q_lin"], modules_to_save=["classifier"], task_type="SEQ_CLS")
    folder = adapter(encoders.write(tmp_path / "model", "distilbert"), tensors, **settings)
    with minibert.load_encoder(folder) as encoder:
        assert encoder.heads == ("classes",)
        assert encoder.logits(PAIR_OF_IDS).shape == (2, 2)


def test_a_pooler_that_the_base_lacks_is_no_matter_for_encode(tmp_path: Path) -> None:
    base, tensors = encoders.write(tmp_path / "both", "bert"), PRODUCT | both_of("pooler.dense")
    folder = adapter(base, tensors, target_modules=["query", "pooler.dense"])
    plain = adapter(encoders.write(tmp_path / "plain", "bert"))
    assert same_bits(minibert.load_encoder(folder)(PAIR_OF_IDS), minibert.load_encoder(plain)(PAIR_OF_IDS))


def test_the_tokenizer_s_files_are_all_of_one_folder(tmp_path: Path) -> None:
    """The base's where the adapter has none; else the adapter's, and none of the base's fills a gap."""
    base = encoders.write_with_words(tmp_path / "base", "bert")
    change_json(base / "tokenizer_config.json", model_max_length=3)
    alone = adapter(tmp_path / "alone", base_model_name_or_path=str(base))
    assert minibert.load_encoder(alone).max_seq_length == 3
    shutil.copy(base / "tokenizer.json", alone)
    assert minibert.load_encoder(alone).max_seq_length == encoders.LONGEST
    shutil.move(alone / "tokenizer.json", alone / "added_tokens.json")
    with pytest.raises(minibert.TokenizerError):
        minibert.load_encoder(alone).tokenize("a")


FIRST, OTHER = f"{QUERY}.lora_A.weight", "encoder.layer.1.attention.self.query.lora_B.weight"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "'peft_type' .*'IA3'.*LORA"), ({"use_dora": True}, "'use_dora' .*True"),
    ({"bias": "all"}, "'bias' .*'all'"), ({"init_lora_weights": "pissa"}, "'init_lora_weights' .*'pissa'"),
    *(({key: value}, f"'{key}'") for key, value in (
        ("rank_pattern", {"query": 4}), ("alpha_pattern", {"query": 4}), ("layer_replication", [[0, 2]]),
        ("something_new", 1))),
    ({"r": 0}, "'r' .*'lora_alpha' .*0, 6"), ({"lora_alpha": True}, "2, True"),
    *(({"lora_alpha": alpha}, " 2, ") for alpha in (10**400, 1e300, math.nan, False, "6")),
    ({"r": 10**400, "use_rslora": True}, "found 1000"),
    # tensors that do not fit
    ({"tensors": PRODUCT | {f"{QUERY}.lora_magnitude_vector": B[:, 0].copy()}}, "is no matrix of a linear map"),
    ({"tensors": {f"{QUERY}.lora_embedding_{m}": x for m, x in (("A", A), ("B", B))}}, "is no matrix of a linear map"),
    ({"tensors": {FIRST: A, OTHER: B}}, "one of two matrices for"),
    ({"tensors": both_of(QUERY.replace("0.attention.self", "7"))}, "has no such weight; is this"),
    ({"tensors": both_of(QUERY.replace("encoder.layer", "layers"))}, "transformers has a name for this"),
    ({"tensors": PRODUCT | both_of(f"bert.{QUERY}")}, "which are one; keep one"),
    ({"tensors": PRODUCT | {"embeddings.LayerNorm.weight": B[:, 0].copy()}, "modules_to_save": ["LayerNorm"]},
     "no head has it"),
    ({"tensors": PRODUCT | {"pooler.dense.weight": B}}, "is no matrix of a linear map; merge it"),
    *(({"tensors": PRODUCT | {FIRST: odd}}, says) for odd, says in (
        (A.T.copy(), r"\(16, 2\) .*\(16, 2\)"), (A[:, :8].copy(), r"\(2, 8\)"),
        (A * np.float32(np.inf), "numbers that are not finite"))),
    # settings that choose maps
    ({"target_modules": ["value"]}, "'target_modules'"), ({"target_modules": None}, "'target_modules'"),
    *((odd, "cannot be followed")
      for odd in ({"target_modules": 5}, {"target_modules": "("}, {"layers_to_transform": "0"})),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "says"), REFUSED)
def test_other_adapters_are_refused_by_name(tmp_path: Path, asked: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        minibert.load_encoder(adapter(encoders.write(tmp_path, "bert"), **asked))
