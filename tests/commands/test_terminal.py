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
from hypothesis import given
from hypothesis import strategies as st
from reference_files import REFERENCE
from safetensors.numpy import save_file

from minibert.cli import main
from minibert.commands import answers, common, explain
from minibert.commands.common import harmless

# sets a window's title, begins red in one byte, goes back to the line's start, turns the order of letters around
TRAP = "\x1b]0;owned\x07\x9b31m\r\u202e"
SHOWN = r"\x1b]0;owned\x07\x9b31m\r\u202e"
STYLES = ("\x1b[0m", "\x1b[1m", "\x1b[2m")


def obeyed(text: str) -> list[str]:
    """What a terminal would obey in a text, besides ends of lines and tabs."""
    for style in STYLES:
        text = text.replace(style, "")
    return [c for c in text if c not in "\n\t" and (unicodedata.category(c) in ("Cc", "Cs") or c in "\u202d\u202e")]


Make = Callable[[Path], list[str]]


def hostile_type(folder: Path) -> list[str]:
    return ["info", str(write(folder, {**BERT, "model_type": TRAP}))]


def hostile_tensor(folder: Path) -> list[str]:
    return ["info", str(write(folder, BERT, {**tensors(BERT), f"embeddings.{TRAP}": np.zeros(1, np.float32)}))]


def hostile_activation(folder: Path) -> list[str]:
    more = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return ["info", str(write(folder, {**BERT, **more, "hidden_act": TRAP}))]


def hostile_token(folder: Path) -> list[str]:
    write_vocab(write(folder), (*WORDS[:-1], f"w{TRAP}"))
    return ["nearest", "we", "-k", "70", "-m", str(folder)]


def hostile_text(folder: Path) -> list[str]:
    return ["similar", "we", f"lived{TRAP}", "-m", str(REFERENCE / "sentences-dense")]


def hostile_beginning(folder: Path) -> list[str]:
    return ["next", f"we{TRAP}", "-k", "260", "-m", str(word_models.write(folder, "gpt2"))]  # each byte is a token


def hostile_line(folder: Path) -> list[str]:
    folder.mkdir()
    (folder / "lines").write_bytes(f"above{TRAP}\nthe\n".replace("\r", "\x08").encode())
    return ["similar", "we", "--file", str(folder / "lines"), "-m", str(REFERENCE / "sentences-dense")]


def hostile_prompt(folder: Path) -> list[str]:
    shutil.copytree(REFERENCE / "sentences-dense", folder)
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {TRAP: "the"}}))
    return ["encode", "--prompt-name", "query2", "we", "-m", str(folder)]


def hostile_shard(folder: Path) -> list[str]:
    write(folder)
    (folder / "model.safetensors").unlink()
    write_index(folder, dict.fromkeys(tensors(BERT), f"{TRAP}.safetensors"))
    return ["info", str(folder)]


def hostile_folder(folder: Path) -> list[str]:
    return ["explain", "we", "-m", str(folder / f"{TRAP} of mine")]


def hostile_output(folder: Path) -> list[str]:
    write_vocab(write(folder))
    return ["embed", "we", "-m", str(folder), "-o", str(folder / f"{TRAP}.npy")]


def hostile_key(folder: Path) -> list[str]:
    write(folder)
    save_file({f"{TRAP}|sum": np.zeros(1, np.float32)}, folder / "port.safetensors")
    return ["verify", str(folder), "--against", str(folder / "port.safetensors")]


def hostile_row(folder: Path) -> list[str]:
    folder.mkdir()
    (folder / f"{TRAP}.jsonl").write_text(json.dumps({"id": 1, "text": 7}) + "\n")
    model = str(REFERENCE / "sentences-dense")
    return ["bulk", str(folder / f"{TRAP}.jsonl"), "-o", str(folder / "made"), "-m", model, "--format", "npy"]


def hostile_command(folder: Path) -> list[str]:
    return [TRAP]


def hostile_option(folder: Path) -> list[str]:
    return ["info", f"--{TRAP}"]


@pytest.mark.parametrize("styled", [True, False])
@pytest.mark.parametrize("make", [value for name, value in list(globals().items()) if name.startswith("hostile_")])
def test_nothing_out_of_a_file_is_obeyed(
    make: Make, styled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (common, explain, answers):
        monkeypatch.setattr(module, "coloured", lambda: styled)
    main(make(tmp_path / "made"))
    printed = "".join(capsys.readouterr())
    assert obeyed(printed) == []
    assert SHOWN in printed.replace(r"\x08", r"\r").replace(r"\\", "\\")  # it was there; repr doubles the backslash


def test_a_line_of_output_is_one_line() -> None:
    """A name with an end of line in it could else add a line that says something of its own."""
    assert harmless("a\nall equal") == r"a\nall equal" and harmless("a\tb") == "a\tb"


def test_bold_and_dim_are_for_a_terminal_alone() -> None:
    styled, other = "\x1b[1mbold\x1b[0m \x1b[2mdim\x1b[0m ", "\x1b[31mred\x1b[8mhidden"
    assert harmless(styled + other, styled=True) == styled + r"\x1b[31mred\x1b[8mhidden"
    assert "\x1b" not in harmless(styled + other)


@given(st.text())
def test_any_text_is_harmless_and_plain_words_stay(text: str) -> None:
    found = harmless(text)
    assert obeyed(found) == [] and "\n" not in found
    if not obeyed(text) and text.isprintable():
        assert found == text
