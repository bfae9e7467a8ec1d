"""What minibert and its peers do when they are asked: see children.py for the processes that they are.

on ids     case (batch, seq): seeded ids, the same for all, ready in the form that the contender takes; its result
           is the last hidden state
on texts   case (texts): texts of 5 to 40 words, each call from str to vectors; for one text the calls of nine
           texts, one after another, divided by nine
on pairs   case (documents): documents of 60 words and one query as long, each call from str to scores
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import minibert

from .children import THREADS
from .measure import OURS
from .models import short_texts, torch_class

Call = Callable[[], Any]
Prepare = Callable[..., tuple[Call, int]]
ONNX = "ONNX Runtime"
SINGLE = 9  # texts that stand for "one text"
BATCH = 32  # sentence-transformers' own


# -- ids -> last hidden state --------------------------------------------------------------------------------------


def on_ids(who: str, folder: str, file: str) -> Prepare:
    if who == OURS:
        made = partial(partial, minibert.load_encoder(folder))
    else:
        made = onnx_ids(file) if who == ONNX else torch_ids(who, folder)
    return lambda *shape: (made(np.random.default_rng(0).integers(1000, 30000, shape)), 1)


def torch_ids(who: str, folder: str) -> Callable[[Any], Call]:
    import torch
    from transformers import AutoConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(THREADS)
    attention = who.rpartition(" ")[2]  # "transformers, sdpa"
    kind = torch_class(AutoConfig.from_pretrained(folder))
    pooled = "add_pooling_layer" in inspect.signature(kind).parameters
    unpooled = {"add_pooling_layer": False} if pooled else {}
    model = kind.from_pretrained(folder, **unpooled, attn_implementation=attention).eval()

    def prepare(ids: Any) -> Call:
        tensor = torch.from_numpy(ids)
        return torch.inference_mode()(lambda: model(tensor).last_hidden_state.numpy())

    return prepare


def onnx_ids(file: str) -> Callable[[Any], Call]:
    run = onnx_session(file)
    return lambda ids: lambda: run({"input_ids": ids, "attention_mask": np.ones_like(ids)})


def onnx_session(file: str) -> Callable[[dict[str, Any]], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


# -- texts -> vectors ----------------------------------------------------------------------------------------------


def on_texts(who: str, folder: str, file: str) -> Prepare:
    if who == OURS:
        encode: Callable[[Any], Any] = minibert.load_encoder(folder).encode
    else:
        encode = onnx_encode(folder, file) if who == ONNX else torch_encode(folder)

    def prepare(count: int, repeated: int = 0) -> tuple[Call, int]:
        texts = short_texts(folder, max(count, SINGLE), 5, 40)
        own = len(texts) * (100 - repeated) // 100  # the first ones, over and over
        texts = [texts[i % own] for i in range(len(texts))]
        if count == 1:
            return lambda: np.stack([encode(text) for text in texts]), len(texts)
        return lambda: encode(texts), 1

    return prepare


def torch_encode(folder: str) -> Callable[[Any], Any]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(THREADS)
    return partial(SentenceTransformer(folder, device="cpu").encode, show_progress_bar=False)


def onnx_encode(folder: str, file: str) -> Callable[[Any], Any]:
    """What a careful user writes: mean over the tokens, length 1."""

    def vectors(rows: Any, inputs: dict[str, Any]) -> Any:
        mask = inputs["attention_mask"]
        sums = (rows * mask[:, :, None].astype(np.float32)).sum(1)
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)

    each = onnx_batches(folder, file, 256, {"input_ids": "ids", "attention_mask": "attention_mask"}, vectors)
    return lambda texts: each([texts])[0] if isinstance(texts, str) else each(texts)


def onnx_batches(
    folder: str, file: str, longest: int, names: dict[str, str], result: Callable[[Any, dict[str, Any]], Any]
) -> Callable[[Sequence[Any]], Any]:
    """What a careful user writes: texts sorted by length, batches of 32."""
    from tokenizers import Tokenizer

    run = onnx_session(file)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.enable_truncation(longest)
    tokenizer.enable_padding()

    def each(given: Sequence[Any]) -> Any:
        order = sorted(range(len(given)), key=lambda i: len(given[i][-1] if isinstance(given[i], tuple) else given[i]))
        found: Any = None
        for start in range(0, len(order), BATCH):
            own = order[start : start + BATCH]
            batch = tokenizer.encode_batch_fast([given[i] for i in own])
            inputs = {name: np.array([getattr(e, key) for e in batch], np.int64) for name, key in names.items()}
            some = result(run(inputs), inputs)
            found = np.empty((len(given), *some.shape[1:]), np.float32) if found is None else found
            found[own] = some
        return found

    return each


# -- pairs -> scores -----------------------------------------------------------------------------------------------


def on_pairs(who: str, folder: str, file: str) -> Prepare:
    if who == OURS:
        predict: Callable[[Any], Any] = minibert.load_encoder(folder).predict
    else:
        predict = onnx_predict(folder, file) if who == ONNX else torch_predict(folder)

    def prepare(count: int) -> tuple[Call, int]:
        query, *documents = short_texts(folder, count + 1, 60, 60)
        return lambda: predict([(query, text) for text in documents]), 1

    return prepare


def torch_predict(folder: str) -> Callable[[Any], Any]:
    import torch
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(THREADS)
    return partial(CrossEncoder(folder, device="cpu").predict, show_progress_bar=False)


def onnx_predict(folder: str, file: str) -> Callable[[Any], Any]:
    names = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return onnx_batches(folder, file, 512, names, lambda logits, _: 1 / (1 + np.exp(-logits[:, 0])))
