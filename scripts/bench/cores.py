"""The section cores: what two cores give over one, many callers at once, and a machine with other work.

Contenders are processes that are held while another works, as in turns.py. Nothing heavy is imported here.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from .measure import Limit, Row, Settings, absent, compare, environment, installed, unmeasured
from .models import real_model
from .turns import Contender

OURS, PRODUCTS, PEER = "minibert", "products alone", "sentence-transformers"
ONE = "minibert, OPENBLAS_NUM_THREADS=1"
Call = Callable[[], Any]
Prepare = Callable[[Any, int], Call]
TEXTS, CALLERS, EACH = (
    600,
    8,
    9,
)  # texts of a large call; callers at once, and the texts that each has, one after another
BUSY = "import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])\nwhile True: pass"


def cores(settings: Settings) -> list[Row]:
    """MiniLM, texts of 5 to 40 words."""
    model = real_model()
    if model is None or sys.platform != "linux":
        return [unmeasured("MiniLM", "needs Linux and all-MiniLM-L6-v2; scripts/demo installs it")]
    peers = [PEER] if installed("torch") and installed(PEER) else []
    with ExitStack() as stack:
        made = {}
        for who in (OURS, PRODUCTS, ONE, *peers):
            variables = {"OPENBLAS_NUM_THREADS": "1"} if who == ONE else {}
            made[who] = Contender("cores", who, str(model), "", **variables)
            stack.callback(made[who].end)
        return [*_two(settings, made), *_callers(settings, made), *_busy(settings, made)]


def _turns(
    settings: Settings, made: Mapping[str, Contender], cases: Mapping[str, tuple[str, list[int]]], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each case, one figure a round: who, and what is asked."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(settings.rounds(rounds)):
        for name in list(cases) if number % 2 == 0 else list(cases)[::-1]:
            who, case = cases[name]
            times[name].append(made[who].ask(case=case))
    return times


def _two(settings: Settings, made: Mapping[str, Contender]) -> list[Row]:
    cases = {f"{who}, {threads}": (who, [TEXTS, 1, threads]) for who in (OURS, PRODUCTS) for threads in (1, 2)}
    times = _turns(settings, made, cases, 7)
    ours, products = times[f"{OURS}, 2"], times[f"{PRODUCTS}, 2"]
    what, note = f"encode {TEXTS} texts, two threads", "the same products and nothing else, on two threads too"
    return [
        compare(what, ours, times[f"{OURS}, 1"], "one thread", faster=True, limit=Limit(">=", 1.8)),
        compare(
            "its matrix products alone, two threads", products, times[f"{PRODUCTS}, 1"], "one thread", faster=True,
            note="what the machine gives: two cores may share a cache, a clock or one core's units",
        ),
        compare("its products alone", products, ours, "the whole call", limit=Limit(">=", 0.7, aim=0.8), note=note),
    ]  # fmt: skip


def _callers(settings: Settings, made: Mapping[str, Contender]) -> list[Row]:
    """Each caller encodes its texts one by one; seconds for each text."""
    cases = {
        f"{who}, {callers}": (who, [EACH, callers, 0])
        for who in (OURS, PEER)
        if who in made
        for callers in (1, CALLERS)
    }
    times = _turns(settings, made, cases, 9)
    what, limit = f"{CALLERS} callers at once, a text each", Limit(">=", 1.5)
    ours = times[f"{OURS}, {CALLERS}"]
    rows = [compare(what, ours, times[f"{OURS}, 1"], "one caller", faster=True, limit=Limit(">=", 0.9))]
    if PEER not in made:
        return [*rows, absent(what, PEER, limit)]
    return [*rows, compare(what, ours, times[f"{PEER}, {CALLERS}"], PEER, faster=True, limit=limit)]


def _busy(settings: Settings, made: Mapping[str, Contender]) -> list[Row]:
    """One text, while two other processes take all that they get."""
    cases = {who: (who, [EACH, 1, 0]) for who in (OURS, ONE, PEER) if who in made}
    with _two_busy():
        times = _turns(settings, made, cases, 9)
    what, limit = "encode 1 text beside two busy processes", Limit("<=", 2)
    rows = [compare(what, times[OURS], times[ONE], "OPENBLAS_NUM_THREADS=1", limit=limit)]
    if PEER in made:
        rows.append(compare(what, times[OURS], times[PEER], PEER, faster=True))
    return rows


@contextmanager
def _two_busy() -> Iterator[None]:
    children = [subprocess.Popen([sys.executable, "-c", BUSY], env=environment()) for _ in range(2)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


# -- what a contender does -----------------------------------------------------------------------------------------


def call_of(prepare: Prepare, folder: str, case: list[int]) -> tuple[Call, int]:
    """[texts, callers, threads]: of many texts one call, of few a call for each, by so many callers at once."""
    from tokenizers import Tokenizer

    from .models import short_texts

    count, callers, threads = case
    texts = short_texts(Tokenizer.from_file(f"{folder}/tokenizer.json"), count, 5, 40)
    if count > EACH:
        return prepare(texts, threads), 1

    def one_by_one() -> None:
        for text in texts:
            prepare(text, threads)()

    def together() -> None:
        started = [threading.Thread(target=one_by_one) for _ in range(callers)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()

    return one_by_one if callers == 1 else together, count * callers


def ours(folder: str, _: str) -> Prepare:
    import minibert

    encoder = minibert.load_encoder(folder)
    return lambda texts, threads: lambda: encoder.encode(texts, threads=threads or None)


def products(folder: str, _: str) -> Prepare:
    """The matrix products of a call and nothing else, shared by as many threads."""
    import numpy as np

    from minibert.threads.computing import compute

    encode, matmul = ours(folder, ""), np.matmul

    def prepare(texts: list[str], threads: int) -> Call:
        asked: list[tuple[Any, ...]] = []
        operands: dict[tuple[Any, ...], Any] = {}

        def like(x: Any, name: int) -> Any:
            """An array of this shape, in this order in memory; one for all such."""
            order = tuple(sorted(range(x.ndim), key=lambda axis: -x.strides[axis]))
            if (name, x.shape, order) not in operands:
                made = np.full([x.shape[axis] for axis in order], 0.01, x.dtype)
                operands[name, x.shape, order] = made.transpose(np.argsort(order))
            return operands[name, x.shape, order]

        def remembered(a: Any, b: Any, out: Any = None) -> Any:
            y = matmul(a, b, out=out)
            asked.append((like(a, 0), like(b, 1), like(y, 2)))
            return y

        np.matmul = remembered
        try:
            encode(texts, 1)()
        finally:
            np.matmul = matmul
        parts = [asked[start : start + len(asked) // 32] for start in range(0, len(asked), len(asked) // 32)]

        def work(part: list[tuple[Any, ...]]) -> None:
            for a, b, y in part:
                matmul(a, b, out=y)

        return lambda: compute(work, parts, threads)

    return prepare


def peer(folder: str, _: str) -> Prepare:
    from .models import torch_sentences

    encode = torch_sentences(folder, "")
    return lambda texts, threads: lambda: encode(texts)


CONTENDERS = {"cores": {OURS: ours, ONE: ours, PRODUCTS: products, PEER: peer}}
