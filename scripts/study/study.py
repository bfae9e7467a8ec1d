"""What the study files share: which model they look at, where pictures go, how printed numbers are compared.

A study file is a plain script and, through jupytext, a notebook:

    python scripts/study/000_bert_positions.py --model ./all-MiniLM-L6-v2
    sh scripts/study/build                        makes executed notebooks of all of them

Without --model the variable MINIBERT_MODEL names the model, else it is bert-base-uncased from the Hub. As a script a
file writes its pictures into build/study/, or where --output says; as a notebook it shows them.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import minibert
from minibert.equations.input_layer import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTEBOOK = "ipykernel" in sys.modules  # a kernel reads no command line of ours
PICTURES = Path(__file__).resolve().parents[2] / "build" / "study"
TINY = PICTURES.parents[1] / "tests" / "reference"
# LayerNorm's result may differ from the reference's by this much, beside half of the last printed digit
NORM_TOLERANCE = 2e-6

# the sizes of gpt2 and t5-small, and how wide each table is scattered before training
UNTRAINED: dict[str, tuple[dict[str, Any], dict[str, tuple[tuple[int, int], float]]]] = {
    "gpt2": (
        {"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_positions": 1024, "n_layer": 12, "n_head": 12},
        {"wte.weight": ((50257, 768), 0.02), "wpe.weight": ((1024, 768), 0.02)},
    ),
    "t5": (
        {
            "model_type": "t5",
            "vocab_size": 32128,
            "d_model": 512,
            "d_kv": 64,
            "num_heads": 8,
            "num_layers": 6,
            "n_positions": 512,
            "relative_attention_num_buckets": 32,
            "task_specific_params": {"translation_en_to_de": {"max_length": 300}},
        },
        {
            "shared.weight": ((32128, 512), 1.0),
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": ((32, 8), 512**-0.5),
        },
    ),
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="a study file of minibert; read it beside what it prints")
    parser.add_argument("--model", default=os.environ.get("MINIBERT_MODEL"), help="a folder, or a name on the Hub")
    parser.add_argument("--output", type=Path, default=PICTURES, help="folder for the pictures (now: %(default)s)")
    return parser.parse_args([] if NOTEBOOK else None)


arguments = _arguments()


def load(model_type: str) -> tuple[minibert.EmbeddingLayer, bool]:
    """Load the named model's input layer, and say whether it is a trained one.

    For "gpt2" and "t5" a model of another family, or none, gives way to an untrained one of gpt2's or t5-small's
    sizes, which is made here and needs no network. For "bert" it is an error.
    """
    if arguments.model or model_type == "bert":
        layer = minibert.load(arguments.model or "bert-base-uncased")
        if layer.family.model_type == model_type:
            print(f"model: {arguments.model or 'bert-base-uncased'}\n")
            return layer, True
        found = layer.family.model_type
        layer.close()
        if model_type == "bert":
            raise SystemExit(f"this file is about bert, and {arguments.model} is {found}; name a bert with --model")
    name = {"gpt2": "gpt2", "t5": "t5-small"}[model_type]
    print(f"model: an UNTRAINED one of {name}'s sizes, random numbers made on the spot; name a real one with --model\n")
    return untrained(model_type), False


def untrained(model_type: str) -> minibert.EmbeddingLayer:
    """Make a model as it is before its first step of training: every table is normal noise of its own width."""
    from safetensors.numpy import save_file

    config, tables = UNTRAINED[model_type]
    generator = np.random.default_rng(0)
    folder = tempfile.TemporaryDirectory(prefix="minibert-")
    atexit.register(folder.cleanup)  # the layer reads from it until then
    Path(folder.name, "config.json").write_text(json.dumps(config), encoding="utf-8")
    drawn = {
        name: generator.standard_normal(shape, np.float32) * np.float32(width)
        for name, (shape, width) in tables.items()
    }
    save_file(drawn, Path(folder.name, "model.safetensors"))
    return minibert.load(Path(folder.name))


def tiny(case: str, row: minibert.Family | None = None) -> minibert.EmbeddingLayer:
    """Load one of the tests' tiny checkpoints, with the row of the families table, or with another one."""
    folder = TINY / case
    side = json.loads((folder / "case.json").read_text(encoding="utf-8"))["side"]
    return minibert.load(folder, side=side or "encoder", family=row)


def again(case: str, row: minibert.Family) -> minibert.EmbeddingLayer:
    """Load a tiny checkpoint, or for "" the named BERT, with another row."""
    if case:
        return tiny(case, row)
    return minibert.load(arguments.model or "bert-base-uncased", local_files_only=True, family=row)


def is_bert_base(layer: minibert.EmbeddingLayer) -> bool:
    """Whether this is the model whose numbers the study files quote, by its name and size."""
    parts = (arguments.model or "bert-base-uncased").replace("--", "/").replace(os.sep, "/").split("/")
    return "bert-base-uncased" in parts and layer.word_embeddings.weight.shape == (30522, 768)


def assert_printed(rows: Array, printed: str) -> None:
    """Hold rows to a print of them that is shortened as torch shortens: the first and last three of a long axis."""
    for axis, size in enumerate(rows.shape):
        if size > 6:
            rows = np.take(rows, [0, 1, 2, -3, -2, -1], axis)
    words = re.findall(r"-?\d+\.\d+(?:e[+-]\d+)?", printed)
    assert len(words) == rows.size, f"{rows.size} numbers are shown of these rows, but {len(words)} are printed"
    for found, word in zip(rows.ravel().tolist(), words, strict=True):
        digits, _, power = word.partition("e")
        half = 0.5 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
        assert abs(found - float(word)) <= half + NORM_TOLERANCE, f"{found} is printed as {word}"


def show(drawn: Axes | Sequence[Axes], name: str) -> None:
    """Show a picture in a notebook; as a script, write it as a file."""
    import matplotlib.pyplot as plt

    from minibert.show.plot import save

    figure: Any = (drawn[0] if isinstance(drawn, Sequence) else drawn).figure
    if NOTEBOOK:
        plt.show()
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / f"{Path(sys.argv[0]).stem}-{name}.png"
    save(figure, path)
    plt.close(figure)
    print(f"picture: {path}")


if not NOTEBOOK:
    import matplotlib as mpl

    mpl.use("agg")  # a file needs no window
