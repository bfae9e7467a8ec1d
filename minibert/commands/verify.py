"""`minibert verify`: every intermediate beside the reference's, a port's, or printed ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from .common import Parser, add_model, path_of, print_lines

if TYPE_CHECKING:
    from minibert.verify.report import Comparison

ABOUT = """Compares with a port's numbers (--against), or else with transformers, or with
the numbers that ship with minibert. --vectors finds the mistake in vectors.

exit code 0 if all is equal within the tolerance, 1 if something differs, 2 if
something could not be compared or for a wrong argument, 3 if the Hub could not
be reached."""
NOT_COMPARED, NO_HUB = 2, 3  # no verdict: the check could not be made
FORMAT = 1  # version of the object that --json prints
INTERMEDIATES = ("encoder", "side", "against", "save", "only", "batches", "format")  # not for vectors
EXAMPLE = "minibert verify ./all-MiniLM-L6-v2 --against my_port.safetensors"


def declare(parser: Parser) -> None:
    """Add the arguments, in four groups."""
    parser.add_argument(
        "--tolerance", type=float, default=0.0, metavar="X",
        help="allow differences up to X: |here - there| / max(1, |there|) in an intermediate, a share of its length in "
        "a vector",
    )  # fmt: skip
    parser.add_argument(
        "--texts", type=path_of, metavar="FILE",
        help='texts, one per line, or JSON lines with "text": the texts of the vectors, in order (default: those of '
        "--print-texts); without --vectors, texts to compare too, with their ids",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument(
        "--seeds", action="store_true",
        help="compare bert-base-uncased and gpt2 from the Hub with the rows that public notebooks print; downloads "
        "about a megabyte each; no other argument except --local-files-only",
    )  # fmt: skip
    add_model(parser, argument=True, group="the model")
    whole, vectors = map(parser.add_argument_group, ("its intermediates", "vectors alone, without intermediates"))
    whole.add_argument(
        "--encoder", action="store_true",
        help="compare the whole model, block by block, and its logits; name the first difference",
    )  # fmt: skip
    whole.add_argument(
        "--save",
        type=path_of,
        metavar="FILE",
        help="write inputs and every intermediate, for a port to another language",
    )
    whole.add_argument(
        "--against", type=path_of, metavar="FILE",
        help="compare with a port's numbers in a file as --save writes it; a missing intermediate in any of "
             "its batches is an error, like a difference. Also reads a folder of transformers' "
        "model_addition_debugger_context, and an ONNX model with its intermediates as outputs",
    )  # fmt: skip
    whole.add_argument(
        "--format", choices=("float32", "float16", "bfloat16", "q8_0"),
        help="with --encoder --against: the number format of the port; if it is narrower than float32, each module is "
             "computed again, from the port's own input",
    )  # fmt: skip
    whole.add_argument(
        "--only", nargs="+", metavar="KEY",
        help="with --against: only these intermediates, as in --only position_ids sum, to port stage by stage",
    )  # fmt: skip
    whole.add_argument(
        "--batches", nargs="+", metavar="NAME",
        help="only these batches (default: all; a batch that the file of --against lacks is an error)",
    )  # fmt: skip
    vectors.add_argument(
        "--vectors", type=path_of, metavar="FILE",
        help="another program's vectors (.npy, .jsonl): are they the model's, and if not, which setting or mistake "
        "makes them?",
    )  # fmt: skip
    vectors.add_argument(
        "--print-texts",
        action="store_true",
        help="print texts that tell mistakes apart, as JSON lines with the reason for each",
    )
    vectors.add_argument("--prompt", metavar="TEXT", help="the text that the model puts before each text")


def run(arguments: Any) -> int:
    """Print the comparison: 0 if all is equal within the tolerance, 1 if not, `NOT_COMPARED` or `NO_HUB` otherwise."""
    from minibert.errors import HubError, MinibertError

    try:
        return _run(arguments)
    except (MinibertError, ValueError, TypeError, IndexError, OSError, ImportError) as error:
        failed: Any = error
        failed.exit_code = NO_HUB if isinstance(error, HubError) else NOT_COMPARED
        if not arguments.json:
            raise
        print_lines([_object(passed=False, error=str(error))])
        return int(failed.exit_code)


def _run(arguments: Any) -> int:
    if arguments.seeds:
        return _seeds(arguments)
    from minibert.files.writing import is_stdout, output_ending
    from minibert.verify.shipped import TEXTS, read_texts
    from minibert.verify.traces import ENDINGS
    from minibert.verify.verify import verify

    model, tolerance, hub = arguments.model, arguments.tolerance, arguments.hub
    if arguments.print_texts:
        print_lines(json.dumps(probe._asdict()) for probe in TEXTS)
        return 0
    texts = None if arguments.texts is None else read_texts(arguments.texts)
    if arguments.vectors is not None:
        from minibert.verify.vectors import verify_vectors

        _refuse(arguments, INTERMEDIATES, "{} is for intermediates, not for vectors; leave it out")
        report = verify_vectors(model, arguments.vectors, texts, prompt=arguments.prompt, tolerance=tolerance, **hub)
        return _tell(arguments, report)
    _refuse(arguments, ("prompt",), "{} is for --vectors; leave it out")
    if arguments.save is not None:
        output_ending(arguments.save, ENDINGS)
    options = hub | {name: getattr(arguments, name) for name in INTERMEDIATES}
    options["format"] = arguments.format or "float32"
    report = verify(model, texts or (), tolerance=tolerance, **options)
    return _tell(arguments, report, sys.stderr if arguments.save is not None and is_stdout(arguments.save) else None)


def _object(**entries: Any) -> str:
    return json.dumps({"format": FORMAT, **entries})


def _tell(arguments: Any, report: Comparison, file: TextIO | None = None) -> int:
    """Print a report, as lines or as one object, with the command's names of options."""
    for name in INTERMEDIATES:
        report.lines = [line.replace(f"`{name}=`", f"`--{name}`") for line in report.lines]
    print_lines([_object(**report.as_object())] if arguments.json else report.lines, file)
    return 0 if report.passed else 1


def _refuse(arguments: Any, names: Sequence[str], why: str) -> None:
    """Refuse options of another use of the command. Raises ValueError."""
    for name in names:
        if getattr(arguments, name):
            raise ValueError(why.format(f"--{name}"))


def _seeds(arguments: Any) -> int:
    from minibert.verify.shipped import SEEDS, verify_seed

    others = (*INTERMEDIATES, "vectors", "prompt", "texts", "tolerance", "named", "revision")
    _refuse(arguments, others, "--seeds names its own models and commits; leave out all else but --local-files-only")
    reports = [verify_seed(seed, arguments.local_files_only) for seed in SEEDS]
    verdicts = ["passed" if r.passed else "DIFFERENT" if r.ran else "not run here" for r in reports]
    if arguments.json:
        models = [{**report.as_object(), "ran": report.ran} for report in reports]
        print_lines([_object(passed=all(report.passed for report in reports), models=models)])
    else:
        print_lines(line for report in reports for line in (*report.lines, ""))
        print_lines(f"{seed.model}: {verdict}" for seed, verdict in zip(SEEDS, verdicts, strict=True))
    return 1 if "DIFFERENT" in verdicts else NO_HUB if "not run here" in verdicts else 0
