"""The recipes for other people's stores and frameworks, each run with the real library in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Patch, Printed
from limits import CHILD_SECONDS
from needed import need
from served import served

import minibert
from minibert.cli import main
from minibert.serve.app import Server
from minibert.serve.worker import model_of, names_of

pytestmark = pytest.mark.adapters

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "scripts" / "readme" / "recipes"
MOST_LINES = 10
NAME = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = ["The app closes when I open it.", "The screen stays black after the update.",
         "My card was billed twice this month.", "It shows an error when I log in."]  # fmt: skip
NEAREST = TEXTS[2]  # to the question in each recipe: not the first and not the last of them
NEEDED = {
    "chroma": "chromadb", "langchain": "langchain_core", "llamaindex": "llama_index.core", "lance": "lancedb",
    "duck": "duckdb", "faiss_index": "faiss", "pandas_table": "pandas",
}  # fmt: skip
LAMBDA_BYTES = 250 * 1024 * 1024  # what AWS takes, unpacked; measured: 188 MB

# each as its reader runs it, but with the model from the disk
PROGRAM = """
import json, sys
import minibert

name, folder, recipe, texts = sys.argv[1:]
load = minibert.load_encoder
minibert.load_encoder = lambda given: load({name: folder}[given])
with open(recipe, encoding="utf-8") as file:
    exec(compile(file.read(), recipe, "exec"), {"__name__": "recipe", "texts": json.loads(texts)})
"""


def source(name: str) -> str:
    text = (RECIPES / f"{name}.py").read_text(encoding="utf-8")
    assert 0 < sum(bool(line.strip()) for line in text.splitlines()) <= MOST_LINES
    return text


def test_each_adapter_is_tried() -> None:
    """Here, or in tests/project/test_readme.py."""
    files = {path.stem for path in RECIPES.glob("*.py")}
    assert files == {*NEEDED, "openai_client", "aws_lambda", "classify", "nearest", "stored"}


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_other_programs_read_a_folder_of_bulk(form: str, minilm: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    for name in ("datasets", "duckdb", "lancedb", "pandas", "polars", "pyarrow"):
        need(name, "adapters")
    blocks = re.findall(r"^```python\n(.*?)^```$", (RECIPES / "README.md").read_text("utf-8"), re.M | re.S)
    blocks = [block for block in blocks if "import datasets" in block]
    (block,) = (block for block in blocks if ("read_parquet" in block) == (form == "parquet"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    Path("texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    bulk = ["bulk", "texts.jsonl", "-o", "vectors", "--format", form, "-m", str(minilm), "--rows-per-shard", "3"]
    assert main(bulk) == 0
    # how each says how many rows it has
    counts = {"pandas": len, "polars": lambda x: x.lazy().collect().height, "duckdb": lambda x: len(x.fetchall()),
              "datasets": len, "lancedb": lambda x: x.count_rows()}  # fmt: skip
    lines, names, tried = block.splitlines(), dict[str, Any](), set[str]()
    for line in lines:
        exec(line, names)
        if line.startswith("table = "):
            program = "pandas" if "pandas" in line else line.removeprefix("table = ").partition(".")[0]
            tried.add(program)
            assert counts[program](names["table"]) == len(TEXTS), line
    assert tried == {*counts}


@pytest.mark.parametrize("name", NEEDED)
def test_an_adapter_finds_the_nearest_text(name: str, minilm: Path, tmp_path: Path) -> None:
    need(NEEDED[name].partition(".")[0], "adapters")
    source(name)
    home = {"HOME": str(tmp_path), "ANONYMIZED_TELEMETRY": "False"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, NAME, str(minilm), str(RECIPES / f"{name}.py"), json.dumps(TEXTS)],
        cwd=tmp_path, env={**os.environ, **home}, capture_output=True, text=True, timeout=CHILD_SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{NEAREST}\n"), done.stderr


def test_openais_client_works_unchanged_and_comes_again_after_503(minilm: Path, capsys: Printed) -> None:
    """It reads Retry-After. Its vectors: test_clients.py; what it is refused with: tests/serve."""
    for module in ("openai", "starlette", "uvicorn"):
        need(module, "adapters")
    encoder, code = minibert.load_encoder(minilm), source("openai_client")
    assert "http://127.0.0.1:8000/v1" in code
    printed = f"{len(TEXTS)} 128 {int(encoder.tokenize(TEXTS)['attention_mask'].sum())}\n"
    server = Server([model_of(encoder, names_of(NAME))])
    note, statuses = server.record.note, list[int]()

    def noted(scope: Any, status: int, seconds: float) -> None:
        statuses.append(status)
        if status == 503:
            server.limits = server.limits._replace(waiting=1)  # no longer full
        note(scope, status, seconds)

    server.record.note = noted
    with served(server) as address:
        for waiting in (1, 0):  # a full server is one that lets nobody wait
            server.limits = server.limits._replace(waiting=waiting)
            names: dict[str, Any] = {"texts": TEXTS}
            exec(code.replace("http://127.0.0.1:8000", address.url), names)
            names["client"].close()
            assert capsys.readouterr().out == printed
    assert statuses == [200, 503, 200]


HANDLER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import aws_lambda
print(json.dumps(aws_lambda.handler({"texts": json.loads(sys.argv[2])}, None)))
"""


def test_a_folder_for_aws_lambda(minilm: Path, tmp_path: Path) -> None:
    folder, home = tmp_path / "function", tmp_path / "home"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(folder), str(ROOT)], check=True, capture_output=True)
    shutil.copytree(minilm, folder / "model")
    shutil.copy(RECIPES / "aws_lambda.py", folder)
    source("aws_lambda")
    keep = [sys.executable, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", str(folder)]
    subprocess.run(keep, check=True, capture_output=True)
    before = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert sum(before.values()) < LAMBDA_BYTES, f"{sum(before.values()):,} bytes"
    home.mkdir()
    for path in (home, folder):
        path.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", HANDLER, str(folder), json.dumps(TEXTS)],
            env={"HOME": str(home), "PATH": os.environ["PATH"]}, cwd="/", capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert np.allclose(json.loads(done.stdout)["vectors"], minibert.load_encoder(minilm).encode(TEXTS), atol=1e-6)
        assert list(home.iterdir()) == []
        assert {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()} == before
    finally:
        for path in (home, folder):
            path.chmod(0o755)
