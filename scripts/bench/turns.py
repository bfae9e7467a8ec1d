"""Sections whose contenders are processes of their own, one at work at a time: encoder, sentences, cores.

Nothing heavy is imported here (see children.process).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from .children import Contender, at_once, child, contenders, ended, environment, first_cores, processes, python, there
from .kernels import AVX512, beyond
from .measure import OURS, Figures, Limit, Row, Settings, in_turn
from .models import once, onnx, real_model, short_texts
from .processes import NUMPY, TEXT

TORCH = ("transformers, sdpa", "transformers, eager")
PEER, ONNX = "sentence-transformers", "ONNX Runtime"
# shapes of ids -> what is due beside transformers
SHAPES = {(1, 13): Limit(">=", 1.2, aim=1.5), (8, 128): Limit(">=", 0.9, aim=1.1), (32, 128): Limit(">=", 0.9, aim=1.1)}
# texts -> what is due and what is aimed at beside sentence-transformers with AVX2, with AVX-512, beside ONNX Runtime
TEXTS = {
    1: ((1.4, 1.7), (1.5, 1.8), (0.45, 0.6)),
    16: ((1.3, 1.6), (2.2, 2.5), (0.8, 1)),
    600: ((1.05, 1.3), (1.6, 2), (0.8, 1)),
}
DOCUMENTS = 100


def encoder(settings: Settings) -> Iterable[Row]:
    """Whole models on two threads, ids in, last hidden state out."""
    folders = {"MiniLM": real_model(), "bert-base": once(settings.models / "bert-base", "write_bert_base")}
    for name, folder in folders.items():
        shapes = list(SHAPES)[: 2 if settings.quick and name == "bert-base" else 3]
        cases = {f"{name} {shape[0]} x {shape[1]}": (shape, SHAPES[shape], None) for shape in shapes}
        yield from beside(settings, "ids", cases, folder, onnx(settings.models, folder, name.lower()), TORCH)
    limits = Limit("<=", 2.4, aim=1.8), Limit("<=", 115, "MiB", 95), None
    yield from beginning(settings, "import, load, one call of MiniLM", COLD_ENCODER, limits)


def sentences(settings: Settings) -> Iterable[Row]:
    """MiniLM on two threads, texts of 5 to 40 words in, vectors out; a reranker, a query and documents of 60 words."""
    models, minilm, kernel = settings.models, real_model(), child("children.kernel")
    cases = {}

    def floor(due: float, aim: float | None = None) -> Limit | None:
        """Beside ONNX Runtime, which cannot be held to fewer instructions than the processor has."""
        return None if beyond(kernel) else Limit(">=", due, aim=aim)

    for count, (avx2, avx512, runtime) in TEXTS.items():
        due, aim = avx512 if kernel in AVX512 else avx2
        limits = Limit(">=", due, aim=aim), floor(*runtime)
        cases[f"encode {count} text{'s' if count > 1 else ''}"] = ((count,), *limits)
    for repeated in (30, 90):
        cases[f"encode 600 texts, {repeated} % repeated"] = (600, repeated), None, None
    yield from beside(settings, "texts", cases, minilm, onnx(models, minilm, "minilm"), [PEER])
    folder = once(models / "minilm-reranker", "write_reranker", minilm)
    scores = {f"score {DOCUMENTS} documents": ((DOCUMENTS,), Limit(">=", 1.2), floor(0.7))}
    yield from beside(settings, "pairs", scores, folder, onnx(models, folder, "minilm-reranker", "scores"), [PEER])
    limits = Limit("<=", 2.0), Limit("<=", 90, "MiB"), Limit(">=", 25)
    yield from beginning(settings, "import, load, encode one sentence", COLD_SENTENCES, limits)


def beside(
    settings: Settings, on: str, cases: Mapping[str, tuple[Any, ...]], folder: Path, file: Path | str,
    peers: Iterable[str],
) -> Iterator[Row]:  # fmt: skip
    """For each case (what is asked, the limits) our row beside the fastest peer, and beside ONNX Runtime."""
    names = (OURS, *peers, ONNX)
    with contenders(f"contenders.on_{on}", names, folder, file) as made, tempfile.TemporaryDirectory() as scratch:
        for what, (case, limit, onnx_limit) in cases.items():
            apart, saved = {}, str(Path(scratch, "result.npy"))
            for who in made.keys() - {OURS}:
                made[who].ask(*case, save=saved)
                apart[who] = made[OURS].ask(*case, compare=saved)
            times = Figures(in_turn({who: partial(each.ask, *case) for who, each in made.items()}, settings.rounds(15)))
            for peer, bound in ((times.fastest(*peers), limit), (ONNX, onnx_limit)):
                note = f"results differ by {apart[peer]:.0e}" if peer in apart else ""
                yield times.row(what, peer, faster=True, limit=bound, note=note)


# -- whole processes ---------------------------------------------------------------------------------------------

IDS = [101, 2057, 2973, 2682, 1996, 8044, 102]  # "We lived above the clouds"
COLD_ENCODER = {
    NUMPY: "import numpy",
    OURS: "import minibert; minibert.load_encoder({folder!r})([{ids}])",
    "transformers": """
import torch
from transformers import AutoModel
model = AutoModel.from_pretrained({folder!r}).eval()
with torch.inference_mode():
    model(torch.tensor([{ids}]))
""",
    ONNX: """
import numpy, onnxruntime
ids = numpy.array([{ids}])
onnxruntime.InferenceSession({file!r}).run(None, dict(input_ids=ids, attention_mask=numpy.ones_like(ids)))
""",
}
COLD_SENTENCES = {
    NUMPY: "import numpy",
    OURS: "import minibert; minibert.load_encoder({folder!r}).encode({text!r})",
    PEER: """
from sentence_transformers import SentenceTransformer
SentenceTransformer({folder!r}, device="cpu").encode({text!r})
""",
    ONNX: """
import numpy, onnxruntime
from tokenizers import Tokenizer
one = Tokenizer.from_file({folder!r} + "/tokenizer.json").encode({text!r})
inputs = dict(input_ids=numpy.array([one.ids]), attention_mask=numpy.array([one.attention_mask]))
onnxruntime.InferenceSession({file!r}).run(None, inputs)[0].mean(1)
""",
}


def beginning(
    settings: Settings, what: str, codes: Mapping[str, str], limits: tuple[Limit, Limit, Limit | None]
) -> Iterator[Row]:
    """Time and memory of whole processes. limits: beside numpy, of our memory, beside the peer."""
    folder = str(real_model())
    given = {"folder": folder, "file": str(onnx(settings.models, real_model(), "minilm")), "text": TEXT, "ids": IDS}
    commands = {who: python(code, **given) for who, code in codes.items() if there(who)}
    seconds, peaks = processes(commands, settings.rounds(15))
    for who, limit in zip(list(codes)[:1] + list(codes)[2:], (limits[0], limits[2], None), strict=True):
        yield seconds.row(what, who, faster=who != NUMPY, limit=limit)
        yield peaks.row("its peak memory", who, unit="B", limit=limits[1] if who == NUMPY else None)


# -- cores -------------------------------------------------------------------------------------------------------

PRODUCTS, ONE = "products alone", "OPENBLAS_NUM_THREADS=1"
CALLERS, EACH = 8, 9  # callers at once, and the texts that each has, one after another
MANY = 600  # texts of a large call


def cores(settings: Settings) -> Iterable[Row]:
    """What two cores give over one, many callers at once, a machine with other work: MiniLM, texts of 5 to 40 words."""
    with (
        contenders("turns.on_callers", (OURS, PRODUCTS, PEER), real_model()) as made,
        Contender("turns.on_callers", OURS, real_model(), OPENBLAS_NUM_THREADS="1") as one,
    ):
        made[ONE] = one

        def turns(rounds: int, cases: Mapping[str, tuple[str, tuple[int, ...]]]) -> Figures:
            """Seconds of each case: who, and what is asked."""
            asked = {name: partial(made[who].ask, *case) for name, (who, case) in cases.items() if who in made}
            return Figures(in_turn(asked, settings.rounds(rounds)))

        yield from [*_two(turns), *_callers(turns), *_busy(turns)]


Turns = Callable[[int, Mapping[str, tuple[str, tuple[int, ...]]]], Figures]


def _two(turns: Turns) -> list[Row]:
    cases = {f"{who}, {threads}": (who, (MANY, 1, threads)) for who in (OURS, PRODUCTS) for threads in (1, 2)}
    times = turns(7, cases)
    ours, products = (f"{who}, {{}}".format for who in (OURS, PRODUCTS))
    return [
        times.row(f"encode {MANY} texts, two threads", ours(1), ours(2), "one thread", faster=True,
                  limit=Limit(">=", 1.8)),
        times.row("its matrix products alone, two threads", products(1), products(2), "one thread", faster=True,
                  note="what the machine gives: two cores may share a cache, a clock or one core's units"),
        times.row("its products alone", ours(2), products(2), "the whole call", limit=Limit(">=", 0.7, aim=0.8),
                  note="the same products and nothing else, on two threads too"),
    ]  # fmt: skip


def _callers(turns: Turns) -> list[Row]:
    """Each caller encodes its texts one by one; seconds for each text."""
    many, one = (EACH, CALLERS, 0), (EACH, 1, 0)
    times = turns(9, {OURS: (OURS, many), "one caller": (OURS, one), PEER: (PEER, many)})
    what = f"{CALLERS} callers at once, a text each"
    limits = {"one caller": Limit(">=", 0.9), PEER: Limit(">=", 1.5)}
    return [times.row(what, other, faster=True, limit=limit) for other, limit in limits.items()]


def _busy(turns: Turns) -> list[Row]:
    with two_busy():
        times = turns(9, {who: (who, (EACH, 1, 0)) for who in (OURS, ONE, PEER)})
    what = "encode 1 text beside two busy processes"
    return [times.row(what, ONE, limit=Limit("<=", 2)), times.row(what, PEER, faster=True)]


@contextmanager
def two_busy() -> Iterator[None]:
    """Two other processes take all that they get."""
    command = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        for _ in range(2):
            each = stack.enter_context(subprocess.Popen(command, env=environment(), preexec_fn=first_cores))
            stack.callback(each.kill)
        yield


# -- what a contender of cores does: case [texts, callers, threads] ------------------------------------------------

Call = Callable[[], Any]
Prepare = Callable[[Any, int], Call]


def on_callers(who: str, folder: str) -> Callable[[int, int, int], tuple[Call, int]]:
    """Of many texts one call, of few a call for each, by some callers at once."""
    prepare = {OURS: ours, PRODUCTS: products, PEER: peer}[who](folder)

    def case(count: int, callers: int, threads: int) -> tuple[Call, int]:
        texts = short_texts(folder, count, 5, 40)
        if count > EACH:
            return prepare(texts, threads), 1

        def one_by_one(_: int = 0) -> None:
            for text in texts:
                prepare(text, threads)()

        return one_by_one if callers == 1 else lambda: ended(at_once(one_by_one, callers)), count * callers

    return case


def ours(folder: str) -> Prepare:
    import minibert

    encoder = minibert.load_encoder(folder)
    return lambda texts, threads: lambda: encoder.encode(texts, threads=threads or None)


def peer(folder: str) -> Prepare:
    from .contenders import torch_encode

    encode = torch_encode(folder)
    return lambda texts, threads: lambda: encode(texts)


def products(folder: str) -> Prepare:
    """The matrix products of a call and nothing else, shared by as many threads."""
    import numpy as np

    from minibert.threads.computing import compute

    encode, matmul = ours(folder), np.matmul

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
