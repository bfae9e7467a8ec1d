"""One contender in a process of its own: `python -m bench.contender SECTION WHO FOLDER [ONNX]`, started by turns.py.

Reads one request a line from stdin, {"case": [...], "save" or "compare": FILE}, and answers with one line of JSON: the
median seconds of a call, or with "compare" how far its result is from the saved one.

    encoder    case [batch, seq]: seeded ids, the same for all, ready in the form that the contender takes; its result
               is the last hidden state
    sentences  case [texts]: texts of 5 to 40 words, each call from str to vectors; for one text the calls of nine
               texts, one after another, divided by nine
    pairs      case [documents]: documents of 60 words and one query as long, each call from str to scores
    cores      case [texts, callers, threads]: see cores.py
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = 2
if hasattr(os, "sched_setaffinity"):  # before NumPy, which counts the cores when it is loaded
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])

import numpy as np  # noqa: E402

from .measure import seconds_of  # noqa: E402
from .models import torch_sentences  # noqa: E402

Call = Callable[[], Any]
SINGLE = 9  # texts that stand for "one text"
BATCH = 32  # sentence-transformers' own


def minibert_encoder(folder: str, _: str) -> Callable[[Any], Call]:
    import minibert

    encoder = minibert.load_encoder(folder)
    return lambda ids: lambda: encoder(ids)


def torch_encoder(attention: str) -> Callable[[str, str], Callable[[Any], Call]]:
    def make(folder: str, _: str) -> Callable[[Any], Call]:
        import torch

        model = torch_model(folder, attention)

        def prepare(ids: Any) -> Call:
            tensor = torch.from_numpy(ids)

            def call() -> Any:
                with torch.inference_mode():
                    return model(tensor).last_hidden_state.numpy()

            return call

        return prepare

    return make


def torch_model(folder: str, attention: str) -> Any:
    import torch
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(THREADS)
    return AutoModel.from_pretrained(folder, add_pooling_layer=False, attn_implementation=attention).eval()


def onnx_encoder(_: str, file: str) -> Callable[[Any], Call]:
    session = onnx_session(file)

    def prepare(ids: Any) -> Call:
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        return lambda: session.run(None, inputs)[0]

    return prepare


def onnx_session(file: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def minibert_sentences(folder: str, _: str) -> Callable[[Any], Any]:
    import minibert

    return minibert.load_encoder(folder).encode


def onnx_sentences(folder: str, file: str) -> Callable[[Any], Any]:
    """What a careful user writes: texts sorted by length, batches of 32, mean over the tokens, length 1."""
    from tokenizers import Tokenizer

    session = onnx_session(file)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()

    def encode(texts: list[str] | str) -> Any:
        given = [texts] if isinstance(texts, str) else texts
        order = sorted(range(len(given)), key=lambda i: len(given[i]))
        found: Any = None
        for start in range(0, len(order), BATCH):
            own = order[start : start + BATCH]
            batch = tokenizer.encode_batch_fast([given[i] for i in own])
            ids, mask = (np.array([getattr(e, n) for e in batch], np.int64) for n in ("ids", "attention_mask"))
            rows = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
            vectors = (rows * mask[:, :, None].astype(np.float32)).sum(1)
            found = np.empty((len(given), vectors.shape[1]), np.float32) if found is None else found
            found[own] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return found[0] if isinstance(texts, str) else found

    return encode


Scores = Callable[[str, "list[str]"], Any]


def minibert_pairs(folder: str, _: str) -> Scores:
    import minibert

    encoder = minibert.load_encoder(folder)
    return lambda query, documents: encoder.predict([(query, text) for text in documents])


def torch_pairs(folder: str, _: str) -> Scores:
    import torch
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(THREADS)
    model = CrossEncoder(folder, device="cpu")
    return lambda query, documents: model.predict([(query, text) for text in documents], show_progress_bar=False)


def onnx_pairs(folder: str, file: str) -> Scores:
    """What a careful user writes: pairs sorted by length, batches of 32, a sigmoid."""
    from tokenizers import Tokenizer

    session = onnx_session(file)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.enable_truncation(512)
    tokenizer.enable_padding()

    def predict(query: str, documents: list[str]) -> Any:
        found = np.empty(len(documents), np.float32)
        order = sorted(range(len(documents)), key=lambda i: len(documents[i]))
        for start in range(0, len(order), BATCH):
            own = order[start : start + BATCH]
            batch = tokenizer.encode_batch_fast([(query, documents[i]) for i in own])
            named = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
            inputs = {name: np.array([getattr(e, key) for e in batch], np.int64) for name, key in named.items()}
            found[own] = 1 / (1 + np.exp(-session.run(None, inputs)[0][:, 0]))
        return found

    return predict


CONTENDERS: dict[str, dict[str, Callable[[str, str], Any]]] = {
    "encoder": {
        "minibert": minibert_encoder,
        "transformers, sdpa": torch_encoder("sdpa"),
        "transformers, eager": torch_encoder("eager"),
        "ONNX Runtime": onnx_encoder,
    },
    "sentences": {
        "minibert": minibert_sentences,
        "sentence-transformers": torch_sentences,
        "ONNX Runtime": onnx_sentences,
    },
    "pairs": {
        "minibert": minibert_pairs,
        "sentence-transformers": torch_pairs,
        "ONNX Runtime": onnx_pairs,
    },
}


def call_of(section: str, made: Any, folder: str, case: list[int]) -> tuple[Call, int]:
    """What is timed, and by how much its time is divided."""
    if section == "cores":
        from . import cores

        return cores.call_of(made, folder, case)
    if section == "encoder":
        return made(np.random.default_rng(0).integers(1000, 30000, case)), 1
    from tokenizers import Tokenizer

    from .models import short_texts

    if section not in CONTENDERS:  # the texts are in a file
        return made, 1
    (count,) = case
    if section == "pairs":
        query, *documents = short_texts(Tokenizer.from_file(f"{folder}/tokenizer.json"), count + 1, 60, 60)
        return lambda: made(query, documents), 1
    texts = short_texts(Tokenizer.from_file(f"{folder}/tokenizer.json"), max(count, SINGLE), 5, 40)
    if count == 1:
        return lambda: np.stack([made(text) for text in texts]), len(texts)
    return lambda: made(texts), 1


def serve(section: str, who: str, folder: str, file: str = "") -> None:
    from . import cores, many

    made = (CONTENDERS | many.CONTENDERS | cores.CONTENDERS)[section][who](folder, file)
    print("{}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        call, share = call_of(section, made, folder, request["case"])
        if "save" in request:
            np.save(request["save"], call())
            answer = 0.0
        elif "compare" in request:
            answer = float(np.abs(call() - np.load(request["compare"])).max())
        else:
            answer = seconds_of(call) / share
        print(json.dumps(answer), flush=True)


def export(folder: str, file: str) -> None:
    """Write the whole model in float32 as ONNX, any batch and length, as its users do: no layer is changed by hand."""
    import torch

    class Hidden(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    ids = torch.ones(2, 7, dtype=torch.long)
    model = Hidden(torch_model(folder, "eager"))
    _write_onnx(model, (ids, torch.ones_like(ids)), ("input_ids", "attention_mask"), "hidden", file)


def _write_onnx(model: Any, example: tuple[Any, ...], names: tuple[str, ...], result: str, file: str) -> None:
    import torch

    axes = {name: {0: "batch", 1: "seq"} for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that traces is the old one; the new one needs another package
        torch.onnx.export(
            model, example, f"{file}.part", opset_version=17, input_names=list(names), output_names=[result],
            dynamo=False, dynamic_axes=axes | {result: axes[names[0]] if result == "hidden" else {0: "batch"}},
        )  # fmt: skip
    Path(f"{file}.part").rename(file)


def reranker(minilm: str, folder: str) -> None:
    """Write MiniLM with a classifier of one label, made up as tests/support/seeded.py makes its tables."""
    import shutil

    from safetensors.numpy import load_file, save_file

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests" / "support"))
    from seeded import values

    made = Path(folder)
    made.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        if Path(minilm, name).exists():
            shutil.copy(Path(minilm, name), made)
    config = json.loads(Path(minilm, "config.json").read_text(encoding="utf-8"))
    named = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (made / "config.json").write_text(json.dumps(config | named), encoding="utf-8")
    tensors = {f"bert.{name}": array for name, array in load_file(Path(minilm, "model.safetensors")).items()}
    width = config["hidden_size"]
    for salt, (name, shape) in enumerate((("bert.pooler.dense", (width, width)), ("classifier", (1, width)))):
        tensors[f"{name}.weight"] = values(shape, salt) * np.float32(2)
        tensors[f"{name}.bias"] = values(shape[:1], salt + 10)
    save_file(tensors, made / "model.safetensors")


def export_scores(folder: str, file: str) -> None:
    """Write a reranker in float32 as ONNX, as `export` writes a model."""
    import torch
    from transformers import AutoModelForSequenceClassification

    class Logits(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.model(input_ids, attention_mask, token_type_ids).logits

    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.ones(2, 7, dtype=torch.long)
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    _write_onnx(Logits(model), (ids, torch.ones_like(ids), torch.zeros_like(ids)), inputs, "logits", file)


def bert_base(folder: str) -> None:
    """Write a whole model of bert-base's sizes, made up as tests/support/seeded.py makes its tables."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests" / "support"))
    from seeded import BERT, tensors, values, write_safetensors

    dim, wide, layers = 768, 3072, 12
    named = tensors("bert")

    def add(path: str, out: int, width: int) -> None:
        shape = (out, width) if width else (out,)
        salt = 100 + len(named)
        named[f"{path}.weight"] = values(shape, salt) * np.float32(0.35) + np.float32(not width)
        named[f"{path}.bias"] = values((out,), 10_000 + salt)

    for i in range(layers):
        at = f"encoder.layer.{i}"
        for name in ("query", "key", "value"):
            add(f"{at}.attention.self.{name}", dim, dim)
        add(f"{at}.attention.output.dense", dim, dim)
        add(f"{at}.attention.output.LayerNorm", dim, 0)
        add(f"{at}.intermediate.dense", wide, dim)
        add(f"{at}.output.dense", dim, wide)
        add(f"{at}.output.LayerNorm", dim, 0)
    Path(folder).mkdir(parents=True, exist_ok=True)
    config = BERT | {"num_hidden_layers": layers, "hidden_act": "gelu"}
    Path(folder, "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_safetensors(Path(folder, "model.safetensors"), named)


if __name__ == "__main__":
    made = {each.__name__: each for each in (export, export_scores, bert_base, reranker)}
    made.get(sys.argv[1], lambda *rest: serve(sys.argv[1], *rest))(*sys.argv[2:])
