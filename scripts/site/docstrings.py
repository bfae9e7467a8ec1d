"""Convert docstrings to Markdown: examples become code, arguments and sources become lists; sign Frozen classes."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^ *>>>.*\n(?:^ *\S.*\n?)*)+", re.MULTILINE)
SOURCES = re.compile(r"^Sources\n((?:    .*\n?)+)", re.MULTILINE)
COLUMN = re.compile(r'^((?:"?\w+"?, )*"?\w+"?)  +(?=\S)', re.MULTILINE)  # names, then their description
ARGUMENT = re.compile(r"^((?:\w+, )*\w+): (?=\S)", re.MULTILINE)


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            names = [parameter.name for parameter in obj.parameters] if isinstance(obj, griffe.Function) else []
            obj.docstring.value = as_markdown(obj.docstring.value, names)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the signature of a Frozen from its fields: no `__init__` names them."""
        bases, keyword = cls.mro(), griffe.ParameterKind.keyword_only
        if any(base.name == "Frozen" for base in bases):
            fields = {
                name: griffe.Parameter(name, annotation=field.annotation, kind=keyword, default=field.value)
                for each in (*reversed(bases), cls)
                for name, field in each.attributes.items()
                if field.annotation is not None and name[0] != "_" and "property" not in field.labels
            }
            cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*fields.values())))


def as_markdown(text: str, names: list[str]) -> str:
    """Convert a docstring to Markdown; `names`: the arguments, which may have a line each."""

    def point(found: re.Match[str]) -> str:
        words, before = found[1].split(", "), found.string[: found.start()]
        # elsewhere the line only continues a sentence that happens to contain the argument's name
        begins = before.endswith(("\n\n", ".\n", ":\n", ";\n")) or not before
        return f"\n- {', '.join(f'`{word}`' for word in words)}: " if begins and set(words) <= set(names) else found[0]

    first, gap, rest = text.partition("\n\n")
    text = f"{' '.join(first.splitlines())}{gap}{rest}"  # a summary is the first line, and must not be cut there
    text = COLUMN.sub(lambda found: f"\n- {', '.join(f'`{word}`' for word in found[1].split(', '))}: ", text)
    text = SOURCES.sub(lambda found: "**Sources**\n\n" + re.sub(r"(?m)^    (?=\S)", "- ", found[1]), text)
    text = EXAMPLE.sub(lambda found: f"\n```pycon\n{found[0].rstrip()}\n```\n", text + "\n")
    return ARGUMENT.sub(point, text).strip()
