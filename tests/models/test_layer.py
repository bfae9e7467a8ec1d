"""The layer as its callers meet it: every argument, every way to look inside, and what never shows in the bits."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from checkpoints import (
    BERT,
    DEBERTA,
    DISTILBERT,
    ELECTRA,
    GPT2,
    ROBERTA,
    T5,
    VOCAB,
    same_bits,
    tensors,
    wordpiece_json,
    write,
    write_byte_level,
)
from hypothesis import given
from hypothesis import strategies as st

import minibert
from minibert import EmbeddingLayer
from minibert.equations import sentences as pooling
from minibert.equations.input_layer import Array
from minibert.families import modules
from minibert.models import layer as layer_file
from minibert.models import layer as layer_module
from minibert.models import tiles

CONFIGS = {"bert": BERT, "roberta": ROBERTA, "distilbert": DISTILBERT, "gpt2": GPT2, "t5": T5} | {
    "electra": ELECTRA,  # projected
    "deberta-v2": DEBERTA,  # masked
}
# a float32 layer against the same in float64, numbers below 30: measured at most 3.4e-6 over 300 batches
FLOAT64_TOLERANCE = 2e-5
# pooled float32 rows against their mean in float64: measured at most 2.4e-7
MEAN_TOLERANCE = 2e-6
# a normalized vector against exact arithmetic: measured at most 3.2e-8 and 8.4e-17
NORMALIZED_TOLERANCE = {"float32": 2e-7, "float64": 1e-15}

Make = Callable[[str], EmbeddingLayer]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, config in CONFIGS.items():
        made[name] = write(tmp_path_factory.mktemp(name), config)
        if name == "gpt2":
            write_byte_level(made[name])
        else:
            (made[name] / "tokenizer.json").write_text(wordpiece_json(), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def load(folders: dict[str, Path]) -> Make:
    """One layer for each config; they hold nothing that a call could change."""
    made: dict[str, EmbeddingLayer] = {}
    return lambda name: made.setdefault(name, minibert.load(folders[name]))


@contextlib.contextmanager
def tile_of(numbers: int) -> Iterator[None]:
    """Make tiles as small as a few tokens, so that a tiny batch is cut as a large one is."""
    with mock.patch.object(tiles, "TILE_NUMBERS", numbers), mock.patch.object(layer_file, "TILE_NUMBERS", numbers):
        yield


def some_ids(*shape: int, below: int = VOCAB, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).integers(0, below, shape)


# -- calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_call_gives_batch_seq_dim_in_float32(load: Make, name: str) -> None:
    layer = load(name)
    y = layer(some_ids(3, 5))
    assert y.shape == (3, 5, 8) == (3, 5, layer.dim)
    assert y.dtype == np.float32 and y.flags.c_contiguous and y.flags.writeable
    assert np.isfinite(y).all()


@pytest.mark.parametrize(
    "ids",
    [
        [[5, 6, 7], [8, 9, 10]],
        ((5, 6, 7), (8, 9, 10)),
        np.array([[5, 6, 7], [8, 9, 10]], np.int32),
        np.array([[5, 6, 7], [8, 9, 10]], np.uint8),
        np.array([[5, 6, 7], [8, 9, 10]], np.uint64),
        np.array([[5, 6, 7], [8, 9, 10]], ">i4"),
        np.array([[5, 8], [6, 9], [7, 10]]).T,
        np.arange(5, 17)[::-1][::-2].reshape(2, 3)[:, :1] * 0 + [[5, 6, 7], [8, 9, 10]],
        [np.array([5, 6, 7]), np.array([8, 9, 10])],
    ],
)
@pytest.mark.parametrize("name", CONFIGS)
def test_call_takes_ids_in_every_form(load: Make, name: str, ids: object) -> None:
    layer = load(name)
    assert same_bits(layer(ids), layer(np.array([[5, 6, 7], [8, 9, 10]], np.int64)))


def test_call_leaves_its_arguments_alone(load: Make) -> None:
    given_ids, types = some_ids(2, 4), np.array([[0, 1, 1, 0]] * 2)
    given_ids.flags.writeable = types.flags.writeable = False
    first = load("bert")(given_ids, token_type_ids=types)
    assert same_bits(first, load("bert")(given_ids, token_type_ids=types))


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (3, 0), (1, 0), (0,)])
def test_a_batch_of_none_works(load: Make, name: str, shape: tuple[int, ...]) -> None:
    layer, ids = load(name), np.zeros(shape, np.int64)
    assert layer(ids).shape == (*shape, 8)
    trace = layer.trace(ids)
    assert list(trace.values())[-1].size == 0
    assert layer([]).shape == (0, 8)
    (word, *_) = layer.modules.values()
    assert layer(inputs_embeds=word(ids)).shape == (*shape, 8)


@pytest.mark.parametrize("name", CONFIGS)
def test_one_sequence_gives_one_matrix(load: Make, name: str) -> None:
    layer, ids = load(name), some_ids(7)
    y = layer(ids)
    assert y.shape == (7, 8)
    assert same_bits(y, layer(ids[None])[0])
    assert same_bits(layer(ids, attention_mask=np.ones(7, int)), y)


def test_types_are_added_where_the_model_has_them(load: Make) -> None:
    ids = some_ids(2, 4)
    bert = load("bert")
    assert same_bits(bert(ids), bert(ids, token_type_ids=np.zeros((2, 4), int)))
    assert not same_bits(bert(ids), bert(ids, token_type_ids=np.ones((2, 4), int)))
    gpt2, t = load("gpt2"), tensors(GPT2)
    assert same_bits(gpt2(ids, token_type_ids=np.zeros((2, 4), int)), gpt2(ids) + t["wte.weight"][0])


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "gpt2"])
def test_ids_of_one_row_are_those_of_every_row(load: Make, name: str) -> None:
    layer, ids = load(name), some_ids(3, 4)
    positions = np.array([[3, 9, 0, 3]])
    y = layer(ids, position_ids=positions)
    assert same_bits(y, layer(ids, position_ids=np.repeat(positions, 3, axis=0)))
    assert same_bits(y, layer(ids, position_ids=positions[0]))
    assert same_bits(y, layer(ids, position_ids=positions.astype(np.int8)))
    assert not same_bits(y, layer(ids))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_past_length_moves_the_positions(load: Make, name: str) -> None:
    layer, ids = load(name), some_ids(2, 6)
    whole = layer(ids)
    for past in (2, np.int64(2)):
        assert same_bits(layer(ids[:, 2:], past_length=past), np.ascontiguousarray(whole[:, 2:]))
    mask = np.ones((2, 6), int)  # as long as past and ids together, as a cached call passes it
    assert same_bits(layer(ids[:, 2:], past_length=2, attention_mask=mask), np.ascontiguousarray(whole[:, 2:]))


def test_past_length_of_roberta_counts_behind_its_padding_row(load: Make) -> None:
    trace = load("roberta").trace([[5, 6, 1]], past_length=3)
    assert trace["position_ids"].tolist() == [[5, 6, 1]]


def test_roberta_positions_skip_padding(load: Make) -> None:
    layer = load("roberta")
    assert layer.trace([[1, 1, 0, 9, 2]])["position_ids"].tolist() == [[1, 1, 2, 3, 4]]
    embeds = np.zeros((1, 5, 8), np.float32)
    assert layer.trace(inputs_embeds=embeds)["position_ids"].tolist() == [[2, 3, 4, 5, 6]]
    # 18 rows, of which the first two are never a token's
    assert layer.max_length == 16


@pytest.mark.parametrize(("name", "longest"), [("bert", 16), ("roberta", 16), ("gpt2", 32), ("t5", None)])
def test_max_length_is_what_the_table_holds(load: Make, name: str, longest: int | None) -> None:
    layer = load(name)
    assert layer.max_length == longest
    if longest is None:
        assert layer(np.full((1, 1000), 5)).shape == (1, 1000, 8)
        return
    assert layer(np.full((1, longest), 5)).shape == (1, longest, 8)
    with pytest.raises(ValueError, match=f"ends at {longest} tokens"):
        layer(np.full((1, longest + 1), 5))


@pytest.mark.parametrize("name", CONFIGS)
def test_inputs_embeds_replace_the_word_rows(load: Make, name: str) -> None:
    layer, ids = load(name), some_ids(2, 5) % (VOCAB - 5) + 5  # no padding: roberta counts it differently
    (word, *_) = layer.modules.values()
    embeds = word(ids)
    assert same_bits(layer(inputs_embeds=embeds), layer(ids))
    assert same_bits(layer(inputs_embeds=embeds[0]), layer(ids)[0])
    assert same_bits(layer(inputs_embeds=embeds.astype(np.float64)), layer(ids))
    assert same_bits(layer(inputs_embeds=embeds.tolist()), layer(ids))
    assert same_bits(layer(inputs_embeds=np.asfortranarray(embeds)), layer(ids))
    assert same_bits(embeds, word(ids)), "the caller's array is not the layer's to change"


@pytest.mark.parametrize("name", CONFIGS)
def test_out_receives_the_result(load: Make, name: str) -> None:
    layer, ids = load(name), some_ids(2, 5)
    out = np.full((2, 5, 8), np.nan, np.float32)
    assert layer(ids, out=out) is out
    assert same_bits(out, layer(ids))
    row = np.full((5, 8), np.nan, np.float32)
    assert layer(ids[0], out=row) is row
    assert same_bits(row, out[0])


@pytest.mark.parametrize("tile", [8, 10**6])
def test_out_may_lie_where_the_embeds_lie(load: Make, tile: int) -> None:
    for name in ("bert", "gpt2"):
        layer, embeds = load(name), np.random.default_rng(0).standard_normal((10, 8)).astype("f4")
        expected = layer(inputs_embeds=embeds)
        for first, second in ((0, 0), (0, 1), (1, 0), (3, 0)):
            memory = np.zeros((13, 8), np.float32)
            memory[first : first + 10] = embeds
            with tile_of(tile):
                out = layer(inputs_embeds=memory[first : first + 10], out=memory[second : second + 10])
            assert same_bits(out, expected)


def test_mask_makes_rows_zero_where_the_model_multiplies_by_it(load: Make) -> None:
    layer, ids = load("deberta-v2"), some_ids(2, 4)
    mask = np.array([[1, 1, 0, 0], [1, 0, 1, 0]])
    y = layer(ids, attention_mask=mask)
    assert (y[mask == 0] == 0).all()
    assert same_bits(y[mask == 1], layer(ids)[mask == 1])
    assert same_bits(layer(ids, attention_mask=mask.astype(bool)), y)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_mask_changes_nothing_where_the_model_uses_it_later(load: Make, name: str) -> None:
    ids = some_ids(2, 4)
    assert same_bits(load(name)(ids, attention_mask=[[1, 1, 0, 0], [1, 1, 1, 0]]), load(name)(ids))


@pytest.mark.parametrize("name", CONFIGS)
def test_float64_computes_in_float64(folders: dict[str, Path], load: Make, name: str) -> None:
    ids = some_ids(3, 6)
    with minibert.load(folders[name], dtype="float64") as layer:
        y = layer(ids)
        assert y.dtype == np.float64 and layer.dtype == np.float64
        assert all(value.dtype in (np.float64, np.int64) for value in layer.trace(ids).values())
        off = np.abs(load(name)(ids) - y).max()
        assert off <= FLOAT64_TOLERANCE
        if name in ("bert", "roberta", "distilbert"):
            assert off > 0, "float32 under the name of float64 would not differ"
        assert layer.embed("we lived").dtype == np.float64
        out = np.empty((3, 6, 8))
        assert layer(ids, out=out) is out
        with pytest.raises(TypeError, match="out must be float64, found float32"):
            layer(ids, out=np.empty((3, 6, 8), np.float32))


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32")])
def test_dtype_by_any_name(folders: dict[str, Path], dtype: object) -> None:
    assert minibert.load(folders["bert"], dtype=dtype).dtype == np.float32  # type: ignore[arg-type]


# -- what never shows in the bits ----------------------------------------------------------------------------------


@given(
    name=st.sampled_from(sorted(CONFIGS)),
    batch=st.integers(1, 5),
    seq=st.integers(1, 16),
    tile=st.integers(1, 400),
    threads=st.sampled_from([None, 1, 2, 3]),
    seed=st.integers(0, 99),
)
def test_tiles_and_threads_do_not_show(
    load: Make, name: str, batch: int, seq: int, tile: int, threads: int | None, seed: int
) -> None:
    layer, ids = load(name), some_ids(batch, seq, seed=seed)
    whole = layer(ids, threads=1)
    with tile_of(tile), mock.patch("minibert.threads.NUMBERS_A_THREAD", 1):
        assert same_bits(layer(ids, threads=threads), whole)
        positions = some_ids(batch, seq, below=10, seed=seed)
        keywords = {"position_ids": positions} if name not in ("t5",) else {}
        cut = layer(ids, threads=threads, **keywords)
    assert same_bits(cut, layer(ids, threads=1, **keywords))
    assert same_bits(list(layer.trace(ids).values())[-1], whole)


@given(name=st.sampled_from(sorted(CONFIGS)), batch=st.integers(1, 5), seq=st.integers(1, 16), seed=st.integers(0, 99))
def test_neighbours_in_the_batch_do_not_show(load: Make, name: str, batch: int, seq: int, seed: int) -> None:
    layer, ids = load(name), some_ids(batch, seq, seed=seed)
    y = layer(ids)
    for i in range(batch):
        assert same_bits(layer(ids[i : i + 1]), y[i : i + 1])


@given(name=st.sampled_from(sorted(CONFIGS)), seq=st.integers(1, 12), more=st.integers(1, 4), seed=st.integers(0, 99))
def test_right_padding_leaves_other_tokens_alone(load: Make, name: str, seq: int, more: int, seed: int) -> None:
    layer, ids = load(name), some_ids(2, seq, seed=seed)
    padding = np.full((2, more), layer.config.get("pad_token_id") or 0)
    mask = np.concatenate([np.ones_like(ids), np.zeros_like(padding)], axis=1)
    y = layer(np.concatenate([ids, padding], axis=1), attention_mask=mask)
    assert same_bits(np.ascontiguousarray(y[:, :seq]), layer(ids))


def test_real_size_is_cut_and_spread_without_a_trace(minilm: Path) -> None:
    layer, ids = minibert.load(minilm), some_ids(12, 500, below=30522)
    types = (np.arange(500) > 250).astype(int)[None]
    whole = np.stack([layer(row[None], token_type_ids=types, threads=1)[0] for row in ids])
    for threads in (1, 2, 5, None):
        assert same_bits(layer(ids, token_type_ids=types, threads=threads), whole)


def test_a_token_of_real_size_has_the_same_bits_alone(minilm: Path) -> None:
    """One row is normed at once, many in blocks of sixteen and with NumPy's buffer made shorter."""
    layer, ids = minibert.load(minilm), some_ids(1, 67, below=30522)
    alone = np.stack([layer([[int(token)]], position_ids=[[place]])[0, 0] for place, token in enumerate(ids[0])])
    assert same_bits(layer(ids)[0], alone)


def test_numpy_s_buffer_is_given_back(minilm: Path) -> None:
    layer, ids = minibert.load(minilm), some_ids(2, 300, below=30522)
    with np.errstate():
        np.setbufsize(4096)
        layer(ids, threads=2)
        assert np.getbufsize() == 4096
        with mock.patch.object(modules, "layer_norm", side_effect=MemoryError), pytest.raises(MemoryError):
            layer(ids)
        assert np.getbufsize() == 4096


def test_wide_projection_keeps_its_bits(tmp_path: Path) -> None:
    # as wide as a small ELECTRA: a matrix product of several rows would be another sum
    config = {**ELECTRA, "embedding_size": 128, "hidden_size": 256}
    rng = np.random.default_rng(0)
    shapes = {"word": VOCAB, "position": 16, "token_type": 2}
    t = {f"embeddings.{n}_embeddings.weight": rng.standard_normal((r, 128)).astype("f4") for n, r in shapes.items()}
    t |= {f"embeddings.LayerNorm.{part}": rng.standard_normal(128).astype("f4") for part in ("weight", "bias")}
    t |= {"embeddings_project.weight": rng.standard_normal((256, 128)).astype("f4")}
    t |= {"embeddings_project.bias": rng.standard_normal(256).astype("f4")}
    ids = some_ids(40, 16)
    for shift in (0, 1):
        layer = minibert.load(write(tmp_path / str(shift), config, t, shift=shift))
        y = layer(ids)
        alone = np.stack([[layer([[int(token)]], position_ids=[[j]])[0, 0] for j, token in enumerate(r)] for r in ids])
        assert same_bits(y, alone)
        assert same_bits(layer(ids, threads=3), y)


def test_many_threads_may_share_a_layer(load: Make) -> None:
    layer = load("bert")
    texts = [["we lived above the clouds"[: i % 25 + 1]] * (i % 3 + 1) for i in range(64)]
    serial = [layer.embed(some, threads=1) for some in texts]
    with tile_of(64), mock.patch("minibert.threads.NUMBERS_A_THREAD", 1), ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda some: layer.embed(some, threads=2), texts))
        called = list(pool.map(lambda some: layer(**layer.tokenize(some)), texts))
    assert all(map(same_bits, together, serial))
    assert all(same_bits(y, layer(**layer.tokenize(some))) for y, some in zip(called, texts, strict=True))


class RefusedError(Exception):
    pass


def failing_tiles(begun: list[int], fails: Callable[[int], bool]) -> Callable[..., Array]:
    """Stands in for `run_steps`: of two tiles under way at once one fails, and all other tiles take their time."""
    lock, both, failed = threading.Lock(), threading.Event(), threading.Event()

    def run_steps(steps: object, inputs: object, out: Array, *rest: object) -> Array:
        with lock:
            begun.append(threading.get_ident())
            number = len(begun)
        if number == 2:
            both.set()
        assert both.wait(60)  # nobody fails before a second thread is at work
        if number <= 2 and fails(number):
            failed.set()
            raise RefusedError
        assert failed.wait(60)
        time.sleep(0.02)  # the failure has 4 seconds, of 200 such tiles, to be heard of on a busy machine
        return out

    return run_steps


@pytest.mark.parametrize("way", ["call", "embed"])
@pytest.mark.parametrize("who", ["caller", "helper", "first", "second"])
def test_an_error_in_any_tile_reaches_the_caller_and_ends_the_work(load: Make, who: str, way: str) -> None:
    layer, begun, me = load("bert"), list[int](), threading.get_ident()
    fails = {
        "caller": lambda number: me not in begun[:2] or begun[number - 1] == me,
        "helper": lambda number: begun[number - 1] != me,
        "first": lambda number: number == 1,
        "second": lambda number: number == 2,
    }
    tiles_in_all = 400
    work = {
        "call": lambda: layer(some_ids(tiles_in_all, 16), threads=2),
        "embed": lambda: layer.embed([" ".join("a" * 14)] * tiles_in_all, threads=2),
    }
    stand_in = mock.patch.object(
        {"call": tiles, "embed": layer_file}[way], "run_steps", failing_tiles(begun, fails[who])
    )
    with (
        tile_of(8 * 16),
        mock.patch("minibert.threads.NUMBERS_A_THREAD", 1),
        stand_in,
        pytest.raises(RefusedError),
    ):
        work[way]()
    assert len(set(begun)) == 2
    assert len(begun) < tiles_in_all // 2, "after an error no further tile is begun"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_computes_too(folders: dict[str, Path]) -> None:
    code = (
        "import os, sys, numpy as np, minibert\n"
        "from minibert import threads; from minibert.models import tiles\n"
        "tiles.TILE_NUMBERS = 64; threads.NUMBERS_A_THREAD = 1\n"
        "layer = minibert.load(sys.argv[1]); ids = np.arange(60).reshape(5, 12)\n"
        "before = layer(ids, threads=3).tobytes()\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if layer(ids, threads=5).tobytes() == before else 7)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(folders["bert"])]
    assert subprocess.run(command, timeout=60).returncode == 0


# -- looking inside ------------------------------------------------------------------------------------------------

KEYS = {
    "bert": ["position_ids", "word", "token_type", "position", "sum", "LayerNorm"],
    "roberta": ["position_ids", "word", "token_type", "position", "sum", "LayerNorm"],
    "distilbert": ["position_ids", "word", "position", "sum", "LayerNorm"],
}


@pytest.mark.parametrize("name", KEYS)
def test_trace_names_every_step(load: Make, name: str) -> None:
    layer, ids = load(name), some_ids(2, 5)
    trace = layer.trace(ids)
    names = [key.removeprefix("embeddings.").removesuffix("_embeddings") for key in trace]
    assert names == KEYS[name]
    word, *others = (trace[key] for key in trace if key.endswith("_embeddings"))
    total = word
    for rows in others:
        total = total + rows
    assert same_bits(trace["sum"], total)
    assert same_bits(trace["embeddings.LayerNorm"], layer.LayerNorm(trace["sum"]))
    assert same_bits(trace["embeddings.LayerNorm"], layer(ids))


def test_trace_of_gpt2_tells_two_uses_of_one_table_apart(load: Make) -> None:
    layer, ids = load("gpt2"), some_ids(2, 5)
    assert list(layer.trace(ids)) == ["position_ids", "wte", "wpe", "sum"]
    trace = layer.trace(ids, token_type_ids=np.full((2, 5), 7), past_length=3)
    assert list(trace) == ["position_ids", "wte", "wpe", "wte (types)", "sum"]
    assert trace["position_ids"].tolist() == [[3, 4, 5, 6, 7]]
    assert same_bits(trace["sum"], (trace["wte"] + trace["wpe"]) + trace["wte (types)"])


@pytest.mark.parametrize("name", CONFIGS)
def test_trace_ends_with_the_call(load: Make, name: str) -> None:
    layer, ids = load(name), some_ids(2, 5)
    trace = layer.trace(ids)
    assert same_bits(list(trace.values())[-1], layer(ids))
    again = layer.trace(ids)
    for value in trace.values():
        value[...] = 0  # a trace is the caller's own
    assert all(map(same_bits, layer.trace(ids).values(), again.values()))


def test_trace_takes_what_a_call_takes(load: Make) -> None:
    layer, ids = load("bert"), some_ids(2, 5)
    batch = {
        "token_type_ids": np.ones((2, 5), int),
        "position_ids": [[4, 3, 2, 1, 0]],
        "attention_mask": np.ones((2, 5)),
    }
    assert same_bits(layer.trace(ids, **batch)["embeddings.LayerNorm"], layer(ids, **batch))
    embeds = layer.word_embeddings(ids)
    trace = layer.trace(inputs_embeds=embeds)
    assert "embeddings.word_embeddings" not in trace
    assert same_bits(trace["embeddings.LayerNorm"], layer(ids))
    with pytest.raises(TypeError, match="bert takes no colour in its input layer"):
        layer.trace(ids, colour=[[1]])


def test_submodules_by_the_reference_names(load: Make) -> None:
    bert, t = load("bert"), tensors(BERT)
    for name in ("word", "position", "token_type"):
        module = getattr(bert, f"{name}_embeddings")
        assert module is bert[f"embeddings.{name}_embeddings"]
        assert same_bits(module.weight, t[f"embeddings.{name}_embeddings.weight"])
        assert same_bits(module([[1, 0]]), module.weight[[[1, 0]]])
        assert same_bits(module(1), module.weight[1])
    assert same_bits(bert.LayerNorm.weight, t["embeddings.LayerNorm.weight"])
    assert same_bits(bert.LayerNorm.bias, t["embeddings.LayerNorm.bias"])
    assert bert.LayerNorm.eps == 1e-12
    gpt2 = load("gpt2")
    assert same_bits(gpt2.wte(some_ids(2, 3)) + gpt2.wpe([0, 1, 2]), gpt2(some_ids(2, 3)))
    t5 = load("t5")
    assert t5.shared is t5.embed_tokens
    electra = load("electra")
    x = electra.trace([[1, 2, 3]])
    assert same_bits(electra.embeddings_project(x["embeddings.LayerNorm"]), x["embeddings_project"])


def test_submodules_give_the_same_bits_for_rows_that_lie_apart(load: Make) -> None:
    x = np.random.default_rng(0).standard_normal((16, 4, 6)).astype("f4")
    strided, fortran = x.transpose(1, 0, 2), np.asfortranarray(x)
    for module in (load("electra").LayerNorm, load("electra").embeddings_project):
        assert same_bits(module(strided), np.ascontiguousarray(module(x).transpose(1, 0, 2)))
        assert same_bits(module(fortran), module(x))


def test_submodules_refuse_what_they_cannot_take(load: Make) -> None:
    bert = load("bert")
    with pytest.raises(IndexError, match=r"rows 0..1"):
        bert.token_type_embeddings([2])
    with pytest.raises(TypeError, match="integers"):
        bert.word_embeddings([0.5])
    for x in (np.ones((2, 7)), 3.0):
        with pytest.raises(ValueError, match="the last axis must be 8 wide"):
            bert.LayerNorm(x)
    for x in ([[1.0] * 8, [1.0]], [["a"] * 8]):
        with pytest.raises(TypeError, match="LayerNorm: expected rows of 8 numbers"):
            bert.LayerNorm(x)
    with pytest.raises(AttributeError, match="no 'wte'; its submodules are word_embeddings, token_type_embeddings"):
        _ = bert.wte
    with pytest.raises(AttributeError, match=r"this layer is the embeddings module itself.* layer.word_embeddings"):
        _ = bert.embeddings
    with pytest.raises(KeyError, match=r"its submodules are embeddings.word_embeddings"):
        bert["wte"]
    assert not hasattr(bert, "wte")


def test_weights_are_the_mapped_file_and_read_only(load: Make) -> None:
    for name in ("bert", "gpt2"):
        for module in load(name).modules.values():
            assert not module.weight.flags.writeable and not module.weight.flags.owndata
            with pytest.raises(ValueError, match="read-only"):
                module.weight[...] = 0
            with pytest.raises(ValueError, match=r"WRITEABLE|writeable"):
                module.weight.flags.writeable = True


def test_prints_as_the_reference_does(load: Make) -> None:
    assert repr(load("bert")) == (
        "BertEmbeddings(\n"
        f"  (word_embeddings): Embedding({VOCAB}, 8, padding_idx=0)\n"
        "  (position_embeddings): Embedding(16, 8)\n"
        "  (token_type_embeddings): Embedding(2, 8)\n"
        "  (LayerNorm): LayerNorm((8,), eps=1e-12, elementwise_affine=True)\n"
        ")"
    )
    assert repr(load("roberta")).startswith(
        f"RobertaEmbeddings(\n  (word_embeddings): Embedding({VOCAB}, 8, padding_idx=1)\n"
    )
    assert repr(load("gpt2")) == "GPT2Model(\n  (wte): Embedding(261, 8)\n  (wpe): Embedding(32, 8)\n)"
    assert repr(load("electra").embeddings_project) == "Linear(in_features=6, out_features=8, bias=True)"


def test_real_bert_prints_as_in_the_seeds(minilm: Path) -> None:
    lines = repr(minibert.load(minilm)).splitlines()
    assert lines[0] == "BertEmbeddings("
    assert lines[1] == "  (word_embeddings): Embedding(30522, 384, padding_idx=0)"
    assert lines[4] == "  (LayerNorm): LayerNorm((384,), eps=1e-12, elementwise_affine=True)"
    assert not any("Dropout" in line for line in lines)


def test_dir_names_the_submodules(load: Make) -> None:
    assert {"word_embeddings", "LayerNorm", "embed", "trace"} <= set(dir(load("bert")))


# -- config --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "width", "longest"), [("bert", 8, 16), ("gpt2", 8, 32), ("t5", 8, 512), ("distilbert", 8, 16)]
)
def test_config_answers_to_the_common_words(load: Make, name: str, width: int, longest: int) -> None:
    config = load(name).config
    assert config.hidden_size == config["hidden_size"] == width
    assert config.max_position_embeddings == config["max_position_embeddings"] == longest
    assert config.model_type == name


def test_config_has_its_own_words_too(load: Make) -> None:
    assert load("gpt2").config.n_embd == 8 and load("gpt2").config.n_positions == 32
    assert load("t5").config.d_model == 8
    assert load("t5").config["task_specific_params"]["translation_en_to_de"]["max_length"] == 300
    assert load("bert").config.layer_norm_eps == 1e-12


def test_config_shows_the_file_and_fills_in_defaults(folders: dict[str, Path], load: Make) -> None:
    config = load("distilbert").config
    assert dict(config) == json.loads((folders["distilbert"] / "config.json").read_text())
    assert config.pad_token_id == 0 and "pad_token_id" not in list(config)
    assert config.get("colour", 3) == 3
    with pytest.raises(AttributeError, match=r"config.json has no 'colour'; it has dim, max_position"):
        _ = config.colour
    with pytest.raises(KeyError, match="colour"):
        config["colour"]


def test_config_is_read_only(load: Make) -> None:
    config = load("t5").config
    with pytest.raises(AttributeError):
        config.d_model = 9
    with pytest.raises(TypeError):
        config["d_model"] = 9  # type: ignore[index]
    with pytest.raises(TypeError):
        config["task_specific_params"]["new"] = 1
    assert config.d_model == 8


# -- embed ---------------------------------------------------------------------------------------------------------

TEXTS = ["we lived above the clouds", "a", "", "the clouds!", "we", "zz zz zz"]


@pytest.mark.parametrize("name", CONFIGS)
def test_embed_pools_the_rows_of_each_text(load: Make, name: str) -> None:
    layer = load(name)
    rows = layer.embed(TEXTS, pooling=None)
    assert [row.shape for row in rows] == [(int(layer.tokenize(text)["attention_mask"].sum()), 8) for text in TEXTS]
    for text, row in zip(TEXTS, rows, strict=True):
        if len(row):
            assert same_bits(row, layer(**layer.tokenize(text))[0])
    means, maxima = layer.embed(TEXTS), layer.embed(TEXTS, "max")
    assert means.shape == maxima.shape == (6, 8) and means.dtype == maxima.dtype == np.float32
    for row, mean, largest in zip(rows, means, maxima, strict=True):
        if not len(row):  # gpt2 gives an empty text no token at all
            assert not mean.any() and not largest.any()
            continue
        assert np.abs(row.astype(np.float64).mean(axis=0) - mean).max() <= MEAN_TOLERANCE
        assert same_bits(row.max(axis=0), largest)


@given(
    name=st.sampled_from(["bert", "gpt2", "roberta"]),
    texts=st.lists(st.text("abc we.", max_size=14), max_size=12),
    pairs=st.one_of(st.none(), st.lists(st.text("ab.", max_size=5), min_size=12, max_size=12)),
    pool=st.sampled_from(["mean", "max", None]),
    normalize=st.booleans(),
    threads=st.sampled_from([None, 1, 3]),
    tile=st.integers(8, 400),
)
def test_embed_of_a_text_does_not_depend_on_the_texts_around_it(
    load: Make,
    name: str,
    texts: list[str],
    pairs: list[str] | None,
    pool: str | None,
    normalize: bool,
    threads: int | None,
    tile: int,
) -> None:
    layer = load(name)
    pairs = None if pairs is None or name == "roberta" else pairs[: len(texts)]  # roberta's table has one type
    alone = [
        layer.embed(text, pool, text_pair=pair, normalize=normalize, truncation=True)[0]
        for text, pair in zip(texts, pairs if pairs is not None else [None] * len(texts), strict=True)
    ]
    with (
        tile_of(tile),
        mock.patch("minibert.threads.NUMBERS_A_THREAD", 1),
        mock.patch.object(layer_module, "CHUNK", 5),
    ):
        together = layer.embed(texts, pool, text_pair=pairs, normalize=normalize, truncation=True, threads=threads)
    assert len(together) == len(texts)
    assert all(map(same_bits, together, alone))


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_embed_equals_the_padded_batch_with_padding_left_out(load: Make, pool: str) -> None:
    # gpt2's tokenizer has no padding token: id 0 stands there, and the mask says so
    for name in ("bert", "gpt2"):
        layer = load(name)
        texts = [text for text in TEXTS if text]
        batch = layer.tokenize(texts)
        y, keep = layer(**batch), batch["attention_mask"].astype(bool)
        rows = [row[mask] for row, mask in zip(y, keep, strict=True)]
        expected = np.stack([pooling.POOLINGS[pool](row[None], 0)[0] for row in rows])
        assert same_bits(layer.embed(texts, pool), expected)
        assert (~keep).any()


def test_embed_of_nothing(load: Make) -> None:
    layer = load("bert")
    assert layer.embed([]).shape == (0, 8) and layer.embed([]).dtype == np.float32
    assert layer.embed([], "max").shape == (0, 8)
    assert layer.embed([], None) == []
    assert layer.embed(iter(["we", "the"])).shape == (2, 8)
    assert layer.embed(np.array(["we", "the"])).shape == (2, 8)


def test_embed_normalizes(load: Make) -> None:
    gpt2 = load("gpt2")
    vectors = gpt2.embed(TEXTS, normalize=True)
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    assert np.abs(lengths - [1, 1, 0, 1, 1, 1]).max() <= 1e-6  # the empty text stays zero; measured 6e-8
    rows = gpt2.embed(TEXTS, None, normalize=True)
    assert [row.shape for row in rows] == [row.shape for row in gpt2.embed(TEXTS, None)]
    assert np.abs(np.linalg.norm(rows[0], axis=1) - 1).max() <= 1e-6


def test_embed_of_pairs(load: Make) -> None:
    layer = load("bert")
    pairs = layer.embed(["we lived", "a"], text_pair=["the clouds", ""])
    batch = layer.tokenize("we lived", "the clouds")
    assert batch["token_type_ids"].any()
    assert same_bits(pairs[0], pooling.mean(layer(**batch))[0])
    assert same_bits(pairs[1], pooling.mean(layer(**layer.tokenize(["a"], [""])))[0])


@pytest.mark.parametrize("name", ["distilbert", "gpt2", "t5", "deberta-v2"])
def test_embed_of_pairs_adds_no_types_where_the_family_adds_none(load: Make, name: str) -> None:
    """GPT-2 adds a word row for a type that is passed, others refuse one: embed passes none."""
    layer = load(name)
    rows = layer.embed(["we lived"], None, text_pair=["the clouds"])[0]
    batch = layer.tokenize("we lived", "the clouds")
    assert "token_type_ids" not in batch
    assert same_bits(rows, layer(**batch)[0])


@pytest.mark.parametrize("normalize", [False, True])
def test_rows_of_a_text_keep_nothing_else_alive(load: Make, normalize: bool) -> None:
    for row in load("bert").embed([*TEXTS, *["we lived above the clouds"] * 50], None, normalize=normalize):
        assert row.base is None and row.flags.owndata and row.flags.writeable


SIZES = [1e-40, 1e-25, 1e-15, 1.0, 1e15, 1e25, 1e38]


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        *(("float32", size) for size in [1e-44, *SIZES]),
        *(("float64", size) for size in [1e-320, 1e-300, *SIZES, 1e300]),
    ],
)
def test_a_vector_of_any_size_is_normalized(dtype: str, size: float) -> None:
    vectors = (np.random.default_rng(0).uniform(-1, 1, (6, 40)) * size).astype(dtype)
    assert np.isfinite(vectors).all() and vectors.any(axis=1).all()
    exact = np.array([[Fraction(float(number)) for number in row] for row in vectors])
    largest = np.abs(exact).max(1, keepdims=True)
    scaled = (exact / largest).astype(np.float64)
    truth = scaled / np.sqrt((scaled * scaled).sum(1, keepdims=True))
    found = pooling.normalized(vectors)
    assert found.dtype == dtype
    assert np.abs(found - truth).max() <= NORMALIZED_TOLERANCE[dtype]
    for row, vector in zip(found, vectors, strict=True):
        assert same_bits(pooling.normalized(vector), row) and same_bits(pooling.normalized(vector[None])[0], row)


def test_a_vector_without_a_direction_is_normalized_by_itself() -> None:
    vectors = np.array([[0, 0, 0], [np.inf, 1, 0], [-np.inf, np.inf, 1], [np.nan, 1, 0], [0, 3, 4]], np.float32)
    expected = np.array([[0, 0, 0], [np.nan, 0, 0], [np.nan, np.nan, 0], [np.nan] * 3, [0, 0.6, 0.8]], np.float32)
    assert np.array_equal(pooling.normalized(vectors), expected, equal_nan=True)
    assert pooling.normalized(np.empty((0, 3), np.float32)).shape == (0, 3)


def test_normalizing_changes_no_digit_of_ordinary_vectors(load: Make) -> None:
    vectors = load("bert").embed(TEXTS)
    assert same_bits(pooling.normalized(vectors), vectors / np.sqrt(np.vecdot(vectors, vectors))[:, None])


def test_embed_shows_its_progress(load: Make, capfd: pytest.CaptureFixture[str]) -> None:
    quiet = load("bert").embed(TEXTS)
    assert capfd.readouterr() == ("", "")
    assert same_bits(load("bert").embed(TEXTS, progress=True), quiet)
    out, err = capfd.readouterr()
    assert out == "" and "embed" in err


# -- tokens --------------------------------------------------------------------------------------------------------


def test_tokens_follow_the_shape_of_the_ids(load: Make) -> None:
    layer = load("bert")
    batch = layer.tokenize(["we lived", "a"])
    assert layer.tokens(batch["input_ids"]) == [["[CLS]", "we", "lived", "[SEP]"], ["[CLS]", "a", "[SEP]", "[PAD]"]]
    assert layer.tokens(batch["input_ids"][0]) == ["[CLS]", "we", "lived", "[SEP]"]
    assert layer.tokens(2) == "[CLS]"
    assert layer.tokens([]) == []
    assert load("gpt2").tokens(load("gpt2").tokenize("he w")["input_ids"]) == [["he", "Ġw"]]
    for wrong in (-1, VOCAB):
        with pytest.raises(IndexError, match=f"rows 0..{VOCAB - 1}"):
            layer.tokens([wrong])
    with pytest.raises(TypeError, match="integers"):
        layer.tokens(["we"])


# -- close ---------------------------------------------------------------------------------------------------------


def mapped(folder: Path) -> bool:
    gc.collect()
    return str(folder) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("name", CONFIGS)
def test_close_drops_the_map_and_later_calls_say_so(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = tmp_path / "own"  # that no other layer has mapped
    shutil.copytree(folders[name], folder)
    with minibert.load(folder) as layer:
        y = layer([[5, 6]])
        layer.tokenize("we")
        layer.attention_position  # noqa: B018  this and the tokenizer are made on first use, and could hold on to tables
    for use in (
        lambda: layer([[5, 6]]),
        lambda: layer.trace([[5, 6]]),
        lambda: layer.tokenize("we"),
        lambda: layer.tokenize("we", truncation=True, max_length=5),
        lambda: layer.embed(["we"]),
        lambda: layer.embed([]),
        lambda: layer.tokens([1]),
        lambda: layer.modules,
        lambda: layer.max_length,
        lambda: layer.attention_position,
        lambda: layer.word_embeddings,
    ):
        with pytest.raises(ValueError, match="this layer is closed; load it again"):
            use()
    assert "closed" in repr(layer) and dir(layer)
    assert y.shape == (1, 2, 8)
    assert layer.config.model_type == name
    layer.close()
    if sys.platform == "linux":
        assert not mapped(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="looks for the map in /proc")
def test_arrays_handed_out_outlive_the_layer(tmp_path: Path) -> None:
    folder = write(tmp_path / "own")
    layer = minibert.load(folder)
    weight = layer.word_embeddings.weight
    layer.close()
    assert mapped(folder)
    assert same_bits(np.array(weight), tensors(BERT)["embeddings.word_embeddings.weight"])
    del weight
    assert not mapped(folder)


def test_an_error_inside_with_still_closes(folders: dict[str, Path]) -> None:
    with pytest.raises(IndexError), minibert.load(folders["bert"]) as layer:
        layer([[VOCAB]])
    with pytest.raises(ValueError, match="closed"):
        layer([[1]])
