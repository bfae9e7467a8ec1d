"""What never shows in the bits of a layer's result: tiles, views, other calls."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from checkpoints import ELECTRA, VOCAB, same_bits, write
from hypothesis import given
from hypothesis import strategies as st
from layers import CONFIGS, Make, some_ids, tile_of

import minibert
from minibert.equations.input_layer import Array
from minibert.families.parts import modules
from minibert.models import input_layer as layer_file

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
    with tile_of(tile), mock.patch("minibert.threads.pool.NUMBERS_A_THREAD", 1):
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
    with tile_of(64), mock.patch("minibert.threads.pool.NUMBERS_A_THREAD", 1), ThreadPoolExecutor(8) as pool:
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
    stand_in = mock.patch.object(layer_file, "run_steps", failing_tiles(begun, fails[who]))
    with (
        tile_of(8 * 16),
        mock.patch("minibert.threads.pool.NUMBERS_A_THREAD", 1),
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
        "from minibert.threads import pool; from minibert.models.run import packing\n"
        "packing.TILE_NUMBERS = 64; pool.NUMBERS_A_THREAD = 1\n"
        "layer = minibert.load(sys.argv[1]); ids = np.arange(60).reshape(5, 12)\n"
        "before = layer(ids, threads=3).tobytes()\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if layer(ids, threads=5).tobytes() == before else 7)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(folders["bert"])]
    assert subprocess.run(command, timeout=60).returncode == 0
