"""A caller's lengths, prompts, sizes and measure stand before the folder's."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import change_json, same_bits
from command_line import Printed, ran
from reference_files import REFERENCE, opened

import minibert
from minibert.equations.input_layer import Array

DENSE = REFERENCE / "sentences-dense"
LONG = "we lived above the clouds, we lived above the clouds"
SAME = 2e-6  # a text cut by us and the same text cut by hand; measured: 1.2e-7
dense = partial(minibert.load_encoder, DENSE)
PROMPTS, RERANKER = REFERENCE / "sentences-prompts", REFERENCE / "uses-reranker"
TEXTS = ["we lived", "above the clouds", ""]


def cut_by_hand(tokens: int) -> Array:
    return dense().encode(" ".join(LONG.replace(",", " ,").split()[: tokens - 2]))


@pytest.mark.parametrize("name", ["sentences-last-token", "sentences-two-dense", "sentences-search"])
def test_without_a_table_of_positions_the_config_s_number_is_the_limit(name: str, tmp_path: Path) -> None:
    """As in sentence-transformers: the tokenizer's length is held to the config's, one in the settings is not."""
    folder = shutil.copytree(REFERENCE / name, tmp_path / "model")
    change_json(folder / "config.json", max_position_embeddings=11)
    for tokenizer_s, own, longest in ((None, None, 11), (10**30, None, 11), (7, None, 7), (None, 20, 20)):
        change_json(folder / "tokenizer_config.json", model_max_length=tokenizer_s)
        text = json.dumps({"max_seq_length": own, "do_lower_case": False})
        (folder / "sentence_bert_config.json").write_text(text, encoding="utf-8")
        with minibert.load_encoder(folder) as encoder:
            assert encoder.max_seq_length == longest and encoder.max_length is None, (tokenizer_s, own)
            assert len(encoder.encode("we " * 40, output_value="token_embeddings")) == longest


def test_the_longest_length_can_be_set_acts_from_the_next_call_on_or_is_refused() -> None:
    encoder = dense()
    assert encoder.max_seq_length == encoder.max_length == 32
    for length in (8, 4, np.int64(6), 32, 3, None):
        encoder.max_seq_length = length  # type: ignore[assignment]
        assert encoder.max_seq_length == (length or 32)
        said = "max_seq_length, which was set" if length else "the position table"
        assert encoder.sentence_config.longest_from == said
        assert type(encoder.max_seq_length) is int  # JSON knows no integer of NumPy's
        for method in (encoder.encode, encoder.encode_query, encoder.encode_document):
            assert np.abs(method(LONG) - cut_by_hand(int(length or 32))).max() <= SAME
        assert len(encoder.encode(LONG, output_value="token_embeddings")) == min(length or 32, 13)
    assert encoder.tokenize(LONG)["input_ids"].shape == (1, 13)  # `encode` alone truncates
    encoder.max_seq_length = 5  # one that cannot be changes nothing
    with pytest.raises(ValueError, match=r"^max_seq_length .*\b33\b"):
        encoder.max_seq_length = 33
    assert encoder.max_seq_length == 5
    encoder.max_seq_length = 1
    with pytest.raises(ValueError, match=r"^max_length 1 "):
        encoder.encode("we")
    prompted = minibert.load_encoder(REFERENCE / "sentences-prompts", max_seq_length=5)
    found = prompted.encode("we", prompt="the clouds: the clouds: ")  # of which nothing is pooled
    assert np.isfinite(found).all()  # [SEP] is pooled: without it the largest of nothing is minus infinity
    encoder.close()
    for use in (encoder.get_max_seq_length, lambda: setattr(encoder, "max_seq_length", 8)):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_lengths_set_from_two_threads_at_once() -> None:
    """Each vector is that of one of the lengths, whole: no call sees a length change under it."""
    encoder, known = dense(), [cut_by_hand(4), cut_by_hand(9)]

    def use(i: int) -> float:
        encoder.max_seq_length = 4 if i % 2 else 9
        found = encoder.encode([LONG] * 5)
        return float(min(np.abs(found - want).max() for want in known))

    with ThreadPoolExecutor(2) as pool:
        assert max(pool.map(use, range(60))) <= SAME
    encoder.max_seq_length = 9
    stream = encoder.pipeline().stream([[LONG]] * 4)  # which keeps the length that it began with
    first = next(stream)
    encoder.max_seq_length = 4
    assert all(np.abs(vector - first).max() <= SAME for vector in stream)
    assert np.abs(encoder.encode(LONG) - first).max() > 0.01


def test_a_mistyped_attribute_is_an_error() -> None:
    encoder = dense()
    for name in ("max_seq_lenght", "truncate_dim", "dim", "dtype", "config", "encode", "embeddings", "prompts"):
        with pytest.raises(AttributeError, match=f"'{name}'"):
            setattr(encoder, name, 8)
    for name in ("max_seq_length", "max_length", "dim", "word_embeddings", "family"):
        with pytest.raises(AttributeError, match=f"'{name}'"):
            setattr(encoder.embeddings, name, 8)
    assert encoder.dim == 8 and encoder.encode("we").shape == (6,)


@pytest.mark.parametrize("folder", sorted(path.name for path in REFERENCE.glob("sentences-*")))
def test_the_sentences_own_sizes_go_by_their_usual_names(folder: str) -> None:
    encoder = minibert.load_encoder(REFERENCE / folder)
    assert encoder.get_embedding_dimension() == encoder.get_sentence_embedding_dimension() == encoder.encode("we").size
    tokens = encoder.encode("we " * 50, output_value="token_embeddings")
    assert tokens.shape == (encoder.max_seq_length, encoder.dim)


SIZE, ENDS, NONE = "numbers, {} over a text's tokens; by cosine", "tokens (model_max_length in tok", "none in this file"
# folder -> what each line begins with; "" where there is no such line
INFO: dict[str, dict[str, str]] = {
    "sentences-dense": {
        "sentence vectors": f"6 {SIZE.format('mean')}", "longest sentence": f"32 {ENDS}", "heads": NONE,
        "prompts": "none", "longest sequence": "32 tokens",
    },
    "sentences-causal": {
        "sentence vectors": f"16 {SIZE.format('weightedmean and lasttoken')}", "longest sentence": f"32 {ENDS}",
        "longest sequence": "32 tokens",
    },
    "sentences-bare": {"sentence vectors": f"8 {SIZE.format('mean')}", "longest sentence": f"10 {ENDS}"},
    "sentences-prompts": {"heads": NONE, "prompts": "query 'the clouds: ', passage 'above! ' (if none is named)"},
    "uses-reranker": {"heads": "classes"},
    "xlnet": {"heads": "", "sentence vectors": ""},
}  # fmt: skip


@pytest.mark.parametrize("folder", INFO)
def test_info_tells_sizes_heads_and_prompts(folder: str, capsys: Printed) -> None:
    out, _ = ran(capsys, "info", REFERENCE / folder)
    told = dict(line.split("  ", 1) for line in out.splitlines() if "  " in line)
    assert told["width"].strip().endswith("numbers a token")
    for key, begins in INFO[folder].items():
        assert told.get(key, "").strip().startswith(begins) and (key in told) == bool(begins)
    if told.get("heads", NONE).strip() != NONE:
        assert told["heads"].strip() == ", ".join(opened(folder).heads)


def test_info_of_sentences_that_are_not_computed(tmp_path: Path, capsys: Printed) -> None:
    folder = shutil.copytree(DENSE, tmp_path / "pooled")
    (folder / "1_Pooling" / "config.json").unlink()
    assert f"not available: {folder}/1_Pooling: the Pooling has no config.json" in ran(capsys, "info", folder)[0]
    (folder / "modules.json").write_text('[{"type": "mine.Own", "path": ""}]', encoding="utf-8")
    out, _ = ran(capsys, "info", folder)
    assert "sentence vectors  not available: " in out and "names 'mine.Own'" in out


def test_a_size_and_a_length_of_the_loader() -> None:
    whole, encoder = dense(max_seq_length=6), dense(truncate_dim=4, max_seq_length=6)
    assert same_bits(encoder.encode(TEXTS), whole.encode(TEXTS)[:, :4]) and encoder.get_embedding_dimension() == 4
    assert same_bits(encoder.encode(TEXTS, truncate_dim=2), whole.encode(TEXTS)[:, :2])
    assert np.abs(whole.encode(LONG) - cut_by_hand(6)).max() <= SAME and whole.tokens_cut(LONG) == 7
    pair, reranker = ("we lived above the clouds", "the clouds above we lived in"), opened("uses-reranker")
    short = minibert.load_encoder(RERANKER, max_seq_length=8).predict(pair)
    assert short != reranker.predict(pair)
    reranker.max_seq_length = 8
    assert short == reranker.predict(pair)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_keeps_what_was_asked_for_and_set(copied: Any) -> None:
    asked: dict[str, Any] = dict(prompts={"own": "a "}, default_prompt_name="own", truncate_dim=3, max_seq_length=5)
    encoder = dense(similarity_fn_name="dot", **asked)
    other = copied(encoder)
    assert same_bits(other.encode([LONG]), encoder.encode([LONG])) and other.prompts == encoder.prompts
    assert other.max_seq_length == 5 and other.similarity([3.0], [4.0]) == 12
    encoder.max_seq_length = 6
    other = copied(encoder)
    assert other.max_seq_length == 6 and same_bits(other.encode([LONG]), encoder.encode([LONG]))
    other.max_seq_length = 8
    assert encoder.max_seq_length == 6 and copied(other).max_seq_length == 8


def test_what_code_for_sentence_transformers_passes_and_reads() -> None:
    # also a device that is no text, as torch's
    habits: dict[str, Any] = dict(trust_remote_code=False, backend="torch", model_kwargs={}, config_kwargs=None)
    encoder = dense(device="cpu", token="hf_none", cache_folder="/nowhere", **habits)
    assert same_bits(encoder.encode(TEXTS), dense().encode(TEXTS))
    assert dense(device=type("device", (), {"__str__": lambda self: "cpu"})()).device == "cpu"
    options = dict(similarity_fn_name="dot", truncate_dim=3, default_prompt_name="query", max_seq_length=9)
    encoder = minibert.load_encoder(PROMPTS, **options)  # type: ignore[arg-type]
    found = encoder.similarity_fn_name, encoder.truncate_dim, encoder.default_prompt_name, encoder.get_max_seq_length()
    assert found == ("dot", 3, "query", 9)
    assert encoder.tokenizer is encoder.sentence_tokenizer and encoder.get_sentence_embedding_dimension() == 3
    assert encoder.model_card_data.set_evaluation_metrics(None, {"a": 1}, -1, -1) is None
    plain = opened("sentences-bare")
    assert (plain.similarity_fn_name, plain.truncate_dim, plain.default_prompt_name) == ("cosine", None, None)
    assert [opened(name).similarity_fn_name for name in ("uses-sparse", "late-fixed")] == ["dot", "maxsim"]


MEASURE, LATE = "similarity_fn_name of this model must be one of", REFERENCE / "late-fixed"
REFUSED: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
    *((TypeError, "prompts ", DENSE, {"prompts": odd}) for odd in (["query: "], {"query": None})),
    (TypeError, "default_prompt_name ", DENSE, {"default_prompt_name": 1}),
    (ValueError, "default_prompt_name .*'query', 'document'.*'x'", DENSE, {"default_prompt_name": "x"}),
    (ValueError, "truncate_dim", DENSE, {"truncate_dim": 0}),
    (ValueError, r"max_seq_length .*\b33\b", DENSE, {"max_seq_length": 33}),
    (TypeError, "load_encoder: .*'max_length'", DENSE, {"max_length": 3}),
    *((ValueError, "similarity_fn_name .*cosine, do", DENSE, {"similarity_fn_name": odd}) for odd in ("near", ["dot"])),
    (ValueError, "truncate_dim .*CrossEncoder", RERANKER, {"truncate_dim": 3}),
    (ValueError, "similarity_fn_name .*Cro", RERANKER, {"similarity_fn_name": "dot"}),
    *((TypeError, f"load_encoder: {name} ", DENSE, {name: value})
      for name, value in (("device", "cuda"), ("trust_remote_code", True), ("backend", "onnx"),
                          ("model_kwargs", {"dtype": "float16"}), ("modules", []))),
    (TypeError, "load_encoder: .*'threds'.*threads", DENSE, {"threds": 2}),
    (ValueError, "truncate_dim .*SparseEncoder", REFERENCE / "uses-sparse", {"truncate_dim": 3}),
    (ValueError, "truncate_dim .*MultiVectorEncoder", LATE, {"truncate_dim": 3}),
    (ValueError, f"{MEASURE} maxsim, meanmaxsim.*'co", LATE, {"similarity_fn_name": "cosine"}),
    (ValueError, f"{MEASURE} cosine, dot, .*'maxsim'", DENSE, {"similarity_fn_name": "maxsim"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "folder", "options"), REFUSED)
def test_what_cannot_be_asked_for(kind: type[Exception], message: str, folder: Any, options: dict[str, Any]) -> None:
    with pytest.raises(kind, match=f"^{message}"):
        minibert.load_encoder(folder, **options)
