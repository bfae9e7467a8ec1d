"""The site shows pages of the project, parts of them, and the files that they link to; nothing is copied by hand.

A line `<!-- from PATH -->` in a page of the site becomes the project's file PATH, a line `<!-- from PATH: HEADING -->`
becomes the part below that heading. A link in this text leads to the page of the site that shows its file whole, or
else to a page with the file's source. The line HELP becomes the help of all commands, a line `<!-- names: NAME ... -->`
a table of these public names and commands, and the line BY_NAME a list of all of them. course.py has the pages of the
course.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import course

ROOT = Path(__file__).resolve().parents[2]
PAGES = Path(__file__).with_name("pages")
PLAN = "weeks.md"
HELP = "<!-- help of each command -->"
BY_NAME = "<!-- all names -->"
NAMES = re.compile(r"^<!-- names: ([^>]+) -->$", re.MULTILINE)
FROM = re.compile(r"^<!-- from ([\w./-]+)(?:: (.+?))? -->$", re.MULTILINE)
LINK = re.compile(r"(!?)(\[[^\]]*\]\()([^)#\s]*)(#[^)\s]*)?\)")
CODE = re.compile(r"`[^`\n]+`")
OTHER_HOST = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>")
WIDTH = 80  # characters in a line of help
WHOLE = {
    path: page.relative_to(PAGES).as_posix()
    for page in PAGES.rglob("*.md")
    for path, heading in FROM.findall(page.read_text("utf-8"))
    if not heading
}
WHOLE |= course.FILES
WHOLE |= {"README.md": "index.md"}  # the site's first page, for links to README.md
WHOLE |= {page.relative_to(ROOT).as_posix(): page.relative_to(PAGES).as_posix() for page in PAGES.rglob("*.md")}


def on_config(config: Any) -> Any:
    """Add the weeks of the course to the navigation, behind their plan."""
    math = next(section for part in config.nav for section in part.values() if {"Eight weeks": PLAN} in section)
    place = math.index({"Eight weeks": PLAN}) + 1
    math[place:place] = course.navigation((PAGES / PLAN).read_text("utf-8"))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file of the project that a text links to and no page of the site shows."""
    from mkdocs.structure.files import File

    for path in sorted({path for text, folder in taken() for path in targets(text, folder)}):
        if (ROOT / path).suffix == ".png":
            files.append(File.generated(config, f"source/{path}", abs_src_path=str(ROOT / path)))
        elif page_of(path).startswith("source/"):
            files.append(File.generated(config, page_of(path), content=source(path)))
    for path, (text, pictures) in course.pages().items():
        files.append(File.generated(config, f"source/{path}.md", content=source(path)))
        files.append(File.generated(config, page_of(path), content=linked(text, posixpath.dirname(path), "course")))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"course/{name}", content=picture))
    for name in course.LIVE:  # pages to click through, as `minibert explain` wrote them
        page = f"{name}-live.html"
        files.append(File.generated(config, f"course/{page}", abs_src_path=str(course.BUILT / page)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if HELP in markdown:
        return markdown.replace(HELP, commands())
    if BY_NAME in markdown:
        names = {name for found in NAMES.findall(markdown) for name in found.split()}
        in_order = sorted(names, key=lambda name: name.strip("$").lower())
        markdown = markdown.replace(BY_NAME, " · ".join(map(reference, in_order)))
        return NAMES.sub(lambda found: table(found[1].split()), markdown)
    if page.file.src_uri == PLAN:
        markdown = course.with_tables(markdown)
    here = posixpath.dirname(page.file.src_uri)
    text = FROM.sub(lambda found: linked(part(*found.groups()), posixpath.dirname(found[1]), here), markdown)
    # a bar in the code of a table's cell: GitHub needs it escaped, here the backslash would show
    return re.sub(r"^\|.*", lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text, flags=re.M)


def on_post_build(config: Any) -> None:
    """Refuse a page that would ask another host for a script, a style, a font or a picture."""
    for page in Path(config.site_dir).rglob("*.html"):
        if asked := OTHER_HOST.findall(page.read_text("utf-8")):
            raise ValueError(f"{page} asks another host: {asked[0]}")


def reference(name: str) -> str:
    """Return the link to the reference of a public name, without `minibert.`, or of a command: `$encode`."""
    if name.startswith("$"):
        return f"[`minibert {name[1:]}`](commands.md#minibert-{name[1:]})"
    return f"[`{name}`][minibert.{name}]"


def table(names: list[str]) -> str:
    """Write a table of names and the first sentence of each docstring, or of a command's help."""
    rows = (f"| {reference(name)} | {said(name)} |" for name in names)
    return "\n".join(["| name | what it does |", "|---|---|", *rows])


def said(name: str) -> str:
    if name.startswith("$"):
        from minibert.cli import COMMANDS

        return COMMANDS[name[1:]]
    first = (inspect.getdoc(resolve_name(f"minibert.{name}")) or "").partition("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.?])\s", first)[0].replace("|", "\\|")


def commands() -> str:
    """Return the output of `minibert help COMMAND` of each command, below a heading."""
    from minibert.cli import COMMANDS, _opened

    helps = []
    for name in COMMANDS:
        parser = _opened(name)[1]
        parser.formatter_class = partial(RawDescriptionHelpFormatter, width=WIDTH)  # not the width of this terminal
        helps.append(f"## minibert {name}\n\n````text\n{parser.format_help()}````")
    return "\n\n".join(helps)


def taken() -> Iterator[tuple[str, str]]:
    """Yield each text that a page includes from the project, and the text's folder."""
    for page in sorted(PAGES.rglob("*.md")):
        for path, heading in FROM.findall(page.read_text("utf-8")):
            yield part(path, heading), posixpath.dirname(path)
    for path, (text, _) in course.pages().items():
        yield text, posixpath.dirname(path)


def part(path: str, heading: str | None = None) -> str:
    """Return a file of the project, or its part below a heading, up to the next of level 1 or 2."""
    text = (ROOT / path).read_text("utf-8")
    if not heading:
        return text
    begin, end = ("// --", "// -- ") if path.endswith(".mjs") else ("#+", "#{1,2} ")  # how sections begin
    found = re.search(rf"^({begin}) {re.escape(heading)}\n(.*?)(?=^{end}|\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"{path} has no heading {heading!r}, which a page of the site takes from it")
    return found[2].strip()


def targets(text: str, folder: str) -> Iterator[str]:
    for _, _, link, _ in LINK.findall(text):
        if link and "://" not in link and (ROOT / (path := posixpath.normpath(posixpath.join(folder, link)))).exists():
            yield path


def linked(text: str, folder: str, here: str) -> str:
    """Rewrite each link of a text from `folder` for a page in `here`."""

    def other(found: re.Match[str]) -> str:
        image, words, link, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(folder, link))
        if not link or "://" in link or not (ROOT / path).exists():
            return found[0]
        page = f"source/{path}" if image else page_of(path)
        return f"{image}{words}{posixpath.relpath(page, here or '.')}{anchor or ''})"

    return LINK.sub(other, text)


def page_of(path: str) -> str:
    """Return the page that shows a file, or a folder's README, whole."""
    return WHOLE.get(path) or WHOLE.get(f"{path}/README.md") or f"source/{path}.md"


def source(path: str) -> str:
    """Write the page of a file, with its text, or of a folder, with the names of its files."""
    place = ROOT / path
    if place.is_dir():
        body = "\n".join(f"- `{file.name}`" for file in sorted(place.iterdir()) if not file.name.startswith(("_", ".")))
    else:
        word = {".py": "python", ".json": "json"}.get(place.suffix, "text")
        body = f"````{word}\n{place.read_text('utf-8')}````"
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{body}\n"
