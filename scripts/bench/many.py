"""What the section bulk does in processes of its own: `python -m bench.many texts|asks ...`, and its contenders."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
Call = Callable[[], Any]


def texts(folder: str, number: str, file: str, fewest: str, most: str) -> None:
    """Write seeded texts as JSON lines with ids."""
    from tokenizers import Tokenizer

    from .models import short_texts

    made = short_texts(Tokenizer.from_file(f"{folder}/tokenizer.json"), int(number), int(fewest), int(most))
    with Path(file).open("w", encoding="utf-8") as out:
        out.writelines(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(made))


def read(file: str) -> list[str]:
    with Path(file).open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def ours(kind: str) -> Callable[[str, str], Call]:
    """From a file to a folder of Parquet, as the command does it, each time into a new folder; the model stays open."""

    def make(folder: str, file: str) -> Call:
        from minibert.bulk.job import bulk
        from minibert.bulk.records import Records
        from minibert.bulk.shards import ShardFolder
        from minibert.models.vectors import open_vectors

        model = open_vectors(folder, kind, truncation=True)
        folders = (Path(f"{file}-{number}") for number in count())  # the section removes them all
        return lambda: bulk(Records([file]), ShardFolder(next(folders), "parquet"), model, {})

    return make


def encode(folder: str, file: str) -> Call:
    import minibert

    encoder, given = minibert.load_encoder(folder), read(file)
    return lambda: encoder.encode(given)


def embed(folder: str, file: str) -> Call:
    import minibert

    layer, given = minibert.load(folder), read(file)
    return lambda: layer.embed(given)


def tokenizing(folder: str, file: str) -> Call:
    from tokenizers import Tokenizer

    tokenizer, given = Tokenizer.from_file(f"{folder}/tokenizer.json"), read(file)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return lambda: tokenizer.encode_batch_fast(given)


def model2vec(folder: str, file: str) -> Call:
    """Its own defaults; with the table of the same model, so that it does the same lookups."""
    import numpy as np
    from model2vec import StaticModel
    from tokenizers import Tokenizer

    import minibert

    given = read(file)
    with minibert.load(folder) as layer:
        model = StaticModel(np.array(layer.word_embeddings.weight), Tokenizer.from_file(f"{folder}/tokenizer.json"))
    return lambda: model.encode(given)


def sentence_transformers(folder: str, file: str) -> Call:
    from .models import torch_sentences

    encode, given = torch_sentences(folder, ""), read(file)
    return lambda: encode(given)


CONTENDERS = {
    "bulk, sentence": {
        "minibert bulk": ours("sentence"),
        "encode in memory": encode,
        "sentence-transformers": sentence_transformers,
    },
    "bulk, input": {
        "minibert bulk": ours("input"),
        "embed in memory": embed,
        "tokenizing alone": tokenizing,
        "model2vec": model2vec,
    },
}


def asks(folder: str) -> None:
    """Count the requests and bytes of workers that open a model by its name, on a server of this machine."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from fake_hub import FakeHub

    files = {str(path.relative_to(folder)): path for path in Path(folder).rglob("*") if path.is_file()}
    found = {}
    with FakeHub() as hub, tempfile.TemporaryDirectory() as home:
        commit = hub.add("org/model", files).commit
        os.environ |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": home, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        from minibert import Embedder

        cases = {
            "each with an empty cache": commit,
            "the model in their machines' caches, a branch named": None,
            "the model in their machines' caches, its commit named": commit,
        }
        for who, revision in cases.items():
            hub.forget()
            Embedder("org/model", revision=revision)({"text": ["a text"]})
            found[who] = len(hub.requests), sum(request.sent for request in hub.requests)
    print(json.dumps(found))


if __name__ == "__main__":
    {"texts": texts, "asks": asks}[sys.argv[1]](*sys.argv[2:])
