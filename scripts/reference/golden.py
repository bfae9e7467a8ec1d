"""Files for ports to other languages: a checkpoint, inputs, and every intermediate, in one file.

`make.py` writes golden.safetensors, BERT's input layer: the case `bert` in one piece, the input layer's tensors under
their own names (so it is a checkpoint as well), "golden_<kind>|inputs|<name>", "golden_<kind>|<key>", and config.json
as text under "config" in the metadata. The names of the batches are its own: `minibert verify` knows other batches as
"plain" and so on. tests/reference/GOLDEN.md says in which order to check, and what each failure means.

    python scripts/reference/golden.py ARCHIVE.zip

writes the archive of a release, whole models, one for each of `ROWS`; it needs no torch. The page
scripts/site/pages/golden_files.md describes the files, and is in the archive too. transformers made the checkpoints,
the inputs and every intermediate from `hidden_states.0` on: they are copied from tests/reference/encoder. minibert
computes the other intermediates of the input layer, which are equal to those of transformers to the bit
(tests/live/test_models_live.py runs both).
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save, save_file

import minibert
from minibert.equations.input_layer import Array
from minibert.verify.subjects import trace
from minibert.verify.traces import read_traces

ROOT = Path(__file__).resolve().parents[2]
ENCODERS = ROOT / "tests/reference/encoder"
PAGE = ROOT / "scripts/site/pages/golden_files.md"
NAME = "golden.safetensors"
WHEN = (2026, 1, 1, 0, 0, 0)  # the time of every file in the archive, so that the same files make the same bytes


class Row(NamedTuple):
    """A case of tests/reference/encoder, its class without a head, and the prefix of its tensors in the file."""

    case: str
    architecture: str
    prefix: str


ROWS = (
    Row("bert", "BertModel", "bert."), Row("gpt2", "GPT2Model", "transformer."),
    Row("roberta", "RobertaModel", "roberta."),
    Row("modernbert", "ModernBertModel", "model."), Row("qwen3", "Qwen3Model", "model."),
    Row("eurobert", "EuroBertModel", "model."), Row("gemma3_text", "Gemma3TextModel", "model."),
    Row("t5", "T5EncoderModel", ""),
)  # fmt: skip


def write_golden(folder: Path) -> None:
    """Write `NAME` beside the case it is made of."""
    config = json.loads((folder / "bert" / "config.json").read_text(encoding="utf-8"))
    config.pop("transformers_version", None)  # the manifest has it
    tensors = load_file(folder / "bert" / "model.safetensors")
    golden = {name: array for name, array in tensors.items() if name.startswith("embeddings.")}
    golden |= {f"golden_{name}": array for name, array in load_file(folder / "bert" / "trace.safetensors").items()}
    save_file(golden, folder / NAME, metadata={"config": json.dumps(config)})


def write_model(row: Row, folder: Path) -> None:
    """Write a row's model, config.json and model.safetensors, and beside it the model with all the rest in `NAME`."""
    source = ENCODERS / row.case
    config = json.loads((source / "config.json").read_text(encoding="utf-8")) | {"architectures": [row.architecture]}
    tensors = {
        name.removeprefix(row.prefix): array
        for name, array in load_file(source / "model.safetensors").items()
        if name.startswith(row.prefix) and not name.startswith("decoder.")
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(save(tensors))
    order: list[str] = []
    batches, recorded = read_traces(source / "trace.safetensors")
    with minibert.load_encoder(folder) as encoder:
        for kind, inputs in batches.items():
            tensors |= {f"golden_{kind}|inputs|{name}": array for name, array in inputs.items()}
            whole = joined(trace(encoder, inputs), recorded[kind])
            tensors |= {f"golden_{kind}|{key}": np.ascontiguousarray(array) for key, array in whole.items()}
            order = max(order, list(whole), key=len)  # rows of token types are in a batch that has them
    versions = json.loads((ENCODERS / "manifest.json").read_text(encoding="utf-8"))["versions"]
    about: dict[str, Any] = {"config": config, "order": order, "versions": versions}
    (folder / NAME).write_bytes(save(tensors, {"about": json.dumps(about)}))


def joined(ours: dict[str, Array], theirs: dict[str, Array]) -> dict[str, Array]:
    """Return transformers' intermediates in the order of `ours`, which adds those before `hidden_states.0`."""
    states = "hidden_states.0"
    missing = {key: x for key, x in ours.items() if key not in theirs}
    whole = {key: theirs[states] if np.array_equal(x, ours[states]) else x for key, x in missing.items()}
    return {key: theirs.get(key, whole.get(key)) for key in ours}


def write_archive(path: Path, scratch: Path) -> None:
    """Write every row's folder and the page into one archive."""
    for row in ROWS:
        write_model(row, scratch / row.case)
    (scratch / "README.md").write_bytes(PAGE.read_bytes())
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(file for file in scratch.rglob("*") if file.is_file()):
            about = zipfile.ZipInfo(f"{path.stem}/{file.relative_to(scratch).as_posix()}", WHEN)
            about.external_attr = 0o644 << 16
            archive.writestr(about, file.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        write_archive(Path(sys.argv[1]), Path(scratch))
