"""Facts of full size for `make.py`: BERT and GPT-2 from integers, and all-MiniLM-L6-v2 as published.

The checkpoints are too large to commit. Therefore tests/reference/full_size.json has, for each batch of
`seeded.batch`, the sha256 of the reference's sum before LayerNorm (float32, little-endian, C order), and how far the
reference's own output is from float64. full_size.safetensors has some complete rows.

    rms_error           root mean square of (output - truth), truth with sum and norm in float64
    rms_error_of_norm   the same with the float32 sum taken as given: the norm's own part
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from check import seeded, write_json
from safetensors.numpy import save_file

from minibert.equations.input_layer import Array

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
WHOLE = ("We lived above the clouds", "I am Sinan")  # all rows of these are stored; of other tables row 1
TEXTS = (*WHOLE, "", "naïve café, 東京 🙂", "Unbelievably, it's 3.14159!", "a" * 120)


def row_indices(batch: int, seq: int) -> list[list[int]]:
    """Choose the rows of an output to store: an early row and the last."""
    return [[0, 1], [batch - 1, seq - 1]]


def norm64(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    y: Array = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight.astype(np.float64) + bias
    return y


def rms(difference: Array) -> float:
    return float(np.sqrt(np.mean(np.square(difference))))


MODULES = ("word_embeddings", "token_type_embeddings", "position_embeddings", "LayerNorm")


@contextmanager
def hooked(embeddings: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Keep the intermediates of BERT's input layer: modules' outputs, `position_ids`, and `sum`, the norm's input."""
    kept: dict[str, torch.Tensor] = {}
    hooks = [
        getattr(embeddings, name).register_forward_hook(lambda _m, _i, output, name=name: kept.update({name: output}))
        for name in MODULES
    ]
    for name, key in (("position_embeddings", "position_ids"), ("LayerNorm", "sum")):
        module = getattr(embeddings, name)
        hooks.append(module.register_forward_pre_hook(lambda _m, given, key=key: kept.update({key: given[0]})))
    with torch.no_grad():
        yield kept
    for hook in hooks:
        hook.remove()


def bert_trace(embeddings: Any, inputs: dict[str, Array]) -> dict[str, Array]:
    """Compute the reference's intermediates: word, token_type, position, sum, output. The mask is not read."""
    with hooked(embeddings) as kept:
        embeddings(**{name: torch.from_numpy(array) for name, array in inputs.items() if name != "attention_mask"})
    named = {name.removesuffix("_embeddings"): kept[name] for name in MODULES[:3]}
    return {key: value.numpy() for key, value in {**named, "sum": kept["sum"], "output": kept["LayerNorm"]}.items()}


def bert_facts(embeddings: Any, vocab: int, rows: dict[str, Array], prefix: str) -> dict[str, Any]:
    """Collect facts of every batch; the rows to store go into `rows`."""
    norm, longest = embeddings.LayerNorm, embeddings.position_embeddings.num_embeddings
    weight, bias = norm.weight.detach().numpy(), norm.bias.detach().numpy()
    facts: dict[str, Any] = {}
    for kind in seeded.BATCHES:
        got = bert_trace(embeddings, seeded.batch(kind, vocab, longest))
        total = (got["word"].astype(np.float64) + got["token_type"]) + got["position"]
        rms_error, of_norm = (rms(got["output"] - norm64(x, weight, bias, norm.eps)) for x in (total, got["sum"]))
        facts[kind] = batch_facts(got["sum"], got["output"], rms_error) | {"rms_error_of_norm": of_norm}
        store_rows(rows, f"{prefix}|{kind}|output", got["output"])
    return facts


def batch_facts(total: Array, output: Array, rms_error: float) -> dict[str, Any]:
    return {
        "shape": list(output.shape),
        "sum_sha256": hashlib.sha256(np.ascontiguousarray(total, "<f4").tobytes()).hexdigest(),
        "rms_error": rms_error,
        "largest_output": float(np.abs(output).max()),
        "output_rows": row_indices(*output.shape[:2]),
    }


def store_rows(rows: dict[str, Array], key: str, output: Array) -> None:
    rows[key] = np.stack([output[index] for index in map(tuple, row_indices(*output.shape[:2]))])


def seeded_bert(rows: dict[str, Array], scratch: Path) -> dict[str, Any]:
    folder = seeded.write_model(scratch / "bert", "bert")
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False)
    return bert_facts(model.eval().embeddings, 30522, rows, "bert")


def seeded_gpt2(rows: dict[str, Array], scratch: Path) -> dict[str, Any]:
    """GPT-2 has no norm here: the sum is the output, with the error of two float32 additions."""
    model = transformers.GPT2Model.from_pretrained(seeded.write_model(scratch / "gpt2", "gpt2")).eval()
    wte, wpe = (model.get_submodule(name).weight.detach().numpy() for name in ("wte", "wpe"))
    kept: list[Array] = []
    model.drop.register_forward_pre_hook(lambda _m, given: kept.append(given[0].numpy()))
    facts: dict[str, Any] = {}
    for kind in seeded.BATCHES:
        inputs = seeded.batch(kind, 50257, 1024)
        with torch.no_grad():
            model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
        positions = inputs.get("position_ids", np.arange(inputs["input_ids"].shape[1])[None])
        truth = wte[inputs["input_ids"]].astype(np.float64) + wpe[positions]
        if "token_type_ids" in inputs:
            truth = truth + wte[inputs["token_type_ids"]]
        facts[kind] = batch_facts(kept[-1], kept[-1], rms(kept[-1] - truth))
        store_rows(rows, f"gpt2|{kind}|output", kept[-1])
    return facts


def check_minilm(folder: Path) -> None:
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if found != MINILM_SHA256:
        raise SystemExit(f"{folder}/model.safetensors has sha256 {found}, expected all-MiniLM-L6-v2's {MINILM_SHA256}")


def minilm(rows: dict[str, Array], folder: Path) -> dict[str, Any]:
    """The published checkpoint: the same batches, and the ids and rows of a few texts."""
    check_minilm(folder)
    embeddings = transformers.BertModel.from_pretrained(folder).eval().embeddings
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = []
    for number, text in enumerate(TEXTS):
        ids = np.array([tokenizer(text)["input_ids"]])
        got = bert_trace(embeddings, {"input_ids": ids})
        tokens = tokenizer.convert_ids_to_tokens(ids[0])
        texts.append({"text": text, "whole": text in WHOLE, "input_ids": ids[0].tolist(), "tokens": tokens})
        for key, value in got.items():
            rows[f"minilm|text {number}|{key}"] = value[0].copy() if text in WHOLE else value[0, 1:2].copy()
    return {
        "model_sha256": MINILM_SHA256,
        "batches": bert_facts(embeddings, 30522, rows, "minilm"),
        "texts": {str(number): facts for number, facts in enumerate(texts)},
    }


def write_full_size(target: Path, minilm_folder: Path) -> None:
    """Write full_size.json and full_size.safetensors into `target`."""
    rows: dict[str, Array] = {}
    with tempfile.TemporaryDirectory() as scratch:
        both = {"bert": seeded_bert(rows, Path(scratch)), "gpt2": seeded_gpt2(rows, Path(scratch))}
    facts = {name: {"batches": batches} for name, batches in both.items()} | {"minilm": minilm(rows, minilm_folder)}
    save_file({key: np.ascontiguousarray(value) for key, value in rows.items()}, target / "full_size.safetensors")
    write_json(target / "full_size.json", facts, depth=3)
