"""Files of vectors and of texts that other programs write."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Printed, error_of

from minibert.cli import main
from minibert.verify.shipped import TEXTS, read_texts
from minibert.verify.vectors import read_vectors

VECTORS = np.array([[1.5, -2.0, 0.0], [0.25, 4.0, 1.0]], np.float32)
ROWS = [{"text": f"text {i}", "embedding": row} for i, row in enumerate(VECTORS.tolist())]
WRITE: dict[str, Callable[[Path, Any], Any]] = {
    "v.npy": np.save,
    "v.jsonl": lambda path, x: path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8"),
}


@pytest.mark.parametrize("name", WRITE)
def test_vectors_are_read_from_every_format(name: str, tmp_path: Path) -> None:
    WRITE[name](tmp_path / name, VECTORS)
    found, texts = read_vectors(tmp_path / name)
    assert np.array_equal(found, VECTORS)
    assert texts == (["text 0", "text 1"] if name == "v.jsonl" else None)


FIRST = '{"text": "a", "vector": [1, 2, 3]}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.npy", np.zeros(3, np.float32), "one vector a row"),
        ("v.npy", np.zeros((2, 3), np.int8), "before they are quantized"),
        ("v.npy", np.zeros((0, 3), np.float32), "one vector a row"),
        ("v.npy", np.array([["a"]]), "<U1"),
        ("v.jsonl", FIRST + "[1]", "line 2"),
        ("v.jsonl", FIRST + '{"text": "a"}', "line 2"),
        ("v.jsonl", FIRST + '{"vector": [1, 2, 3]}', "1 .*2 "),
        ("v.jsonl", FIRST + '{"text": "a", "vector": [1, 2]}', "one vector a row"),
        ("v.jsonl", FIRST + '\n{"text": "a", "vector": ["x", 2, 3]}', "line 3"),
        ("v.jsonl", FIRST + '{"text": "a", "vector": null}', "line 2"),
        ("v.safetensors", b"", "numpy.save"),
        ("v.npz", b"", "numpy.save"),
        ("v.parquet", b"", "numpy.save"),
    ],
)
def test_what_are_no_vectors_is_refused_by_file(name: str, content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}.*{message}"):
        read_vectors(path)


@pytest.mark.parametrize("option", ["--vectors", "--texts", "--against"])
@pytest.mark.parametrize("ending", ["npy", "onnx", "safetensors"])
def test_a_pipe_is_not_waited_for(option: str, ending: str, folder: Path, tmp_path: Path, capsys: Printed) -> None:
    os.mkfifo(path := tmp_path / f"pipe.{ending}")
    assert main(["verify", str(folder), option, str(path)]) == 2
    assert f"{path} is no file but a pipe" in capsys.readouterr().err


def test_texts_that_are_printed_can_be_read_again(tmp_path: Path, capsys: Printed) -> None:
    assert main(["verify", "--print-texts"]) == 0
    printed = capsys.readouterr().out
    assert printed.isascii()  # control and non-ASCII characters are escaped
    (tmp_path / "t.jsonl").write_text(printed, encoding="utf-8")
    assert read_texts(tmp_path / "t.jsonl") == [each.text for each in TEXTS]
    (tmp_path / "t.txt").write_text("one\r\n\ntwo\n", encoding="utf-8")
    assert read_texts(tmp_path / "t.txt") == ["one", "", "two"]
    for name, content, words in (("a.jsonl", '{"text": 3}', "line 1: expected a text"), ("a.csv", "text\n", "lines"),
                                 ("a.txt", "", "has no text")):  # fmt: skip
        (tmp_path / name).write_text(content, encoding="utf-8")
        message = error_of(lambda name=name: read_texts(tmp_path / name))
        assert message is not None and f"{tmp_path / name}" in message and words in message
