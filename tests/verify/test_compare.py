"""`minibert.compare`: the command's verdict, for somebody's own tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import encoders
import loops
import numpy as np
import ports
import pytest
from reference_files import REFERENCE
from vector_port import VectorPort, write

import minibert
import minibert.verify
from minibert.verify.verify import verify

PAGE = (REFERENCE / "GOLDEN.md").read_text(encoding="utf-8")
BERT = ports.BERT.folder
WORDS, POSITIONS = (f"plain|embeddings.{name}_embeddings" for name in ("word", "position"))


def test_it_has_the_command_s_verdict() -> None:
    """After `import minibert.verify` too, which takes the name of a function of that kind."""
    arrays = ports.saved()
    right = minibert.compare(BERT, against=arrays, encoder=False)
    assert right.passed and right and right.differences == {} and right.mistakes == []
    arrays["plain|sum"] = arrays[WORDS] + arrays[POSITIONS]
    wrong = minibert.compare(BERT, against=arrays, encoder=False, batches=["plain"], only=["sum"])
    said = verify(str(BERT), against=arrays, batches=["plain"], only=["sum"])
    assert not wrong.passed and not wrong and str(wrong) == "\n".join(said.lines)
    assert wrong.mistakes == said.matches == ["type rows left out"]
    assert wrong.differences == {"sum": pytest.approx(said.compared[0].largest)}


def test_vectors_are_an_array_or_a_file(tmp_path: Path) -> None:
    folder, texts = write(tmp_path / "model"), ["we lived above the clouds", "the clouds", "a b"]
    assert minibert.compare(folder, against=VectorPort(folder)(texts), texts=texts).passed
    np.save(path := tmp_path / "port.npy", VectorPort(folder, "first token")(texts))
    wrong = minibert.compare(folder, against=path, texts=texts)
    assert wrong.mistakes == ["pooling cls"] and set(wrong.differences) == set(texts)
    with pytest.raises(ValueError):
        minibert.compare(folder, against=path, texts=texts, only=["sum"])
    with pytest.raises(ValueError, match=r"\b3 .*2\b"):
        minibert.compare(folder, against=path, texts=texts[:2])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(model=3), "^model .*int"),
        (dict(against=None), "^against .*NoneType"),
        (dict(against=[1.0]), "^against .*list"),
        (dict(texts=[1, 2]), r"^texts .*\[1, 2\]"),
        (dict(only=[3]), r"^only .*\[3\]"),
        (dict(batches="plain"), "^batches .*'plain'"),
        (dict(tolerance="1"), "^tolerance .*'1'"),
    ],
)
def test_an_argument_of_another_type_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        minibert.compare(**{"model": BERT, "against": {}, **wrong})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(against=""), "^against "),  # which would be this folder
        (dict(against={"plain|sum": [[1.0], [1.0, 2.0]]}), r"against\['plain\|sum'\]"),
        (dict(against={"plain|sum": [1j]}), r"against\['plain\|sum'\] .*complex128"),
        (dict(batches=[]), "^batches "),
        (dict(encoder=True, side="encoder"), "^encoder "),
    ],
)
def test_what_cannot_be_compared_is_an_error(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        minibert.compare(**{"model": BERT, "encoder": False, "against": ports.saved(), **wrong})


@pytest.mark.parametrize("change", [lambda x: x[::-1], lambda x: x * np.nan])
def test_what_is_named_without_looking_at_each_text_has_the_differences_of_each(change: Any, tmp_path: Path) -> None:
    folder, texts = write(tmp_path / "model"), ["we lived above the clouds", "the clouds", "a b", "z y x"]
    found = minibert.compare(folder, against=change(VectorPort(folder)(texts)), texts=texts)
    assert len(found.mistakes) == 1 and list(found.differences) == texts and min(found.differences.values()) > 0


PORT = """
import sys
sys.path[:0] = {path!r}
import loops
from pathlib import Path

def hidden_states(ids):
    made = loops.Port(Path("model"), {mistake!r}).run({{"input_ids": ids}})
    return [made[f"hidden_states.{{i}}"] for i in range({states})]
"""


def test_the_page_s_own_test_passes_a_right_port_and_not_a_wrong_one(tmp_path: Path) -> None:
    (code,) = [found for found in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "import my_port" in found]
    encoders.write(tmp_path / "model", "bert")
    (tmp_path / "test_port.py").write_text(code, "utf-8")
    for mistake, exit_code in (("", 0), ("activation gelu_new", 1)):
        port = PORT.format(path=[str(Path(loops.__file__).parent)], mistake=mistake, states=encoders.DEPTH + 1)
        (tmp_path / "my_port.py").write_text(port, "utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_port.py"]
        made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert made.returncode == exit_code, made.stdout + made.stderr
        assert (f"matches: {mistake}." in made.stdout) == bool(mistake), made.stdout
