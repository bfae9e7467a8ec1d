"""One layer, many threads: closed while others use it, and its tokenizer opened by several at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import BERT, T5, same_bits, write, write_wordpiece

import minibert
from minibert import EmbeddingLayer
from minibert.families.parts.steps import Bound

IDS = [[5, 6, 7]]
ROUNDS = 40
THREADS = 3

USES: dict[str, Callable[[EmbeddingLayer], Any]] = {
    "call": lambda layer: layer(IDS),
    "trace": lambda layer: layer.trace(IDS),
    "tokenize": lambda layer: layer.tokenize("we lived", truncation=True, max_length=8),
    "tokens": lambda layer: layer.tokens(IDS),
    "tokenizer": lambda layer: layer.tokenizer.size,
    "embed": lambda layer: layer.embed(["we lived", "a"]),
    "attention_position": lambda layer: layer.attention_position.relative_bias(2, 2),
    "modules": lambda layer: layer.modules,
    "max_length": lambda layer: layer.max_length,
    "submodule": lambda layer: layer.shared.weight[0],
    "dir": lambda layer: dir(layer),
    "repr": lambda layer: repr(layer),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wordpiece(write(tmp_path_factory.mktemp("t5"), T5))


@pytest.fixture(autouse=True)
def hasty() -> Iterator[None]:
    """Let threads take turns a thousand times as often as they do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def together(*works: Callable[[], object]) -> None:
    """Run each on a thread of its own, all from one moment on, until all have ended."""
    start = threading.Barrier(len(works))

    def begin(work: Callable[[], object]) -> None:
        start.wait()
        work()

    threads = [threading.Thread(target=begin, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("name", USES)
def test_close_during_a_call_ends_it_with_its_result_or_the_one_error(folder: Path, name: str) -> None:
    use, whole = USES[name], minibert.load(folder)
    began = time.perf_counter()
    use(whole)
    first_use = time.perf_counter() - began
    told: list[Exception] = []
    for i in range(ROUNDS):
        layer, used = minibert.load(folder), threading.Event()

        def work(layer: EmbeddingLayer = layer, used: threading.Event = used) -> None:
            try:
                while layer._steps is not None:
                    use(layer)
                    used.set()
                use(layer)
            except Exception as error:  # noqa: BLE001  judged below
                told.append(error)
                used.set()

        def close(layer: EmbeddingLayer = layer, used: threading.Event = used, i: int = i) -> None:
            if i % 2:
                used.wait()
            until = (
                time.perf_counter() + first_use * (i / ROUNDS) ** 4
            )  # another moment in every round, most of them early
            while time.perf_counter() < until:
                pass
            layer.close()

        together(*[work] * (THREADS - 1), close, close)
    if name in ("dir", "repr"):  # these look at a closed layer too
        assert told == []
    else:
        assert len(told) == ROUNDS * (THREADS - 1)
        assert {f"{type(error).__name__}: {error}" for error in told} == {
            "ValueError: this layer is closed; load it again"
        }
    use(whole)  # no other layer over the same file is closed with it


class ClosedMeanwhile(EmbeddingLayer):
    """As if another thread closed the layer just after this one has looked for the n-th time whether it is open."""

    looks_left = 0

    @property
    def steps(self) -> tuple[Bound, ...]:
        steps = super().steps
        vars(self)["looks_left"] -= 1
        if vars(self)["looks_left"] == 0:
            self.close()
        return steps


@pytest.mark.parametrize("look", [1, 2, 3])
@pytest.mark.parametrize("name", USES)
def test_close_between_two_looks_at_the_layer(folder: Path, name: str, look: int) -> None:
    layer, want = minibert.load(folder), USES[name](minibert.load(folder))
    layer.__class__, vars(layer)["looks_left"] = ClosedMeanwhile, look
    try:
        found = repr(USES[name](layer))
    except ValueError as error:
        found = str(error)
    assert found in ("this layer is closed; load it again", repr(want)) or name == "dir"


def test_a_tokenizer_opened_by_many_threads_at_once_is_one(folder: Path) -> None:
    want = minibert.load(folder).tokenize("we lived")["input_ids"]
    for _ in range(ROUNDS):
        layer, opened, ids = minibert.load(folder), [], []

        def work(layer: EmbeddingLayer = layer, opened: list[Any] = opened, ids: list[Any] = ids) -> None:
            opened.append(layer.tokenizer)
            ids.append(layer.tokenize("we lived")["input_ids"])

        together(*[work] * THREADS)
        assert len(opened) == THREADS and {id(one) for one in opened} == {id(layer.tokenizer)}
        assert len(ids) == THREADS and all(same_bits(some, want) for some in ids)


def test_a_tokenizer_that_fails_to_open_fails_every_time(tmp_path: Path) -> None:
    layer = minibert.load(write(tmp_path, BERT))
    for _ in range(2):
        with pytest.raises(minibert.TokenizerError, match="has no tokenizer"):
            layer.tokenize("we")
    write_wordpiece(tmp_path)
    assert layer.tokenize("we")["input_ids"].shape == (1, 3)


FORK_WHILE_IT_OPENS = """
import os, sys, threading, minibert
layer = minibert.load(sys.argv[1])
want = layer.tokenize("we lived")["input_ids"].tobytes()
layer = minibert.load(sys.argv[1])
make, inside, forked = layer._open_tokenizer, threading.Event(), threading.Event()
def slowly():
    if threading.current_thread() is not threading.main_thread():
        inside.set()
        forked.wait()
    return make()
layer._open_tokenizer = slowly
other = threading.Thread(target=lambda: layer.tokenizer)
other.start()
inside.wait()
child = os.fork()
if child == 0: os._exit(0 if layer.tokenize("we lived")["input_ids"].tobytes() == want else 7)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
forked.set()
other.join()
sys.exit(code)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_another_thread_opens_the_tokenizer_opens_its_own(folder: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_WHILE_IT_OPENS, str(folder)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    assert subprocess.run(command, timeout=60, env=environment).returncode == 0
