"""The section cold: whole processes. Nothing heavy is imported here (see children.process)."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from .children import processes, python, there
from .measure import OURS, Limit, Row, Settings
from .models import full_size

TEXT = "We lived above the clouds"
NUMPY, FLOOR = "import numpy", "numpy and tokenizers alone"
CODES = {
    NUMPY: "import numpy",
    OURS: """
import minibert
layer = minibert.load({folder!r})
layer(**layer.tokenize({text!r}))
""",
    FLOOR: """
import numpy
from tokenizers import Tokenizer
Tokenizer.from_file({folder!r} + "/tokenizer.json").encode({text!r})
""",
    "transformers": """
import torch
from transformers import BertModel, BertTokenizerFast
tokenizer = BertTokenizerFast.from_pretrained({folder!r})
embeddings = BertModel.from_pretrained({folder!r}, add_pooling_layer=False).eval().embeddings
with torch.inference_mode():
    batch = tokenizer({text!r}, return_tensors="pt")
    embeddings(input_ids=batch["input_ids"], token_type_ids=batch["token_type_ids"])
""",
}


def cold(settings: Settings) -> list[Row]:
    """Whole processes, from their start to their end, one after another in every round."""
    folder = str(full_size(settings.models, "bert"))
    commands = {who: python(code, folder=folder, text=TEXT) for who, code in CODES.items() if there(who)}
    commands["explain"] = [sys.executable, "-m", "minibert", "explain", "--model", folder, TEXT]
    if not Path(folder, "tokenizer.json").is_file():
        del commands[FLOOR]
    seconds, peaks = processes(commands, settings.rounds(15))
    what, peak = "import .. embed", partial(peaks.row, "its peak memory", unit="B")
    note = "they import, open tokenizer.json and encode the sentence; no table"
    return [
        seconds.row("import, load, tokenize, embed one sentence", NUMPY, limit=Limit("<=", 1.6)),
        peak(NUMPY, limit=Limit("<=", 60, "MiB")),
        seconds.row("`minibert explain` of a sentence", NUMPY, "explain", limit=Limit("<=", 2.2)),
        peak(NUMPY, "explain"),
        seconds.row(what, FLOOR, note=note),
        seconds.row(what, "transformers", faster=True, limit=Limit(">=", 25)),
        peak("transformers"),
    ]
