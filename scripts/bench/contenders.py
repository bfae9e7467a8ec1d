"""The computations of minibert and its peers: children.py has their processes.

Each function gets the contender's name, a model's folder and its ONNX file. "minibert, threads=1" is minibert with an
option of `load_encoder`, "the state before" is minibert of another folder. All use as many threads as they have cores.

layer   case (batch, seq): seeded ids -> the rows of the input layer
ids     case (batch, seq): seeded ids -> the last hidden state
texts   case (texts, callers, words): texts of 5 to 40 words, or of `words`, as str -> vectors. One text stands for
        nine, one after another, from `callers` threads at once; the time is the time of one text
pairs   case (documents): documents of 60 words and one query as long, as str -> scores
served  case (callers): ten texts from each caller, a request for each text; the time is the time of one text
"""

from __future__ import annotations

import ast
import atexit
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

import minibert

from .children import at_once, ended, server
from .models import MINILM, real_model, short_texts
from .names import ALONE, BEFORE, INSIDE, ONNX, OURS, PEER, PRODUCTS, ROWS, STATIC, TORCH

Call = Callable[[], Any]
Prepare = Callable[..., tuple[Call, float]]
SINGLE = 9  # texts in the case "one text"
BATCH = 32  # the default of sentence-transformers
FEWER = 600  # the most texts for a whole model beside a static model, which is a hundred times as fast
EACH = 10  # requests of each caller of a server
OPEN = ExitStack()  # resources that end with the process
atexit.register(OPEN.close)


def ours(who: str, folder: str, load: Callable[..., Any] = minibert.load_encoder) -> Any:
    """Load minibert for a contender that is minibert; a peer whose name was mistaken must not be measured as one."""
    if who not in (BEFORE, MINILM) and who.partition(", ")[0] != OURS:
        raise RuntimeError(f"expected a contender's name, found {who!r}")
    if not Path(minibert.__file__).is_relative_to(Path.cwd()):
        raise RuntimeError(f"expected minibert in {Path.cwd()}, found {minibert.__file__}")
    option, _, value = who.partition(", ")[2].partition("=")
    return load(folder, **({option: ast.literal_eval(value)} if value else {}))


# -- ids -----------------------------------------------------------------------------------------------------------


def seeded(batch: int, seq: int) -> Any:
    return np.random.default_rng(0).integers(1000, 30000, (batch, seq))


def layer(who: str, folder: str, file: str) -> Prepare:
    if who.startswith(TORCH):
        module = torch_model(who, folder).embeddings
        return lambda *shape: (torch_call(lambda ids: module(input_ids=ids), seeded(*shape)), 1)
    if who == ROWS:
        table = minibert.load(folder).word_embeddings.weight
        return lambda *shape: (partial(np.take, table, seeded(*shape), axis=0, mode="clip"), 1)
    return lambda *shape: (partial(ours(who, folder, minibert.load), seeded(*shape)), 1)


def ids(who: str, folder: str, file: str) -> Prepare:
    if who.startswith(TORCH):
        model = torch_model(who, folder)
        return lambda *shape: (torch_call(lambda given: model(given).last_hidden_state, seeded(*shape)), 1)
    if who == ONNX:
        run = onnx_session(file)
        return lambda *shape: (partial(run, {"input_ids": seeded(*shape), "attention_mask": np.ones(shape, int)}), 1)
    return lambda *shape: (partial(ours(who, folder), seeded(*shape)), 1)


def cores() -> int:
    return len(os.sched_getaffinity(0))


def torch_model(who: str, folder: str) -> Any:
    import torch
    from transformers import AutoModel

    torch.set_num_threads(cores())
    return AutoModel.from_pretrained(folder, attn_implementation=who.partition(", ")[2]).eval()


def torch_call(run: Callable[[Any], Any], given: Any) -> Call:
    import torch

    tensor = torch.from_numpy(given)
    return torch.inference_mode()(lambda: run(tensor).numpy())


def onnx_session(file: str) -> Callable[[dict[str, Any]], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)[0]


# -- texts -> vectors ----------------------------------------------------------------------------------------------


def texts(who: str, folder: str, file: str) -> Prepare:
    encode = encoder_of(who, folder, file)

    def prepare(count: int, callers: int = 1, words: int = 0) -> tuple[Call, float]:
        some = short_texts(max(count, SINGLE), words or 5, words or 40)
        if count > 1:
            some = some[:FEWER] if who == MINILM else some
            return lambda: encode(some), len(some) / count

        def one_by_one(_: int = 0) -> Any:
            return [encode(text) for text in some]

        if callers == 1 or who == ALONE:
            return one_by_one, SINGLE
        return lambda: ended(at_once(one_by_one, callers)), SINGLE * callers

    return prepare


def encoder_of(who: str, folder: str, file: str) -> Callable[[Any], Any]:
    if who == PEER:
        return partial(torch_class("SentenceTransformer", folder).encode, show_progress_bar=False)
    if who == ONNX:
        return onnx_encode(folder, file)
    if who == PRODUCTS:
        return products()
    if who.startswith(STATIC):
        from model2vec import StaticModel

        return partial(StaticModel.from_pretrained(folder).encode, use_multiprocessing="threads" in who)
    return ours(who, str(real_model()) if who == MINILM else folder).encode  # type: ignore[no-any-return]


def torch_class(name: str, folder: str) -> Any:
    import sentence_transformers
    import torch

    torch.set_num_threads(cores())
    return getattr(sentence_transformers, name)(folder, device="cpu")


def products() -> Callable[[str], Any]:
    """Compute the matrix products of MiniLM's six blocks for ten tokens, with nothing between the products."""
    generator = np.random.default_rng(0)
    shapes = [(384, 384)] * 4 + [(1536, 384), (384, 1536)]
    weights = [generator.standard_normal(shape, np.float32) for _ in range(6) for shape in shapes]
    x = {width: generator.standard_normal((10, width), np.float32) for width in (384, 1536)}
    return lambda text: [x[weight.shape[1]] @ weight.T for weight in weights][-1]


def onnx_encode(folder: str, file: str) -> Callable[[Any], Any]:
    """Encode as a careful user does with transformers: mean over the tokens, length 1."""

    def vectors(rows: Any, inputs: dict[str, Any]) -> Any:
        mask = inputs["attention_mask"]
        sums = (rows * mask[:, :, None].astype(np.float32)).sum(1)
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)

    run = onnx_batches(folder, file, 256, {"input_ids": "ids", "attention_mask": "attention_mask"}, vectors)
    return lambda given: run([given])[0] if isinstance(given, str) else run(given)


def onnx_batches(
    folder: str, file: str, longest: int, names: dict[str, str], result: Callable[[Any, dict[str, Any]], Any]
) -> Callable[[Sequence[Any]], Any]:
    """Encode as a careful user does with ONNX Runtime: texts sorted by length, batches of 32."""
    from tokenizers import Tokenizer

    run = onnx_session(file)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.enable_truncation(longest)
    tokenizer.enable_padding()

    def all_of(given: Sequence[Any]) -> Any:
        order = sorted(range(len(given)), key=lambda i: len(given[i][-1] if isinstance(given[i], tuple) else given[i]))
        found: Any = None
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            batch = tokenizer.encode_batch_fast([given[i] for i in rows])
            inputs = {name: np.array([getattr(e, key) for e in batch], np.int64) for name, key in names.items()}
            some = result(run(inputs), inputs)
            found = np.empty((len(given), *some.shape[1:]), np.float32) if found is None else found
            found[rows] = some
        return found

    return all_of


# -- pairs -> scores -----------------------------------------------------------------------------------------------


def pairs(who: str, folder: str, file: str) -> Prepare:
    if who == PEER:
        predict: Callable[[Any], Any] = partial(torch_class("CrossEncoder", folder).predict, show_progress_bar=False)
    elif who == ONNX:
        names = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        predict = onnx_batches(folder, file, 512, names, lambda logits, _: 1 / (1 + np.exp(-logits[:, 0])))
    else:
        predict = ours(who, folder).predict

    def prepare(count: int) -> tuple[Call, float]:
        query, *documents = short_texts(count + 1, 60, 60)
        return lambda: predict([(query, text) for text in documents]), 1

    return prepare


# -- requests ------------------------------------------------------------------------------------------------------


def served(who: str, folder: str, file: str) -> Prepare:
    """Send requests to a server that ends with this process, or call `encode` from as many threads."""
    if who == INSIDE:
        encode = minibert.load_encoder(folder).encode
        work = partial(asking, lambda: encode)
    else:
        port, _ = OPEN.enter_context(server(folder))
        work = partial(asking, partial(client, port))
    return lambda callers: (partial(work, callers), EACH * callers)


def asking(make: Callable[[], Callable[[str], object]], callers: int) -> None:
    some = short_texts(EACH * callers)

    def one(number: int) -> None:
        ask = make()
        for text in some[number::callers]:
            ask(text)

    ended(at_once(one, callers))


def client(port: str) -> Callable[[str], object]:
    """Send requests as OpenAI's client does: one lasting connection, vectors as base64."""
    connection = HTTPConnection("127.0.0.1", int(port))

    def ask(text: str) -> object:
        body = json.dumps({"input": text, "encoding_format": "base64"})
        connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = answer.read()
        if answer.status != 200:
            raise RuntimeError(found.decode())
        return found

    return ask
