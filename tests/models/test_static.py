"""Static models: each layout of a folder, rows that ids share, the bits of a text's vector, and what there is not.

Their vectors beside sentence-transformers': `test_calls.py`, and `tests/live/test_static_live.py`.
"""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import VOCAB, numbers, same_bits
from command_line import Printed, ran
from hypothesis import given, settings
from hypothesis import strategies as st
from needed import need
from reference_files import REFERENCE, opened
from static_folders import ROWS, static_folder

import minibert
from minibert.equations.input_layer import Array
from minibert.show.explain import explain

TEXTS = ["", "we", "We lived above the clouds!", "clouds above ☃", "a b c d e f g", "[CLS] the [SEP]", "the " * 30]
MAPPING = np.arange(VOCAB) * 7 % 11
WEIGHTS = np.linspace(0.1, 2, VOCAB, dtype="f4")
DISTILLED = {"model_type": "model2vec", "normalize": True}
BOTH = {"mapping": MAPPING, "weights": WEIGHTS.astype("f2")}


def by_hand(encoder: minibert.Encoder, rows: Array, texts: list[str], longest: int | None = None) -> Array:
    ids = [encoder.embeddings.tokenizer.pieces(text)[:longest] for text in texts]
    return np.stack([np.add.reduce(rows[i], axis=0) / np.float32(max(1, len(i))) for i in ids])


LAYOUTS: list[dict[str, Any]] = [
    dict(inside=""), dict(inside="."), dict(inside="0_StaticEmbedding"), dict(weight=ROWS), dict(inside=None),
    dict(weight=ROWS, inside="0_StaticEmbedding"), dict(inside=None, weight=ROWS), dict(inside=None, config={}),
    dict(inside=None, config={"model_type": "model2vec"}), dict(config={"model_type": "other"}),
    dict(config={"normalize": True, "max_length": 3}), dict(config={"model_type": "model2vec"}),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any) -> None:
    """Each key of config.json may be missing, and with modules.json none of them counts."""
    encoder = minibert.load_encoder(static_folder(tmp_path / "model", **layout))
    want = by_hand(encoder, ROWS, TEXTS)
    assert same_bits(encoder.encode(TEXTS), want) and not want[0].any()
    monkeypatch.chdir(tmp_path)  # a name that is there is a folder, whatever it holds
    assert same_bits(minibert.load("model").embed(TEXTS), want)  # an input layer, and nothing else


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_rows_that_give_no_number_are_an_error(tmp_path: Path, bad: float) -> None:
    """The sum of two rows of 3e38 is infinity. NumPy says nothing, on no thread: its warnings would fail this test."""
    rows = ROWS.copy()
    rows[5:, 3] = bad
    encoder = minibert.load_encoder(static_folder(tmp_path / "model", weight=rows, normalized=True))
    calls = [lambda texts: encoder.encode(texts, threads=4)]
    if not abs(bad) < np.inf:
        calls.append(lambda texts: encoder.encode(texts, output_value="token_embeddings"))
    many = [" ".join(words) for words in product(("we", "lived", "above"), repeat=8)]
    for call, texts in product([*calls, minibert.load(tmp_path / "model").embed], (["we lived above"], many)):
        with pytest.raises(minibert.CheckpointError):
            call(texts)


def test_the_vocabulary_has_no_special_tokens_around_a_text(tmp_path: Path) -> None:
    encoder = minibert.load_encoder(static_folder(tmp_path))
    batch = encoder.tokenize(["we", "the clouds"])
    assert encoder.tokens(batch["input_ids"])[1] == ["the", "clouds"] and list(batch) == ["input_ids", "attention_mask"]
    trace = encoder.trace(**batch)
    assert same_bits(trace["embedding"], ROWS[batch["input_ids"]]) and same_bits(encoder["embedding"].weight, ROWS)
    keep, x = batch["attention_mask"] == 1, encoder(**batch)
    assert same_bits(x[keep], trace["hidden_states.0"][keep]) and not x[~keep].any()
    assert encoder(**encoder.tokenize(["", "we"])).shape == (2, 1, 8)
    assert repr(encoder) == "embedding  Embedding(64, 8)"


@pytest.mark.parametrize("config", [DISTILLED, DISTILLED | {"normalize": False}, {"model_type": "model2vec"}])
@pytest.mark.parametrize("modules", [None, False, True])
def test_vectors_are_normalized_once(tmp_path: Path, config: dict[str, Any], modules: bool | None) -> None:
    inside = None if modules is None else "."
    folder = static_folder(tmp_path, inside, config, normalized=bool(modules), embeddings=3 * ROWS)
    encoder = minibert.load_encoder(folder)
    wanted = modules if modules is not None else config.get("normalize", False)
    assert encoder.sentence_config.ends_normalized == encoder.sentence_config.normalizes() == wanted
    assert (abs(np.linalg.norm(encoder.encode("we lived")) - 1) < 1e-6) == wanted and not encoder.encode("").any()


def test_where_a_text_is_cut(tmp_path: Path) -> None:
    """By tokenizer.json; config.json's `max_length` is model2vec's own."""
    encoder = minibert.load_encoder(static_folder(tmp_path / "cut", longest=4, config={"max_length": 3}))
    assert encoder.max_seq_length == 4 and encoder.tokens_cut(TEXTS).tolist() == [0, 0, 2, 0, 3, 0, 26]
    assert same_bits(encoder.encode(TEXTS), by_hand(encoder, ROWS, TEXTS, 4))
    encoder.max_seq_length = 5
    again = pickle.loads(pickle.dumps(encoder))
    assert again.max_seq_length == 5 and same_bits(again.encode(TEXTS), by_hand(encoder, ROWS, TEXTS, 5))
    encoder.max_seq_length = None
    assert same_bits(encoder.encode(TEXTS), by_hand(encoder, ROWS, TEXTS))
    assert minibert.load_encoder(static_folder(tmp_path / "whole")).max_seq_length is None
    layer = minibert.load_encoder(static_folder(tmp_path / "short", longest=2)).embeddings  # a page has no other token
    assert next(explain(layer, "we lived above", truncation=True)).startswith("2 tokens")
    with pytest.raises(ValueError, match=r"\b3\b"):
        next(explain(layer, "we lived above"))


@pytest.mark.parametrize("kind", ["f4", "f2", "f8", "i1"])
@pytest.mark.parametrize("shared", [{}, {"weights": WEIGHTS}, {"mapping": MAPPING}, BOTH], ids=" ".join)
def test_rows_of_every_format_and_what_ids_share(tmp_path: Path, kind: str, shared: dict[str, Any]) -> None:
    """A row is converted to float32, then multiplied in float32; int8 rows are integers."""
    stored = (20 * numbers(11 if "mapping" in shared else VOCAB, 8, seed=3)).astype(kind)
    folder = static_folder(tmp_path, embeddings=stored, **shared)
    rows = stored.astype("f4")[shared.get("mapping", np.arange(VOCAB))]
    rows = rows * shared["weights"].astype("f4")[:, None] if "weights" in shared else rows
    encoder = minibert.load_encoder(folder)
    assert same_bits(encoder.encode(TEXTS), by_hand(encoder, rows, TEXTS))
    assert same_bits(np.asarray(encoder["embedding"].weight), rows) and same_bits(encoder([[5, 6]])[0], rows[[5, 6]])
    wide = minibert.load_encoder(folder, dtype="float64", mmap=False)
    assert wide.encode("we lived").dtype == np.float64
    assert np.allclose(wide.encode(TEXTS), encoder.encode(TEXTS), rtol=1e-5, atol=1e-5)


def test_the_same_bits_among_thousands_and_from_many_threads() -> None:
    encoder = opened("static-half")  # a product with the weight of a module Dense may round otherwise in other company
    encoder.max_seq_length = None
    texts = [f"{'we lived ' * (i % 29)}above {'the clouds ' * (i % 11 * (i % 3))}" for i in range(1300)]
    texts += ["clouds " * 5000, ""]
    one = encoder.encode(texts, threads=1)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda threads: encoder.encode(texts[::-1], threads=threads), [1, 2, 3, None]):
            assert same_bits(found[::-1], one)
    assert all(same_bits(encoder.encode(texts[i]), one[i]) for i in (0, 7, 500, 1299, 1300, 1301))
    tokens = encoder.encode(texts[:1100], output_value="token_embeddings", threads=3)
    assert all(len(tokens[i]) == encoder.tokenize(texts[i])["input_ids"].size for i in range(0, 1100, 9))
    with pytest.raises(TypeError, match=r"texts\[1300\] must be a str, found int"):
        encoder.encode([*texts[:1300], 7, *texts], threads=3)  # type: ignore[list-item]


def test_commands_and_engines_take_a_static_folder(tmp_path: Path, capsys: Printed) -> None:
    need("pyarrow", "bulk")
    folder, texts = REFERENCE / "static-dense", ["we lived", "above the clouds", ""]
    want = opened("static-dense").encode(texts)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    ran(capsys, "bulk", tmp_path / "texts.txt", "-o", tmp_path / "vectors", "-m", folder)
    found = ran(capsys, "search", tmp_path / "vectors", "we lived", "-m", folder, "-k", 1)[0]
    assert found.rstrip().endswith("  0  we lived")
    assert "above the clouds" in ran(capsys, "similar", "clouds", "--file", tmp_path / "texts.txt", "-m", folder)[0]
    ran(capsys, "encode", *texts, "-o", tmp_path / "v.npy", "-m", folder)
    assert np.allclose(np.load(tmp_path / "v.npy"), want, atol=1e-6)
    out, _ = ran(capsys, "verify", folder, "--vectors", tmp_path / "v.npy", "--texts", tmp_path / "texts.txt")
    assert f"{folder} (static)" in out


@pytest.mark.parametrize("inside", [None, "."])
def test_what_needs_a_head_says_that_a_static_model_has_none(tmp_path: Path, inside: str | None) -> None:
    encoder = minibert.load_encoder(static_folder(tmp_path, inside))
    assert encoder.heads == ()
    for use in (lambda: encoder.fill("[MASK]"), lambda: encoder.logits([[1]]), lambda: encoder.rank("a", ["b"])):
        with pytest.raises(minibert.CheckpointError, match="it has no head, only rows of tokens: it is a static model"):
            use()


ODD: list[tuple[str, dict[str, Array]]] = [
    (r"'embeddings' .*\(8,\)", {"embeddings": ROWS[0]}), (r"'embeddings' .*\(0, 8\)", {"embeddings": ROWS[:0]}),
    (r"'embedding.weight' .*\(1, 64, 8\)", {"weight": ROWS[None]}),
    ("'embedding.weight'.*embedding.weight", {"rows": ROWS}),
    ("'embeddings' .*I64.*F64, F32", {"embeddings": ROWS.astype("i8")}),
    *((says, {"embeddings": ROWS, name: more}) for says, name, more in (
        (": embeddings", "weight", ROWS), ("bias", "bias", ROWS[0]), ("'weights' .*64 .*63", "weights", WEIGHTS[:-1]),
        ("'mapping'", "mapping", MAPPING[None]), ("'mapping' .*F32.*I8, I32, I64", "mapping", WEIGHTS))),
]  # fmt: skip


@pytest.mark.parametrize(("message", "tensors"), ODD)
def test_tensors_that_are_no_static_model(tmp_path: Path, message: str, tensors: dict[str, Array]) -> None:
    with pytest.raises(minibert.CheckpointError, match=message):
        minibert.load_encoder(static_folder(tmp_path, **tensors))


@settings(max_examples=60)
@given(ids=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 12), min_size=1, max_size=VOCAB))
def test_a_mapping_names_rows_or_is_refused(tmp_path_factory: pytest.TempPathFactory, ids: list[int]) -> None:
    folder = static_folder(tmp_path_factory.mktemp("model"), embeddings=ROWS[:11], mapping=np.array(ids))
    if not all(0 <= i < 11 for i in ids):
        with pytest.raises(minibert.CheckpointError, match=r"'mapping' .*0\.\.10"):
            minibert.load_encoder(folder)
        return
    assert same_bits(minibert.load_encoder(folder)([[len(ids) - 1]])[0, 0], ROWS[ids[-1]])


def test_folders_and_tokenizers_that_are_not_there(tmp_path: Path) -> None:
    (static_folder(tmp_path, "rows") / "rows").rename(tmp_path / "elsewhere")
    with pytest.raises(minibert.CheckpointError):
        minibert.load_encoder(tmp_path)
    folder = static_folder(tmp_path, embeddings=ROWS[:60])
    with pytest.raises(IndexError, match=r"input_ids\[1, 1\]"):
        minibert.load_encoder(folder).encode(["a", "a clouds"])
    for spoil in (lambda path: path.write_bytes(b'{"model": {}}'), Path.unlink):
        spoil(folder / "tokenizer.json")
        with pytest.raises(minibert.TokenizerError, match=r"tokenizer\.json"):
            minibert.load_encoder(folder)
