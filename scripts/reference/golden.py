"""One small file for ports to other languages: a checkpoint, inputs, and every intermediate of a tiny BERT.

`make.py` calls it. The file is the case `bert` in one piece: the input layer's tensors under their own names
(so it is a checkpoint as well), "golden_<kind>|inputs|<name>", "golden_<kind>|<key>", and config.json as text under
"config" in the metadata. The names of the batches are its own: `minibert verify` knows other batches as "plain" and so
on. tests/reference/GOLDEN.md says in which order to check, and what each failure means.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import load_file, save_file

NAME = "golden.safetensors"


def write_golden(folder: Path) -> None:
    """Write `NAME` beside the case it is made of."""
    config = json.loads((folder / "bert" / "config.json").read_text(encoding="utf-8"))
    config.pop("transformers_version", None)  # the manifest has it
    tensors = load_file(folder / "bert" / "model.safetensors")
    golden = {name: array for name, array in tensors.items() if name.startswith("embeddings.")}
    golden |= {f"golden_{name}": array for name, array in load_file(folder / "bert" / "trace.safetensors").items()}
    save_file(golden, folder / NAME, metadata={"config": json.dumps(config)})
