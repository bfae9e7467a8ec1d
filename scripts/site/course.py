"""The course on the site: eight weeks in order, each study file as it was run, each lab with its answers folded.

The table of scripts/study/README.md has the order and the week of each page and lab. In the plan, weeks.md, the line
`<!-- pages -->` below the heading of a week becomes that week's table, with minutes. Prints and pictures of the
studies come from build/study/, where `sh scripts/study/build` writes them.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from math import ceil
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "scripts/study"
BUILT = ROOT / "build/study"
sys.path[:0] = [str(STUDY), str(STUDY / "lab")]

from blanks import BODY, LINE, opened  # noqa: E402
from notebooks import LIVE, README, STUDIES, explained  # noqa: E402

# a row of README's table: its week, its title, its file
ROW = re.compile(r"^\| (\d+) \| \[(.+)\]\(((?:lab/)?(\w+))\.py\) \|", re.MULTILINE)
WEEK = re.compile(r"^## (Week (\d+): .+)$", re.MULTILINE)
PAGES = "<!-- pages -->"
NAME = re.compile(rf"(?<!\[)`({'|'.join(STUDIES)})\.py`")  # a study that a text names without a link
# an estimate, as weeks.md says: minutes of a word of text, a line of code, a picture, an exercise of a page or a grade
WORD, CODE, PICTURE, EXERCISE, GRADES = 1 / 200, 1 / 15, 1 / 2, 10, {"1": 3, "2": 6, "3": 12}
WIDE = 900  # pixels: the numbers of a wider picture cannot be read if it is made as narrow as a phone
LABS = {name: title for _, title, path, name in ROW.findall(README) if path.startswith("lab/")}
FILES = {f"scripts/study/{name}.py": f"course/{name}.md" for name in STUDIES} | {
    f"scripts/study/lab/{name}.py": f"course/{name}.md" for name in LABS
}


class Week(NamedTuple):
    """A week's heading in the plan, and the titles of its pages and labs by their names, in the order of reading."""

    heading: str
    titles: dict[str, str]


def weeks(plan: str) -> list[Week]:
    """Return the weeks of the plan, in order; raise where README's table names another."""
    rows = ROW.findall(README)
    found = [
        Week(heading, {name: title for week, title, _, name in rows if week == number})
        for heading, number in WEEK.findall(plan)
    ]
    in_order = [name for week in found for name in week.titles]
    if in_order != [name for *_, name in rows]:
        raise ValueError(f"the weeks of scripts/study/README.md are not those of the plan, in its order: {in_order}")
    return found


def navigation(plan: str) -> list[dict[str, list[dict[str, str]]]]:
    """Return the part of the site's navigation that has a section for each week."""
    named = [(week.heading, week.titles.items()) for week in weeks(plan) if week.titles]
    return [{heading: [{title: f"course/{name}.md"} for name, title in titles]} for heading, titles in named]


def cells(path: Path) -> list[tuple[str, str]]:
    """Return the cells of a file: what stands behind its `# %%`, and its text or code."""
    parts = re.split(r"^# %%(.*)\n", path.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return [
        (kind, re.sub("^# ?", "", body, flags=re.MULTILINE) if "[markdown]" in kind else body)
        for kind, body in zip(parts[::2], parts[1::2], strict=True)
    ]


def minutes(name: str) -> tuple[int, list[int]]:
    """Return the minutes that a page takes to read, and those of each of its exercises."""
    if name in LABS:
        grades = re.findall(r"^# ## Exercise \d+ \(grade (\d)\)", (STUDY / f"lab/{name}.py").read_text("utf-8"), re.M)
        return 0, [GRADES[grade] for grade in grades]
    split = cells(STUDY / f"{name}.py")
    text = "\n".join(body for kind, body in split if "[markdown]" in kind)
    code = [line for kind, body in split if not kind.strip() for line in body.splitlines() if line.strip()]
    exercises = re.findall(r"^\d+\. ", text.partition("## Exercises")[2], re.MULTILINE)
    pictures = sum("study.show(" in line for line in code)
    return ceil(WORD * len(text.split()) + CODE * len(code) + PICTURE * pictures), [EXERCISE] * len(exercises)


def each(numbers: list[int]) -> str:
    """Return minutes as a reader sees them.

    >>> each([3, 3, 6])
    '2 x 3, 1 x 6'
    """
    return ", ".join(f"{numbers.count(number)} x {number}" for number in sorted(set(numbers)))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "exercise"), counted(2, "exercise")
    ('1 exercise', '2 exercises')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def table(week: Week) -> str:
    """Return the table of a week: pages and labs, minutes to read, exercises by their minutes, and all."""
    rows, whole = ["| page | read | exercises | all |", "|---|---|---|---|"], 0
    for name, title in week.titles.items():
        reading, exercises = minutes(name)
        together = reading + sum(exercises)
        whole += together
        rows.append(f"| [{title}](course/{name}.md) | {reading or ''} | {each(exercises)} | {together} |")
    return "\n".join([*rows, f"| the week | | | {whole} |"]) if week.titles else ""


def with_tables(plan: str) -> str:
    """Return the plan with the table of each week in the place of its line."""
    tables = map(table, weeks(plan))
    return re.sub(f"^{PAGES}$", lambda _: next(tables), plan, flags=re.MULTILINE)


def head(path: str, text: str, *more: str, code: str = "Open this page's code") -> str:
    """Return the first text of a page with the line of its code below the title."""
    title, _, rest = text.partition("\n")
    line = " · ".join([f"[{code}](../source/{path}.md)", *more])
    return f"{title}\n\n{line}\n{rest}"


def fold(title: str, body: str, kind: str = "note") -> str:
    return f'??? {kind} "{title}"\n\n{indent(body.strip(), "    ")}'


def code(body: str) -> str:
    return f"```python\n{body.strip()}\n```"


@cache
def pages() -> dict[str, tuple[str, dict[str, bytes]]]:
    """Return the text and the pictures of each page of the course, by the path of its file."""
    studies = {f"scripts/study/{name}.py": study_page(name) for name in STUDIES}
    return studies | {f"scripts/study/lab/{name}.py": (lab_page(name), {}) for name in LABS}


def study_page(name: str) -> tuple[str, dict[str, bytes]]:
    """Return the page of a study as it was run, its answers folded, and its pictures by their names.

    Raises FileNotFoundError where the study has not been run.
    """
    path = BUILT / "answers" / f"{name}.ipynb"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; sh scripts/study/build --new writes it")
    pictures: dict[str, bytes] = {}
    parts, answers = [], list[list[str]]()
    reading, exercises = minutes(name)
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        body = "".join(cell["source"])
        if cell["cell_type"] == "code":
            shown = [code(body), *outputs(cell, name, pictures)]
            if "folded" in cell["metadata"].get("tags", ()):
                shown[0] = fold(f"{counted(len(body.splitlines()), 'line')} of code", shown[0])
            (answers[-1] if answers else parts).extend(shown)
        elif answers or body.startswith("## Answers"):
            answers += [[text] for text in numbered(body.removeprefix("## Answers"))]
        else:
            if body.startswith("## Exercises") and name in LIVE:
                parts.append(live(name))
            parts.append(NAME.sub(lambda found: f"[{STUDIES[found[1]]}]({found[1]}.py)", body))
    told = f"{reading} minutes to read, {counted(len(exercises), 'exercise')}"
    parts[0] = head(f"scripts/study/{name}.py", parts[0], told)
    folded = [fold(f"Answer {i}", "\n\n".join(answer), "success") for i, answer in enumerate(answers, 1)]
    return "\n\n".join([*parts, "## Answers", *folded]) + "\n", pictures


def numbered(text: str) -> list[str]:
    """Return the items of a numbered list, without their numbers.

    >>> numbered("1. one\\n   more\\n2. two\\n")
    ['one\\nmore', 'two']
    """
    items = re.split(r"^\d+\. +", text, flags=re.MULTILINE)[1:]
    return [dedent(f"   {item}").strip() for item in items]


def outputs(cell: dict[str, Any], name: str, pictures: dict[str, bytes]) -> Iterator[str]:
    """Return what a cell printed and drew; a picture opens by a tap, and a wide one scrolls on a phone."""
    if printed := "".join("".join(output.get("text", "")) for output in cell["outputs"]):
        yield f"```text\n{printed.rstrip()}\n```"
    for output in cell["outputs"]:
        if "image/png" in output.get("data", {}):
            file = f"{name}-{len(pictures) + 1}.png"
            pictures[file] = base64.b64decode("".join(output["data"]["image/png"]))
            alt = "".join(output["data"]["text/plain"]).replace("[", "(").replace("]", ")")
            width = int.from_bytes(pictures[file][16:20], "big")  # as a PNG file says
            yield f"[![{alt}]({file})]({file})" + ("{ .wide }" if width > WIDE else "")


def live(name: str) -> str:
    """Return the section that shows a study's page to click through."""
    file = f"{name}-live.html"
    told = f"This page is what `{explained(name)}` writes. [Open it alone]({file}), on a phone too."
    frame = f'<iframe class="live" src="{file}" title="a page to click through" loading="lazy"></iframe>'
    return f"## To click through\n\n{told}\n\n{frame}"


def lab_page(name: str) -> str:
    """Return the page of a lab: its notebook with blanks, and below each blank its answer, folded."""
    parts = []
    for kind, body in cells(STUDY / "lab" / f"{name}.py"):
        if "[markdown]" in kind:
            parts.append(body.strip())
            continue
        parts.append(code(opened(body)))
        if opened(body) != body:
            answer = LINE.sub(lambda found: found[0].partition("  # blank:")[0] + "\n", body)
            answer = BODY.sub(lambda found: "".join(found[0].splitlines(keepends=True)[1:-1]), answer)
            parts.append(fold("Answer", code(answer), "success"))
    how = "`sh scripts/study/build --lab` writes it as a notebook that tries your answers"
    parts[0] = head(f"scripts/study/lab/{name}.py", parts[0], how, code="Open the code with its answers")
    return "\n\n".join(parts) + "\n"
