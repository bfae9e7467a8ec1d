"""The two models whose numbers notebooks print, made so that the printed numbers are true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import write_hollow

from minibert.verify import printed
from minibert.verify.printed import half_units

DIM = 768
# the tensors of both input layers at their real sizes, by the names of the files on the Hub
TENSORS: dict[str, dict[str, tuple[int, ...]]] = {
    "bert-base-uncased": {
        "bert.embeddings.LayerNorm.beta": (DIM,),
        "bert.embeddings.LayerNorm.gamma": (DIM,),
        "bert.embeddings.position_embeddings.weight": (512, DIM),
        "bert.embeddings.token_type_embeddings.weight": (2, DIM),
        "bert.embeddings.word_embeddings.weight": (30522, DIM),
    },
    "gpt2": {"wpe.weight": (1024, DIM), "wte.weight": (50257, DIM)},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert-base-uncased": {"pad_token_id": 0, "layer_norm_eps": 1e-12},
    "gpt2": {},
}


def printed_of(model: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((printed.DATA / f"{model}.json").read_text(encoding="utf-8"))
    return values


def is_row(entry: dict[str, Any]) -> bool:
    """Whether the numbers are a table's own; what is computed from whole rows cannot be made up from six numbers."""
    return entry["key"].endswith("_embeddings") or entry["key"] in ("wte", "wpe")


def write_model(folder: Path, model: str) -> Path:
    """A file of the real size, with holes, in which the printed numbers stand where they belong."""
    values = printed_of(model)
    places = write_hollow(folder, values["sizes"] | CONFIGS[model], TENSORS[model])
    for entry in sorted(values["values"], key=lambda entry: -half_units(entry["printed"]).max()):  # most digits last
        if not is_row(entry):
            continue
        (name,) = [name for name in places if name.endswith(f"{entry['key']}.weight")]
        table = np.memmap(folder / "model.safetensors", np.float32, "r+", places[name], TENSORS[model][name])
        for token, row in zip(entry["tokens"], entry["printed"], strict=True):
            by_place = "position" in name or name == "wpe.weight"
            place = token if by_place else 0 if "token_type" in name else entry["input_ids"][token]
            table[place, entry["columns"]] = np.array(row, np.float32)
        table.flush()
    return folder
