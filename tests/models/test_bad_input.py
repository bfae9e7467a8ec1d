"""Whatever is passed or found in config.json, the answer is a result or an error of the right kind, in little memory.

Files that lie are in tests/files, texts and tokenizer files too.
"""

from __future__ import annotations

import json
import pickle
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import word_models
from checkpoints import BERT, ROBERTA, VOCAB, change_json, numbers, same_bits, tensors, write
from layers import Make
from reference_files import REFERENCE
from safetensors.numpy import load_file, save_file

import minibert
from minibert import CheckpointError, HubError, MinibertError, TokenizerError, UnknownFamilyError
from minibert.equations.input_layer import sinusoidal_positions
from minibert.families.parts.steps import MOST_ROWS
from minibert.families.rows import FAMILIES
from minibert.files.tables import FIRST_ROWS, FormulaTable

GOOD = np.array([[5, 6, 7], [8, 9, 10]])

# what the layer says beside what every check of ids says: tests/messages/test_formulas.py
TYPES, RAGGED = "token_type_ids", "every row must have the same length"
AS_IDS, ONES = "must be (2, 3) as the ids are, found shape ", "must hold 1 for a token and 0 for padding"
IDS: list[tuple[Any, type[Exception], str]] = [
    ([[5, 6], [7, VOCAB]], IndexError, f"[1, 1] is {VOCAB}, but the table has rows 0..{VOCAB - 1}; is this the right"),
    ([[5.0, 6.0]], TypeError, "input_ids must be integers, found float64; ids are row numbers of a table"),
    ("We lived", TypeError, "input_ids must be integers, found a text; tokenize a text first, as in layer(**"),
    ({"input_ids": GOOD}, TypeError, "found a mapping; tokenize a text first, as in layer(**"),
    ([[5, 6], [7]], TypeError, f"input_ids: {RAGGED}; pad the shorter ones"),
    ([[[5, 6]]], ValueError, "input_ids must be (batch, seq) or one sequence of it, found 3 axes of shape (1, 1, 2)"),
    (5, ValueError, "input_ids must be (batch, seq) or one sequence of it, found 0 axes of shape ()"),
    (np.zeros((0, 2, 3), int), ValueError, "found 3 axes of shape (0, 2, 3)"),
]
BESIDE: list[tuple[str, str, Any, type[Exception], str]] = [
    ("bert", TYPES, [[0, 1, 2], [0, 0, 0]], IndexError, f"{TYPES}[0, 2] is 2, but the table has rows 0..1"),
    ("bert", TYPES, [[0.0, 1.0, 0.0]], TypeError, f"{TYPES} must be integers, found float64"),
    ("bert", TYPES, [[0, 0], [0, 0]], ValueError, f"{TYPES} {AS_IDS}(2, 2)"),
    ("bert", TYPES, [[0], [0, 0]], TypeError, f"{TYPES}: {RAGGED}"),
    ("roberta", TYPES, [[0, 1, 0], [0, 0, 0]], IndexError, f"{TYPES}[0, 1] is 1, but the table has rows 0..0"),
    ("gpt2", TYPES, [[261, 0, 0]], IndexError, f"{TYPES}[0, 0] is 261, but the table has rows 0..260"),
    ("t5", TYPES, [[0, 0, 0]], TypeError, f"t5 takes no {TYPES} in its input layer; leave it out"),
    ("t5", "position_ids", [[0, 1, 2]], TypeError, "t5 takes no position_ids in its input layer; leave it out"),
    ("bert", "langs", [[0, 0, 0]], TypeError, "bert takes no langs in its input layer; leave it out"),
    ("bert", "position_ids", [[0, 1, 16]], IndexError, "position_ids[0, 2] is 16, but the table has rows 0..15"),
    ("bert", "position_ids", [0, 1], ValueError, f"position_ids {AS_IDS}(2,)"),
    ("bert", "attention_mask", [[1, 1, 1]], ValueError, "(2, 3), as long as past and ids together, found shape (1, 3)"),
    ("bert", "attention_mask", [[[[1, 1, 1]]]] * 2, ValueError, "found shape (2, 1, 1, 3)"),
    ("bert", "attention_mask", [[1, 1, 1], [1]], TypeError, f"attention_mask: {RAGGED}"),
    ("bert", "attention_mask", "yes", TypeError, "attention_mask must be numbers, found <U3"),
    ("deberta-v2", "attention_mask", [[0.0, -1e4, 0.0]] * 2, ValueError, f"{ONES}; an additive mask"),
    ("deberta-v2", "attention_mask", [[1, 2, 0]] * 2, ValueError, ONES),
    ("deberta-v2", "attention_mask", [[1, np.nan, 0]] * 2, ValueError, ONES),
    ("bert", "past_length", -1, ValueError, "past_length must be >= 0 and no more than a cache can hold, found -1"),
    ("bert", "past_length", 1.0, TypeError, "past_length must be an integer, found float 1.0"),
    ("bert", "past_length", True, TypeError, "past_length must be an integer, found bool True"),
    ("roberta", "past_length", 10**30, ValueError, "past_length must be >= 0 and no more than a cache can hold"),
    ("bert", "past_length", 14, ValueError, "3 tokens after 14 cached ones is too long: the position table ends at 16"),
    ("roberta", "past_length", 14, ValueError, "a sequence of 3 tokens after 14 cached ones is too long"),
    ("bert", "inputs_embeds", np.zeros((2, 3, 8)), ValueError, "or inputs_embeds (batch, seq, 8), found both"),
]
EMBEDS: list[tuple[str, Any, type[Exception], str]] = [
    ("bert", None, ValueError, "pass input_ids (batch, seq) or inputs_embeds (batch, seq, 8), found neither"),
    ("bert", np.zeros((2, 3, 7)), ValueError, "inputs_embeds must be (batch, seq, 8), found shape (2, 3, 7)"),
    ("electra", np.zeros((2, 3, 8)), ValueError, "inputs_embeds must be (batch, seq, 6), found shape (2, 3, 8)"),
    ("bert", np.zeros((1, 2, 3, 8)), ValueError, "found 3 axes of shape (1, 2, 3)"),
    ("bert", np.zeros((2, 3, 8), complex), TypeError, "inputs_embeds must be numbers, found complex128"),
    ("bert", [[[0.0] * 8], [[0.0] * 7]], TypeError, f"inputs_embeds: {RAGGED}"),
    ("bert", np.zeros((1, 17, 8)), ValueError, "of 17 tokens is too long: the position table ends at 16 tokens"),
]
LONG = "tokens is too long: the position table ends at 16 tokens; shorten it, or"
REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    *((name, {"input_ids": ids}, *said) for name in ("bert", "t5") for ids, *said in IDS),  # type: ignore[misc]
    *((name, {"input_ids": GOOD, key: value}, *said) for name, key, value, *said in BESIDE),  # type: ignore[misc]
    *((name, {"inputs_embeds": embeds}, *said) for name, embeds, *said in EMBEDS),  # type: ignore[misc]
    *((name, {"input_ids": np.full(shape, 5)}, ValueError, f"a sequence of {shape[-1]} {LONG}")
      for name in ("bert", "roberta", "electra") for shape in ((1, 17), (17,), (3, 100))),
    ("bert", {"input_ids": np.zeros((0, 17), int)}, ValueError, f"a sequence of 17 {LONG}"),
    ("deberta-v2", {"input_ids": GOOD, "attention_mask": [[1] * 5] * 2, "past_length": 2}, ValueError,
     "attention_mask must be (2, 3)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "kind", "says"), REFUSED)
def test_what_is_refused(load: Make, name: str, arguments: dict[str, Any], kind: type[Exception], says: str) -> None:
    layer = load(name)
    for use in (layer, layer.trace):
        with pytest.raises(kind) as caught:
            use(**arguments)
        assert says in str(caught.value)


def test_cls_is_refused_with_the_reason(load: Make) -> None:
    layer = load("bert")
    says = "pooling 'cls' is meaningless here: before attention the first row is the same for every text"
    with pytest.raises(ValueError, match=says):
        layer.embed("we lived", "cls")
    rows = layer.embed(["we lived", "above the clouds"], None)
    assert same_bits(rows[0][0], rows[1][0]), "the reason given must be true"
    for odd in ("", "MEAN", 0, True, ["mean"], np.mean):
        with pytest.raises(ValueError, match=r"^pooling "):
            layer.embed([], odd)  # type: ignore[call-overload]


def test_one_root_catches_all() -> None:
    for kind in (CheckpointError, UnknownFamilyError, HubError, TokenizerError):
        assert issubclass(kind, MinibertError) and issubclass(kind, Exception)
        assert not issubclass(kind, ValueError | KeyError | OSError)
        assert str(pickle.loads(pickle.dumps(kind("what, where")))) == "what, where"


def test_errors_come_without_a_library_s_traceback(tmp_path: Path) -> None:
    (write(tmp_path) / "tokenizer.json").write_bytes(b"nonsense")
    layer = minibert.load(tmp_path, mmap=False)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    uses = {TokenizerError: lambda: layer.tokenize("we"), CheckpointError: lambda: minibert.load(tmp_path)}
    for kind, use in uses.items():
        with pytest.raises(kind) as caught:
            use()
        assert caught.value.__cause__ is None and caught.value.__suppress_context__


TWO = ["we", "lived above"]
NO_NUMBERS: list[tuple[str, str, Callable[[Any], object]]] = [
    ("sentences-dense/2_Dense", "linear.bias", lambda model: model.encode(TWO)),
    ("late-kept/2_Dense", "linear.weight", lambda model: model.encode_query(TWO)),
    ("uses-sparse", "cls.predictions.bias", lambda model: model.encode_sparse(TWO)),
    ("uses-reranker", "classifier.bias", lambda model: model.rank("we", TWO)),
    ("uses-topics", "classifier.out_proj.bias", lambda model: model.classify("we")),
    ("uses-entities", "classifier.bias", lambda model: model.entities("we")),
    ("bert", "cls.predictions.bias", lambda model: model.fill("[MASK]")),
    ("gpt2", "ln_f.bias", lambda model: model.next_words("we")),
    ("gpt2", "ln_f.bias", lambda model: model.complete("we")),
    ("gpt2", "ln_f.bias", lambda model: model.complete("we", temperature=1.0)),
]


@pytest.mark.parametrize(("place", "tensor", "use"), NO_NUMBERS)
def test_nothing_is_chosen_by_what_is_no_number(tmp_path: Path, place: str, tensor: str, use: Any) -> None:
    """A sort or an argmax would take the first NaN, as if it were the best."""
    name, _, inside = place.partition("/")
    if name in word_models.CLASS:
        folder = word_models.write(tmp_path / "model", name)
    else:
        folder = shutil.copytree(REFERENCE / name, tmp_path / "model")
    tensors = load_file(path := folder / inside / "model.safetensors")
    save_file(tensors | {tensor: np.full_like(tensors[tensor], np.nan)}, path)
    with pytest.raises(CheckpointError):
        use(minibert.load_encoder(folder))


def test_without_a_name_it_is_what_minibert_model_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for named, kind in ((None, ValueError), ("", ValueError), (str(tmp_path / "absent"), CheckpointError)):
        monkeypatch.delenv("MINIBERT_MODEL", raising=False)
        if named is not None:
            monkeypatch.setenv("MINIBERT_MODEL", named)
        for load in (minibert.load, minibert.load_encoder):
            with pytest.raises(kind, match=r"MINIBERT_MODEL|no such folder"):
                load()
    monkeypatch.setenv("MINIBERT_MODEL", str(write(tmp_path / "model")))
    assert minibert.load().config.model_type == "bert"


SCALE = "config.json: 'layer_norm_eps' must be a number >= 0, found"
BAD_CONFIGS: list[tuple[Any, str]] = [
    (b"", "config.json: not readable as JSON"),
    (b"\xff\xfe{\x00}\x00", "config.json: not readable as JSON"),
    (b"[]", "expected an object, found list"),
    (b"[" * 100_000, "config.json: not readable as JSON"),
    (b'{"model_type": "bert", "n": ' + b"1" * 5000 + b"}", "config.json"),
    (b'{"model_type": "bert", "n": ' + b"[" * 700 + b"]" * 700 + b"}", "config.json"),
    (b"{}", "config.json has no model_type; add the one it was saved from: albert"),
    (b'{"model_type": ["bert"]}', "config.json has no model_type"),
    (b'{"model_type": "bert"}', "config.json: 'vocab_size' must be an integer >= 0, found None"),
    *((BERT | {"model_type": odd}, "is not known") for odd in ("", " ", "\ud800", "x" * 10_000, "__class__", "bert\n")),
    *((BERT | {"layer_norm_eps": odd}, SCALE) for odd in ("1e-12", -1e-12, 10**400, float("nan"), float("inf"))),
    (ROBERTA | {"pad_token_id": 17}, "'max_position_embeddings' must be larger than 'pad_token_id' + 1"),
    *((ROBERTA | {"pad_token_id": odd}, "'pad_token_id' must be an integer >= 0, found") for odd in (None, -1)),
    ({"model_type": "clip", "text_config": 3}, "config.json: 'text_config' must be an object, found"),
]


@pytest.mark.parametrize(("config", "says"), BAD_CONFIGS, ids=lambda value: repr(value)[:40])
def test_bad_config(tmp_path: Path, config: Any, says: str) -> None:
    content = config if isinstance(config, bytes) else json.dumps(config).encode()
    whole = ROBERTA if b'"roberta"' in content else BERT
    (write(tmp_path, whole, tensors(whole)) / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError if "known" not in says else UnknownFamilyError) as caught:
        minibert.load(tmp_path)
    assert says in str(caught.value)
    str(caught.value).encode("utf-8")  # can be printed anywhere


@pytest.mark.parametrize("model_type", ["barts", "Bert", "jina_embeddings_v4"])
def test_unknown_model_type(tmp_path: Path, model_type: str) -> None:
    folder = write(tmp_path, {**BERT, "model_type": model_type}, tensors(BERT))
    with pytest.raises(UnknownFamilyError) as caught:
        minibert.load(folder)
    message = str(caught.value)  # a near name is another model's
    assert f"model_type {model_type!r} is not known; known are {', '.join(sorted(FAMILIES))}" in message
    assert "load(..., family=Family(...)), see minibert/families/README.md" in message
    known = minibert.load(write(tmp_path / "known"))
    assert same_bits(minibert.load(folder, family=FAMILIES["bert"])(GOOD), known(GOOD))


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    folder = write(tmp_path)
    expected = minibert.load(folder)(GOOD)
    for path in folder.glob("*.json"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert same_bits(minibert.load(folder)(GOOD), expected)


MUCH = 64 << 20  # bytes; a layer of these sizes takes under 1 MB


@pytest.fixture
def little_memory() -> Iterator[None]:
    minibert.FAMILIES, minibert.load  # noqa: B018  their code is not counted
    tracemalloc.start()
    yield
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < MUCH


MARIAN = {"model_type": "marian", "vocab_size": VOCAB, "d_model": 8, "decoder_vocab_size": VOCAB}


def marian(folder: Path, **changes: Any) -> Path:
    return write(folder, MARIAN | changes, {"model.shared.weight": numbers(VOCAB, 8)})


@pytest.mark.usefixtures("little_memory")
def test_sinusoids_are_made_as_far_as_they_are_needed(tmp_path: Path) -> None:
    layer = minibert.load(marian(tmp_path, max_position_embeddings=MOST_ROWS))
    want = sinusoidal_positions(2000, 8, layout="halves")
    table = layer.embed_positions.table
    for length in (4, FIRST_ROWS, FIRST_ROWS + 1, 2000, 4):
        rows = layer.trace(np.zeros((1, length), np.int64))["encoder.embed_positions"]
        assert same_bits(rows[0], want[:length])
        assert len(table._made.stored_numbers) <= max(FIRST_ROWS, 4000)
    assert layer.max_length == MOST_ROWS and repr(layer.embed_positions).endswith(f"({MOST_ROWS}, 8)")
    with pytest.raises(IndexError, match=f"{MOST_ROWS - 1}"):
        layer([[1]], position_ids=[[MOST_ROWS]])


@pytest.mark.usefixtures("little_memory")
def test_more_sinusoids_than_any_model_has_are_refused_and_a_table_bounds_its_own_rows(tmp_path: Path) -> None:
    for rows in (MOST_ROWS + 1, 10**9, 10**30):
        with pytest.raises(CheckpointError, match=f"'max_position_embeddings' .*{rows}"):
            minibert.load(marian(tmp_path, max_position_embeddings=rows))
    named = {"model.shared.weight": numbers(VOCAB, 8), "model.encoder.embed_positions.weight": numbers(4, 8)}
    with pytest.raises(CheckpointError, match=r"\(4, 8\).*\(1000000000, 8\)"):
        minibert.load(write(tmp_path, {**MARIAN, "max_position_embeddings": 10**9}, named))


SCHEMES: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"head_dim": 10**10}, "10000000000 .*65536"), ("llama", {"head_dim": 2.5}, "'head_dim' .*2.5"),
    ("llama", {"num_attention_heads": 0.5}, "'num_attention_heads'"),
    ("llama", {"num_attention_heads": 10**9}, "1000000000"),
    ("bloom", {"n_head": 10**10}, "'hidden_size' .*10000000000"),
]  # fmt: skip


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(("name", "changes", "message"), SCHEMES)
def test_a_scheme_of_attention(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE / name, tmp_path / name)
    change_json(folder / "config.json", **{"head_dim": None} | changes)
    layer = minibert.load(folder)
    assert layer([[1, 2]]).shape == (1, 2, layer.dim)  # the input layer needs none of it
    with pytest.raises(CheckpointError, match=message):
        layer.attention_position  # noqa: B018


@pytest.mark.usefixtures("little_memory")
def test_a_formula_is_asked_for_few_lengths() -> None:
    make, whole = mock.Mock(wraps=sinusoidal_positions), sinusoidal_positions(10_000, 4)
    table = FormulaTable(make, (10_000, 4))
    for count in range(1, 3000, 7):
        assert same_bits(table.rows(slice(count - 1, count)), whole[count - 1 : count])
        assert same_bits(table.rows(np.array([[count, 0]])), whole[[[count, 0]]])
    assert make.call_count <= 5
    assert table.rows(np.empty((1, 0), np.int64)).shape == (1, 0, 4)
    assert same_bits(table.array(), whole) and make.call_args.args == (10_000, 4)
