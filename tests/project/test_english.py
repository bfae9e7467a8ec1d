"""English that reads as if spoken: six patterns that make a sentence hard to read stay rare.

A hit can be right, so most patterns have a limit above 0. A test over its limit lists each hit with file and line. A
docstring's first sentence has a subject that acts, without exception: a reader learns who does what before all else.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.check
ROOT = Path(__file__).parents[2]
# pattern -> how a sentence matches, and the most hits in each group of files
PATTERNS = {
    "begins with of": (r"^of\b", 0),
    "begins with a pronoun": (r"^(which|whose|what|who|that|those|others|such)\b(?!.*\?$)", 0),  # except in questions
    "where for if": (r"(?<!^)\bwhere\b(?! (it|they|he) (runs?|stands?|lies?|comes? from)\b)|^where\b(?!.*\?$)", 40),
    "vague noun": (
        r"\b(others|those|such as?|of its own|so many|the same way|as (it is|they are)|what is|at hand)\b",
        40,
    ),
    "vague verb": (r"^(gives?|says?|tells?|puts?|takes?|lets?|goes|stands?|finds?)\b", 30),
    "house words": (r"\b(wing|door|room|house|kin|abreast|soonest|handed)\b", 0),
}
# of a first sentence: a question in place of a subject, and words that name nothing
VAGUE = re.compile(r"^(What|Those|How|Where|Which)\b|\b(so many|what is|of its own|as it is)\b", re.IGNORECASE)
FILES = {
    "minibert": ["minibert/**/*.py"],
    "scripts": ["scripts/**/*.py"],
    "pages": ["README.md", "minibert/**/*.md", "scripts/**/*.md", "tests/reference/*.md"],
}
SENTENCE = re.compile(r"(?<=[.;:!?])[*_)]*\s+(?=[A-Z`*])|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s")


@cache
def docstrings(source: str) -> list[tuple[int, str]]:
    """Return line and text of each docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return [(node.body[0].lineno, text) for node in nodes if (text := ast.get_docstring(node))]


def first_sentences(source: str) -> Iterator[tuple[int, str]]:
    """Return line and first sentence of each docstring."""
    for line, text in docstrings(source):
        yield line, re.split(r"(?<=[.:!?])\s", " ".join(text.split()), maxsplit=1)[0]


def code_texts(source: str) -> Iterator[tuple[int, str]]:
    """Return line and text of each docstring, without its examples and tables, and of each block of comments."""
    for line, text in docstrings(source):
        text = re.sub(r">>>.*?(?=\n\s*\n|\Z)", "", text, flags=re.DOTALL)
        yield line, re.sub(r"(?m)^(\s{4,}|\s*\|).*$", "", text)
    start, end, column, block = 0, 0, 0, [""]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(noqa|type:|fmt:|--|!|<!--|\|)", token.string):
            continue
        if token.start != (end + 1, column):  # another block, or a comment behind code
            yield start, "\n".join(block)
            start, block = token.start[0], []
        end, column = token.start
        line = token.string.lstrip("#").split("  # noqa")[0]
        block.append("" if line.startswith((" %%", " #", " " * 5)) else line[1:])  # not code, not headings
    yield start, "\n".join(block)


def page_texts(page: str) -> Iterator[tuple[int, str]]:
    """Return line and text of a page's paragraphs, without its code, tables, headings and comments."""
    page = re.sub(r"(?ms)^```.*?^```|<!--.*?-->", lambda found: "\n" * found[0].count("\n"), page)
    page = re.sub(r"(?m)^(\s*\||#| {4}).*$", "", page)
    for found in re.finditer(r"(?s).+?(?=\n\s*\n|\Z)", page):
        yield page.count("\n", 0, found.start()) + 1, re.sub(r"!?\[(.*?)\]\([^)]*\)", r"\1", found[0])


def hits(files: str) -> Iterator[tuple[str, str]]:
    """Return pattern and `file:line: sentence` of each hit in a group of files."""
    for path in sorted({path for form in FILES[files] for path in ROOT.glob(form)}):
        read, name = page_texts if path.suffix == ".md" else code_texts, path.relative_to(ROOT)
        for line, piece in read(path.read_text(encoding="utf-8")):
            for sentence in SENTENCE.split(piece):
                spoken = " ".join(sentence.split()).lstrip("*_-([ ")
                for pattern, (words, _) in PATTERNS.items():
                    if re.search(words, spoken, re.IGNORECASE):
                        yield pattern, f"{name}:{line}: {spoken}"


@pytest.mark.parametrize("files", FILES)
def test_hard_sentences_stay_rare(files: str) -> None:
    found: dict[str, list[str]] = {pattern: [] for pattern in PATTERNS}
    for pattern, place in hits(files):
        found[pattern].append(place)
    over = [(name, found[name]) for name, (_, most) in PATTERNS.items() if len(found[name]) > most]
    assert not over, "\n".join(f"{name}: {place}" for name, places in over for place in places)


def test_first_sentences_say_who_does_what() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {sentence}"
        for path in sorted(ROOT.glob("minibert/**/*.py"))
        for line, sentence in first_sentences(path.read_text("utf-8"))
        if VAGUE.search(sentence)
    ]
    assert found == [], "name the subject, and let it act: " + "\n".join(found)


def test_each_pattern_finds_its_sentence_in_docstrings_comments_and_pages() -> None:
    found = {
        "begins with of": "Of equal texts one is encoded.", "begins with a pronoun": "Whose rows differ is refused.",
        "where for if": "None where no file is named.", "vague noun": "the order of the others",
        "vague verb": "Give the rows.", "house words": "a table and its kin",
    }  # fmt: skip
    assert found.keys() == PATTERNS.keys()
    for pattern, sentence in found.items():
        read = [*code_texts(f'"""{sentence}"""\n'), *code_texts(f"x = 1  # {sentence}\n"), *page_texts(sentence)]
        texts = [text for _, text in read if text]
        assert len(texts) == 3, pattern
        assert all(re.search(PATTERNS[pattern][0], text, re.IGNORECASE) for text in texts), pattern
    vague = "What becomes of scores.", "Where one mistake explains all, its name is taken.", "A name of its own."
    for sentence in (*vague, "Softmax over visible keys, in place.", "Whatever a caller passes is checked."):
        (first,) = (text for _, text in first_sentences(f'def f():\n    """{sentence} More. What else."""\n'))
        assert bool(VAGUE.search(first)) is (sentence in vague), sentence
