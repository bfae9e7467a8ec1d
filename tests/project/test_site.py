"""The site: what it takes from the project is there, what its blocks say runs, and calls shown old beside new give the
same."""

from __future__ import annotations

import base64
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from types import FunctionType, ModuleType
from typing import Any

import course
import distilled
import numpy as np
import pytest
import word_models
from command_line import Patch, Printed
from limits import CHILD_SECONDS
from needed import module_of
from notebooks import TITLES
from served import needs_server, opened, straight

import minibert
from minibert.cli import COMMANDS, _opened, main
from minibert.equations import FILES
from minibert.models.run.attributes import INSTEAD
from minibert.models.sentences.sentence_config import HABITS
from minibert.serve.app import Server

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "scripts/site"
MOVING = sorted((SITE / "pages").glob("from_*.md"))
each_page = pytest.mark.parametrize("page", MOVING, ids=lambda page: page.stem)
REFERENCE = ROOT / "tests/reference"
CLASSES: dict[str, type] = {"encoder": minibert.Encoder, "embedding_layer": minibert.EmbeddingLayer}
SAME = 1e-5  # what the pages say, times max(1, size); measured 6.3e-7 of distances around 21
STEP = 1  # of int8, where a number lies between two steps
HALF = 1e-3  # of rows that are kept in float16, as the page says


def models(minilm: Path, folder: Path) -> dict[str, str]:
    """Return a small model for each model that a page names."""
    return {
        "all-MiniLM-L6-v2": str(minilm),
        "cross-encoder/ms-marco-MiniLM-L6-v2": str(REFERENCE / "uses-reranker"),
        "naver/splade-v3": str(REFERENCE / "uses-sparse"),
        "lightonai/colbertv2.0": str(REFERENCE / "late-pylate"),
        "bert-base-uncased": str(word_models.write(folder / "bert", "bert")),
        "gpt2": str(ROOT / "scripts/study/gpt2-words"),
        "cardiffnlp/twitter-roberta-base-sentiment-latest": str(REFERENCE / "uses-topics"),
        "cross-encoder/nli-MiniLM2-L6-H768": str(REFERENCE / "uses-inference"),
        "dslim/bert-base-NER": str(REFERENCE / "uses-entities"),
        "minishlab/potion-base-8M": str(REFERENCE / "static-plain"),
        "BAAI/bge-small-en-v1.5": str(distilled.write(folder / "bge", "bert")),
    }


def pairs(page: Path, named: dict[str, str]) -> list[tuple[str, str]]:
    """Yield each section's two blocks, the old and the new, with small models."""
    found = []
    for section in page.read_text("utf-8").split("\n## ")[1:]:
        blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        assert len(blocks) in (0, 2), f"{page.name}: {section.splitlines()[0]} has not two blocks"
        for name, folder in named.items():
            blocks = [block.replace(f'"{name}"', repr(folder)) for block in blocks]
        found += [(blocks[0], blocks[1])] if blocks else []
    return found


def hooks(name: str = "hooks") -> ModuleType:
    """Import the site's own code, which no wheel carries."""
    return module_of(SITE / f"{name}.py")


@pytest.fixture
def as_markdown(monkeypatch: Patch) -> Callable[[str, list[str]], str]:
    # what reads the docstrings for the site is not in this environment; how they are written needs none of it
    monkeypatch.setitem(sys.modules, "griffe", ModuleType("griffe"))
    monkeypatch.setattr("griffe.Extension", object, raising=False)
    found: Callable[[str, list[str]], str] = hooks("docstrings").as_markdown
    return found


def documented() -> Iterator[tuple[str, str, list[str]]]:
    """Yield each docstring that the reference shows: its owner, its text, the names of its arguments."""
    for page in sorted((SITE / "pages/api").glob("*.md")):
        for path in re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE):
            shown = resolve_name(path)
            inside = {} if inspect.isfunction(shown) else {name: getattr(shown, name) for name in dir(shown)}
            if isinstance(shown, ModuleType):
                inside = {name: each for name, each in inside.items() if getattr(each, "__module__", "") == path}
            for name, each in ({"": shown} | inside).items():
                if (text := inspect.getdoc(each)) and (inspect.isfunction(each) or isinstance(each, type | property)):
                    arguments = list(inspect.signature(each).parameters) if inspect.isfunction(each) else []
                    yield f"{path}.{name}".rstrip("."), inspect.cleandoc(text), arguments


def whole_pages() -> dict[str, str]:
    """Return each page of the site with the parts that it includes from the project."""
    own = hooks()
    pages = SITE / "pages"
    texts = {page.relative_to(pages).as_posix(): page.read_text("utf-8") for page in pages.rglob("*.md")}
    return {name: own.FROM.sub(lambda found: own.part(*found.groups()), text) for name, text in texts.items()}


def test_a_page_that_takes_a_heading_which_is_not_there_fails() -> None:
    with pytest.raises(LookupError, match=r"README\.md has no heading 'The door'"):
        hooks().part("README.md", "The door")
    assert "## " not in hooks().part("README.md", "Install") and "pip install" in hooks().part("README.md", "Install")


def cell(source: str, *outputs: dict[str, Any], tags: tuple[str, ...] = ()) -> dict[str, Any]:
    kind = "markdown" if source[0] == "#" else "code"
    return {"cell_type": kind, "source": [source], "metadata": {"tags": tags}, "outputs": outputs}


def test_a_study_stands_on_the_site_as_it_was_run(tmp_path: Path, monkeypatch: Patch) -> None:
    name = "006_blocks"
    picture = {"data": {"image/png": "cG5n", "text/plain": "a [map]"}}
    header = b"\x89PNG\r\n\x1a\n" + bytes([0, 0, 0, 13]) + b"IHDR" + (1200).to_bytes(4, "big")
    wide = {"data": {"image/png": base64.b64encode(header).decode(), "text/plain": "a line"}}
    cells = [
        cell("# BERT's blocks\n\nA block [`heads.py`](heads.py), `learning.py`."),
        cell("x = 1\nx", {"text": ["1"]}, picture, {"text": "\n2\n"}, wide), cell("long = 2", tags=("folded",)),
        cell("## Exercises\n\n1. Why?\n2. How?"), cell("## Answers\n\n1. Because\n   of it."), cell("y = 3"),
        cell("#", {"text": "4"}) | {"source": "2. So."},
    ]  # fmt: skip
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / f"{name}.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr(course, "BUILT", tmp_path)
    text, pictures = course.study_page(name)
    command = course.explained(name)
    about = f"{course.minutes(name)[0]} minutes to read, 2 exercises"
    live = f'<iframe class="live" src="{name}-live.html" title="a page to click through" loading="lazy"></iframe>'
    assert text.rstrip("\n").split("\n\n") == [
        "# BERT's blocks", f"[Open this page's code](../source/scripts/study/{name}.py.md) · {about}",
        "A block [`heads.py`](heads.py), [How the tables are learned](learning.py).",
        "```python\nx = 1\nx\n```", "```text\n1\n2\n```", f"[![a (map)]({name}-1.png)]({name}-1.png)",
        f"[![a line]({name}-2.png)]({name}-2.png){{ .wide }}",
        '??? note "1 line of code"', "    ```python\n    long = 2\n    ```", "## To click through",
        f"This page is what `{command}` writes. [Open it alone]({name}-live.html), on a phone too.", live,
        "## Exercises", "1. Why?\n2. How?", "## Answers", '??? success "Answer 1"', "    Because\n    of it.",
        "    ```python\n    y = 3\n    ```", '??? success "Answer 2"', "    So.",
    ]  # fmt: skip
    assert pictures == {f"{name}-1.png": b"png", f"{name}-2.png": header}
    assert _opened("explain")[1].parse(shlex.split(command)[2:]).beside
    with pytest.raises(FileNotFoundError, match="sh scripts/study/build --new"):
        course.study_page("heads")


@pytest.mark.parametrize("name", course.LABS)
def test_a_lab_stands_on_the_site_with_blanks_and_folded_answers(name: str) -> None:
    text = course.lab_page(name)
    exercises = text.count("\n## Exercise ")
    folded = re.findall(r'^\?\?\? success "Answer"\n\n((?:    .*\n|\n)+)', text, re.MULTILINE)
    assert exercises == len(folded) == text.count("return ...  # ") > 4
    assert not any("return ...  #" in answer or "# blank" in answer or "# end" in answer for answer in folded)
    for answer in folded:
        compile("\n".join(line.removeprefix("    ") for line in answer.strip().splitlines()[1:-1]), name, "exec")


def test_the_weeks_of_the_plan_have_each_page_and_lab_in_the_order_of_reading() -> None:
    plan = (SITE / "pages/weeks.md").read_text("utf-8")
    weeks = course.weeks(plan)
    assert [name for week in weeks for name in week.titles if name not in course.LABS] == list(TITLES)
    assert len(weeks) == 8 and sum(name in course.LABS for week in weeks for name in week.titles) == len(course.LABS)
    text = course.with_tables(plan)
    assert course.PAGES not in text and text.count("\n| [") == len(TITLES) + len(course.LABS)
    (first, *_) = course.navigation(plan)[0]["Week 1: the input layer"]
    assert first == {"BERT's input layer in five minutes": "course/five_minutes.md"}
    with pytest.raises(ValueError, match="not those of the plan"):
        course.weeks(plan.replace("## Week 2", "## Week 9"))


def test_minutes_are_counted() -> None:
    assert course.minutes("five_minutes")[1] == [10, 10]
    assert 4 <= course.minutes("five_minutes")[0] <= 6
    assert course.each(course.minutes("1_input_layer")[1]) == "3 x 3, 3 x 6, 2 x 12"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("Look rows up, with the same\nids: no argument.", "Look rows up, with the same ids: no argument."),
        ("Look.\n\nRows go with their\nids: no argument.", "Look.\n\nRows go with their\nids: no argument."),
        ('Look.\n\ntable, rows     what is looked into\n"max"           the largest',
         'Look.\n\n\n- `table`, `rows`: what is looked into\n\n- `"max"`: the largest'),
        ("Look.\n\nids: which rows. Where none,\nno row is given.\nother: no argument.",
         "Look.\n\n\n- `ids`: which rows. Where none,\nno row is given.\nother: no argument."),
        ("Look.\n\n>>> lookup(1,\n...        2)\n3\nand this is behind it\n\nMore.",
         "Look.\n\n\n```pycon\n>>> lookup(1,\n...        2)\n3\nand this is behind it\n```\n\nMore."),
        ("Look.\n\nSources\n    A paper.\n    Another.", "Look.\n\n**Sources**\n\n- A paper.\n- Another."),
    ],
)  # fmt: skip
def test_a_docstring_becomes_lists_and_code(text: str, made: str, as_markdown: Callable[[str, list[str]], str]) -> None:
    assert as_markdown(text, ["ids", "table"]) == made


def test_no_docstring_loses_words_or_is_cut_on_the_site(as_markdown: Callable[[str, list[str]], str]) -> None:
    """A tag outside code is swallowed by a browser; a list that begins inside a sentence tears it apart."""
    names = set()
    for name, text, arguments in documented():
        made = as_markdown(text, arguments)
        names.add(name)
        assert re.findall(r"\w+", made.replace("```pycon", "")) == re.findall(r"\w+", text), name
        prose = re.sub(r"```.*?```|`[^`]*`|^    [^\n]*", "", made, flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"</?\w+>", prose), name
        torn = re.findall(r"^[^-\s].*[\w,](?=\n\n- `(?!\")(\w+)`)", made, re.MULTILINE)
        assert not set(torn) & set(arguments), f"{name}: {torn}"
    assert {"minibert.search", "minibert.Encoder.fill", "minibert.equations.blocks.attention"} <= names


def test_links_lead_to_pages_or_to_sources() -> None:
    own = hooks()
    links = {
        "[a\na](../../tests/reference/GOLDEN.md#x)": "[a\na](golden.md#x)",
        "[e](../equations)": "[e](api/equations.md)", "[b](bert.py)": "[b](source/minibert/families/bert.py.md)",
        "[c](#here)": "[c](#here)",
        "![d](../../scripts/readme/gallery/page.png)": "![d](source/scripts/readme/gallery/page.png)",
    }  # fmt: skip
    assert own.linked(" ".join(links), "minibert/families", "") == " ".join(links.values())


def test_the_reference_has_every_public_name_and_shows_no_other() -> None:
    named = {name for page in (SITE / "pages/api").glob("*.md")
             for name in re.findall(r"^::: minibert\.(\w+)$", page.read_text("utf-8"), re.MULTILINE)}  # fmt: skip
    assert named == set(minibert.__all__)
    equations = (SITE / "pages/api/equations.md").read_text("utf-8")
    assert re.findall(r"^::: minibert\.equations\.(\w+)$", equations, re.MULTILINE) == list(FILES)
    families = (SITE / "pages/api/families.md").read_text("utf-8")
    listed = re.findall(r"^::: minibert\.families\.(\w+)$", families, re.MULTILINE)
    assert {*listed, "FAMILIES", "Family"} == set(minibert.families.__all__)
    # else a name would be in use and not public, or public again since it is called otherwise
    files = ROOT / "README.md", *ROOT.glob("scripts/readme/recipes/*.py"), *ROOT.glob("scripts/study/**/*.py")
    shown = "".join([*whole_pages().values(), *(file.read_text("utf-8") for file in files)])
    for page, of in CLASSES.items():
        assert left_out(page) <= set(dir(of))
        for name in left_out(page):
            assert not re.search(rf"\b(encoder|layer|model|bert|gpt2)\.{name}\b", shown), name


def test_the_reference_by_task_has_every_public_name_with_a_sentence() -> None:
    own = hooks()
    text = (SITE / "pages/api/tasks.md").read_text("utf-8")
    named = {name for found in own.NAMES.findall(text) for name in found.split()}
    public = [(of, name) for page, of in CLASSES.items() for name in set(dir(of)) - left_out(page) if name[0] != "_"]
    kinds = FunctionType | property
    methods = {f"{of.__name__}.{name}" for of, name in public if isinstance(getattr(of, name), kinds)}
    parts = {f"families.{name}" for name in set(minibert.families.__all__) - {"FAMILIES", "Family"}}
    commands = {f"${name}" for name in COMMANDS}
    assert named == {*minibert.__all__, *methods, *parts, *commands, "bulk.stored.StoredVectors"}
    assert all(map(own.said, named))
    encode = f"| [`minibert encode`](commands.md#minibert-encode) | {COMMANDS['encode']} |"
    assert own.table(["load", "$encode"]).splitlines()[-1] == encode
    assert own.table(["search"]).splitlines()[-1].startswith("| [`search`][minibert.search] | Return the k vectors ")


def left_out(name: str) -> set[str]:
    """Return the names of a class that the reference leaves out: other parts of minibert call them."""
    (names,) = re.findall(r'"!\^\(([\w|]+)\)\$"', (SITE / f"pages/api/{name}.md").read_text("utf-8"))
    return set(names.split("|"))


def test_the_page_of_commands_has_each_with_its_options() -> None:
    own = hooks()
    assert own.HELP in (SITE / "pages/api/commands.md").read_text("utf-8")
    sections = re.split(r"^## minibert (\w+)$", own.commands(), flags=re.MULTILINE)[1:]
    assert sections[::2] == list(COMMANDS)
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        options = _opened(name)[1]._option_string_actions
        assert len(options) > 2 and all(re.search(rf"^  .*{option}\b", text, re.MULTILINE) for option in options)
        assert max(map(len, text.splitlines())) <= own.WIDTH


def test_the_lines_about_late_interaction_run() -> None:
    (code,) = re.findall(r"```py\n(.*?)```", whole_pages()["families.md"], re.DOTALL)
    names: dict[str, Any] = {"minibert": minibert}
    exec(code.replace("answerdotai/answerai-colbert-small-v1", str(REFERENCE / "late-pylate")), names)
    assert [rows.ndim for rows in (*names["queries"], *names["documents"])] == [2, 2, 2]


def test_the_page_has_the_words_of_errors_that_name_it() -> None:
    page = (SITE / "pages/from_sentence_transformers.md").read_text("utf-8")
    code = " ".join(re.findall("`[^`]+`", re.sub("```.*?```", "", page, flags=re.DOTALL)))
    assert not [name for name in (*HABITS, *INSTEAD) if not re.search(rf"\b{name}\b", code)]


def test_every_command_that_a_page_shows_is_one() -> None:
    """An option that has another name now would stand on a page for ever."""
    tried = set()
    for name, text in whole_pages().items():
        blocks = [*re.findall(r"(?ms)^```sh\n(.*?)^```", text), *re.findall(r"(?m)^    \S.*\n", text)]
        for line in "".join(blocks).splitlines():
            words = shlex.split(line.split("  ")[0] if line.startswith(" " * 4) else line, comments=True)
            if words[:1] == ["minibert"]:
                try:
                    _opened(words[1])[1].parse(words[2:])
                except SystemExit:
                    pytest.fail(f"{name} shows what is no command: {line}")
                tried.add(words[1])
    assert tried >= {"encode", "similar", "rank", "bulk", "search", "serve", "verify", "explain"}


@pytest.mark.parametrize("page", ["index", "student", "verifier", "embedder"])
def test_the_commands_of_a_first_page_run(
    page: str, minilm: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIBERT_MODEL", str(minilm))
    Path("scripts").symlink_to(ROOT / "scripts")
    for name in ("questions", "recipes"):
        Path(f"{name}.txt").write_text("we lived above the clouds\nI am Sinan\n")
    text = whole_pages()[f"{page}.md"].replace("cross-encoder/ms-marco-MiniLM-L6-v2", str(REFERENCE / "uses-reranker"))
    port = (SITE / "port.py").read_text("utf-8")
    lines = [line for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
             for line in block.splitlines() if line.startswith("minibert ")]  # fmt: skip
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        if words == ["verify", "--vectors", "vectors.npy"]:
            main(["verify", "--print-texts"])
            texts = [json.loads(text)["text"] for text in capsys.readouterr().out.splitlines()]
            np.save("vectors.npy", minibert.load_encoder(minilm).encode(texts))
        if words[-1] == "port.safetensors":  # first as the page shows it, then mended as it says
            exec(port, {})
            assert main(words) == 1
            assert "\nmatches: variance divided by dim - 1. " in capsys.readouterr().out
            exec(port.replace(", ddof=1", ""), {})
        if "--seeds" not in words:  # which asks the Hub
            assert main(words) == 0, line
        capsys.readouterr()
    assert len(lines) >= 3
    if page == "embedder":
        (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        exec(code, {})
        assert capsys.readouterr().out.count("we lived above the clouds") == 1


def test_vectors_from_before_an_upgrade_are_compared(minilm: Path, tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(cat texts.*?)```", (SITE / "pages/production.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "texts.txt").write_text("we lived above the clouds\nI am Sinan\n")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"MINIBERT_MODEL": str(minilm), "PATH": path}

    given: dict[str, Any] = {"cwd": tmp_path, "env": environment, "timeout": CHILD_SECONDS}
    subprocess.run(["sh", "-e", "-c", block], check=True, **given)
    np.save(tmp_path / "before.npy", np.load(tmp_path / "before.npy")[::-1])
    assert subprocess.run(block.splitlines()[1], shell=True, **given).returncode == 1


def test_the_requests_of_the_servers_page_are_answered(minilm: Path) -> None:
    needs_server()
    server = Server([opened(minilm), opened(REFERENCE / "uses-reranker")])
    asked = re.findall(r"^curl http://127\.0\.0\.1:8000(\S+) -d '(.+)'$", whole_pages()["server.md"], re.MULTILINE)
    assert len(asked) >= 3
    for path, body in asked:
        assert straight(server, path, body.encode()).status == 200, (path, body)


@each_page
def test_the_new_calls_run(page: Path, minilm: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for _, new in pairs(page, models(minilm, tmp_path)):
        exec(new, names)


@pytest.mark.reference
@each_page
def test_old_and_new_calls_give_the_same(page: Path, minilm: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    theirs: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for old, new in pairs(page, models(minilm, tmp_path)):
        exec(old, theirs)
        exec(new, ours)
        compared = {*re.findall(r"^(\w+) = ", new, re.MULTILINE)} & theirs.keys() - {"model", "batch", "texts"}
        assert compared, f"nothing to compare in {new}"
        for name in compared:
            same(theirs[name], ours[name], HALF if "distill" in old else SAME)


@pytest.mark.reference
@pytest.mark.filterwarnings("default")  # mteb's own, of torch and scikit-learn
@pytest.mark.skipif(sys.version_info < (3, 11), reason="mteb 2.26 asks for Python 3.11")
def test_mteb_gives_the_scores_of_sentence_transformers(minilm: Path) -> None:
    import mteb
    from mteb.mocks import MockBitextMiningTask, MockClusteringTask, MockRerankingTask, MockRetrievalTask, MockSTSTask
    from mteb.types import PromptType
    from sentence_transformers import SentenceTransformer

    text = (SITE / "pages/from_sentence_transformers.md").read_text("utf-8")
    (code,) = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    lines, _, run = code.replace("sentence-transformers/all-MiniLM-L6-v2", str(minilm), 1).rpartition("\nscores = ")
    assert run.startswith("mteb.evaluate(Minibert(), ")
    names: dict[str, Any] = {"minibert": minibert}
    exec(lines, names)
    kinds = (MockSTSTask, MockRetrievalTask, MockRerankingTask, MockBitextMiningTask, MockClusteringTask)

    def scores(model: Any) -> list[float]:
        found = (mteb.evaluate(model, [task()], cache=None, show_progress_bar=False) for task in kinds)
        return [each.task_results[0].get_score() for each in found]

    mine = scores(names["Minibert"]())
    assert np.allclose(mine, scores(SentenceTransformer(str(minilm))), atol=SAME) and len(set(mine)) > 2
    ours, prompts = names["Minibert"](), {"query": "find: ", "document": "text: "}
    ours.encoder = minibert.load_encoder(minilm, prompts=prompts)
    called_by = {None: "encode", PromptType.query: "encode_query", PromptType.document: "encode_document"}
    for kind, called in called_by.items():
        found = ours.encode([{"text": ["a cat"]}, {"text": ["a dog", "a bird"]}], prompt_type=kind)
        assert np.array_equal(found, getattr(ours.encoder, called)(["a cat", "a dog", "a bird"]))


def same(expected: Any, found: Any, within: float) -> None:
    if isinstance(expected, (list, tuple, dict)):
        pairs = expected if isinstance(expected, dict) else dict(enumerate(expected))
        other = found if isinstance(expected, dict) else dict(enumerate(found))
        assert pairs.keys() == other.keys() and pairs
        for key, value in pairs.items():
            same(value, other[key], within)
    elif isinstance(expected, (str, int)):
        assert found == expected
    else:
        assert np.shape(found) == np.shape(expected)
        there = np.asarray(expected, float)
        within = STEP if np.asarray(expected).dtype == np.int8 else within * max(1.0, np.abs(there).max())
        assert np.abs(np.asarray(found, float) - there).max() <= within
