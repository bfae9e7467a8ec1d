"""Make the study files into executed notebooks and HTML pages, in build/study/, which git ignores.

    sh scripts/study/build                          all of them
    sh scripts/study/build 003_bert_step_by_step    some
    sh scripts/study/build --new                    those whose files have changed since they were made
    sh scripts/study/build --lab                    the lab's notebooks with blanks, and with answers in a folder apart

Needs the extra `study`, and `lab` to open the lab; that command installs them. `study.py` chooses the models.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# packages of the study files
BACKWARD = ("gradients.py", "block_gradients.py", "model_gradients.py")
SHARED = (
    *("study.py", "probes.py", "texts.py", *BACKWARD, "training.py", "masked.py"),
    *("words.txt", "gpt2-words", "bert-words"),
)
README = (HERE / "README.md").read_text("utf-8")
ORDER = "Read in this order"
PLACE = r"\| (\d*) ?\| \[(.+)\]\((\w+)\.py\) \|.*"  # a row of the README's table, with the page's title
ROWS = [row for line in README.splitlines() if (row := re.match(PLACE, line))]
STUDIES = {row[3]: row[2] for row in ROWS}
TITLES = {row[3]: row[2] for row in ROWS if row[1]}  # in the order of reading
LAB = sorted(path.stem for path in (HERE / "lab").glob("[0-9]_*.py"))
# a study -> text and options of the page of `minibert explain --html` that stands beside it
LIVE: dict[str, tuple[str, ...]] = {
    "003_bert_step_by_step": ("We lived above the clouds",),
    "where_heads_look": ("The bank of the river was muddy.",),
    "006_blocks": ("The bank of the river was muddy.", "--beside", "The bank raised its interest rates."),
    "gpt2_blocks": ("muddy", "-m", "scripts/study/gpt2-words"),
    "heads": ("questi[MASK]n", "-m", "scripts/study/bert-words"),
    "012_why_two_texts_are_alike": (
        "The bank raised its interest rates today.", "--beside", "Loans became more expensive this week.",
    ),
}  # fmt: skip
VARIABLES = ("MINIBERT_BERT", "MINIBERT_MODEL", "MINIBERT_GPT2", "MINIBERT_T5")
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
METADATA = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
# invert colours for readers with a dark theme, and invert pictures back: the text names their colours
DARK = (
    "<style>@media (prefers-color-scheme: dark) {"
    " html { background: white; filter: invert(1); }"
    " img { filter: invert(1); } }</style>"
)
NO_WORDS = "No description has been provided for this image"  # the exporter's output
AT_ONCE = 2  # notebooks at once, each in its own process
LONGEST = 300  # the longest time of a cell in seconds, on a busy machine


def executed(name: str, folder: Path) -> Any:
    """Run one study file and its answers as a notebook; return its cells with all their prints and pictures."""
    import jupytext
    import nbclient

    notebook, answers = jupytext.read(HERE / f"{name}.py", fmt="py:percent"), HERE / "answers" / f"{name}.py"
    if answers.is_file():
        notebook.cells += jupytext.read(answers, fmt="py:percent").cells
    notebook.metadata = METADATA
    quiet = ["--Application.log_level=ERROR"]  # a kernel's messages are of no use to a reader
    given = {"timeout": LONGEST, "kernel_name": KERNEL["name"], "resources": {"metadata": {"path": str(folder)}}}
    nbclient.NotebookClient(notebook, **given, extra_arguments=quiet).execute()
    return notebook


def without_answers(notebook: Any) -> Any:
    """Return a copy of a study that ends with its exercises: a sheet for homework."""
    copy = deepcopy(notebook)
    begin = next(i for i, cell in enumerate(copy.cells) if cell.source.startswith("## Answers"))
    del copy.cells[begin:]
    return copy


def with_neighbours(notebook: Any, name: str, titles: dict[str, str], suffix: str) -> Any:
    """Return a copy of a notebook with links to the previous and next page, under its title and at its end."""
    from nbformat.v4 import new_markdown_cell

    names, links = list(titles), [f"[{ORDER.lower()}](index.html)"] if titles is TITLES else []
    place = names.index(name) if name in titles else len(names)
    if name in titles and place:
        links.insert(0, f"before: [{titles[names[place - 1]]}]({names[place - 1]}{suffix})")
    if place + 1 < len(names):
        links.append(f"next: [{titles[names[place + 1]]}]({names[place + 1]}{suffix})")
    if name in LIVE:
        links.append(f"[a page to click through]({name}-live.html)")
    copy, text = deepcopy(notebook), " · ".join(links)
    for cell in copy.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\]\((\w+)\.py\)", rf"](\1{suffix})", cell.source)
    first, last = (new_markdown_cell(text, id=f"{place}-links") for place in ("first", "last"))
    copy.cells[1:] = [first, *copy.cells[1:], last]
    return copy


def index() -> str:
    """Write the index of all pages: README's table, with links to the pages beside it."""
    from nbformat.v4 import new_markdown_cell, new_notebook

    rows = "\n".join(line for line in README.splitlines() if re.match(PLACE, line))
    rows = re.sub(r"\((\w+)\.py\)", r"(\1.html)", rows)
    text = f"# {ORDER}\n\n| week | page | what it looks at |\n|---|---|---|\n{rows}"
    return page(new_notebook(cells=[new_markdown_cell(text)]), ORDER)


def page(notebook: Any, title: str) -> str:
    """Write one HTML page that needs no network: it contains styles and pictures, and no script."""
    from nbconvert import HTMLExporter

    # these three would be loaded from the network; no study file needs them
    exporter = HTMLExporter(mathjax_url="", require_js_url="", mermaid_js_url="", embed_images=True)
    shown = deepcopy(notebook)
    shown.cells = [part for cell in shown.cells for part in folded(cell)]
    html, _ = exporter.from_notebook_node(shown, {"metadata": {"name": title}})
    plain = re.sub(r"<script\b.*?</script>", "", str(html), flags=re.DOTALL)
    return described(notebook, plain.replace("</head>", f"{DARK}</head>", 1))


def folded(cell: Any) -> list[Any]:
    """Fold the code of a cell with this tag on the page too, behind a line that opens it, above the cell without it.

    JupyterLab folds it by its metadata.
    """
    from nbformat.v4 import new_markdown_cell

    if "folded" not in cell.metadata.get("tags", ()):
        return [cell]
    lines = [line for line in cell.source.splitlines() if line]  # an empty line would end a block of HTML in Markdown
    code = f"<pre>{escape(chr(10).join(lines))}</pre>"
    summary = new_markdown_cell(f"<details><summary>{len(lines)} lines of code</summary>{code}</details>")
    cell["transient"] = {"remove_source": True}  # read by the exporter's template
    return [summary, cell] if cell.outputs else [summary]


def described(notebook: Any, html: str) -> str:
    """Add each picture's alternative text to the page; the exporter leaves it in the notebook (nbconvert 7.17)."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    drawn = [output for output in outputs if "image/png" in output.get("data", {})]
    words = [output.metadata.get("image/png", {}).get("alt", NO_WORDS) for output in drawn]
    first, *rest = html.split(f'alt="{NO_WORDS}"')
    return first + "".join(f'alt="{escape(alt)}"{part}' for alt, part in zip(words, rest, strict=bool(rest)))


def explained(name: str) -> str:
    """Return the command that writes the page to click through of a study, as a reader types it."""
    return shlex.join(["minibert", "explain", *LIVE[name], "--html", "page.html"]).replace("'", '"')


def write_live(name: str, folder: Path) -> None:
    """Write the page to click through of a study beside it; raise where `minibert explain` fails."""
    from minibert.cli import main as minibert

    model = os.environ.get("MINIBERT_BERT") or os.environ.get("MINIBERT_MODEL") or "bert-base-uncased"
    words = [str(HERE.parents[1] / word) if word.startswith("scripts/") else word for word in LIVE[name]]
    words += [] if "-m" in words else ["-m", model]
    if minibert(["explain", *words, "--html", str(folder / f"{name}-live.html")]):
        raise SystemExit(f"no page to click through for {name}: {explained(name)} failed, its words are above")


def is_new(name: str, folder: Path) -> bool:
    """Check whether a study was made, and none of its files has changed since."""
    made = folder / "answers" / f"{name}.ipynb"
    sources = [HERE / source for source in (f"{name}.py", f"answers/{name}.py", "notebooks.py", *SHARED)]
    changed = max(source.stat().st_mtime for source in sources if source.exists())
    return made.is_file() and changed <= made.stat().st_mtime


def put(folder: Path, *names: str) -> None:
    """Write the files that notebooks need beside them, and the BERT: the folder can be moved as a whole."""
    for name in names:
        source, beside = HERE / name, folder / Path(name).name
        if source.is_dir():
            shutil.copytree(source, beside, dirs_exist_ok=True)
        else:
            beside.unlink(missing_ok=True)
            shutil.copyfile(source, beside)
    shutil.rmtree(folder / "bert", ignore_errors=True)
    bert = next((Path(named) for name in VARIABLES[:2] if (named := os.environ.get(name))), None)
    if bert and bert.is_dir() and json.loads((bert / "config.json").read_text("utf-8"))["model_type"] == "bert":
        shutil.copytree(bert, folder / "bert" / bert.name, copy_function=_same)


def _same(source: str, beside: str) -> None:
    """Link a file under a second name, or copy it if the disk has no links: a model is large."""
    try:
        os.link(os.path.realpath(source), beside)
    except OSError:
        shutil.copyfile(source, beside)


def answers_in(folder: Path) -> Path:
    """Make the folder of the answers with relative links to the shared files, so that the whole can be moved."""
    answers = folder / "answers"
    answers.mkdir(exist_ok=True)
    for beside in folder.iterdir():
        if beside.suffix in (".py", ".txt") or beside.name in ("bert", "gpt2-words", "bert-words"):
            (answers / beside.name).unlink(missing_ok=True)
            (answers / beside.name).symlink_to(Path("..", beside.name))
    return answers


def make_lab(folder: Path) -> None:
    """Write the lab's notebooks with blanks, and in the folder `answers` executed notebooks with all answers."""
    import jupytext
    import nbformat
    from lab.blanks import opened

    folder.mkdir(parents=True, exist_ok=True)
    shared = [f"lab/{path.name}" for path in (HERE / "lab").glob("*.py") if path.stem not in (*LAB, "blanks")]
    put(folder, "study.py", *BACKWARD, "training.py", "masked.py", "gpt2-words", *shared)
    answers = answers_in(folder)
    sources = {name: (HERE / "lab" / f"{name}.py").read_text("utf-8") for name in LAB}
    titles = {name: source.splitlines()[1].removeprefix("# # ") for name, source in sources.items()}
    for name, source in sources.items():
        blank = jupytext.reads(opened(source), fmt="py:percent")
        blank.metadata = METADATA
        nbformat.write(with_neighbours(blank, name, titles, ".ipynb"), folder / f"{name}.ipynb")
        filled = with_neighbours(executed(f"lab/{name}", answers), name, titles, ".ipynb")
        nbformat.write(filled, answers / f"{name}.ipynb")
        print(folder / f"{name}.ipynb", flush=True)
    print("The folder answers has the same notebooks, filled in and run. To open the first one, type:\n")
    print(" ", shlex.join([str(Path(sys.executable).parent / "jupyter"), "lab", str(folder / f"{LAB[0]}.ipynb")]))


def main() -> None:
    parser = argparse.ArgumentParser(description="make the study files into executed notebooks and HTML pages")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STUDIES)} (default: all)")
    parser.add_argument("--new", action="store_true", help="leave out those whose files have not changed since")
    parser.add_argument("--lab", action="store_true", help="make the lab alone, in the folder lab of FOLDER")
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "build" / "study", metavar="FOLDER")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(STUDIES)):
        parser.error(f"no study file {', '.join(unknown)}; there are {', '.join(STUDIES)}")
    folder: Path = arguments.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.pop("MPLBACKEND", None)  # with the caller's backend the notebooks would show no pictures
    for variable in VARIABLES:  # a notebook does not run in this command's folder
        if (named := os.environ.get(variable)) and Path(named).is_dir():
            os.environ[variable] = str(Path(named).absolute())
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the threads of small products would wait for each other
    if arguments.lab:
        make_lab(folder / "lab")
        return
    names = arguments.names or list(STUDIES)
    if arguments.new and not (names := [name for name in names if not is_new(name, folder)]):
        return
    put(folder, *SHARED)
    answers = answers_in(folder)
    import nbformat

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, filled in zip(names, pool.map(lambda name: executed(name, folder), names), strict=True):
            notebook = without_answers(filled)
            nbformat.write(with_neighbours(notebook, name, TITLES, ".ipynb"), folder / f"{name}.ipynb")
            html = page(with_neighbours(notebook, name, TITLES, ".html"), STUDIES[name])
            (folder / f"{name}.html").write_text(html, encoding="utf-8")
            (answers / f"{name}.html").write_text(page(filled, f"{STUDIES[name]}: answers"), encoding="utf-8")
            if name in LIVE:
                write_live(name, folder)
            nbformat.write(filled, answers / f"{name}.ipynb")  # last: a study is new by the date of this file
            print(folder / f"{name}.html", flush=True)
    (folder / "index.html").write_text(index(), encoding="utf-8")
    print(folder / "index.html")
    print("Each ends with exercises; the folder answers has it once more, with the answers.")
    print("Open these in a browser. Beside each lies the notebook to change and run again: the same name, .ipynb.")


if __name__ == "__main__":
    main()
