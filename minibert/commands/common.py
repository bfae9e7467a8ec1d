"""What the commands share: a parser that names what is nearest, the model's arguments, and the way to print."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from minibert.files.writing import naming

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder
    from minibert.models.layer import EmbeddingLayer

DEFAULT_MODEL = "bert-base-uncased"

# what a terminal obeys, and what turns the order of letters around; a tab is harmless. First: bold, dim and plain
_STYLE_OR_CONTROL = re.compile("(\x1b\\[[012]m)|[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str, styled: bool = False) -> str:
    r"""Make a line fit for a terminal: whatever a terminal would obey is written as Python writes it in a string.

    Names, prompts and texts out of files can hold anything. `styled`: bold and dim stay.

    >>> print(harmless("name\x1b]0;title\x07 of\nit"))
    name\x1b]0;title\x07 of\nit
    """
    return _STYLE_OR_CONTROL.sub(lambda found: found[0] if styled and found[1] else repr(found[0])[1:-1], text)


class Parser(argparse.ArgumentParser):
    """The parser of one command. A wrong argument ends the run with its usage, what is nearest, and code 2."""

    def __init__(self, name: str, about: str, example: str) -> None:
        super().__init__(
            prog=f"minibert {name}",
            description=about,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,  # an example broken in two is no example
        )

    def parse(self, argv: Sequence[str]) -> Any:
        """Parse arguments; texts may come before, between and after the options."""
        # after "--" everything is a text; only one of argparse's two ways of parsing knows that
        parse = self.parse_known_args if "--" in argv else self.parse_known_intermixed_args
        arguments, unknown = parse(argv)
        if unknown and unknown[0].startswith("-"):
            near = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"there is no option {unknown[0]}{near}")
        if unknown:
            self.error(f"{' '.join(map(repr, unknown))} is too much; quotes make one text of several words")
        if hasattr(arguments, "model"):
            _settle_model(self, arguments)
        return arguments

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message("\n".join(map(harmless, message.split("\n"))), file)

    @contextmanager
    def explaining(self, arguments: Any) -> Iterator[None]:
        """If no model was named, say so in an error of the Hub."""
        from minibert.errors import HubError

        try:
            yield
        except HubError as error:
            if not getattr(arguments, "unnamed", False):
                raise
            raise HubError(
                f"no model was named, and the default, {DEFAULT_MODEL}, cannot be had from the Hub; name a folder with "
                f"--model or MINIBERT_MODEL; the Hub: {error}"
            ) from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Give "; did you mean this one?" for the nearest of some words, nothing where none is near."""
    from difflib import get_close_matches  # for errors alone

    names = {name.lstrip("-"): name for name in known}  # two dashes alone make no word like another
    near = get_close_matches(word.lstrip("-"), list(names), n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def add_model(parser: Parser, side: bool = True, argument: bool = False) -> None:
    """Declare which model: --model, with `argument` the command's own argument too, and the options of the Hub."""
    if argument:
        parser.add_argument("named", nargs="?", metavar="MODEL", help="as --model")
    parser.add_argument(
        "-m", "--model", metavar="MODEL",
        help=f"a folder, or a name on the Hub (default: what MINIBERT_MODEL names, else {DEFAULT_MODEL})",
    )  # fmt: skip
    if side:
        parser.add_argument(
            "--side", choices=("encoder", "decoder"), help="where a model has both (default: the encoder)"
        )
    parser.add_argument("--revision", metavar="R", help="a branch, tag or commit on the Hub")
    parser.add_argument("--local-files-only", action="store_true", help="use what is cached, ask no Hub")


def add_whole(parser: Parser) -> None:
    """Declare --whole."""
    parser.add_argument("--whole", action="store_true", help="fetch the whole tables from the Hub, not the rows needed")


def add_prompts(parser: Parser) -> None:
    """Declare --prompt-name and --prompt."""
    parser.add_argument("--prompt-name", metavar="NAME", help="put this one of the model's prompts before each text")
    parser.add_argument("--prompt", metavar="TEXT", help="put this before each text, and none of the model's prompts")


def _settle_model(parser: Parser, arguments: Any) -> None:
    named = getattr(arguments, "named", None)
    if named is not None and arguments.model is not None:
        parser.error(f"two models are named, {named!r} and {arguments.model!r}; name one")
    typed = named if arguments.model is None else arguments.model
    arguments.named = typed  # as a command may want to know
    arguments.unnamed = typed is None and not os.environ.get("MINIBERT_MODEL")
    arguments.model = (os.environ.get("MINIBERT_MODEL") or DEFAULT_MODEL) if typed is None else typed


def load_layer(arguments: Any, lazy: bool = False) -> EmbeddingLayer:
    """Load the layer that the arguments of `add_model` name."""
    from minibert.models.load import load

    return load(
        arguments.model,
        revision=arguments.revision,
        local_files_only=arguments.local_files_only,
        side=arguments.side,
        lazy=lazy,
    )


def coloured() -> bool:
    """Say whether output may be bold or dim: on a terminal that does not forbid it."""
    terminal = bool(sys.stdout) and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return terminal and not os.environ.get("NO_COLOR")


def load_model(arguments: Any) -> Encoder:
    """Load the whole model that the arguments of `add_model` name."""
    from minibert.models.encoder import load_encoder

    return load_encoder(arguments.model, revision=arguments.revision, local_files_only=arguments.local_files_only)


def tell(what: str) -> None:
    """Say something to the person, on stderr."""
    print(f"minibert: {harmless(what)}", file=sys.stderr)


def print_lines(lines: Iterable[str], file: TextIO | None = None) -> None:
    """Print lines of data, each as soon as it is there and harmless; raise an error if they cannot be written."""
    if hasattr(sys.stdout, "reconfigure"):  # a token that the terminal's encoding lacks is no reason to stop
        sys.stdout.reconfigure(errors="backslashreplace")
    styled = coloured()
    for line in lines:
        with naming("stdout"):
            print(harmless(line, styled), file=file)
    with naming("stdout"):
        print(end="", file=file, flush=True)
