"""Write the values that ship in the package for `minibert verify`: the reference's, for all-MiniLM-L6-v2.

`make.py` calls it. One file, minibert/verify/data/all-MiniLM-L6-v2.safetensors:

    "<kind>|inputs|<name>", "<kind>|<key>"    as in a trace: each text's ids, and every intermediate of the input layer
    "<kind>|hidden_states.<i>"                of the texts in `THROUGH_BLOCKS`, what leaves block i - 1

Its metadata has under "about", as JSON: the model, its texts, the versions that made the file, and for each parameter
the shape and the sha256 of its numbers (float32, little-endian, C order), by which a checkpoint is recognized. With
only a few texts, and the blocks of one of them, the file stays below 300 kB.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from check import SHIPPED, versions
from full_size import MODULES, check_minilm, hooked
from safetensors.numpy import save

from minibert.equations.input_layer import Array

FOLDER = Path(__file__).resolve().parents[2] / "minibert" / "verify" / "data"
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
# a plain text, two texts (types 0 and 1), and one with accents, word pieces and an unknown character
TEXTS = (("We lived above the clouds",), ("I am Sinan", "She is Zoe"), ("naïve café, 東京 🙂",))
THROUGH_BLOCKS = ("text 1",)


def trace(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, Array]:
    """Compute the input layer's intermediates in order, then `hidden_states.1` and so on."""
    with hooked(model.embeddings) as found:
        states = model(**inputs, output_hidden_states=True).hidden_states
    if not torch.equal(states[0], found["LayerNorm"]):
        raise SystemExit("what enters the first block is not what the hooks saw last")
    kept = {f"embeddings.{key}" if key in MODULES else key: value for key, value in found.items()}
    kept |= {f"hidden_states.{i}": state for i, state in enumerate(states) if i}
    return {key: value.clone().numpy() for key, value in kept.items()}


def parameters(model: torch.nn.Module) -> dict[str, Any]:
    """Map each parameter's path to [shape, sha256]; without the pooler, which follows the last hidden state."""
    arrays = {path: value.detach().numpy().astype("<f4") for path, value in model.named_parameters()}
    hashes = {path: [list(x.shape), hashlib.sha256(x.tobytes()).hexdigest()] for path, x in arrays.items()}
    return {path: found for path, found in hashes.items() if not path.startswith("pooler.")}


def write_shipped(target: Path, folder: Path) -> None:
    """Write the file into `target`, from the checkpoint in `folder`."""
    check_minilm(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    arrays: dict[str, Array] = {}
    for number, texts in enumerate(TEXTS, 1):
        kind, inputs = f"text {number}", tokenizer(*texts, return_tensors="pt")
        arrays |= {f"{kind}|inputs|{name}": value.numpy() for name, value in inputs.items()}
        for key, value in trace(model, dict(inputs)).items():
            if not key.startswith("hidden_states.") or kind in THROUGH_BLOCKS:
                arrays[f"{kind}|{key}"] = value
    about = {"model": MODEL, "texts": TEXTS, "versions": versions(), "parameters": parameters(model)}
    content = save({key: np.array(value, order="C") for key, value in arrays.items()}, {"about": json.dumps(about)})
    target.mkdir(parents=True, exist_ok=True)
    (target / SHIPPED).write_bytes(content)
