"""README, recipes and the pages beside what they describe: their Python runs, tables are true, links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write
from command_line import WITHOUT_TORCH, Patch, Printed
from limits import CHILD_SECONDS
from needed import absent, module_of, need

import minibert
from minibert.bulk.job import ROWS_PER_SHARD
from minibert.cli import _opened, main
from minibert.equations.input_layer import layer_norm
from minibert.families.rows import BLOCKS as ROWS_OF_BLOCKS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FAMILIES = (ROOT / "minibert/families/README.md").read_text(encoding="utf-8")
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "minibert").rglob("README.md")),
    *sorted(ROOT.glob("scripts/**/README.md")),
]
PARTS = {
    command: body
    for page in PAGES
    for command, body in re.findall(r"<!-- \$ (.+?) -->\n(.*?)<!-- end -->", page.read_text("utf-8"), re.DOTALL)
}
NUMBER = r"-?\d+(?:\.\d+)?(?:e-\d+)?"
(OWN_FAMILY,) = re.findall(r"```python\n([^`]*family=MINE[^`]*)```", FAMILIES)


def ran(command: str | list[str], folder: Path = ROOT, **environment: str) -> str:
    """What a program prints that finds the package, whatever its folder, and has nothing to say on stderr."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = {name: value for name, value in os.environ.items() if name != "MINIBERT_CACHE"}
    variables |= {"PYTHONPATH": path, "COLUMNS": "80", **environment}
    given: dict[str, Any] = {"cwd": folder, "env": variables, "capture_output": True, "timeout": CHILD_SECONDS}
    done = subprocess.run(command, shell=isinstance(command, str), text=True, **given)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run(code: str, folder: Path, **environment: str) -> str:
    return ran([sys.executable, "-W", "error", "-c", code], folder, **environment)


def test_the_ten_lines_print_what_stands_below_them(minilm: Path, tmp_path: Path) -> None:
    ((code, shown),) = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 10
    assert run(code, tmp_path, MINIBERT_MODEL=str(minilm)) == shown


def test_the_page_of_families_lists_the_blocks_that_there_are() -> None:
    table = FAMILIES.partition("\n## Blocks\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w, -]+?)(?:: the encoder)? \|", table, re.MULTILINE)[1:]
    advice = "name each in the table of blocks in minibert/families/README.md"
    assert sorted(name for row in rows for name in row.split(", ")) == sorted(ROWS_OF_BLOCKS), advice
    said = f"the input layer of {len(minibert.FAMILIES)} model types, and the blocks of {len(ROWS_OF_BLOCKS)} of them"
    assert said in README.replace("\n", " "), "write the two counts in README.md"


def test_the_lines_about_words_run_on_tiny_models(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n([^`]*\.fill\(.*?)```", FAMILIES, re.DOTALL)
    code = code.replace("./scripts", f"{ROOT}/scripts")
    code = code.replace("cross-encoder/ms-marco-MiniLM-L6-v2", str(ROOT / "tests/reference/uses-reranker"))
    printed = run(code, tmp_path, PYTHONIOENCODING="utf-8:replace")
    assert len(re.findall(r" \d(?:\.\d+)?(?:e-\d+)?$", printed, re.MULTILINE)) == 10
    assert printed.startswith("o 0.8") and "\nl 0.8" in printed and "\nhapp" in printed
    assert len(re.findall(r"{'corpus_id': [01], 'score': 0\.\d+, 'text': '[AJ]", printed)) == 2


def test_the_commands_of_the_doors_run(minilm: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """In the page's order: `--against` gets the file of `--save`. `explain --live` would wait for a reader."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIBERT_MODEL", str(minilm))
    Path("questions.txt").write_text("we lived above the clouds\n")
    before = README.split("## Beside")[0].replace("\n", " ")
    commands = [shlex.split(line) for line in re.findall(r"`minibert (\w+ [^`]+)`", before)]
    assert [command[0] for command in commands] == ["explain", "verify", "verify", "encode", "similar"]
    assert _opened("explain")[1].parse(commands[0][1:]).live
    assert [main(command) for command in commands[1:]] == [0] * 4


def test_the_figures_are_those_of_the_benchmarks_last_run(monkeypatch: Patch) -> None:
    """After `python scripts/bench sentences` they are filled in by `python scripts/readme/tables.py figures`."""
    monkeypatch.syspath_prepend(ROOT / "scripts/readme")
    figures = module_of(ROOT / "scripts/readme/figures.py")
    shown = PARTS["python scripts/readme/figures.py"]
    assert figures.measured() in shown
    size = figures.megabytes(figures.NAME)
    (said,) = re.findall(r"\| installed, .*? \| (\d+) MB \|", shown)
    assert 0.9 * int(said) < size < 1.3 * int(said)  # the oldest NumPy is larger by a fifth of all


def test_the_page_of_the_benchmark_counts_the_shards_of_a_billion_rows() -> None:
    page = (ROOT / "scripts/bench/README.md").read_text(encoding="utf-8")
    assert f"in {ceil(1e9 / ROWS_PER_SHARD):,} shards of {ROWS_PER_SHARD:,} rows" in page


@pytest.mark.reference
def test_the_table_of_packages_names_calls_that_are_there() -> None:
    """Neither fastembed nor TransformerLens is installed here: their columns are read by people alone."""
    import model2vec
    import sentence_transformers
    import transformers

    places: dict[str, tuple[Any, Any]] = {
        "minibert": (minibert, minibert.Encoder),
        "transformers": (transformers, transformers.GenerationMixin),
        "sentence-transformers": (sentence_transformers, sentence_transformers.SentenceTransformer),
        "model2vec": (model2vec, model2vec.StaticModel),
    }

    def there(package: str, name: str) -> bool:
        top, kind = places[package]
        return hasattr(top, name) or hasattr(kind, name) or not absent(f"{top.__name__}.{name}")

    section = README.partition("## Beside other packages")[2].partition("\n\nSentence")[0]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line[:1] == "|"]
    for head, _, *cells in zip(*table, strict=True):
        package, _, series = head.partition(" ")
        if package in places:
            assert version(package).startswith(f"{series}.") if series else package == "minibert"
            names = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
            assert len(names) > 1 and [name for name in names if not there(package, name)] == []


def test_the_private_family_runs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words, places = rng.standard_normal((9, 4)).astype("f4"), rng.standard_normal((5, 4)).astype("f4")
    weight, bias = rng.standard_normal((2, 4)).astype("f4")
    config = {"model_type": "mine", "vocab_size": 9, "hidden_size": 4, "max_position_embeddings": 5}
    named = {"words.weight": words, "places.weight": places, "norm.weight": weight, "norm.bias": bias}
    tensors = {f"mine.embeddings.{name}": array for name, array in named.items()}
    write(tmp_path / "my-model", config | {"layer_norm_eps": 0.1}, tensors)
    printed = run(OWN_FAMILY + "print(layer([[3, 8]]).tolist())", tmp_path)
    expected = layer_norm(words[[3, 8]] + places[:2], weight, bias, eps=0.1)
    assert np.allclose(json.loads(printed), expected, atol=1e-6)


def anchors(page: Path) -> set[str]:
    """Give the names by which links find a page's headings."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_points_to_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"`[^`\n]+`(?!\])", "", text)  # a recipe in backticks may look like a link
    links = re.findall(r"\]\((?!\w+:)([^)#]*)(?:#([^)]+))?\)", prose)
    assert [link for link, _ in links if not (page.parent / link).exists()] == []
    pointed = [(link, anchor) for link, anchor in links if anchor]
    assert [each for each in pointed if each[1] not in anchors(page.parent / each[0] if each[0] else page)] == []
    commands = re.findall(r"(?:sh|python) (scripts/[\w/.]+)", text)
    runs = [ROOT / command / "__main__.py" if (ROOT / command).is_dir() else ROOT / command for command in commands]
    assert [path for path in runs if not path.is_file()] == []


@pytest.mark.parametrize(
    ("program", "last_place"),
    [("minibert verify", 1e-4), ("python scripts/reference/exactness.py", 1e-4), ("python scripts/readme/contr", 1e-3)],
)
def test_a_part_shows_what_its_command_prints(program: str, last_place: float, minilm: Path) -> None:
    """The last bits aside, which are another processor's. The other parts are figures of one machine."""
    (command,) = [command for command in PARTS if command.startswith(program)]
    here = re.sub("^minibert", f"'{sys.executable}' -c \"{WITHOUT_TORCH}\"", command)
    here = re.sub("^python", f"'{sys.executable}'", here)
    both = ran(here, MINIBERT_MODEL=str(minilm)).strip(), PARTS[command].replace("```", "").strip()
    # the share of entries that are equal to the bit is a processor's own, and so is a number's width: 4e-08 or 4.1e-08
    both = tuple(re.sub(r" +", " ", re.sub(r" +[\d.]+ %", " ~ %", text)) for text in both)
    texts, numbers = zip(*((re.sub(NUMBER, "~", text), re.findall(NUMBER, text)) for text in both), strict=True)
    assert texts[0] == texts[1], f"python scripts/readme/tables.py '{program}' writes it"
    assert np.abs(np.array(numbers[0], float) - np.array(numbers[1], float)).max() < 1.1 * last_place


def test_the_map_of_a_change_names_files_that_are_there() -> None:
    text = (ROOT / "scripts" / "README.md").read_text(encoding="utf-8")
    paths = re.findall(r"\b((?:minibert|scripts|tests)/[\w/.]*\w/?)", text.partition("## The commands")[0])
    assert len(paths) > 20
    assert [path for path in paths if "/NAME." not in path and not (ROOT / path).exists()] == []
    assert [path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and path.name not in text] == []


RECIPES = ROOT / "scripts" / "readme" / "recipes"
RECIPES_PAGE = (RECIPES / "README.md").read_text(encoding="utf-8")
MOST_LINES = 6
NAME = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = [
    "My card was billed twice this month.", "I want a refund for the last invoice.", "The price on the bill is wrong.",
    "The app closes when I open it.", "The screen stays black after the update.", "It shows an error when I log in.",
]  # fmt: skip
LABELS = ["money"] * 3 + ["software"] * 3


def run_recipe(name: str, minilm: Path, monkeypatch: Patch) -> None:
    source = (RECIPES / name).read_text(encoding="utf-8")
    assert 0 < sum(bool(line.strip()) for line in source.splitlines()) <= MOST_LINES
    load = minibert.load_encoder
    monkeypatch.setattr(minibert, "load_encoder", lambda given: load({NAME: minilm}[given]), raising=False)
    exec(compile(source, name, "exec"), {"texts": TEXTS, "labels": LABELS})


@pytest.mark.parametrize("name", ["classify.py", "nearest.py"])
def test_the_page_shows_it_as_it_is_run(name: str) -> None:
    assert (RECIPES / name).read_text(encoding="utf-8").strip() in RECIPES_PAGE


@pytest.mark.reference  # whose extra brings scikit-learn
def test_a_classifier(minilm: Path, monkeypatch: Patch, capsys: Printed) -> None:
    need("sklearn", "reference")
    run_recipe("classify.py", minilm, monkeypatch)
    assert capsys.readouterr().out == "['money']\n"


def test_nearest_neighbours(minilm: Path, monkeypatch: Patch, capsys: Printed) -> None:
    run_recipe("nearest.py", minilm, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert [line[7:] for line in lines] == [TEXTS[0], TEXTS[2], TEXTS[1]]
    assert [line[:5] for line in lines] == sorted((line[:5] for line in lines), reverse=True)


def test_a_search_of_what_bulk_wrote(minilm: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (json.dumps({"text": text}) + "\n" for text in TEXTS)
    Path("texts.jsonl").write_text("".join(rows), encoding="utf-8")
    lines = re.findall(r"^minibert (.*)$", RECIPES_PAGE, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["bulk", "search"]
    for line in lines:
        assert main([str(minilm) if word == NAME else word for word in shlex.split(line)]) == 0
    found = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=2)[2] for line in found] == [TEXTS[0], TEXTS[2], TEXTS[1]]
    run_recipe("stored.py", minilm, monkeypatch)
    shown = capsys.readouterr().out
    assert all(repr(text) in shown for text in TEXTS[:3]) and found[0][:4] in shown


def test_an_engine(minilm: Path) -> None:
    """The one that the tests' own extra brings; the others were tried by hand, as the page says."""
    (code,) = re.findall(r"```python\n(import polars\n\n.*?)```", RECIPES_PAGE, re.DOTALL)
    encoder = minibert.load_encoder(minilm)
    names = {"texts": TEXTS, "encoder": encoder}
    exec(compile(code, "README.md", "exec"), names)
    # a sentence's last bits change with its batch, which engines cut in their own way; measured: 1.0e-7
    assert np.allclose(names["table"]["vector"].to_numpy(), encoder.encode(TEXTS), atol=1e-6, rtol=0)
