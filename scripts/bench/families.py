"""The section families: whole models of some model types in MiniLM's size, beside transformers.

EmbeddingGemma 2 has its own size.

Nothing heavy is imported here (see children.process).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .children import contenders
from .measure import OURS, Figures, Row, Settings, in_turn
from .models import FAMILIES, once
from .turns import SHAPES, TORCH


def families(settings: Settings) -> Iterator[Row]:
    """Whole models on two threads, ids in, last hidden state out."""
    for model_type in FAMILIES:
        folder = once(settings.models / model_type, "write_family", model_type)
        peers = TORCH[1:] if model_type == "deberta-v2" else TORCH
        with contenders("contenders.on_ids", (OURS, *peers), folder, "") as made, tempfile.TemporaryDirectory() as kept:
            saved = str(Path(kept, "result.npy"))
            for shape in list(SHAPES)[:2]:
                made[peers[0]].ask(*shape, save=saved)
                apart = made[OURS].ask(*shape, compare=saved)
                asked = {who: partial(each.ask, *shape) for who, each in made.items()}
                times = Figures(in_turn(asked, settings.rounds(15)))
                what, note = f"{model_type} {shape[0]} x {shape[1]}", f"results differ by {apart:.0e}"
                yield times.row(what, times.fastest(*peers), faster=True, limit=SHAPES[shape], note=note)
