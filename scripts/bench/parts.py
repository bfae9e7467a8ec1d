"""Where the time of one short text goes: parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import perf_counter
from typing import Any
from unittest import mock

import minibert
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.run import blocks

from .measure import Row, Settings
from .models import real_model

LENGTHS = (8, 16, 32)  # tokens
REST = "Python between them, and the rest"
# what is timed is replaced in this module before the blocks are bound to it
FUNCTIONS = {"linear": "matrix products", "attention_scores": "attention", "softmax": "attention",
             "activated": "the activation"}  # fmt: skip


def parts(settings: Settings) -> Iterator[Row]:
    """One text of each length on one thread of ours: the parts of the fastest of many calls, with a clock in each."""
    spent: defaultdict[str, float] = defaultdict(float)

    def clocked(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **options: Any) -> Any:
            began = perf_counter()
            found = work(*given, **options)
            spent[part] += perf_counter() - began
            return found

        return timed

    with ExitStack() as stack:

        def replace(at: Any, name: str, part: str) -> None:
            stack.enter_context(mock.patch.object(at, name, clocked(part, getattr(at, name))))

        for name, part in FUNCTIONS.items():
            replace(blocks, name, part)
        replace(EmbeddingLayer, "rows", "the input layer")
        encoder = minibert.load_encoder(real_model(), threads=1)
        for kind in {type(module) for module in encoder.modules.values() if hasattr(module, "in_place")}:
            replace(kind, "in_place", "norms")
        replace(type(encoder.sentence_tokenizer), "encode", "the tokenizer")
        encoder = minibert.load_encoder(real_model(), threads=1)  # once more: bound to the norms with a clock
        for tokens in LENGTHS:
            text, best = " ".join(["the"] * (tokens - 2)), dict[str, float](whole=float("inf"))
            for _ in range(10 if settings.quick else 200):
                spent.clear()
                began = perf_counter()
                encoder.encode(text)
                whole = perf_counter() - began
                if whole < best["whole"]:
                    best = {"whole": whole, **spent}
            whole = best.pop("whole")
            best[REST] = whole - sum(best.values())
            for part, seconds in sorted(best.items(), key=lambda each: -each[1]):
                yield Row(
                    f"{tokens} tokens: {part}", f"{1e6 * seconds:.0f} µs", f"{1e6 * whole:.0f} µs for the text",
                    seconds / whole, reading="of the time",
                )  # fmt: skip
