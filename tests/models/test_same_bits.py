"""A text has the same vector alone and in any company, to the last bit: with the kernel of BLAS that computes here.

Which kernel that is the variable OPENBLAS_CORETYPE can say; the suite is run with each that `threads.kernels` has.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import encoders
import numpy as np
import pytest
from checkpoints import same_bits
from encoder_files import CASE
from head_files import HEAD_CASES, HeadCase
from hypothesis import given
from hypothesis import strategies as st
from many_texts import many_texts
from reference_files import REFERENCE

import minibert
from minibert.cli import main
from minibert.equations import fast
from minibert.equations.input_layer import Array
from minibert.families.parts.modules import steady
from minibert.families.rows import BLOCKS
from minibert.models.heads import heads
from minibert.models.open import load_encoder
from minibert.models.run import blocks, packing
from minibert.threads import computing, kernels
from minibert.threads.kernels import KERNELS, Kernel, Rows, kernel, one_sum

pytestmark = pytest.mark.bits
DIM, LONGEST = 32, 90
SIZES = {"hidden_size": DIM, "intermediate_size": 48, "max_position_embeddings": LONGEST + 2}
OTHER_SIZES = {
    "modernbert": {**SIZES, "intermediate_size": 12},  # of which two maps are one: the fewest outputs are a half
    "gpt2": {"n_embd": DIM, "n_inner": 48, "n_positions": LONGEST},
    "distilbert": {"dim": DIM, "hidden_dim": 48, "max_position_embeddings": LONGEST + 2},
}
LAST_BITS = 2e-5  # between two orders of the same sums; measured 4e-6
# lengths, threads, tokens of a tile, and whether BLAS's threads pay; kernels cut at multiples of 4, 6, 8, 12 and 16
RUNS: list[tuple[list[int], int, int, bool]] = [
    ([1, 2, 3, 4, 5, 6, 7, 8], 1, 16, False), ([11, 12, 13, 16, 17, 1], 2, 100, True),
    ([90, 23, 24, 25, 47, 48, 49, 3], 3, packing.TILE_TOKENS, False), ([61, 1, 90, 15, 31, 33, 32, 5, 5], 2, 16, True),
]  # fmt: skip


def written(folder: Path, name: str, **changes: Any) -> Path:
    return encoders.write(folder, name, **OTHER_SIZES.get(name, SIZES) | changes)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("small")
    return cache(lambda name: minibert.load_encoder(written(place / name, name), same_bits=True))


def batch(sizes: Sequence[int], pad: int = 5) -> tuple[Array, Array]:
    mask = np.arange(max(sizes)) < np.array(sizes)[:, None]
    rows, columns = np.indices(mask.shape)
    return np.where(mask, (7 * columns + 3 * rows + columns * rows) % 15 + 5, pad), mask.astype(int)


def off_alone(call: Callable[..., Array], ids: Array, mask: Array) -> list[int]:
    found, off = call(ids, attention_mask=mask), list[int]()
    for i, size in enumerate(mask.sum(1)):
        alone = call(ids[i : i + 1, :size], attention_mask=mask[i : i + 1, :size])[0]
        if not same_bits(found[i, :size] if found.shape[:2] == mask.shape else found[i], alone):
            off.append(i)
    return off


@pytest.mark.parametrize(("sizes", "threads", "tokens", "pays"), RUNS)
@pytest.mark.parametrize("name", BLOCKS)
def test_hidden_states_of_every_row(
    small: Any, name: str, sizes: list[int], threads: int, tokens: int, pays: bool
) -> None:
    """With tiles of several sizes, on our threads and on BLAS's."""
    encoder, (ids, mask) = small(name), batch(sizes)
    found: dict[int, Array] = {}

    def keep(tile: packing.Packed, x: Array) -> None:
        for group in tile.groups():
            found.update((int(text), rows.copy()) for text, rows in zip(group.texts, group.select(x), strict=True))

    with (
        mock.patch.object(packing, "TILE_TOKENS", tokens),
        mock.patch.object(packing, "ONE_TILE", tokens),
        mock.patch.object(computing.BlasPolicy, "pays", return_value=pays),
    ):
        assert not off_alone(encoder, ids, mask)
        packed = packing.unpadded(encoder._checked(ids, {}, mask, None)[0], mask != 0)
        encoder.compute(packed, keep, threads=threads)
        whole = encoder(ids, attention_mask=mask)
        assert all(same_bits(found[i], whole[i, :size]) for i, size in enumerate(sizes))


@pytest.mark.parametrize("options", [{"mmap": False}, {"low_memory": True}], ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_weights_that_are_copied_or_kept(small: Any, name: str, options: dict[str, bool], tmp_path: Path) -> None:
    """Copied ones stand as they are read; both give the bits of those that stand as they are stored."""
    mapped, (ids, mask) = small(name), batch([3, 17, 40, 88, 1, 17])
    with minibert.load_encoder(written(tmp_path, name), same_bits=True, **options) as other:
        assert "mmap" not in options or all(module.column_major for _, module in other.stack._maps)
        assert name == "gpt2" or not any(module.column_major for _, module in mapped.stack._maps)
        assert not off_alone(other, ids, mask)
        assert same_bits(other(ids, attention_mask=mask), mapped(ids, attention_mask=mask))


@pytest.mark.parametrize("options", [{}, {"mmap": True}, {"mmap": False}], ids=str)
@pytest.mark.parametrize("name", BLOCKS)
def test_panels_keep_the_bits(name: str, options: dict[str, bool], tmp_path: Path) -> None:
    """Sizes that have panels, with a width that BLAS cuts: the bits are the same in any batch, wherever weights are."""
    larger = {DIM: 64, 48: 512, 12: 512}  # of two sizes: the width, and what lies between two maps
    changes = {key: larger[size] for key, size in OTHER_SIZES.get(name, SIZES).items() if size in larger}
    folder = written(tmp_path, name, **changes)
    with minibert.load_encoder(folder, threads=1, **options) as encoder:
        ids, mask = batch([3, 17, 31, 32, 1, 2, 40, 88])
        whole = all(module.shape[0] % 64 == 0 for _, module in encoder.stack._maps)
        assert whole or name not in ("bert", "gpt2", "modernbert", "distilbert", "roberta", "nomic_bert")
        laid = whole and kernel().small and (not options.get("mmap") or name == "gpt2")
        assert bool(encoder.stack.panel_rows) == laid
        if kernel().always:
            assert not off_alone(encoder, ids, mask)
        found = encoder.trace(ids[:1, :3])  # a trace takes them too
        assert same_bits(found[f"hidden_states.{len(encoder.stack.blocks)}"], encoder(ids[:1, :3]))


@pytest.mark.parametrize("name", ["bert", "gpt2", "modernbert"])
def test_panels_with_every_kernel(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their layout is right wherever it is tested; the speed, and the last bits, depend on the kernel."""
    dim, inner = ("n_embd", "n_inner") if name == "gpt2" else ("hidden_size", "intermediate_size")
    folder = written(tmp_path, name, **{dim: 64, inner: 1024})
    ids, mask = batch([3, 15, 12])
    with minibert.load_encoder(folder, mmap=True) as encoder:
        usual = encoder(ids, attention_mask=mask)
    monkeypatch.setattr(load_encoder, "kernel", lambda: Kernel("of any name", Rows(), Rows(), small=True))
    monkeypatch.setattr(load_encoder, "cut_of_blas", lambda: 448)
    counting = mock.patch.object(fast.Panels, "linear", autospec=True, side_effect=fast.Panels.linear)
    with minibert.load_encoder(folder) as encoder, counting as products:
        assert encoder.stack.panel_rows
        assert np.abs(encoder(ids, attention_mask=mask) - usual).max() < LAST_BITS
        halves = len(encoder.stack.blocks) * (name == "modernbert")  # one map of each block is two products
        assert products.call_count == len(encoder.stack._maps) + halves
    with mock.patch.object(load_encoder, "cut_of_blas", return_value=0), minibert.load_encoder(folder) as encoder:
        assert not encoder.stack.panel_rows  # they would not have the bits of longer texts
    monkeypatch.setattr(load_encoder, "memory", lambda: 1000)  # bytes: no place for a copy
    with minibert.load_encoder(folder) as encoder:
        assert encoder.stack.panel_rows == (fast.FEW if name == "gpt2" else 0)  # whose panels are views


@pytest.mark.parametrize("width", [40, 56])
def test_weights_that_are_stored_transposed(width: int, tmp_path: Path) -> None:
    """Their small products take another way: those of 36 tokens, not those of 198."""
    sizes = {"n_embd": width, "n_inner": 4 * width, "n_positions": 700}
    encoder = minibert.load_encoder(written(tmp_path, "gpt2", **sizes), same_bits=True)
    assert not off_alone(encoder, *batch([36, 198, 102, 570, 5, 60, 17]))


@pytest.mark.parametrize("name", ["bert", "qwen3"])
@pytest.mark.parametrize("width", [DIM, 456])
def test_what_threads_of_blas_cut(name: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two threads BLAS cuts a sum of 450 numbers elsewhere than on one: in attention, or over a weight's width."""
    monkeypatch.setattr(computing.BlasPolicy, "pays", lambda self: True)
    sizes = {"intermediate_size": width, "max_position_embeddings": 700}
    encoder = minibert.load_encoder(written(tmp_path, name, **sizes), same_bits=True)
    assert not off_alone(encoder, *batch([450, 513, 610, 33, 8]))
    assert encoder.stack.promised and encoder.stack.shares == (width == DIM and kernel().always)
    assert [one_sum(longest) for longest in (33, 450, 512)] == [True, False, True]


@pytest.mark.skipif(not kernel().always, reason=f"{kernel().name} does not keep the bits of float64")
def test_float64() -> None:
    with CASE["bert"].load(same_bits=True, dtype="float64") as encoder:
        assert not off_alone(encoder, *batch([3, 9, 1, 12, 7]))


@pytest.mark.parametrize("case", [case for case in HEAD_CASES if "no_pad_id" not in case.name], ids=str)
def test_logits_of_every_head(case: HeadCase) -> None:
    """Without an id of padding the head takes one text at a time."""
    with case.load(same_bits=True) as encoder:
        ids, mask = batch([3, 10, 1, 7, 7, 2] * 8, encoder.config.get("pad_token_id") or 0)
        assert not off_alone(partial(encoder.logits, head=case.head), ids, mask)


def test_words_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces of a word table are the same for each tile: a product's bits depend on how many outputs it has."""
    monkeypatch.setattr(heads, "TOKENS", 64)
    monkeypatch.setattr(heads, "PIECE", 64 * 160)
    folder = encoders.write(tmp_path, "qwen3", vocab_size=700, hidden_size=384, tie_word_embeddings=True)
    encoder = minibert.load_encoder(folder, same_bits=True)
    assert not off_alone(encoder.logits, *batch([5, 3, 16, 1, 12, 9] * 2))
    few, many = ([words for words, _ in heads.logit_pieces(encoder.head(), np.ones((n, 384), "f4"))] for n in (1, 60))
    assert few == many and len(few) == 5
    y = steady(np.array([[1.0, np.inf, 2.0]], np.float32), np.ones((5, 3), np.float32))  # what fills up does not warn
    assert y.shape == (1, 5) and np.isposinf(y).all()


LONG = "the clouds above " * 20
TEXTS = [text[:40] for text in many_texts(16)] + ["we lived", "", "a", LONG]


def in_company(call: Callable[[list[str]], Any], texts: Sequence[str] = TEXTS) -> None:
    """Alone, and with six others."""
    whole, order = call([*texts]), np.random.default_rng(0).permutation(len(texts)).tolist()
    for some in (*([i] for i in order), *(order[start : start + 7] for start in range(0, len(order), 7))):
        for i, found in zip(some, call([texts[i] for i in some]), strict=True):
            assert _bits(found) == _bits(whole[i]), texts[i]


def _bits(found: Any) -> Any:
    return [part.tobytes() for part in found] if isinstance(found, tuple) else np.asarray(found).tobytes()


FOLDERS = sorted(folder.name for kind in ("sentences", "late") for folder in REFERENCE.glob(f"{kind}-*"))


@pytest.mark.parametrize("name", FOLDERS)
def test_vectors_of_every_folder(name: str) -> None:
    encoder = minibert.load_encoder(REFERENCE / name, same_bits=True)
    in_company(lambda texts: encoder.encode(texts, threads=2))
    if name.startswith("late"):
        in_company(lambda texts: encoder.encode_query(texts, threads=2))
    else:
        in_company(lambda texts: encoder.encode(texts, output_value="token_embeddings", threads=1))


def test_scores_and_sparse_vectors() -> None:
    reranker, sparse, topics = (
        minibert.load_encoder(REFERENCE / name, same_bits=True)
        for name in ("uses-reranker", "uses-sparse", "uses-topics")
    )
    some = [text[:12] or "we" for text in TEXTS]
    in_company(lambda texts: reranker.predict([("we", text) for text in texts]), some)
    in_company(sparse.encode_sparse)
    assert topics.classify(some) == [topics.classify(text) for text in some]


def test_vectors_of_a_real_model(minilm: Path) -> None:
    encoder = minibert.load_encoder(minilm, same_bits=True)
    in_company(encoder.encode)
    if kernel().always:
        usual = minibert.load_encoder(minilm)
        in_company(usual.encode)
        assert same_bits(usual.encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize("each", KERNELS, ids=lambda each: each.name)
@given(sizes=st.lists(st.integers(0, 40), max_size=9), shape=st.tuples(st.integers(1, 2000), st.integers(1, 99)))
def test_every_token_has_a_row_of_its_own(each: Kernel, sizes: list[int], shape: tuple[int, int]) -> None:
    for rows in filter(None, (each.usual, each.same)):
        lengths = np.array(sizes, np.int64)
        fewest = max(rows.fewest(*shape), rows.fewest(*shape, column_major=True))
        layout = packing.Layout.of(lengths, rows, fewest)
        x = np.arange(lengths.sum())
        filled = layout.filled(x)
        assert len(filled) == layout.rows and layout.rows % rows.total == 0
        outputs, width = shape
        assert (layout.rows * outputs > rows.numbers and layout.rows * outputs * width > rows.volume) or not x.size
        assert np.array_equal(filled[layout.tokens], x)
        assert layout.rows < max(lengths.sum(), fewest) + len(sizes) * rows.text + 4 + rows.wide


def test_a_kernel_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With it, and for float64 with one that does not keep its bits, usual rows serve; the same bits are refused."""
    for found, dtype in ((Kernel("Elbrus", Rows(), None), "float32"), (KERNELS[2], "float64")):
        for module in (kernels, load_encoder, blocks):
            monkeypatch.setattr(module, "kernel", lambda found=found: found)
        minibert.load_encoder(CASE["bert"].folder, dtype=dtype)
        with pytest.raises(ValueError, match=found.name):
            minibert.load_encoder(CASE["bert"].folder, dtype=dtype, same_bits=True)


def test_blas_keeps_its_threads_from_a_text_where_the_bits_depend_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[computing.Blas] = []
    monkeypatch.setattr(blocks, "compute", lambda *given: [asked.append(given[3]), computing.compute(*given)])
    monkeypatch.setattr(blocks, "spreads", lambda threads: True)
    for same in (False, True):
        encoder = minibert.load_encoder(CASE["bert"].folder, same_bits=same)
        encoder(np.array([[5, 6]]))
        assert asked.pop() == ("held" if same and not kernel().always else "own")


def test_all_doors_ask_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each opens its model with `same_bits`, which a pickle keeps."""
    asked: list[bool] = []
    make = blocks.Stack.__init__
    monkeypatch.setattr(blocks.Stack, "__init__", lambda own, *given: [asked.append(given[6]), make(own, *given)][1])
    folder = REFERENCE / "sentences-bare"
    pickle.loads(pickle.dumps(minibert.load_encoder(folder, same_bits=True)))
    minibert.load_encoder(REFERENCE / "static-dense", same_bits=True)
    (tmp_path / "a.txt").write_text("we\nlived\n", encoding="utf-8")
    for model, command in (
        (folder, ["encode", "we"]), (folder, ["bulk", tmp_path / "a.txt", "-o", tmp_path / "out"]),
        (REFERENCE / "uses-reranker", ["rank", "we", "--file", tmp_path / "a.txt"]),
    ):  # fmt: skip
        assert main([*map(str, command), "-m", str(model), "--same-bits"]) == 0
    assert asked == [True] * 6
