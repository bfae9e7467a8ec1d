"""Write transformers' ids for small tokenizers of every class, with one setting changed at a time."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from check import write_json
from tokenizer_folders import BASES, PAIR, TEXTS, variants, write_tokenizer

FILE = "tokenizer_ids.json"


def ids_of(folder: Path) -> list[list[int]] | None:
    """Return the ids of each text and of the pair; None if transformers cannot open the folder or refuses a text."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return [tokenizer(*text)["input_ids"] for text in [*((text,) for text in TEXTS), PAIR]]
    except Exception as error:  # noqa: BLE001  whatever it is: it has no ids
        print(f"{folder.name}: {type(error).__name__}: {str(error)[:100]}")
        return None


def write_tokenizer_ids(target: Path) -> None:
    """Write tokenizer_ids.json: class -> variant -> ids of each text, null if equal to the variant "plain"."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in BASES:
            every = {
                variant: ids_of(write_tokenizer(Path(scratch, f"{name} {i}"), name, files))
                for i, (variant, files) in enumerate(variants(name).items())
            }
            plain = every.pop("plain")
            found[name] = {"plain": plain} | {
                variant: ids if ids is None else [None if a == b else a for a, b in zip(ids, plain or [], strict=True)]
                for variant, ids in every.items()
            }
    write_json(target / FILE, found, depth=2)
