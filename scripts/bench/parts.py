"""Where the time of short texts goes: parts."""

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
from .models import real_model, short_texts

CALLS = {1: 200, 16: 40, 600: 3}  # texts -> how often they are encoded
REST = "Python between them, and the rest"
# what is timed is replaced in this module before the blocks are bound to it
FUNCTIONS = {"linear": "matrix products", "attention_scores": "scores", "softmax": "softmax",
             "activated": "the activation"}  # fmt: skip


def parts(settings: Settings) -> Iterator[Row]:
    """Texts of 5 to 40 words on one thread: the parts of the fastest of some calls, with a clock in each."""
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
        for count, calls in CALLS.items():
            texts, best = short_texts(real_model(), count, 5, 40), dict[str, float](whole=float("inf"))
            for _ in range(-(-calls // 10) if settings.quick else calls):
                spent.clear()
                began = perf_counter()
                encoder.encode(texts)
                whole = perf_counter() - began
                if whole < best["whole"]:
                    best = {"whole": whole, **spent}
            whole = best.pop("whole")
            best[REST] = whole - sum(best.values())
            for part, seconds in sorted(best.items(), key=lambda each: -each[1]):
                many = "1 text" if count == 1 else f"{count} texts"
                yield Row(
                    f"{many}: {part}", f"{1e3 * seconds:.2f} ms", f"{1e3 * whole:.2f} ms in all",
                    seconds / whole, reading="of the time",
                )  # fmt: skip
