"""What `encode` promises of sentence vectors; those that sentence-transformers gave: test_calls.py."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from itertools import combinations, product
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from checkpoints import WORDS, same_bits, write, write_wordpiece
from command_line import Patch, Printed, ran, typed
from drawn import apart, away
from encoder_files import off
from many_texts import many_texts
from reference_files import REFERENCE, changed, opened
from safetensors.numpy import load_file, save_file

import minibert
from minibert.equations.quantization import BITS, PRECISIONS, quantized, ranges_of
from minibert.equations.sentences import POOLINGS, SIMILARITIES
from minibert.models.heads.labels import PREDICT, PredictOptions
from minibert.models.run import blocks
from minibert.models.run.pipeline import chunked
from minibert.models.sentences.sentences import ENCODE, EncodeOptions
from minibert.show.info import info

EXACT = 2e-6  # of a vector's numbers; measured: 3.1e-7
# how far a text's numbers move with its neighbours, as a share of its vector's length; measured on MiniLM: 2.6e-7
NEIGHBOURS = 1e-6
# and the whole vector; measured on MiniLM, over texts of two tokens and more: 1.2e-6, which is as far as it is from
# its value in float64
WHOLE = 2.5e-6
SETTINGS = "config_sentence_transformers.json"
DENSE, RERANKER, LABELS = (str(REFERENCE / name) for name in ("sentences-dense", "uses-reranker", "uses-inference"))
LONGER = "we " * 35  # 37 tokens with [CLS] and [SEP], where 32 are taken
FIVE = ["we lived", "above the clouds", "man", "dog bites man", ""]
SEP = WORDS.index("[SEP]")
WITH_ENDS = ["we lived above the clouds", "we", "above [SEP] the clouds", "", "clouds we lived a b c d e f g"]
ROWS = 1e-5  # measured 1e-6


def test_shapes_and_that_a_folder_has_one_kind_of_result() -> None:
    encoder = opened("sentences-dense")
    one, many, none, empty = (encoder.encode(texts) for texts in ("we", ["we", "clouds"], [], ""))
    assert one.shape == (6,) and many.shape == (2, 6) and none.shape == (0, 6) and empty.shape == (6,)
    assert {vectors.dtype for vectors in (one, many, none, empty)} == {np.dtype("float32")}
    assert encoder.encode([], truncate_dim=2).shape == (0, 2)
    assert encoder.encode([], truncate_dim=20).shape == (0, 6)
    assert encoder.encode(("we",)).shape == encoder.encode(np.array(["we"])).shape == (1, 6)
    assert encoder.encode(text for text in ("we", "a")).shape == (2, 6)
    tokens = encoder.encode(["we", "we lived"], output_value="token_embeddings")
    assert [rows.shape for rows in tokens] == [(3, 8), (4, 8)]
    assert encoder.encode([], output_value="token_embeddings") == []
    named = Enum("Named", {"tokens": "token_embeddings"}, type=str)
    assert len(encoder.encode("we lived", output_value=named.tokens)) == len(tokens[1])
    assert np.allclose(tokens[1], encoder(**encoder.tokenize("we lived"))[0], atol=1e-6)
    folders = {"sentences-dense": "dense", "late-fixed": "tokens", "uses-sparse": "sparse", "uses-reranker": "scores"}
    assert {name: opened(name).result for name in folders} == folders


def test_a_text_without_a_token_and_float64() -> None:
    # GPT-2 puts no special token around a text; where sentence-transformers fails, the mean of nothing is zero
    encoder = opened("sentences-causal")
    found = encoder.encode(["we", "", "clouds"])
    assert not encoder.encode("").any() and not found[1].any()
    assert away(found[::2], encoder.encode(["we", "clouds"])) <= NEIGHBOURS
    assert encoder.encode([""], output_value="token_embeddings")[0].shape == (0, 8)
    for name in POOLINGS.keys() - {"max"}:  # with tokens of its prompt alone: as sentence-transformers pools it
        pooled = encoder.with_settings(poolings=(name,), dim=8)
        want = encoder.encode("he: ", output_value="token_embeddings")[0] * (name == "cls")
        assert np.abs(pooled.encode(["we", ""], prompt="he: ")[1] - want).max() <= EXACT
    encoder = minibert.load_encoder(REFERENCE / "sentences-dense", dtype="float64")
    assert {encoder.encode("we", precision=each).dtype.name for each in ("float32", None)} == {"float64"}
    assert apart(encoder.encode("we lived"), opened("sentences-dense").encode("we lived")) < 1e-6


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document", "predict", "rank"])
def test_a_signature_names_every_option_with_its_type(method: str) -> None:
    options, defaults = (EncodeOptions, ENCODE) if "encode" in method else (PredictOptions, PREDICT)
    found = list(inspect.signature(getattr(minibert.Encoder, method)).parameters.values())
    start = [each.name for each in found].index("prompt_name")
    named = found[start : start + len(defaults)]
    types = {name: kind.__forward_arg__ for name, kind in options.__annotations__.items()}
    assert {each.name: each.annotation for each in named if each.name != "output_value"} == types
    assert [(each.name, each.default) for each in named] == [*defaults.items()]
    assert all(each.kind is each.KEYWORD_ONLY for each in found[start + len(named) :])


def test_arguments_of_habit_and_prompts() -> None:
    encoder = opened("sentences-dense")
    habit = dict(convert_to_numpy=True, convert_to_tensor=False, device="cpu", precision="float32", batch_size=7)
    assert same_bits(encoder.encode(["we"], show_progress_bar=False, **habit), encoder.encode(["we"]))
    encoder = opened("sentences-prompts")
    with pytest.raises(TypeError):
        encoder.prompts["query"] = "else"  # type: ignore[index]  # else it would be without effect, and without a word
    assert same_bits(encoder.encode("we", "query", "a "), encoder.encode("we", prompt="a "))
    assert apart(encoder.encode("we"), encoder.encode("we", "passage")) == 0
    assert apart(encoder.encode("we"), encoder.encode("we", prompt="")) > 0.01
    assert same_bits(encoder.encode_query("we", prompt="a "), encoder.encode("we", prompt="a "))
    assert same_bits(encoder.encode_document("we", "query"), encoder.encode("we", "query"))


def test_many_calls_at_once_on_one_encoder(minilm: Path) -> None:
    encoder, texts = minibert.load_encoder(minilm), [text for text in many_texts(40) if len(text) < 100]
    alone = np.stack([encoder.encode(text) for text in texts])

    def call(i: int) -> float:
        part = slice(i, None, 1 + i % 5)
        if i % 3 == 0:
            return away(np.concatenate([*encoder.pipeline().stream(chunked(texts[part], 1 + i))]), alone[part])
        return away(encoder.encode(texts[part], batch_size=1 + i), alone[part])

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(call, range(1, 6))) <= NEIGHBOURS
    for some in (range(9), range(5, 30, 3)):  # what stands beside a text hardly moves its vector
        assert apart(encoder.encode([texts[i] for i in some]), alone[[*some]]) <= WHOLE


def test_work_at_once_is_bounded_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, tiles, run = opened("sentences-dense"), list[int](), blocks.run_blocks
    monkeypatch.setattr(blocks, "run_blocks", lambda *a, **named: (tiles.append(len(a[1])), run(*a, **named))[1])
    texts = [" ".join(words) for words in product(("we", "lived", "above", "the", "clouds"), repeat=5)]
    found = encoder.encode(texts, batch_size=100_000)
    assert sum(tiles) == 7 * 5**5 and max(tiles) <= 1024
    assert away(found[::700], np.stack([encoder.encode(text) for text in texts[::700]])) <= NEIGHBOURS


@pytest.mark.parametrize("value", ["sentence_embedding", "token_embeddings"])
def test_equal_texts_are_computed_once(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each vector is the caller's own, and in its place."""
    encoder, texts = opened("sentences-dense"), ["we lived", "above", "we lived ", "the clouds", "above", "we  lived"]
    alone, computed, run = [encoder.encode(text, output_value=value) for text in texts], list[int](), blocks.run_model
    monkeypatch.setattr(blocks, "run_model", lambda *asked: (computed.append(len(asked[2].texts)), run(*asked))[1])
    found = encoder.encode(texts, output_value=value)
    assert computed == [3] and max(map(away, found, alone)) <= NEIGHBOURS
    assert not any(np.shares_memory(one, other) for one, other in combinations(found, 2))


def test_what_the_last_call_settled_settles_no_other_option() -> None:
    """A call with the options of the one before is not checked again."""
    encoder = opened("sentences-cls")
    plain = encoder.encode("we")
    unit = plain / np.linalg.norm(plain)
    assert away(encoder.encode("we", normalize_embeddings=True), unit) <= EXACT < away(plain, unit)
    for odd in (
        {"device": "cuda"},
        {"threads": 0},
        {"task": "search"},
        {"prompt_name": "other"},
        {"precision": "int4"},
    ):
        encoder.encode("we")
        with pytest.raises(ValueError, match=next(iter(odd))):
            encoder.encode("we", **odd)


@pytest.mark.parametrize(
    ("name", "method", "first", "given"),
    [
        *(("sentences-prompts", f"encode{task}", "texts", ["we", "clouds"]) for task in ("", "_query", "_document")),
        ("uses-sparse", "encode_sparse", "texts", ["we"]), ("uses-sparse", "encode_query", "texts", "we"),
        ("uses-reranker", "predict", "pairs", ("we", "clouds")),
        ("uses-reranker", "predict", "pairs", [("we", "clouds"), ("a", "the")]),
    ],
)  # fmt: skip
def test_what_is_passed_by_each_of_its_names(name: str, method: str, first: str, given: Any) -> None:
    use = getattr(opened(name), method)
    want = np.asarray(use(given)).tobytes()
    assert all(np.asarray(use(**{each: given})).tobytes() == want for each in (first, "inputs", "sentences"))
    for passed in ({}, {"inputs": given, "sentences": given}):
        with pytest.raises(TypeError, match=first):
            use(**passed)


@pytest.mark.parametrize("measure", SIMILARITIES)
def test_similarity_of_pairs(measure: str, tmp_path: Path) -> None:
    """What each measure gives: test_calls.py."""
    encoder = changed(tmp_path, "sentences-dense", SETTINGS, {"similarity_fn_name": measure})
    first, second = np.array([[3, 4], [1, 0]]), np.array([[5, 0], [-2, 0]])
    found, one = encoder.similarity_pairwise(first, second), encoder.similarity_pairwise(first[0], second[0])
    assert found.dtype == np.float32 and np.allclose(found, np.diag(encoder.similarity(first, second.tolist())))
    assert np.ndim(one) == 0 and one == found[0]
    beside = encoder.similarity_pairwise(first[0], second)
    assert np.allclose(beside, encoder.similarity(first[0], second)[0]) and beside.shape == (2,)
    assert encoder.similarity_pairwise(first[:1], second[0]).shape == (1,)
    assert encoder.similarity_pairwise(first[:0], second[:0]).shape == (0,)


def test_tokens_cut_of_one_text_of_many_chunks_of_one_without_end_and_with_a_prompt() -> None:
    encoder = opened("sentences-dense")
    assert (encoder.tokens_cut("we"), encoder.tokens_cut(LONGER)) == (0, 5) and type(encoder.tokens_cut("we")) is int
    found = encoder.tokens_cut(["we " * count for count in (0, 29, 30, 31, 60)])  # and two special tokens; 32 are taken
    assert found.dtype == np.int64 and found.tolist() == [0, 0, 0, 1, 30]
    texts = [LONGER if i in (5, 700, 1299) else "we" for i in range(1300)]
    found = encoder.tokens_cut(texts)
    assert np.flatnonzero(found).tolist() == [5, 700, 1299] and set(found.tolist()) == {0, 5}
    assert encoder.tokens_cut(["we", "we " * 100_000]).tolist() == [0, 99_970]  # of which `encode` reads the beginning
    encoder.max_seq_length = 4
    assert encoder.tokens_cut(["we we", "we we we"]).tolist() == [0, 1] and encoder.tokens_cut([]).shape == (0,)
    with pytest.raises(TypeError, match=r"texts\[1300\] must be a str"):
        encoder.tokens_cut([*texts, 3])  # type: ignore[list-item]
    encoder = opened("sentences-prompts")  # whose prompt takes room; a task can have a length of its own
    long, plain = (len(each.input_ids) for each in encoder.sentence_tokenizer.encode([f"the clouds: {LONGER}", LONGER]))
    assert encoder.tokens_cut(LONGER, prompt="") == plain - 12
    assert encoder.tokens_cut(LONGER, "query") == long - 12 > plain - 12
    assert encoder.tokens_cut("we " * 1000, "query") == 1000 + long - 35 - 12
    encoder._sentence_config = encoder.sentence_config._replace(lengths={"query": 20})
    assert encoder.tokens_cut(LONGER, "query", task="query") == long - 20
    assert encoder.tokens_cut(LONGER, "query", task="document") == long - 12


def test_commands_tell_which_texts_were_truncated(tmp_path: Path, capsys: Printed, monkeypatch: Patch) -> None:
    """Lines are counted from 1 with the empty ones."""
    lines = tmp_path / "lines.txt"
    lines.write_text(f"we\n\n{LONGER}\n\nabove {LONGER}\nclouds\n", "utf-8")
    both = "2 lines", "5 of line 3, 6 of line 5"
    many = ", ".join(f"5 of text {i}" for i in (2, *range(4, 23))) + " and 3 more"
    for command, *truncated in (
        (["encode", "-m", DENSE, "we", LONGER], "1 text", "5 of text 2"),
        (["encode", "-m", DENSE, "we", LONGER, "above", *[LONGER] * 22], "23 texts", many),
        (["encode", "-m", DENSE], "2 texts", both[1]),
        (["embed", "--truncate", "-m", DENSE], "2 texts", both[1]),
        (["similar", "-m", DENSE, "we", LONGER], "1 text", "5 of text 2"),
        (["similar", "-m", DENSE, "we", "--file", str(lines)], *both),
        (["similar", "-m", DENSE, LONGER, "--file", str(lines)], "1 text", "5 of text 1", *both),
        (["rank", "-m", RERANKER, "we", "--file", str(lines)], "2 pairs", "25 of line 3, 26 of line 5"),
        (["classify", "-m", LABELS, "we", LONGER], "1 text", "41 of text 2"),
        (["classify", "-m", LABELS, "we"],),
    ):
        typed(monkeypatch, lines.read_bytes())
        out, err = ran(capsys, *command)
        told = "minibert: {} truncated: too long for this model; tokens left out: {}"
        want = [told.format(*pair) for pair in zip(truncated[::2], truncated[1::2], strict=True)]
        assert [line for line in err.splitlines() if "empty lines skipped" not in line] == want and out, command


@pytest.mark.filterwarnings("ignore:u?int8 takes its ranges from 5 vectors:UserWarning")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("options", [{}, {"normalize_embeddings": True, "truncate_dim": 5}, {"prompt": "clouds "}])
def test_smaller_vectors_by_the_formula(precision: str, options: dict[str, Any]) -> None:
    encoder = opened("sentences-prompts")
    found = encoder.encode(FIVE, precision=precision, **options)
    want = quantized(encoder.encode(FIVE, **options), precision)
    assert found.dtype == PRECISIONS[precision] and np.array_equal(found, want)
    assert encoder.encode([], precision=precision, **options).dtype == PRECISIONS[precision]
    if precision not in ("int8", "uint8"):
        one = encoder.encode_query("man", precision=precision)
        assert np.array_equal(one, quantized(encoder.encode_query("man"), precision))
    if precision in BITS:
        with pytest.raises(ValueError):
            minibert.search(found, found, compare=encoder.similarity)


def test_ranges_of_other_vectors_and_of_few() -> None:
    encoder = opened("sentences-prompts")
    ranges = ranges_of(encoder.encode([f"we lived above {word}" for word in FIVE]))
    for precision in ("int8", "uint8"):
        want = quantized(encoder.encode(FIVE), precision, ranges)
        for passed in (ranges, ranges.tolist()):
            assert np.array_equal(encoder.encode(FIVE, precision=precision, ranges=passed), want), precision
        alone = encoder.encode(FIVE[1], precision=precision, ranges=ranges)
        assert alone.shape == want[1].shape and np.abs(alone.astype(int) - want[1]).max() <= 1, precision
    for other in (None, "float32", "float16", "binary"):
        with pytest.raises(ValueError, match=f"^ranges .*{other!r}"):
            encoder.encode(FIVE, precision=other, ranges=ranges)
    with pytest.warns(UserWarning, match="^uint8 ") as caught:
        encoder.encode_query(FIVE, precision="uint8")
    assert [warning.filename for warning in caught] == [__file__]
    assert len(encoder.encode(FIVE * 20, precision="int8")) == 100  # of which there is no warning, which would fail
    with pytest.raises(ValueError, match="'int8'"):
        encoder.encode(FIVE, output_value="token_embeddings", precision="int8")
    assert len(encoder.encode(FIVE, output_value="token_embeddings", precision="float32")) == len(FIVE)
    for one in ("man", ["man"]):
        with pytest.raises(ValueError):
            encoder.encode(one, precision="uint8")
    with pytest.raises(ValueError, match=r"^precision .*'int8'"):
        encoder.encode(FIVE, precision=["int8"])  # type: ignore[arg-type]


@pytest.mark.parametrize("end", [SEP, 2])
def test_the_vector_is_that_of_the_first_end_of_text(tmp_path: Path, end: int) -> None:
    """A text with that token inside tells it from the last token. An id of 2 means the largest one."""
    folder = write_wordpiece(encoders.write(tmp_path, "clip_text_model", eos_token_id=end))
    tensors = load_file(folder / "model.safetensors")
    weight = tensors.pop("text_projection.weight")
    with minibert.load_encoder(folder) as encoder:
        ids = [encoder.tokenize(text)["input_ids"][0].tolist() for text in WITH_ENDS]
        rows = np.stack([encoder([each])[0, each.index(max(each) if end == 2 else end)] for each in ids])
        vectors = encoder.encode(WITH_ENDS)
        assert vectors.shape == (len(WITH_ENDS), 12) and encoder.get_embedding_dimension() == 12
        assert off(vectors, rows @ weight.T) <= ROWS
        assert np.abs(np.linalg.norm(vectors, axis=1) - 1).min() > 0.1, "not normalized"
        assert [len(each) for each in encoder.encode(WITH_ENDS, output_value="token_embeddings")] == [7, 3, 6, 2, 12]
        find = lambda name: tmp_path / name if (tmp_path / name).exists() else None  # noqa: E731
        assert "12 numbers, lasttoken over a text's tokens" in "\n".join(info(encoder.embeddings, find))
    save_file(tensors, folder / "model.safetensors")  # without the map
    with minibert.load_encoder(folder) as encoder:
        assert off(encoder.encode(WITH_ENDS), rows) <= ROWS


def test_a_whole_clip_model_is_its_text_model(tmp_path: Path) -> None:
    """Its config holds the text model's; an older copy under another name counts before that."""
    settings, more = encoders.config("clip", eos_token_id=SEP), {"vision_model.encoder.layers.0.x": np.ones(3, "f4")}
    tensors = {f"text_model.{name}": x for name, x in encoders.tensors(settings).items()}
    tensors["text_projection.weight"] = tensors.pop("text_model.text_projection.weight")
    alone = write_wordpiece(encoders.write(tmp_path / "alone", "clip_text_model", eos_token_id=SEP))
    want = minibert.load_encoder(alone).encode(WITH_ENDS)
    older = {"text_config_dict": {"eos_token_id": SEP}, "text_config": {**settings["text_config"], "eos_token_id": 9}}
    for i, changes in enumerate(({}, older)):
        folder = write_wordpiece(write(tmp_path / str(i), settings | changes, tensors | more))
        assert np.array_equal(minibert.load_encoder(folder).encode(WITH_ENDS), want)
    with pytest.raises(minibert.CheckpointError, match="'text_config_dict'"):
        minibert.load_encoder(write(tmp_path / "odd", settings | {"text_config_dict": 3}, tensors))
