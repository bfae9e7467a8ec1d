"""Shared by all commands: a parser that suggests the nearest option, the model, texts in, lines out."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TextIO

from minibert.errors import did_you_mean
from minibert.files.reading import arriving_texts, shown_file
from minibert.files.writing import naming
from minibert.models.open.options import OPTIONS, add_options, sentence_options

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder
    from minibert.models.input_layer import EmbeddingLayer
    from minibert.models.run.pipeline import Truncated

DEFAULT_MODEL = "bert-base-uncased"
NAMED = 20  # truncated texts that a message names
BAR_AFTER = 1.0  # seconds; a shorter run shows no bar

# bold, dim and plain; then control sequences but the tab, and characters that reverse the order of letters
_STYLE_OR_CONTROL = re.compile("(\x1b\\[[012]m)|[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str, styled: bool = False) -> str:
    r"""Escape characters that a terminal would interpret, as Python writes them in a string.

    Names, prompts and texts from files can hold anything. `styled`: bold and dim stay.

    >>> print(escaped("name\x1b]0;title\x07 of\nit"))
    name\x1b]0;title\x07 of\nit
    """
    return _STYLE_OR_CONTROL.sub(lambda match: match[0] if styled and match[1] else repr(match[0])[1:-1], text)


def refusal(command: str, wrong: str) -> str:
    """Return the error about a wrong argument, which names the command's help."""
    return f"minibert: error: {escaped(wrong)}{'' if wrong.endswith('?') else ';'} see `{command} --help`"


class Parser(argparse.ArgumentParser):
    """The parser of one command. A wrong argument ends the run with one line, which names the nearest option or value,
    and exit code 2.

    `usual` is the default model.
    """

    usual = DEFAULT_MODEL
    prepare: Callable[[], object] | None = None  # called before arguments are parsed, and not for `minibert help`

    def __init__(self, name: str, about: str, example: str) -> None:
        raw = argparse.RawDescriptionHelpFormatter  # else argparse would break the example in two lines
        epilog = f"example:\n  {example}"
        super().__init__(prog=f"minibert {name}", description=about, epilog=epilog, formatter_class=raw)
        self.color = False  # Python 3.14 would colour the help
        for kind, expected in ((int, "an integer"), (float, "a number")):
            self.register("type", kind, partial(_number, kind, expected))

    def error(self, message: str) -> NoReturn:
        """Print one line, without the usage."""
        self.exit(2, f"{refusal(self.prog, message)}\n")

    def _refuse_option(self, word: str) -> NoReturn:
        near = did_you_mean(word.partition("=")[0], self._option_string_actions)
        self.error(f"there is no option {word}{near}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            refused = f"{value!r} is none of {', '.join(action.choices)}{did_you_mean(value, action.choices)}"
            raise argparse.ArgumentError(action, refused)

    def parse(self, argv: Sequence[str]) -> Any:
        """Parse arguments; texts may come before, between and after the options.

        If the command has a model, three attributes are added. named: the model that the user named, or None; unnamed:
        nothing names a model; hub: the Hub's keyword arguments for the functions that open a model.
        """
        if self.prepare is not None:
            self.prepare()
        for word in argv[: argv.index("--") if "--" in argv else None]:  # argparse also accepts abbreviated names
            known = any(option.startswith(word.partition("=")[0]) for option in self._option_string_actions)
            if word.startswith("--") and " " not in word and not known:
                self._refuse_option(word)  # argparse would first report another argument as missing or wrong
        # after "--" every argument is a text; argparse's intermixed parsing does not respect that
        parse = self.parse_known_args if "--" in argv else self.parse_known_intermixed_args
        arguments, unknown = parse(argv)
        if unknown and unknown[0].startswith("-"):
            self._refuse_option(unknown[0])
        if unknown:
            wrong = f"unexpected argument {' '.join(map(repr, unknown))}"
            self.error(f"{wrong}; put a text or a path of several words in quotes")
        if hasattr(arguments, "model"):
            named = getattr(arguments, "named", None)
            if named is not None and arguments.model is not None:
                self.error(f"two models are named, {named!r} and {arguments.model!r}; name one")
            arguments.named = named if arguments.model is None else arguments.model  # None for the default
            usual = os.environ.get("MINIBERT_MODEL")
            arguments.unnamed = arguments.named is None and not usual
            arguments.model = (usual or self.usual) if arguments.named is None else arguments.named
            arguments.hub = {name: getattr(arguments, name) for name in OPTIONS["hub"]}
        for name, option in (("k", "-k"), ("threads", "--threads")):
            if (count := getattr(arguments, name, None)) is not None and count < 1:
                raise ValueError(f"{option} must be an integer >= 1, found {count}")
        return arguments

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message("\n".join(map(escaped, message.split("\n"))), file)


class Command(NamedTuple):
    """A command that shares its file with another one."""

    ABOUT: str
    EXAMPLE: str
    declare: Callable[[Parser], None]
    run: Callable[[Any], None]


def _number(kind: type, expected: str, word: str) -> Any:
    try:
        return kind(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected {expected}, found {word!r}") from None


def path_of(word: str) -> Path:
    """Read a path. An empty one, from an unset variable, would be the current folder."""
    if not word:
        raise argparse.ArgumentTypeError("it is empty; name a file or a folder")
    return Path(word)


def add_model(
    parser: Parser, side: bool = True, argument: bool = False, threads: bool = False, usual: str = DEFAULT_MODEL,
    default: str = "", group: str = "",
) -> None:  # fmt: skip
    """Add --model and the Hub's options; with `threads` and `argument` also --threads and a positional model.

    `default`: shown in the help instead of `usual`; `group`: the title of all these options in the help.
    """
    parser.usual = usual
    target: Any = parser.add_argument_group(group) if group else parser
    if threads:
        add_options(target, "threads")
    if argument:
        target.add_argument("named", nargs="?", metavar="MODEL", help="as --model")
    target.add_argument(
        "-m", "--model", metavar="MODEL",
        help=f"a folder, or a name on the Hub (default: {default or f'MINIBERT_MODEL, or {usual}'})",
    )  # fmt: skip
    if side:
        target.add_argument(
            "--side", choices=("encoder", "decoder"), help="which half of an encoder-decoder (default: encoder)"
        )
    add_options(target, "hub")


def add_k(parser: Parser, things: str, usual: int | None = 5) -> None:
    """Add -k, with its default; None: all."""
    parser.add_argument(
        "-k", type=int, default=usual, metavar="N", help=f"how many {things} to show (default: {usual or 'all'})"
    )


def add_whole(parser: Parser) -> None:
    """Add --whole."""
    parser.add_argument("--whole", action="store_true", help="fetch whole tables, not only the needed rows")


def add_precision(parser: Parser, ranges: str) -> None:
    """Add --precision; `ranges`: what int8 and uint8 take their ranges from."""
    from minibert.equations.quantization import PRECISIONS

    parser.add_argument(
        "--precision", choices=tuple(PRECISIONS), default="float32",
        help="the format of the numbers: float32 (default), float16, a byte (int8, uint8) or a bit (binary, ubinary); "
        f"int8 and uint8 take their ranges from {ranges}",
    )  # fmt: skip


def add_prompts(parser: Any) -> None:
    """Add --prompt-name and --prompt."""
    parser.add_argument("--prompt-name", metavar="NAME", help="put the model's prompt with this name before each text")
    parser.add_argument("--prompt", metavar="TEXT", help="put this text before each text")


# -- the model -----------------------------------------------------------------------------------------------------


def load_layer(arguments: Any, lazy: bool = False) -> EmbeddingLayer:
    """Load the layer that the arguments of `add_model` name."""
    from minibert.models.open.load import load

    return load(arguments.model, side=arguments.side, lazy=lazy, **arguments.hub)


def shown_name(model: str) -> str:
    """Return a model's name for pages and pictures: its name on the Hub, or the last two parts of a path."""
    return "/".join(Path(model).parts[-2:])


def load_model(arguments: Any) -> Encoder:
    """Load the whole model that the arguments of `add_model` name."""
    from minibert.models.open.load_encoder import load_encoder

    if getattr(arguments, "side", None):
        raise ValueError("this needs a whole model, which has no sides; leave out --side")
    options = {name: vars(arguments)[name] for name in ("threads", "same_bits") if name in arguments}
    return load_encoder(arguments.model, **arguments.hub, **options, **sentence_options(arguments))


# -- texts ---------------------------------------------------------------------------------------------------------


def tell_typing() -> None:
    """Print how to end the texts, if a person types them."""
    if sys.stdin is not None and sys.stdin.isatty():
        tell("each line is a text; end with Ctrl-D")


def not_empty(lines: Iterable[list[str]], empty: list[int]) -> Iterator[list[str]]:
    """Leave out the empty lines, and add their numbers, counted from 0, to `empty`."""
    before = 0
    for arrived in lines:
        empty += [number for number, line in enumerate(arrived, before) if not line.strip()]
        before += len(arrived)
        if texts := [line for line in arrived if line.strip()]:
            yield texts


def texts_of(file: str, empty: list[int]) -> Iterator[str]:
    """Read the texts of a file, one per line; see `not_empty`. Raises ValueError for a file without a text."""
    any_text = False
    for texts in not_empty(arriving_texts(file), empty):
        any_text = True
        yield from texts
    if not any_text:
        raise ValueError(f"{shown_file(file)}: expected texts, one on each line, found none")


def wants_bar(reads: bool, prints: bool) -> bool:
    """Whether to draw a bar: stderr is a terminal, and neither results nor input share it."""
    stdin, stdout, stderr = (stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return stderr and not (reads and stdin) and not (prints and stdout)


# -- lines out -----------------------------------------------------------------------------------------------------


def coloured() -> bool:
    """Whether output may be bold or dim: on a terminal, unless TERM or NO_COLOR forbids it."""
    terminal = bool(sys.stdout) and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return terminal and not os.environ.get("NO_COLOR")


def tell(message: str) -> None:
    """Print a message on stderr, if there is one."""
    if sys.stderr is not None:
        print(f"minibert: {escaped(message)}", file=sys.stderr)


def tell_truncated(
    truncated: Iterable[Truncated], noun: str = "text", line: str = "", empty: Sequence[int] = ()
) -> None:
    """Print which texts, pairs or questions were truncated, if any, and how many of their tokens were left out.

    line: the name of one in the message, if it is not `noun`. empty: the numbers of the lines that were skipped.
    """
    if not (texts := sorted(truncated)):
        return
    listed = [f"{count} of {line or noun} {line_number(i, empty)}" for i, count in texts[:NAMED]]
    more = f" and {len(texts) - NAMED} more" if len(texts) > NAMED else ""
    many = f"{len(texts)} {noun}{'s' * (len(texts) > 1)}"
    tell(f"{many} truncated: too long for this model; tokens left out: {', '.join(listed)}{more}")


def line_number(number: int, empty: Sequence[int]) -> int:
    """Return the line, from 1, of text `number`, from 0. empty: the lines that were skipped, from 0, in order.

    >>> [line_number(number, [0, 2]) for number in range(3)]
    [2, 4, 5]
    """
    for skipped in empty:
        number += skipped <= number
    return number + 1


def tell_empty(count: int) -> None:
    """Print how many empty lines were skipped, if any."""
    if count:
        tell(f"{count} empty line{'s' * (count > 1)} skipped")


def print_lines(lines: Iterable[str], file: TextIO | None = None) -> None:
    """Print each line once it is computed, escaped. Raises OSError that names stdout."""
    if hasattr(sys.stdout, "reconfigure"):  # print tokens outside the terminal's encoding as escapes
        sys.stdout.reconfigure(errors="backslashreplace")
    styled = coloured()
    for line in lines:
        with naming("stdout"):
            print(escaped(line, styled), file=file)
    with naming("stdout"):
        print(end="", file=file, flush=True)
