"""A tokenizer's chat template: messages -> one text, as transformers' `apply_chat_template` writes it.

A template is a program in Jinja's language, from a stranger. It runs in Jinja's sandbox, and sees plain texts and
numbers alone: no object of ours has a method that it could call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from minibert.errors import MinibertError, TokenizerError

from .reading import read_object
from .tokenizer_files import Find

FILE = "chat_template.jinja"
OLDEST = (3, 1, 6)  # older ones have known ways out of the sandbox
INSTALL = "pip install '.[chat]' in a clone of minibert, or pip install 'jinja2>=3.1.6'"
STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
Message = dict[str, Any]  # role and content
T = TypeVar("T")


class ChatTemplate:
    """A folder's template. It is compiled when it is first used; jinja2 is needed only then."""

    def __init__(self, source: str, where: str) -> None:
        self.source, self.where = source, where

    @property
    def structured(self) -> bool:
        """Whether it reads a content as a list of parts with types, judged by its text as the reference does."""
        return any(pattern in self.source for pattern in STRUCTURED)

    @cached_property
    def _compiled(self) -> Any:
        return self._guarded(lambda: environment().from_string(self.source))

    def render(self, messages: list[Message], variables: Mapping[str, Any]) -> str:
        """Write messages as one text. Raises TokenizerError for a template that is no program, or that refuses them."""
        given = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
        return self._guarded(lambda: str(self._compiled.render(messages=messages, **given)))

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (MinibertError, ImportError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  a program may raise anything
            raise TokenizerError(
                f"{self.where}: the chat template cannot be followed ({type(error).__name__}: {error}); its texts can "
                "be passed in its place: template=(before, between, after)"
            ) from None


def read_chat_template(find: Find, where: str) -> ChatTemplate | None:
    """Read the template of a folder: chat_template.jinja, else `chat_template` of tokenizer_config.json; None without.

    Of several templates it is the one called "default". Raises TokenizerError.
    """
    path = find(FILE)
    if path is not None:
        try:
            with open(path, encoding="utf-8", newline="") as file:
                return ChatTemplate(file.read().replace("\r\n", "\n").replace("\r", "\n"), f"{where}: {FILE}")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path}: not readable as text ({error}); fetch it again") from None
    place = f"{where}: tokenizer_config.json"
    found = read_object(find("tokenizer_config.json"), TokenizerError).get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default", 0)
    if found is None:
        return None
    if not isinstance(found, str):
        raise TokenizerError(f"{place}: 'chat_template' must be a template, or a list with one named 'default'")
    return ChatTemplate(found, place)


def environment() -> Any:
    """Make Jinja's sandbox with the settings and functions that transformers gives a template.

    Raises ImportError that names the extra, and the way without it.
    """
    try:
        import jinja2
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ImportError(_needed("jinja2 is not installed")) from None
    if tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdecimal()) < OLDEST:
        raise ImportError(_needed(f"jinja2 {jinja2.__version__} has known ways out of its sandbox"))

    class Generation(jinja2.ext.Extension):  # type: ignore[misc]
        """`{% generation %}` .. `{% endgeneration %}` marks what a model would say; the text stays as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

        def _inside(self, caller: Any) -> Any:
            return caller()

    class Namespace(jinja2.utils.Namespace):  # type: ignore[misc]
        """Jinja's, without names that begin with an underscore: they lead into Python."""

        def __init__(*args: Any, **given: Any) -> None:
            own, *rest = args  # a template may write namespace(self=...)
            for name in (made := dict(*rest, **given)):
                _refuse_private(name)
            jinja2.utils.Namespace.__init__(own, made)

        def __setitem__(self, name: str, value: Any) -> None:
            _refuse_private(name)
            super().__setitem__(name, value)

    def _refuse_private(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace keeps no name with an underscore before it: {name!r}")

    def raise_exception(message: Any) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(
        x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    found.filters["tojson"] = tojson
    found.globals |= dict(raise_exception=raise_exception, strftime_now=strftime_now, dict=_Dict(), namespace=Namespace)
    return found


class _Dict:
    """`dict` of a template, without the attributes of Python's class."""

    def __call__(self, *args: Any, **given: Any) -> dict[Any, Any]:
        return dict(*args, **given)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _needed(why: str) -> str:
    return (
        f"this model's pairs go through a chat template, a program in Jinja's language, and {why}: {INSTALL}; or pass "
        "the template's texts: predict(pairs, template=(before, between, after))"
    )
