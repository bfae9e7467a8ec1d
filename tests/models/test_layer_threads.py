"""One layer, many threads: closed while others use it, and its tokenizer opened by several at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import BERT, T5, same_bits, write, write_wordpiece
from limits import CHILD_SECONDS

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
        thread.join(CHILD_SECONDS)
    assert not any(thread.is_alive() for thread in threads)


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


class ReadOnce(EmbeddingLayer):
    """As if another thread closed the layer between two reads of what it holds."""

    @property
    def _steps(self) -> tuple[Bound, ...] | None:  # type: ignore[override]
        return vars(self).pop("kept", None)


def test_whether_a_layer_is_open_is_read_once(folder: Path) -> None:
    layer = minibert.load(folder)
    vars(layer)["kept"] = steps = vars(layer).pop("_steps")
    layer.__class__ = ReadOnce
    assert layer.steps is steps
    with pytest.raises(ValueError, match="this layer is closed; load it again"):
        layer.steps  # noqa: B018


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
    assert subprocess.run(command, timeout=CHILD_SECONDS, env=environment).returncode == 0
