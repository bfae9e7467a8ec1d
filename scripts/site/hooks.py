"""What the site takes from the project instead of a copy: its pages, their parts, and the files that they point to.

A line `<!-- from PATH -->` in a page of the site becomes the project's file PATH, a line `<!-- from PATH: HEADING -->`
what stands there below that heading. A link from such a text leads to the page of the site that shows its file whole,
or else to a page with the file's source. The line HELP becomes what the commands say of themselves, a line
`<!-- names: NAME ... -->` a table of these public names and commands, and the line BY_NAME a list of all of them. The
course has a file of its own, course.py.
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
WIDTH = 80  # letters of a line of help
WHOLE = {
    path: page.relative_to(PAGES).as_posix()
    for page in PAGES.rglob("*.md")
    for path, heading in FROM.findall(page.read_text("utf-8"))
    if not heading
}
WHOLE |= course.FILES
WHOLE |= {"README.md": "index.md"}  # which shows what links of other pages lead to
WHOLE |= {page.relative_to(ROOT).as_posix(): page.relative_to(PAGES).as_posix() for page in PAGES.rglob("*.md")}


def on_config(config: Any) -> Any:
    """Add the weeks of the course to the navigation, behind their plan."""
    math = next(section for part in config.nav for section in part.values() if {"Eight weeks": PLAN} in section)
    place = math.index({"Eight weeks": PLAN}) + 1
    math[place:place] = course.navigation((PAGES / PLAN).read_text("utf-8"))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file of the project that a text points to and no page of the site shows."""
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
    for page in course.live_pages():
        files.append(File.generated(config, f"course/{page.name}", abs_src_path=str(page)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if HELP in markdown:
        return markdown.replace(HELP, commands())
    if BY_NAME in markdown:
        names = {name for found in NAMES.findall(markdown) for name in found.split()}
        markdown = markdown.replace(
            BY_NAME, " · ".join(map(reference, sorted(names, key=lambda name: name.strip("$").lower())))
        )
        return NAMES.sub(lambda found: table(found[1].split()), markdown)
    if page.file.src_uri == PLAN:
        markdown = course.with_tables(markdown)
    here = posixpath.dirname(page.file.src_uri)
    text = FROM.sub(lambda found: linked(part(*found.groups()), posixpath.dirname(found[1]), here), markdown)
    # a bar in the code of a table's cell: elsewhere it has to be escaped, here the backslash would be shown
    return re.sub(r"^\|.*", lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text, flags=re.M)


def on_post_build(config: Any) -> None:
    """Refuse a page that would ask another host for a script, a style, a font or a picture."""
    for page in Path(config.site_dir).rglob("*.html"):
        if asked := OTHER_HOST.findall(page.read_text("utf-8")):
            raise ValueError(f"{page} asks another host: {asked[0]}")


def reference(name: str) -> str:
    """Give the link to what the reference says of a public name, without `minibert.`, or of a command: `$encode`."""
    if name.startswith("$"):
        return f"[`minibert {name[1:]}`](commands.md#minibert-{name[1:]})"
    return f"[`{name}`][minibert.{name}]"


def table(names: list[str]) -> str:
    """Give each name beside the first sentence of its docstring, or of a command its line of the help."""
    return "\n".join(
        ["| name | what it does |", "|---|---|", *(f"| {reference(name)} | {said(name)} |" for name in names)]
    )


def said(name: str) -> str:
    if name.startswith("$"):
        from minibert.cli import COMMANDS

        return COMMANDS[name[1:]]
    first = (inspect.getdoc(resolve_name(f"minibert.{name}")) or "").partition("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.?])\s", first)[0].replace("|", "\\|")


def commands() -> str:
    """Give what `minibert help COMMAND` prints, of each command below a heading."""
    from minibert.cli import COMMANDS, _opened

    helps = []
    for name in COMMANDS:
        parser = _opened(name)[1]
        parser.formatter_class = partial(RawDescriptionHelpFormatter, width=WIDTH)  # not this terminal's
        helps.append(f"## minibert {name}\n\n````text\n{parser.format_help()}````")
    return "\n\n".join(helps)


def taken() -> Iterator[tuple[str, str]]:
    """Give each text that a page takes from the project, and the folder that it stands in."""
    for page in sorted(PAGES.rglob("*.md")):
        for path, heading in FROM.findall(page.read_text("utf-8")):
            yield part(path, heading), posixpath.dirname(path)
    for path, (text, _) in course.pages().items():
        yield text, posixpath.dirname(path)


def part(path: str, heading: str | None = None) -> str:
    """Give a file of the project, or of it what stands below a heading, as deep as its headings are deeper."""
    text = (ROOT / path).read_text("utf-8")
    if not heading:
        return text
    begin, end = ("// --", "// -- ") if path.endswith(".mjs") else ("#+", "#{1,2} ")  # of a section
    found = re.search(rf"^({begin}) {re.escape(heading)}\n(.*?)(?=^{end}|\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"{path} has no heading {heading!r}, which a page of the site takes from it")
    return found[2].strip()


def targets(text: str, folder: str) -> Iterator[str]:
    for _, _, link, _ in LINK.findall(text):
        if link and "://" not in link and (ROOT / (path := posixpath.normpath(posixpath.join(folder, link)))).exists():
            yield path


def linked(text: str, folder: str, here: str) -> str:
    """Turn each link of a text that stood in `folder` into one that holds on a page in `here`."""

    def other(found: re.Match[str]) -> str:
        image, words, link, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(folder, link))
        if not link or "://" in link or not (ROOT / path).exists():
            return found[0]
        page = f"source/{path}" if image else page_of(path)
        return f"{image}{words}{posixpath.relpath(page, here or '.')}{anchor or ''})"

    return LINK.sub(other, text)


def page_of(path: str) -> str:
    """Give the page that shows a file, or a folder's README, whole."""
    return WHOLE.get(path) or WHOLE.get(f"{path}/README.md") or f"source/{path}.md"


def source(path: str) -> str:
    """Give the page of a file: its text; of a folder: its files' names."""
    place = ROOT / path
    if place.is_dir():
        body = "\n".join(f"- `{file.name}`" for file in sorted(place.iterdir()) if not file.name.startswith(("_", ".")))
    else:
        word = {".py": "python", ".json": "json"}.get(place.suffix, "text")
        body = f"````{word}\n{place.read_text('utf-8')}````"
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{body}\n"
