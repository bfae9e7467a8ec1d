"""The command line: data to stdout, talk to stderr. A subcommand is two functions: one declares it, one does it.

What a subcommand needs is imported when it runs, so that none pays for another's.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from . import __version__

if TYPE_CHECKING:
    from minibert.equations.input_layer import Array
    from minibert.models.layer import EmbeddingLayer

DEFAULT_MODEL = "bert-base-uncased"
FEW_TEXTS = 32  # up to so many, the rows they need are fetched from the Hub, and not the whole tables
INTERRUPTED = 130  # what a shell reports of a process that Ctrl-C has ended
READER_GONE = 141  # and of one that wrote into a closed pipe

# what errors advise in Python's words -> what to type
IN_SHELL = {"truncation=True": "--truncate", "force=True": "--force", "local_files_only=True": "--local-files-only"}

Commands = Any  # what argparse's add_subparsers gives has no public name


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: the exit code, 0 where all went well, 1 after an error or where numbers differ, 2 for a
    wrong argument."""
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:  # --help, --version, a wrong argument: argparse has said what there is to say
        return int(stop.code or 0)
    try:
        code: int = arguments.run(arguments) or 0
        print(end="", flush=True)  # here, where a closed pipe can still be caught
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # the reader has seen enough; with stdout turned away Python's own flush at the end finds nothing to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except Exception as error:  # noqa: BLE001  a person at a terminal is told what is wrong, not where in the code
        print(f"minibert: error: {_in_words(error)}", file=sys.stderr)
        return 1
    return code


def _in_words(error: Exception) -> str:
    """Give an error's message in the words of a shell; of one that nobody foresaw, its kind too."""
    from .errors import MinibertError

    foreseen = (MinibertError, ValueError, TypeError, IndexError, OSError, ImportError)
    message = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        missing = isinstance(error, FileNotFoundError)  # of two names the second is where the first was to go
        message = f"{error.filename if missing else error.filename2 or error.filename}: {error.strerror}"
    if not message or not isinstance(error, foreseen):
        message = f"{type(error).__name__}: {error}".rstrip(": ")
    for python, shell in IN_SHELL.items():
        message = message.replace(f"pass {python}", python).replace(python, shell)
    return message


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="minibert",
        description="The input layer of BERT, GPT-2, T5 and their relatives in plain NumPy.",
        epilog='example:\n  minibert explain "We lived above the clouds"',
        formatter_class=argparse.RawDescriptionHelpFormatter,  # an example broken in two is no example
    )
    parser.add_argument("--version", action="version", version=f"minibert {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for declare in (_declare_explain, _declare_info, _declare_embed, _declare_extract, _declare_verify, _declare_plot):
        declare(commands)
    return parser


def _declare(
    commands: Commands, name: str, run: Callable[[Any], int | None], about: str, example: str, side: bool = True
) -> Any:
    """Declare a subcommand with the arguments that all of them have."""
    parser = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    model = os.environ.get("MINIBERT_MODEL") or DEFAULT_MODEL
    parser.add_argument(
        "--model", default=model, metavar="M",
        help=f"a folder, or a name on the Hub (default: what MINIBERT_MODEL names, else {DEFAULT_MODEL})",
    )  # fmt: skip
    if side:
        parser.add_argument("--side", default="encoder", choices=("encoder", "decoder"), help="where a model has both")
    parser.add_argument("--revision", metavar="R", help="a branch, tag or commit on the Hub")
    parser.add_argument("--local-files-only", action="store_true", help="use what is cached, ask no Hub")
    parser.set_defaults(run=run)
    return parser


def _declare_whole(parser: Any) -> None:
    parser.add_argument("--whole", action="store_true", help="fetch the whole tables from the Hub, not the rows needed")


def _load(arguments: Any, lazy: bool = False) -> EmbeddingLayer:
    from minibert.models.load import load

    return load(
        arguments.model,
        revision=arguments.revision,
        local_files_only=arguments.local_files_only,
        side=arguments.side,
        lazy=lazy,
    )


def _tell(what: str) -> None:
    print(f"minibert: {what}", file=sys.stderr)


# -- explain -----------------------------------------------------------------------------------------------------


def _declare_explain(commands: Commands) -> None:
    parser = _declare(
        commands, "explain", _explain, "show each step that the layer takes for a text",
        'minibert explain --model ./all-MiniLM-L6-v2 "We lived above the clouds"',
    )  # fmt: skip
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument(
        "--pair", metavar="TEXT", help="a second text, to see token types at work; an empty one means none"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser instead, FILE.html")
    _declare_whole(parser)


def _explain(arguments: Any) -> None:
    from minibert.show.explain import explain

    html: Path | None = arguments.html
    if html is not None:
        from minibert.files.writing import output_ending
        from minibert.show.page import page, save

        output_ending(html, (".html", ".htm"))
        with _load(arguments, lazy=not arguments.whole) as layer:
            save(page(layer, arguments.text, arguments.pair), html)
        _tell(f"wrote {html}")
        return
    terminal = bool(sys.stdout) and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    colour = terminal and not os.environ.get("NO_COLOR")
    with _load(arguments, lazy=not arguments.whole) as layer:
        _print(explain(layer, arguments.text, arguments.pair, colour))


def _print(lines: Iterable[str], file: TextIO | None = None) -> None:
    if hasattr(sys.stdout, "reconfigure"):  # a token that the terminal's encoding lacks is no reason to stop
        sys.stdout.reconfigure(errors="backslashreplace")
    for line in lines:
        print(line, file=file)


# -- info --------------------------------------------------------------------------------------------------------


def _declare_info(commands: Commands) -> None:
    _declare(
        commands, "info", _info, "show what a model's input layer is made of",
        "minibert info --model gpt2",
    )  # fmt: skip


def _info(arguments: Any) -> None:
    from minibert.show.info import info

    with _load(arguments, lazy=True) as layer:  # sizes alone are told
        _print(info(layer))


# -- embed -------------------------------------------------------------------------------------------------------


def _declare_embed(commands: Commands) -> None:
    parser = _declare(
        commands, "embed", _embed,
        "turn texts into vectors: one vector a line, with all its digits",
        'minibert embed "a text" "another text" --normalize -o vectors.npy',
    )  # fmt: skip
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="without any, each line of stdin is a text")
    parser.add_argument(
        "--pair", nargs="+", metavar="TEXT",
        help="a second text for each, as in question and answer; of an empty one the separator stays, with its type",
    )  # fmt: skip
    parser.add_argument(
        "--pooling", default="mean", metavar="{mean,max,none}",
        help="over a text's tokens (default: mean); none: one token a line, and an empty line after each text",
    )  # fmt: skip
    parser.add_argument("--normalize", action="store_true", help="divide each vector by its length")
    parser.add_argument("--truncate", action="store_true", help="cut texts that are too long for the model")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write FILE.npy or FILE.safetensors instead; into a pipe, .npy",
    )
    _declare_whole(parser)


def _embed(arguments: Any) -> None:
    pooling = None if arguments.pooling == "none" else arguments.pooling
    output: Path | None = arguments.output
    ending = ""
    if output is not None:
        from minibert.files.writing import output_ending, refuse_source

        ending = output_ending(output, (".npy", ".safetensors") if pooling else (".safetensors", ".npy"))
        if pooling is None and ending == ".npy":
            raise ValueError(
                f"{output}: texts have different numbers of tokens, and a .npy file holds one array; use .safetensors, "
                "which gets embeddings (tokens, dim) and offsets: text i has the rows offsets[i] to offsets[i + 1] - 1"
            )
    texts = arguments.texts or _lines_of_stdin()
    with _load(arguments, lazy=len(texts) <= FEW_TEXTS and not arguments.whole) as layer:
        if output is not None:
            refuse_source(output, (tensor.file for tensor in layer.tensors))
        vectors = layer.embed(
            texts,
            pooling,
            text_pair=arguments.pair,
            normalize=arguments.normalize,
            truncation=arguments.truncate,
        )
        if output is not None:
            _write(output, ending, vectors, layer)
            return
        for rows in [vectors] if pooling else vectors:
            pattern = " ".join(["%.9g"] * layer.dim)  # nine digits tell any two float32 numbers apart
            _print(pattern % tuple(row.tolist()) for row in rows)
            if not pooling:
                print()


def _lines_of_stdin() -> list[str]:
    if sys.stdin.isatty():
        _tell("each line is a text; end with Ctrl-D")
    try:
        return [line.removesuffix("\n") for line in sys.stdin]
    except UnicodeDecodeError as error:
        raise ValueError(f"stdin is not {error.encoding} ({error.reason}); convert it, with iconv or so") from None


def _write(path: Path, ending: str, vectors: Any, layer: EmbeddingLayer) -> None:
    """Write the vectors; the file appears whole or not at all."""
    from io import BytesIO

    import numpy as np

    from minibert.files.writing import write_output

    arrays: dict[str, Array] = {"embeddings": vectors}
    if isinstance(vectors, list):  # one array a text
        lengths = [len(rows) for rows in vectors]
        arrays = {
            "embeddings": np.concatenate([np.empty((0, layer.dim), layer.dtype), *vectors]),
            "offsets": np.cumsum([0, *lengths], dtype=np.int64),
        }
    if ending == ".npy":
        # np.save wants a file that it can seek in, and forgets why a write failed
        header, rows = BytesIO(), np.ascontiguousarray(arrays["embeddings"])
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(rows))
        write_output(path, header.getvalue(), rows.data)
    else:
        from safetensors.numpy import save

        write_output(path, save(arrays))  # not save_file, whose files their owner alone may read
    _tell(f"wrote {path}: " + ", ".join(f"{name} {array.shape}" for name, array in arrays.items()))


# -- extract -----------------------------------------------------------------------------------------------------


def _declare_extract(commands: Commands) -> None:
    parser = _declare(
        commands, "extract", _extract,
        "write a folder with a model's input layer alone: config, tokenizer, one safetensors file",
        "minibert extract --model bert-base-uncased -o ./bert-input --dtype float16", side=False,
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="the folder to make")
    parser.add_argument(
        "--dtype", choices=("float32", "float16", "bfloat16"), help="of the tables (default: as each is stored)"
    )
    parser.add_argument("--force", action="store_true", help="replace a folder that is there")


def _extract(arguments: Any) -> None:
    from minibert.models.extract import extract
    from minibert.show.info import size

    made = extract(
        arguments.model,
        arguments.output,
        arguments.dtype,
        revision=arguments.revision,
        local_files_only=arguments.local_files_only,
        force=arguments.force,
    )
    share = made.bytes_after / made.bytes_before
    _print([
        f"{made.folder}: {made.tensors} tensors",
        f"before          {size(made.bytes_before)}",
        f"after           {size(made.bytes_after)} ({share:.0%})",
        f"rounding error  {made.rounding_error:.3g} at most",
    ])  # fmt: skip


# -- verify ------------------------------------------------------------------------------------------------------


def _declare_verify(commands: Commands) -> None:
    parser = _declare(
        commands, "verify", _verify,
        "compare every intermediate with the reference, with a port's own numbers, or with printed ones",
        "minibert verify --model ./all-MiniLM-L6-v2 --against my_port.safetensors",
    )  # fmt: skip
    parser.add_argument("--text", nargs="+", default=[], metavar="TEXT", help="compare these texts too, ids included")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="write inputs and every intermediate, for a port to another language"
    )
    parser.add_argument(
        "--against", type=Path, metavar="FILE",
        help="compare with such a file, in which a port has put its numbers; an intermediate that is missing there, "
        "in any batch of the file, is an error as a difference is",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", metavar="KEY",
        help="with --against: these intermediates alone, as in --only position_ids sum, to port stage by stage",
    )  # fmt: skip


def _verify(arguments: Any) -> int:
    from minibert.files.writing import is_stdout, output_ending
    from minibert.verify.verify import verify

    if arguments.save is not None:
        output_ending(arguments.save, (".safetensors",))
    report = verify(
        arguments.model,
        arguments.text,
        side=arguments.side,
        revision=arguments.revision,
        local_files_only=arguments.local_files_only,
        against=arguments.against,
        save=arguments.save,
        only=arguments.only,
    )
    _print(report.lines, sys.stderr if arguments.save is not None and is_stdout(arguments.save) else None)
    return 0 if report.passed else 1


# -- plot --------------------------------------------------------------------------------------------------------

PICTURES = ("rows", "similarity", "table", "sum", "relative-bias", "alibi", "rotary", "tokens")


def _declare_plot(commands: Commands) -> None:
    parser = _declare(
        commands, "plot", _plot, "draw what the layer holds; needs matplotlib",
        'minibert plot sum --text "We lived above the clouds" -o sum.svg',
    )  # fmt: skip
    parser.add_argument(
        "kind", choices=PICTURES, metavar="KIND",
        help="rows, similarity or table of the positions; sum or tokens of a text; relative-bias, alibi or rotary of "
        "the attention",
    )  # fmt: skip
    parser.add_argument("--text", metavar="TEXT", help="the text that sum and tokens show; for rows, its first token")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="FILE.svg, .png or .pdf; without it a window")


def _plot(arguments: Any) -> None:
    output: Path | None = arguments.output
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        raise ImportError("plot needs matplotlib; install it with: pip install matplotlib") from None
    from minibert.files.writing import output_ending
    from minibert.show.plot import FORMATS, save

    if output is not None:
        output_ending(output, FORMATS)
        mpl.use("agg")  # a file needs no window
    import matplotlib.pyplot as plt

    if output is None and plt.get_backend().lower() in ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template"):
        raise ValueError("there is no display to open a window on; write a file: -o FILE.svg, .png or .pdf")
    from minibert.show.pictures import picture

    with _load(arguments, lazy=True) as layer:  # most pictures show one small table
        figure = picture(arguments.kind, layer, arguments.text)
        if output is None:
            plt.show()
        else:
            save(figure, output)
            _tell(f"wrote {output}")
