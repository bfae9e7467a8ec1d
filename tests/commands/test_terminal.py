"""Lines that are read, names that are shown, files that are written: no terminal obeys them, no model is lost."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import word_models
from checkpoints import BERT, WORDS, write, write_shards, write_vocab
from command_line import Patch, Printed, failure, ran, typed
from hypothesis import given
from hypothesis import strategies as st
from record_files import made
from reference_files import REFERENCE
from safetensors.numpy import load_file, save_file

from minibert.cli import main
from minibert.commands import answers, common
from minibert.commands.common import did_you_mean, escaped
from minibert.files.reading import STDIN, arriving_texts

# sets a window's title, begins red in one byte, goes back to the line's start, reverses the order of letters twice
TRAP = "\x1b]0;owned\x07\x9b31m\r\u202e\u2067"
SHOWN = r"\x1b]0;owned\x07\x9b31m\r\u202e\u2067"
ORDERS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")  # characters that set the order of letters
DENSE = REFERENCE / "sentences-dense"


def obeyed(text: str) -> list[str]:
    """What a terminal would obey in a text, except styles, ends of lines and tabs."""
    text = re.sub(r"\x1b\[[012]m|[\n\t]", "", text)
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cs") or unicodedata.bidirectional(c) in ORDERS]


def hostile_key(folder: Path) -> list[object]:
    save_file({f"{TRAP}|sum": np.zeros(1, np.float32)}, write(folder) / "port.safetensors")
    return ["verify", folder, "--against", folder / "port.safetensors"]


BLOCKS = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
HOSTILE: dict[str, Callable[[Path], list[object]]] = {
    "type": lambda folder: ["info", write(folder, {**BERT, "model_type": TRAP})],
    "activation": lambda folder: ["info", write(folder, {**BERT, **BLOCKS, "hidden_act": TRAP})],
    "token": lambda folder: ["nearest", "we", "-k", 70, "-m", write_vocab(write(folder), (*WORDS[:-1], f"w{TRAP}"))],
    "text": lambda folder: ["similar", "we", f"lived{TRAP}", "-m", DENSE],
    "beginning": lambda folder: ["next", f"we{TRAP}", "-k", 260, "-m", word_models.write(folder, "gpt2")],  # all bytes
    "line": lambda folder: [
        "similar", "we", "--file", made(folder / "lines", f"above{TRAP}\nthe\n".replace("\r", "\x08")), "-m", DENSE
    ],
    "folder": lambda folder: ["explain", "we", "-m", folder / f"{TRAP} of mine"],
    "output": lambda folder: ["embed", "we", "-m", write_vocab(write(folder)), "-o", folder / f"{TRAP}.npy"],
    "key": hostile_key,
    "row": lambda folder: [
        "bulk", made(folder / f"{TRAP}.jsonl", json.dumps({"id": 1, "text": 7})), "-o", folder / "made", "-m", DENSE,
    ],
    "command": lambda folder: [TRAP],
    "option": lambda folder: ["info", f"--{TRAP}"],
}  # fmt: skip


@pytest.mark.parametrize("styled", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_in_files_is_obeyed(
    name: str, styled: bool, tmp_path: Path, capsys: Printed, monkeypatch: Patch
) -> None:
    for module in (common, answers):
        monkeypatch.setattr(module, "coloured", lambda: styled)
    main([*map(str, HOSTILE[name](tmp_path))])
    printed = "".join(capsys.readouterr())
    assert obeyed(printed) == []
    assert SHOWN in printed.replace(r"\x08", r"\r").replace(r"\\", "\\")  # it was there; repr doubles the backslash


def test_a_line_of_output_is_one_line_and_styles_are_for_a_terminal() -> None:
    # otherwise a name with an end of line in it could add a false line
    assert escaped("a\nall equal") == r"a\nall equal" and escaped("a\tb") == "a\tb"
    styled, other = "\x1b[1mbold\x1b[0m \x1b[2mdim\x1b[0m ", "\x1b[31mred\x1b[8mhidden"
    assert escaped(styled + other, styled=True) == styled + r"\x1b[31mred\x1b[8mhidden"
    assert "\x1b" not in escaped(styled + other)


@given(st.text())
def test_any_text_is_harmless_and_plain_words_stay(text: str) -> None:
    found = escaped(text)
    assert obeyed(found) == [] and "\n" not in found
    if not obeyed(text) and text.isprintable():
        assert found == text


def lines_of(monkeypatch: Patch, *pieces: bytes) -> list[str]:
    typed(monkeypatch, *pieces)
    return [line for lines in arriving_texts(STDIN) for line in lines]


def test_ends_and_marks_are_the_same_in_pieces_of_any_size(monkeypatch: Patch) -> None:
    """Old Macs' ends are letters, and a mark is one only at the first byte."""
    content = "\ufeffa\r\r\n\ufeffb\rc\n\nd \u2028\ufeff\n".encode()
    for size in range(1, len(content) + 1):
        pieces = [content[i : i + size] for i in range(0, len(content), size)]
        assert lines_of(monkeypatch, *pieces) == ["a\r", "\ufeffb\rc", "", "d \u2028\ufeff"], size
    assert lines_of(monkeypatch, b"\xef\xbb\xbf") == [], "a mark alone is no line"


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(monkeypatch: Patch) -> None:
    monkeypatch.setattr("minibert.files.reading.LONGEST_LINE", 16)
    whole = b"x" * 15
    assert lines_of(monkeypatch, b"we\n" + whole, b"\n" + whole, b"\n") == ["we", "x" * 15, "x" * 15]
    for pieces in ((b"we\n" + b"x" * 16,), (b"w", b"e\n" + b"x" * 9, b"x" * 9), (b"we\n", b"x" * 8, b"x" * 8, b"\n")):
        with pytest.raises(ValueError, match=r"\b16 .* 3\b"):
            lines_of(monkeypatch, *pieces)


@pytest.mark.parametrize("at", [1, 7, 2500])
def test_lines_are_counted_through_all_pieces(monkeypatch: Patch, at: int) -> None:
    bad = b"we\n" * (at - 1) + b"caf\xe9\nwe\n"
    for size in (3, 100, len(bad)):
        with pytest.raises(ValueError, match=f"{at}"):
            lines_of(monkeypatch, *(bad[i : i + size] for i in range(0, len(bad), size)))


@pytest.mark.parametrize("words", [["encode"], ["embed"], ["similar", "we", "--file", "-"]])
def test_stdin_is_utf8_whatever_its_own_encoding(words: list[str], monkeypatch: Patch, capsys: Printed) -> None:
    for content, right in ((b"caf\xe9\n", False), ("café\n".encode(), True)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), "latin-1"))
        assert main([*words, "-m", str(DENSE)]) == (0 if right else 1)
        assert ("line 1 of stdin is not UTF-8 (" in capsys.readouterr().err) is not right


EMBED, SIMILAR = ("embed", "-m", DENSE), ("similar", "-m", DENSE, "clouds", "--file")


@pytest.mark.parametrize(("words", "stdin", "stdout", "stderr", "bar"), [  # of each stream, whether it is a terminal
    (EMBED, False, False, True, True), (EMBED, False, False, False, False), (EMBED, False, True, True, False),
    ((*EMBED, "-o", "a.npy"), False, True, True, True), ((*EMBED, "-o", "a.npy"), False, False, False, False),
    ((*SIMILAR, "lines"), False, False, True, True), ((*SIMILAR, "lines"), True, True, True, True),
    ((*SIMILAR, "lines"), False, False, False, False), ((*SIMILAR, "-"), True, False, True, False),
])  # fmt: skip
def test_a_bar_where_neither_results_nor_typed_lines_share_its_terminal(
    words: tuple[object, ...], stdin: bool, stdout: bool, stderr: bool, bar: bool, tmp_path: Path, monkeypatch: Patch,
    capsys: Printed,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(common, "BAR_AFTER", 0.0)
    typed(monkeypatch, made(tmp_path / "lines", b"clouds\n\n" + b"we\n" * 5000).read_bytes())  # several chunks
    for stream, terminal in ((sys.stdin, stdin), (sys.stdout, stdout), (sys.stderr, stderr)):
        monkeypatch.setattr(stream, "isatty", lambda terminal=terminal: terminal)
    assert ("5001text" in ran(capsys, *words)[1]) == bar


def test_only_words_that_are_alike_are_proposed() -> None:
    assert did_you_mean("--revison", ["--revision", "-m"]) == "; did you mean --revision?"
    assert did_you_mean("--json", ["--revision", "--version", "-m"]) == ""
    assert did_you_mean("embd", ["embed", "encode"]) == "; did you mean embed?"


def test_no_file_of_a_model_is_written_over(tmp_path: Path, capsys: Printed) -> None:
    """Of a model in three files, one of which nothing here reads, with a dense layer in a folder below."""
    model, link = shutil.copytree(DENSE, tmp_path / "model"), tmp_path / "link.npy"
    weights = load_file(model / "model.safetensors")
    rest = {"pooler.dense.weight": weights.pop("pooler.dense.weight")}
    layer = {name: weights.pop(name) for name in [*weights] if name.startswith("embeddings.")}
    write_shards(model, json.loads((model / "config.json").read_text("utf-8")), [layer, weights, rest])
    before = {path: path.read_bytes() for path in model.rglob("*.*")}
    for name in (
        *(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)), "2_Dense/model.safetensors", "config.json",
        "model.safetensors.index.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json",
        "tokenizer.json",
    ):  # fmt: skip
        link.symlink_to(model / name)
        for path in [link, *([model / "1_Pooling" / ".." / name] if name.endswith(".safetensors") else [])]:
            assert "of the model that is read here" in failure(capsys, "encode", "we", "-m", model, "-o", path), name
        link.unlink()
    beside = model / "mine.safetensors"  # no part of it, though it was written there before
    for _ in range(2):
        ran(capsys, "embed", "we", "--pooling", "none", "-m", model, "-o", beside)
    assert before | {beside: beside.read_bytes()} == {path: path.read_bytes() for path in model.rglob("*.*")}
