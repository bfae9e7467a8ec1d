"""The sections of the benchmark: one table of contenders, cases and limits. Nothing heavy is imported here: see
children.process.

A section has parts: `Calls` of processes that hold a model ready, `Starts` of whole processes, or a `Function` of
another file.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from .children import CORES, Contender, processes, there, two_busy
from .measure import Limit, Row, Settings, absent, compare, in_turn, least, markdown, most, wide
from .models import MINILM, MissingError, folder_of, once, onnx_of, real_model
from .names import ALONE, BEFORE, INSIDE, NUMPY, ONNX, OURS, PEER, PRODUCTS, ROWS, STATIC, TORCH, WAYS

Limits = Mapping[str, Limit | None]


@dataclass(frozen=True)
class Calls:
    """Cases of contenders that have loaded a model, each in a process with `cores` cores and as many threads.

    on      the function of contenders.py that computes a case
    cases   what is measured -> the case, and the peers beside which it is measured, each with its limit
    busy    two other processes use all the time they get meanwhile
    """

    on: str
    model: str
    cases: Mapping[str, tuple[tuple[int, ...], Limits]]
    cores: int = CORES
    busy: bool = False
    rounds: int = 15

    def rows(self, settings: Settings) -> Iterator[Row]:
        peers = dict.fromkeys(peer for _, limits in self.cases.values() for peer in limits)
        folder = folder_of(settings.models, self.model)
        file = onnx_of(settings.models, self.model) if ONNX in peers else ""
        with ExitStack() as stack:

            def held(who: str, **options: Any) -> Contender:
                made = Contender(f"contenders.{self.on}", who, folder, file, cores=self.cores, **options)
                return stack.enter_context(made)

            made = {who: held(who) for who in (OURS, *(way for peer in peers for way in ways(peer))) if there(who)}
            if settings.before:
                made[BEFORE] = held(BEFORE, beside=settings.before)
            if self.busy:
                stack.enter_context(two_busy())
            for what, (case, limits) in self.cases.items():
                also: Limits = {BEFORE: None} if settings.before else {}
                yield from self._rows(what, case, {**limits, **also}, made, settings)

    def _rows(
        self, what: str, case: tuple[int, ...], limits: Limits, made: Mapping[str, Contender], settings: Settings
    ) -> Iterator[Row]:
        asked = [OURS, *(way for peer in limits for way in ways(peer) if way in made)]
        apart = differences(case, {who: made[who] for who in asked})
        times = in_turn({who: partial(made[who].ask, *case) for who in asked}, settings.rounds(self.rounds))
        for peer, of_kernels in limits.items():
            limit = of_kernels and of_kernels.on(settings.kernel)
            if not there(peer):
                yield absent(what, peer, limit)
                continue
            way = min(ways(peer), key=lambda name: statistics.median(times[name]))
            note = f"results differ by {apart[way]:.0e}" if way in apart else ""
            yield compare(what, times[OURS], times[way], way, limit, note=note)


def ways(peer: str) -> tuple[str, ...]:
    return WAYS.get(peer, (peer,))


def differences(case: tuple[int, ...], made: Mapping[str, Contender]) -> dict[str, float]:
    """Return how far each peer's result is from minibert's, if both compute the same. All are warm afterwards."""
    with tempfile.TemporaryDirectory() as scratch:
        saved = str(Path(scratch, "result.npy"))
        made[OURS].ask(*case, save=saved)
        found = {who: each.ask(*case, compare=saved) for who, each in made.items() if who != OURS}
    return {who: far for who, far in found.items() if far is not None and who not in (ROWS, MINILM, PRODUCTS)}


@dataclass(frozen=True)
class Starts:
    """Whole processes from start to end, with their peak memory: Python code of each contender.

    In the code {model} and {static} are folders, {file} is the ONNX file, {few} and {many} are files of texts. others:
    the peers, with the limit of the time. memory: the limit of minibert's peak.
    """

    what: str
    codes: Mapping[str, str]
    others: Limits
    memory: Limit | None = None
    rounds: int = 5

    def rows(self, settings: Settings) -> Iterator[Row]:
        given: dict[str, Any] = {"model": real_model(), "text": "We lived above the clouds"}
        needs = {
            "static": partial(folder_of, settings.models, "static"), "file": partial(onnx_of, settings.models, MINILM),
            **{name: partial(written_texts, settings.models, *of) for name, of in TEXTS.items()},
        }  # fmt: skip
        codes = {who: code for who, code in self.codes.items() if there(who)}
        given |= {name: make() for name, make in needs.items() if any(f"{{{name}}}" in each for each in codes.values())}
        codes = {who: code.format_map(given) for who, code in codes.items()}
        seconds, peaks = processes(codes, settings.rounds(self.rounds))
        for number, (who, limit) in enumerate(self.others.items()):
            if who not in codes:
                yield absent(self.what, who, limit)
                continue
            yield compare(self.what, seconds[OURS], seconds[who], who, limit)
            yield compare("its peak memory", peaks[OURS], peaks[who], who, None if number else self.memory, "B")


@dataclass(frozen=True)
class Function:
    """A function in another file of this package, which returns rows for Settings."""

    name: str

    def rows(self, settings: Settings) -> Iterator[Row]:
        file, _, function = self.name.partition(".")
        made: Callable[[Settings], Iterator[Row]] = getattr(import_module(f"bench.{file}"), function)
        yield from made(settings)


# file -> the number of texts, the fewest and the most words of a text
TEXTS = {"few": (600, 5, 40), "many": (20_000, 1, 4)}
ENCODE = "import minibert; minibert.load_encoder('{%s}').encode('{text}')"
BULK = """
import tempfile
from minibert.cli import main
with tempfile.TemporaryDirectory() as folder:
    main(["bulk", "{%s}", "-o", folder + "/vectors", "--model", "{model}"])
"""
IN_MEMORY = """
import json, minibert
texts = [json.loads(line)["text"] for line in open("{few}")]
minibert.load_encoder("{model}").encode(texts)
"""
DISTILL = """
import minibert, tempfile
with tempfile.TemporaryDirectory() as folder, minibert.load_encoder("{model}") as encoder:
    minibert.distill(encoder, folder + "/static")
"""
EMBED = {
    NUMPY: "import numpy",
    OURS: "import minibert; layer = minibert.load('{model}'); layer(**layer.tokenize('{text}'))",
    TORCH: """
import torch
from transformers import BertModel, BertTokenizerFast
tokenizer = BertTokenizerFast.from_pretrained("{model}")
embeddings = BertModel.from_pretrained("{model}", add_pooling_layer=False).eval().embeddings
with torch.inference_mode():
    batch = tokenizer("{text}", return_tensors="pt")
    embeddings(input_ids=batch["input_ids"], token_type_ids=batch["token_type_ids"])
""",
}
SENTENCE = {
    NUMPY: "import numpy",
    OURS: ENCODE % "model",
    PEER: """
from sentence_transformers import SentenceTransformer
SentenceTransformer("{model}", device="cpu").encode("{text}")
""",
    ONNX: """
import numpy, onnxruntime
from tokenizers import Tokenizer
one = Tokenizer.from_file("{model}/tokenizer.json").encode("{text}")
inputs = dict(input_ids=numpy.array([one.ids]), attention_mask=numpy.array([one.attention_mask]))
onnxruntime.InferenceSession("{file}").run(None, inputs)[0].mean(1)
""",
}
STATIC_SENTENCE = {
    OURS: ENCODE % "static",
    NUMPY: "import numpy",
    STATIC: "from model2vec import StaticModel; StaticModel.from_pretrained('{static}').encode('{text}')",
    MINILM: ENCODE % "model",
}
BLOCKS: Limits = {TORCH: least(0.9, aim=1.1), ONNX: None}
ONE: Limits = {TORCH: least(1.2, aim=1.5), ONNX: None}

SECTIONS: dict[str, tuple[Calls | Starts | Function, ...]] = {
    "cold": (
        Starts("import, load, embed one sentence by the input layer", EMBED, {NUMPY: most(1.6), TORCH: least(25)},
               most(60, "MiB")),
        Starts("import, load, encode one sentence", SENTENCE, {NUMPY: most(2.0), PEER: least(25), ONNX: None},
               most(95, "MiB")),
    ),
    "sentences": (
        Calls("texts", MINILM, {
            "encode 1 text": ((1,), {PEER: wide(1.75, other=1.4), ONNX: wide(0.58, other=0.45)}),
            "encode 16 texts": ((16,), {PEER: wide(2.4, other=1.3), ONNX: wide(1.08, other=0.8)}),
            "encode 600 texts": ((600,), {PEER: wide(1.85, other=1.05), ONNX: wide(0.9, other=0.8)}),
        }),
        Calls("pairs", "reranker", {"score 30 documents": ((30,), {PEER: least(1.2), ONNX: least(0.7)})}),
    ),
    "one-core": (
        Calls("texts", MINILM, {
            "encode 1 text": ((1,), {PEER: wide(2.4), ONNX: wide(0.95, aim=1.2)}),
            "encode 16 texts": ((16,), {PEER: wide(2.35), ONNX: wide(1.05, aim=1.2)}),
            "encode 200 texts": ((200,), {PEER: wide(1.9), ONNX: wide(0.9, aim=1.0)}),
            "encode 1 text of ten tokens": ((1, 1, 7), {PRODUCTS: Limit("<=", 0.5, wide=True)}),
        }, cores=1),
    ),
    "cores": (
        Calls("texts", MINILM, {
            "encode 200 texts, two cores": ((200,), {"minibert, threads=1": least(1.8)}),
            "encode 1 text": ((1,), {"minibert, threads=1": None, "minibert, same_bits=True": None}),
            "8 callers at once, a text each": ((1, 8), {ALONE: least(0.9), PEER: least(1.5)}),
        }),
        Calls("texts", MINILM, {
            "encode 1 text beside two busy processes": ((1,), {"minibert, threads=1": most(2), PEER: None}),
        }, busy=True),
    ),
    "layer": (
        Calls("layer", "bert-base", {
            "input layer, 1 x 7": ((1, 7), {WAYS[TORCH][1]: least(1.5, aim=2.5)}),
            "input layer, 8 x 128": ((8, 128), {WAYS[TORCH][1]: least(0.7, aim=1)}),
            "input layer, 64 x 512": ((64, 512), {WAYS[TORCH][1]: least(6), ROWS: least(0.4)}),
        }),
    ),
    "encoder": (
        Calls("ids", MINILM, {"MiniLM 1 x 13": ((1, 13), ONE), "MiniLM 1 x 128": ((1, 128), BLOCKS),
                              "MiniLM 8 x 128": ((8, 128), BLOCKS)}),
        Calls("ids", "embeddinggemma-2", {
            "EmbeddingGemma 2 on one core, 1 x 64": ((1, 64), {TORCH: None}),
            "EmbeddingGemma 2 on one core, 16 x 64": ((16, 64), {TORCH: None}),
        }, cores=1, rounds=5),
        Calls("ids", "bert-base", {"bert-base 1 x 13": ((1, 13), ONE), "bert-base 1 x 128": ((1, 128), BLOCKS)}),
    ),
    "serve": (
        Calls("served", MINILM, {
            "8 clients of `minibert serve`, a text each": ((8,), {INSIDE: least(0.9)}),
            "64 clients": ((64,), {INSIDE: None}),
        }),
    ),
    "traffic": (Function("traffic.traffic"),),
    "bulk": (
        Starts("`minibert bulk` of 600 texts, start included", {OURS: BULK % "few", INSIDE: IN_MEMORY},
               {INSIDE: least(0.8)}, most(500, "MiB")),
        Starts("`minibert bulk` of 20,000 short texts", {OURS: BULK % "many", "600 texts": BULK % "few"},
               {"600 texts": None}, most(500, "MiB"), rounds=1),
    ),
    "memory": (Function("memory.forward"), Function("memory.workers")),
    "narrow": (
        Calls("ids", "narrow", {
            "bfloat16 weights, converted, 1 x 13": ((1, 13), {"minibert, low_memory=True": None}),
            "bfloat16 weights, converted, 8 x 32": ((8, 32), {"minibert, low_memory=True": None}),
        }, rounds=5),
        Function("memory.narrow"),
    ),
    "static": (
        Calls("texts", "static", {
            "encode 20,000 texts": ((20_000,), {STATIC: least(1), MINILM: None}),
            "encode 1 text": ((1,), {STATIC: least(1), MINILM: None}),
        }),
        Starts("import, load, encode one sentence", STATIC_SENTENCE, {NUMPY: None, STATIC: None, MINILM: None}),
        Starts("distill MiniLM", {OURS: DISTILL, NUMPY: "import numpy"}, {NUMPY: most(30_000, "ms")},
               most(382, "MiB"), rounds=1),
        Function("memory.disk"),
    ),
    "search": (Function("search.search"),),
}  # fmt: skip


def table(section: str, models: str, kernel: str, quick: str, before: str) -> str:
    """Return the table of a section. Run it in a separate process."""
    settings = Settings(Path(models), kernel, bool(quick), Path(before) if before else None)
    rows: list[Row] = []
    for part in SECTIONS[section]:
        try:
            rows += part.rows(settings)
        except MissingError as error:
            rows.append(absent(section, str(error)))
    return markdown(rows)


def written_texts(models: Path, count: int, fewest: int, longest: int) -> Path:
    """Return a file of seeded texts as JSON lines."""
    return once(models / f"texts-{count}.jsonl", "write_texts", count, fewest, longest)
