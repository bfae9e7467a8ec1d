"""Writes folders of small static models: any tensors, with modules.json or a config.json or neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from checkpoints import VOCAB, Stored, numbers, pack, write_wordpiece

from minibert.equations.input_layer import Array

ROWS = numbers(VOCAB, 8)
TYPE = "sentence_transformers.models."


def static_folder(
    folder: Path,
    inside: str | None = "",
    config: dict[str, Any] | None = None,
    longest: int | None = None,
    normalized: bool = False,
    **tensors: Array | Stored,
) -> Path:
    """Write one; `inside`: the path in modules.json, None: there is none. `longest`: tokenizer.json truncates there."""
    place = folder / (inside or "")
    place.mkdir(parents=True, exist_ok=True)
    named = {"embedding.weight" if name == "weight" else name: each for name, each in tensors.items()}
    (place / "model.safetensors").write_bytes(pack(named or {"embeddings": ROWS}))
    cut = longest and dict(max_length=longest, strategy="LongestFirst", stride=0, direction="Right")
    write_wordpiece(place, truncation=cut)
    if config is not None:
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if inside is not None:
        modules = [(inside, "StaticEmbedding"), *([("1_Normalize", "Normalize")] if normalized else [])]
        listed = [dict(idx=i, name=str(i), path=path, type=TYPE + kind) for i, (path, kind) in enumerate(modules)]
        (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    return folder
