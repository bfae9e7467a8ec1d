"""The command line: find the command, run it, print errors in plain words.

Commands are files in `commands/`; only the one that is called is imported. Nothing else is imported before `main` can
answer Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from minibert.commands.common import Parser

INTERRUPTED = 130  # exit code of a process that Ctrl-C ended; after SIGTERM it is 143
READER_GONE = 141  # exit code of a process that wrote into a closed pipe

# each command is a file of commands/, or a row of COMMANDS there, with ABOUT, EXAMPLE, declare(parser) and
# run(arguments); its line of the help is here, so that `minibert --help` imports no command
GROUPS = {
    "learning": {
        "explain": "show each step of the layer for a text",
        "plot": "draw the layer's tables, steps and attention; needs matplotlib",
        "nearest": "show the words whose table rows are nearest to a word's row",
        "fill": "predict masked words, with their probabilities",
        "next": "predict the next word, with probabilities",
    },
    "verifying": {
        "verify": "compare every intermediate with the reference's or a port's",
        "info": "show a model's parts and sizes, its heads, and its sentence vectors",
    },
    "vectors": {
        "encode": "turn texts into sentence vectors, as sentence-transformers does",
        "similar": "compare texts by meaning, or search a file",
        "rank": "order lines by how well they answer a query (a reranker)",
        "classify": "classify texts, with probabilities",
        "bulk": "turn files of many texts into a folder of vectors",
        "search": "find the texts that answer a question best, in a folder of `bulk`",
        "serve": "a small server for clients of OpenAI, Cohere, Jina and TEI",
        "distill": "make a static model: one row for each token, no blocks",
        "extract": "write a folder with only a model's input layer",
        "embed": "turn texts into vectors without context",
    },
}
COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}
HELP = """usage: minibert COMMAND [ARGUMENT ...]

BERT, GPT-2 and their relatives in NumPy, for learning, verifying and vectors.

%s

`minibert COMMAND --help` describes one; -V prints the version.

example:
  minibert explain "We lived above the clouds\""""

FILES = {  # the commands that share a file
    **dict.fromkeys(("nearest", "fill", "next", "classify"), "answers"),
    **dict.fromkeys(("info", "plot"), "explain"),
    "embed": "encode",
    "rank": "similar",
    "extract": "distill",
}
OPTIONS = {"truncation": "--truncate"}  # options whose name is not the function's argument


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    0: success. 1: an error, or numbers that differ. 2: a wrong argument; in verify also numbers that could not be
    compared. 3: in verify, the Hub could not be reached.
    """
    pressed: list[int] = []
    try:
        if "_ARGCOMPLETE" in os.environ:
            _complete()
        with _noting_signals(pressed):
            code = _run(sys.argv[1:] if argv is None else list(argv))
            print(end="", flush=True)  # a closed pipe can still be caught here
    except SystemExit as stop:  # help or a wrong argument: argparse has printed it
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return 128 + pressed[-1] if pressed else INTERRUPTED
    except BrokenPipeError:  # the reader of the pipe has stopped
        _discard_stdout()
        return READER_GONE
    except Exception as error:  # noqa: BLE001  a person at a terminal reads a message, and no traceback
        if pressed:
            return 128 + pressed[-1]
        from minibert.commands.common import escaped

        print(f"minibert: error: {escaped(_in_words(error))}", file=sys.stderr)
        if isinstance(error, OSError) and error.filename == "stdout":
            _discard_stdout()
        return int(getattr(error, "exit_code", 1))
    return code


@contextmanager
def _noting_signals(pressed: list[int]) -> Iterator[None]:
    """Note each Ctrl-C and SIGTERM, and raise KeyboardInterrupt for both, so that no half-written folder stays.

    Some libraries turn KeyboardInterrupt into another error, such as NumPy's C code while it is imported.
    """
    from signal import SIG_DFL, SIGINT, SIGTERM, default_int_handler, getsignal, signal
    from threading import current_thread, main_thread

    def note(number: int, frame: Any) -> None:
        pressed.append(number)
        default_int_handler(number, frame)

    # a program that calls `main` may have handlers too, and under nohup a signal is ignored: both stay
    usual = {SIGINT: default_int_handler, SIGTERM: SIG_DFL} if current_thread() is main_thread() else {}
    ours = {number: handler for number, handler in usual.items() if getsignal(number) is handler}
    for number in ours:
        signal(number, note)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal(number, handler)


def _discard_stdout() -> None:
    """Redirect stdout to the null device, so that Python's flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    from minibert import __version__

    name, words = (argv[0], argv[1:]) if argv else ("", [])
    if name in COMMANDS:
        from minibert.errors import HubError

        command, parser = _opened(name)
        arguments = parser.parse(words)
        arguments.version = __version__  # commands may not import minibert itself
        try:
            return command.run(arguments) or 0
        except HubError as error:
            if getattr(arguments, "unnamed", False):
                why = f"no model was named, and the default, {parser.usual}, cannot be fetched from the Hub"
                error.args = (f"{why}; name a folder with --model or MINIBERT_MODEL; the Hub: {error}",)
            raise
    if name in ("help", "-h", "--help"):
        if not words:
            groups = (
                "\n".join([f"{title}:", *(f"  {name:9} {line}" for name, line in group.items())])
                for title, group in GROUPS.items()
            )
            print(HELP % "\n\n".join(groups))
            return 0
        if words[0] in COMMANDS:
            _opened(words[0])[1].print_help()
            return 0
        name = words[0]
    if name in ("-V", "--version"):
        print(f"minibert {__version__}")
        return 0
    from minibert.commands.common import refusal
    from minibert.errors import did_you_mean

    wrong = f"there is no command {name!r}{did_you_mean(name, COMMANDS)}" if name else "a command is missing"
    print(refusal("minibert", wrong), file=sys.stderr)
    return 2


def _complete() -> None:
    """Complete the command line that the shell passes in variables at TAB; argcomplete then ends the process."""
    from argparse import ArgumentParser

    from argcomplete import autocomplete

    words = (os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])] + "|").split()  # "|" marks the cursor
    if len(words) > 2 and words[1] in COMMANDS:
        os.environ["_ARGCOMPLETE"] = "2"  # this parser's words begin at the second word
        parser: ArgumentParser = _opened(words[1])[1]
    else:
        parser = ArgumentParser()
        parser.add_argument("-V", "--version", action="store_true")
        command: Any = parser.add_argument("command", nargs="*")
        command.completer = lambda **_: COMMANDS
    autocomplete(parser)


def _opened(name: str) -> tuple[Any, Parser]:
    """Import one command's file and build its parser."""
    from importlib import import_module

    from minibert.commands.common import Parser

    file = import_module(f"minibert.commands.{FILES.get(name, name)}")
    command = getattr(file, "COMMANDS", {name: file})[name]
    parser = Parser(name, f"{COMMANDS[name]}\n{command.ABOUT}", command.EXAMPLE)
    command.declare(parser)
    return command, parser


def _in_words(error: Exception) -> str:
    """Return an error's message with names as a shell writes them; for an unexpected error, its class too."""
    from minibert.errors import MinibertError, parts_of

    foreseen = (MinibertError, ValueError, TypeError, IndexError, OSError, ImportError)
    message = "".join(map(_in_shell, parts_of(error)))
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        no_file = isinstance(error, FileNotFoundError)  # filename2: the target of a move
        message = f"{error.filename if no_file else error.filename2 or error.filename}: {error.strerror}"
    if not message or not isinstance(error, foreseen):
        message = f"{type(error).__name__}: {error}".rstrip(": ")
    return message


def _in_shell(part: object) -> str:
    """Return a part of a message as the command line writes it: an option for an argument of a function.

    >>> from minibert.errors import Load, Option
    >>> _in_shell(Option("truncation", True)), _in_shell(Option("bad_rows", "skip")), _in_shell("words")
    ('--truncate', '--bad-rows skip', 'words')
    >>> _in_shell(Load("a reranker"))
    'name a reranker with --model'
    """
    from minibert.errors import Load, Option

    if isinstance(part, Load):
        return f"name {part.model} with --{part.option}"
    if not isinstance(part, Option):
        return str(part)
    name = OPTIONS.get(part.name) or "--" + part.name.replace("_", "-")
    return name if part.value in (None, True) else f"{name} {part.value}"
