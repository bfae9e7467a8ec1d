"""The study files as notebooks and pages, as sh scripts/study/build has made them: they say what they claim, draw, name
their kernel, print little, and need no network to be read."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from limits import CHILD_SECONDS
from needed import absent, missing
from notebooks import LIVE
from test_study import FILES, SAID, STUDY, UNTRAINED

FOLDER = STUDY.parents[1] / "build" / "study"
NEEDS = ("jupytext", "nbclient", "nbconvert", "ipykernel")

MOST_LINES = 12  # that a cell prints: a reader looks at all of them

pytestmark = pytest.mark.study


class Loads(HTMLParser):
    """Collect what a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found, self.alts = list[str](), list[str]()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = dict(attributes)
        source = named.get("src") or (named.get("href") if tag == "link" else None)
        self.alts += [named.get("alt") or ""] * (tag == "img")
        if tag in ("script", "iframe", "object") or (source and not source.startswith("data:")):
            self.found.append(f"{tag} {source}")


def printed(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(output.get("text", "")) for output in outputs)


def of_today(name: str) -> list[dict[str, Any]]:
    """The cells of a study and its answers, as they were run."""
    if names := absent(*NEEDS):
        missing(f"{', '.join(names)} not installed; in the extra `study`, which sh scripts/study/build installs")
    import jupytext

    path = FOLDER / "answers" / f"{name}.ipynb"
    found = json.loads(path.read_text("utf-8"))["cells"] if path.is_file() else []
    files = STUDY / f"{name}.py", STUDY / "answers" / f"{name}.py"
    now = [cell for file in files for cell in jupytext.read(file).cells]
    if ["".join(cell["source"]) for cell in found] != [cell.source for cell in now]:
        missing(f"{path} was not made of {name}.py as it is now: sh scripts/study/build")
    return found


@pytest.fixture(scope="module")
def folder() -> Path:
    of_today("learning")
    return FOLDER


@pytest.mark.parametrize("name", FILES)
def test_a_study_says_what_it_claims_and_draws_its_pictures(name: str) -> None:
    code = [cell for cell in of_today(name) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not any(output.get("name") == "stderr" for output in outputs), "a warning"
    assert sum("image/png" in output.get("data", {}) for output in outputs) == len(FILES[name])
    # a line may arrive in two outputs
    told = [printed(cell["outputs"]) for cell in code]
    lines = [len(text.splitlines()) for text in told]
    assert max(lines) <= MOST_LINES, f"cell {lines.index(max(lines)) + 1} prints {max(lines)} lines"
    assert [said for said in SAID.get(name, ()) if said not in "".join(told)] == []
    assert ("UNTRAINED" in "".join(told)) == (name in UNTRAINED)


def test_a_page_fetches_and_runs_nothing(folder: Path) -> None:
    html = (folder / "learning.html").read_text("utf-8")
    page = Loads()
    page.feed(html)
    assert page.found == []
    assert [alt.partition(":")[0] for alt in page.alts] == ["a curve", "dots"], "what is drawn, in words"
    styles = "".join(re.findall(r"<style.*?</style>", html, re.DOTALL))
    assert styles and "@import" not in styles
    dark = styles.partition("@media (prefers-color-scheme: dark)")[2]
    assert "html { background: white; filter: invert(1); } img { filter: invert(1); }" in dark, "pictures are as drawn"
    assert all(address.startswith("data:") for address in re.findall(r"url\(['\"]?([^)'\"]+)", styles))
    assert "90 steps" in (folder / "answers" / "learning.html").read_text("utf-8")


def test_a_folded_cell_opens_by_a_click(folder: Path) -> None:
    html = (folder / "003_bert_step_by_step.html").read_text("utf-8")
    hidden = html.partition("<details>")[2].partition("</details>")[0]
    assert "CLOUDS = {" in hidden and html.count("CLOUDS = {") == 1
    drawn = (folder / "five_minutes.html").read_text("utf-8").partition("</details>")[2]
    assert drawn.count("<img") == 2 and "def in_plane" not in drawn, "what a folded cell draws stays"


@pytest.mark.parametrize("name", LIVE)
def test_a_page_to_click_through_lies_beside_its_study(name: str, folder: Path) -> None:
    text = LIVE[name][0].split()[0].split("[")[0]
    assert text in (folder / f"{name}-live.html").read_text("utf-8")
    assert f'href="{name}-live.html"' in (folder / f"{name}.html").read_text("utf-8")


def test_what_a_notebook_imports_lies_beside_it(folder: Path) -> None:
    for name in ("study.py", "probes.py", "texts.py", "training.py", "words.txt", "gpt2-words/model.safetensors"):
        assert (folder / name).read_bytes() == (STUDY / name).read_bytes() and not (folder / name).is_symlink()


def test_a_sheet_ends_with_its_exercises_and_the_answers_lie_in_a_folder_of_their_own(folder: Path) -> None:
    """A teacher hands out all but that folder: no file of it may have an answer's text or code in it."""
    parts = re.split(r"^# %%.*\n", (STUDY / "answers" / "learning.py").read_text("utf-8"), flags=re.MULTILINE)[1:]
    answer = parts[1].splitlines()[-1].split("(")[0]
    for file in ("learning.html", "learning.ipynb"):
        sheet, filled = ((place / file).read_text("utf-8") for place in (folder, folder / "answers"))
        assert "Exercises" in sheet and "Answers" not in sheet and "Answers" in filled
        assert filled.count(answer) > sheet.count(answer)
    code = [cell for cell in json.loads(filled)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code), "answers are run"


def test_the_lab_has_blanks_and_its_answers_apart(minilm: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(STUDY / "notebooks.py"), "--lab", "--output", str(tmp_path)], timeout=CHILD_SECONDS,
        env={**os.environ, "PYTHONPATH": str(STUDY.parents[1]), "MINIBERT_MODEL": str(minilm)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for name, exercises in {"1_input_layer": 8, "2_attention": 9, "3_change_it": 9, "4_words": 8}.items():
        blank, answers = (
            json.loads((tmp_path / "lab" / folder / f"{name}.ipynb").read_text("utf-8")) for folder in ("", "answers")
        )
        open_, filled = (["".join(cell["source"]) for cell in notebook["cells"]] for notebook in (blank, answers))
        assert sum("...  # " in cell for cell in open_) == exercises
        assert not any("...  # " in cell for cell in filled)
        outputs = [output for cell in answers["cells"] for output in cell.get("outputs", ())]
        assert printed(outputs).count(": right\n") == exercises
        assert not any(cell.get("outputs") for cell in blank["cells"])
        for folder in ("", "answers"):
            assert (tmp_path / "lab" / folder / "lab.py").read_bytes() == (STUDY / "lab" / "lab.py").read_bytes()
    check_that_it_runs_where_it_was_moved(Path(shutil.move(tmp_path / "lab", tmp_path / "moved")), "3_change_it")


def check_that_it_runs_where_it_was_moved(lab: Path, name: str) -> None:
    """In the lab no variable names another model and none is fetched: all is beside the notebooks."""
    import nbclient
    import nbformat

    notebook = nbformat.read(lab / "answers" / f"{name}.ipynb", as_version=4)
    environment = {"HF_HUB_OFFLINE": "1", "MINIBERT_MODEL": "/nowhere", "PYTHONPATH": str(STUDY.parents[1])}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        resources = {"metadata": {"path": str(lab / "answers")}}
        nbclient.NotebookClient(notebook, timeout=CHILD_SECONDS, kernel_name="python3", resources=resources).execute()
    said = printed([output for cell in notebook.cells for output in cell.get("outputs", ())])
    assert "model: " in said and said.count(": right\n") == 9
