"""The study files share these functions: they load the model, write pictures and compare printed numbers.

A study file is a plain script and, through jupytext, a notebook:

    python scripts/study/000_bert_positions.py --model ./all-MiniLM-L6-v2
    sh scripts/study/build                        makes executed notebooks and HTML pages of all of them

Without --model the variable MINIBERT_BERT, MINIBERT_GPT2 or MINIBERT_T5 names the model, after the family that the file
is about; then MINIBERT_MODEL, if its family fits. Each is a folder or a name on the Hub. If none names a BERT, a
notebook loads the BERT that `build` has written beside it; a notebook of the lab always loads that BERT. A script
writes its pictures into build/study/ or the folder of --output; a notebook shows them.
"""

from __future__ import annotations

import argparse
import atexit
import base64
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import training

import minibert
from minibert.equations.blocks import Affine, Block, Linear
from minibert.equations.input_layer import Array
from minibert.verify.shipped import half_units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from minibert.families.parts.bound_blocks import BoundBlock

NOTEBOOK = "ipykernel" in sys.modules  # a notebook's kernel has no command line of ours
HERE = Path(__file__).resolve().parent
PICTURES = HERE.parents[1] / "build" / "study"
TINY = Path(minibert.__file__).parents[1] / "tests" / "reference"
GPT2 = HERE / "gpt2-words"  # the model that 007_training.py trained
BERT = next((file.parent for file in HERE.glob("bert/*/config.json")), None)  # from `build`, beside a notebook
VARIABLES = {"bert": "MINIBERT_BERT", "gpt2": "MINIBERT_GPT2", "t5": "MINIBERT_T5"}
if BERT and (HERE / "lab.py").is_file():  # the lab's answers are for these models
    for name in (*VARIABLES.values(), "MINIBERT_MODEL"):
        os.environ.pop(name, None)
# a model is recognised by the sha256 of its position table: a folder may have any name, and more training moves the
# table
POSITIONS = {
    "bert-base-uncased": "94bcadc1afb3b760a8829ddf2b3f37579c8bfbb8b671345fc9a33f506901db69",
    "all-MiniLM-L6-v2": "4c347d866c9012e7160b42a7e36d9138935e0669cc62932df70cdc7d6401ea01",
}
# and by all-MiniLM-L6-v2's blocks: training may leave the tables unchanged, and a folder may have more or fewer blocks
BLOCKS = "b14f8aed0626e32fbe92e9b52253bd24f7264e86b2235e39bd3ba0a411d95a1b"
# LayerNorm's result may differ from the reference's by this much, plus half of the last printed digit
NORM_TOLERANCE = 2e-6

# an untrained T5: the sizes of t5-small, and the standard deviation of each table before training
T5 = {
    "model_type": "t5", "vocab_size": 32128, "d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 6,
    "n_positions": 512, "relative_attention_num_buckets": 32,
    "task_specific_params": {"translation_en_to_de": {"max_length": 300}},
}  # fmt: skip
T5_TABLES = {
    "shared.weight": ((32128, 512), 1.0),
    "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": ((32, 8), 512**-0.5),
}


WORDS = "gpt2-words, a small GPT-2 trained on words"

_parser = argparse.ArgumentParser(description="a study file of minibert; read it beside what it prints")
_parser.add_argument("--model", help="a folder, or a name on the Hub")
_parser.add_argument("--output", type=Path, default=PICTURES, help="folder for the pictures (now: %(default)s)")
_parser.add_argument("--full", action="store_true", help="007_training: all steps, not the first; some minutes")
arguments = _parser.parse_args([] if NOTEBOOK else None)


class Model(NamedTuple):
    """An input layer, the folder or Hub name it was loaded from, and whether it has been trained."""

    layer: minibert.EmbeddingLayer
    source: str
    trained: bool

    @property
    def name(self) -> str:
        """The model's name in prints and pictures: on the Hub, or the folder's name."""
        if not self.trained:
            return f"an UNTRAINED {self.source}, random numbers"
        if cached := re.search(r"models--([^/\\]+)[/\\]snapshots", self.source):
            return cached[1].replace("--", "/")
        if Path(self.source) == GPT2:
            return WORDS
        if not Path(self.source).is_dir():
            return self.source
        *_, parent, folder = Path(self.source).absolute().parts
        return f"{parent}/{folder}" if folder == "model" else folder

    @property
    def is_bert_base(self) -> bool:
        """Check whether this is bert-base-uncased, whose numbers the study files quote."""
        return self._is("bert-base-uncased")

    @property
    def is_minilm(self) -> bool:
        """Check whether this is all-MiniLM-L6-v2: some claims hold only for this model."""
        return self._is("all-MiniLM-L6-v2") and _blocks(self.source) in (BLOCKS, None)

    def _is(self, name: str) -> bool:
        positions = self.layer.position_embeddings.weight
        return hashlib.sha256(np.ascontiguousarray(positions)).hexdigest() == POSITIONS[name]


@lru_cache
def _blocks(source: str) -> str | None:
    """Compute the sha256 of the matrices and vectors of all blocks; None if the source is no folder with weights."""
    file = Path(source) / "model.safetensors"
    if not file.is_file():
        return None
    from safetensors.numpy import load_file

    tensors, found = load_file(file), hashlib.sha256()
    for name in sorted(name for name in tensors if "encoder.layer." in name):
        found.update(np.ascontiguousarray(tensors[name]))
    return found.hexdigest()


def load(model_type: str) -> Model:
    """Load the input layer of the model that is named for this family, and print its name.

    If none is named, "bert" is the model that `build` has written beside a notebook, else bert-base-uncased from the
    Hub, "gpt2" is the small GPT-2 beside this file, and "t5" an untrained T5 of the size of t5-small.
    """
    variable, general = VARIABLES[model_type], "MINIBERT_MODEL"
    named = {"--model": arguments.model, variable: os.environ.get(variable), general: os.environ.get(general)}
    for where, source in named.items():
        if not source:
            continue
        layer = minibert.load(source)
        found = layer.family.model_type
        if found == model_type:
            return _told(Model(layer, source, trained=True))
        layer.close()
        if where != general or model_type == "bert":
            raise SystemExit(
                f"this file is about {model_type}, but {where} names {source}, which is {found}; "
                f"name a {model_type} with --model or {variable}"
            )
    if model_type == "bert":
        source = str(BERT or "bert-base-uncased")
        return _told(Model(minibert.load(source), source, trained=True))
    if model_type == "gpt2":
        return _told(Model(minibert.load(GPT2), str(GPT2), trained=True), f"; name another with --model or {variable}")
    return _told(Model(untrained_t5(), "T5", trained=False), f"; name a trained one with --model or {variable}")


def _told(model: Model, more: str = "") -> Model:
    print(f"model: {model.name}{more}")
    if model.trained and model.layer.family.model_type == "bert" and not (model.is_minilm or model.is_bert_base):
        print("what the text says of all-MiniLM-L6-v2 is not for this model, whose own numbers are printed")
    print()
    return model


def untrained_t5() -> minibert.EmbeddingLayer:
    """Make a T5 before its first step of training: every table is normal noise.

    It is a checkpoint in a temporary folder; the layer reads from it until Python ends.
    """
    from safetensors.numpy import save_file

    generator, folder = np.random.default_rng(0), temporary()
    drawn = {
        name: generator.standard_normal(shape, np.float32) * np.float32(width)
        for name, (shape, width) in T5_TABLES.items()
    }
    (folder / "config.json").write_text(json.dumps(T5), encoding="utf-8")
    save_file(drawn, folder / "model.safetensors")
    return minibert.load(folder)


def temporary() -> Path:
    """Make a folder that is removed when Python ends."""
    folder = tempfile.TemporaryDirectory(prefix="minibert-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def of_letters(model: minibert.EmbeddingLayer | minibert.Encoder) -> bool:
    """Check whether a GPT-2's tokens are letters, as in 007_training.py: a sentence is too long for this model."""
    return bool(model.config.vocab_size == training.VOCAB)


def gpt2_encoder() -> tuple[minibert.Encoder, list[int]]:
    """Load the whole GPT-2 that MINIBERT_GPT2 names, or the small trained one; return also the ids of a text."""
    source = os.environ.get(VARIABLES["gpt2"])
    if source:
        print(f"GPT-2: {source}")
    else:
        print(f"GPT-2: {WORDS}; name another with {VARIABLES['gpt2']}")
    encoder = minibert.load_encoder(source or GPT2)
    text = "muddy" if of_letters(encoder) else "The bank was muddy."
    return encoder, encoder.tokenize(text)["input_ids"][0].tolist()


def tiny(case: str) -> minibert.EmbeddingLayer:
    """Load one of the tests' tiny checkpoints."""
    folder = TINY / case
    side = json.loads((folder / "case.json").read_text(encoding="utf-8"))["side"]
    return minibert.load(folder, side=side or "encoder")


def plain_block(block: BoundBlock) -> Block:
    """Return a bound block's arrays as the equations expect them: (out, in); query, key and value separate."""

    def linear(path: str) -> Linear:
        module = block.modules[path]
        return Linear(module.weight.T if module.transposed else module.weight, module.bias)

    own, feed = block.attention, block.feed_forward
    qkv = [linear(path) for path in own.maps]
    if len(qkv) == 1:
        qkv = [Linear(*parts) for parts in zip(*(np.split(array, own.qkv_splits) for array in qkv[0]), strict=True)]
    q, k, v = qkv
    norms = (block.modules[part.pre_norm or part.post_norm] for part in block.parts)
    first, second = (Affine(norm.weight, norm.bias) for norm in norms)
    return Block(q, k, v, linear(own.output), first, linear(feed.up), linear(feed.output), second)


def assert_printed(rows: Array, printed: str) -> int:
    """Compare rows with torch's shortened print of them, the first and last three of a long axis; count the numbers."""
    for axis, size in enumerate(rows.shape):
        if size > 6:
            rows = np.take(rows, [0, 1, 2, -3, -2, -1], axis)
    words = re.findall(r"-?\d+\.\d+(?:e[+-]\d+)?", printed)
    assert len(words) == rows.size, f"{rows.size} numbers are shown of these rows, but {len(words)} are printed"
    for found, word, half in zip(rows.ravel().tolist(), words, half_units([words])[0], strict=True):
        assert abs(found - float(word)) <= half + NORM_TOLERANCE, f"{found} is printed as {word}"
    return len(words)


def show(drawn: Axes | Sequence[Axes], name: str, of: str, alt: str = "") -> None:
    """Show a picture in a notebook; as a script, write it as a file. `of`, a model's name, becomes its title.

    `alt` describes the picture for readers who cannot see it; the notebook and its page contain it.
    """
    import matplotlib.pyplot as plt

    from minibert.show.plot import save

    figure: Any = (drawn[0] if isinstance(drawn, Sequence) else drawn).figure
    figure.suptitle(of, x=0.01, ha="left", fontsize="small", parse_math=False)
    if NOTEBOOK:
        _display(figure, f"{alt or name} ({of})")
        plt.close(figure)
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / f"{Path(sys.argv[0]).stem}-{name}.png"
    save(figure, path)
    plt.close(figure)
    print(f"picture: {path}")


def _display(figure: Any, alt: str) -> None:
    """Show a picture under the cell with its alternative text, which `plt.show` does not accept."""
    from IPython.display import display

    png = BytesIO()
    figure.savefig(png, format="png", bbox_inches="tight")
    data = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": alt}
    display(data, raw=True, metadata={"image/png": {"alt": alt}})


if not NOTEBOOK:
    import matplotlib as mpl

    mpl.use("agg")  # a file needs no window
