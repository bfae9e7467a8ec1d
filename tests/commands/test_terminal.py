"""Names and texts out of files reach the terminal with nothing in them that a terminal obeys."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import word_models
from checkpoints import BERT, WORDS, tensors, write, write_index, write_vocab
from command_line import Patch, Printed
from hypothesis import given
from hypothesis import strategies as st
from record_files import made
from reference_files import REFERENCE
from safetensors.numpy import save_file

from minibert.cli import main
from minibert.commands import answers, common, explain
from minibert.commands.common import escaped

# sets a window's title, begins red in one byte, goes back to the line's start, reverses the order of letters twice
TRAP = "\x1b]0;owned\x07\x9b31m\r\u202e\u2067"
SHOWN = r"\x1b]0;owned\x07\x9b31m\r\u202e\u2067"
ORDERS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # characters that set the order of letters
DENSE = REFERENCE / "sentences-dense"
STYLES = ("\x1b[0m", "\x1b[1m", "\x1b[2m")


def obeyed(text: str) -> list[str]:
    """What a terminal would obey in a text, except ends of lines and tabs."""
    for style in STYLES:
        text = text.replace(style, "")
    codes = [c for c in text if unicodedata.category(c) in ("Cc", "Cs") or unicodedata.bidirectional(c) in ORDERS]
    return [c for c in codes if c not in "\n\t"]


def hostile_prompt(folder: Path) -> list[object]:
    shutil.copytree(DENSE, folder)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {TRAP: "the"}}))
    return ["encode", "--prompt-name", "query2", "we", "-m", folder]


def hostile_shard(folder: Path) -> list[object]:
    (write(folder) / "model.safetensors").unlink()
    write_index(folder, dict.fromkeys(tensors(BERT), f"{TRAP}.safetensors"))
    return ["info", folder]


def hostile_key(folder: Path) -> list[object]:
    save_file({f"{TRAP}|sum": np.zeros(1, np.float32)}, write(folder) / "port.safetensors")
    return ["verify", folder, "--against", folder / "port.safetensors"]


def lines(path: Path, text: str) -> Path:
    path.parent.mkdir()
    return made(path, text)


BLOCKS = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
HOSTILE: dict[str, Callable[[Path], list[object]]] = {
    "type": lambda folder: ["info", write(folder, {**BERT, "model_type": TRAP})],
    "tensor": lambda folder: ["info", write(folder, BERT, {**tensors(BERT), f"embeddings.{TRAP}": np.zeros(1, "f4")})],
    "activation": lambda folder: ["info", write(folder, {**BERT, **BLOCKS, "hidden_act": TRAP})],
    "token": lambda folder: ["nearest", "we", "-k", 70, "-m", write_vocab(write(folder), (*WORDS[:-1], f"w{TRAP}"))],
    "text": lambda folder: ["similar", "we", f"lived{TRAP}", "-m", DENSE],
    "beginning": lambda folder: ["next", f"we{TRAP}", "-k", 260, "-m", word_models.write(folder, "gpt2")],  # all bytes
    "line": lambda folder: [
        "similar", "we", "--file", lines(folder / "lines", f"above{TRAP}\nthe\n".replace("\r", "\x08")), "-m", DENSE
    ],
    "prompt": hostile_prompt,
    "shard": hostile_shard,
    "folder": lambda folder: ["explain", "we", "-m", folder / f"{TRAP} of mine"],
    "output": lambda folder: ["embed", "we", "-m", write_vocab(write(folder)), "-o", folder / f"{TRAP}.npy"],
    "key": hostile_key,
    "row": lambda folder: [
        "bulk", lines(folder / f"{TRAP}.jsonl", json.dumps({"id": 1, "text": 7})), "-o", folder / "made", "-m", DENSE,
    ],
    "command": lambda folder: [TRAP],
    "option": lambda folder: ["info", f"--{TRAP}"],
}  # fmt: skip


@pytest.mark.parametrize("styled", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_out_of_a_file_is_obeyed(
    name: str, styled: bool, tmp_path: Path, capsys: Printed, monkeypatch: Patch
) -> None:
    for module in (common, explain, answers):
        monkeypatch.setattr(module, "coloured", lambda: styled)
    main([*map(str, HOSTILE[name](tmp_path / "made"))])
    printed = "".join(capsys.readouterr())
    assert obeyed(printed) == []
    assert SHOWN in printed.replace(r"\x08", r"\r").replace(r"\\", "\\")  # it was there; repr doubles the backslash


def test_a_line_of_output_is_one_line() -> None:
    """Otherwise a name with an end of line in it could add a false line."""
    assert escaped("a\nall equal") == r"a\nall equal" and escaped("a\tb") == "a\tb"


def test_bold_and_dim_are_for_a_terminal_alone() -> None:
    styled, other = "\x1b[1mbold\x1b[0m \x1b[2mdim\x1b[0m ", "\x1b[31mred\x1b[8mhidden"
    assert escaped(styled + other, styled=True) == styled + r"\x1b[31mred\x1b[8mhidden"
    assert "\x1b" not in escaped(styled + other)


@given(st.text())
def test_any_text_is_harmless_and_plain_words_stay(text: str) -> None:
    found = escaped(text)
    assert obeyed(found) == [] and "\n" not in found
    if not obeyed(text) and text.isprintable():
        assert found == text
