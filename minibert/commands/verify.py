"""`minibert verify`: every intermediate beside the reference's, a port's, or printed ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .common import Parser, add_model, add_prompts, from_hub, print_lines

ABOUT = """compare every intermediate with the reference
or with a port's own numbers, or with those that ship with minibert; or say
which mistake vectors show.

ends with 0 where all is equal within the tolerance, 1 where something differs
or after an error, 2 for a wrong argument, 3 where nothing differs but --seeds
could not have a model."""
NOT_RUN = 3  # no verdict: a check that could not be made is not one that passed
EXAMPLE = "minibert verify ./all-MiniLM-L6-v2 --against my_port.safetensors"


def declare(parser: Parser) -> None:
    """Add the arguments."""
    add_model(parser, argument=True)
    parser.add_argument(
        "--encoder", action="store_true", help="the whole model, block by block, and where the first difference arises"
    )
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
    parser.add_argument(
        "--vectors", type=Path, metavar="FILE",
        help="vectors that another program gives (.npy .npz .safetensors .parquet .jsonl): are they the model's, and "
        "if not, which mistake is it?",
    )  # fmt: skip
    parser.add_argument(
        "--texts", type=Path, metavar="FILE",
        help='the texts of these vectors, in order: plain lines, or a column "text" (default: those of the file, else '
        "those of --print-texts)",
    )  # fmt: skip
    parser.add_argument(
        "--print-texts", action="store_true", help="print texts that tell mistakes apart, as JSON lines with the reason"
    )
    parser.add_argument(
        "--url", metavar="URL", help="ask a server that answers OpenAI's /v1/embeddings, instead of --vectors"
    )
    parser.add_argument("--served-as", metavar="NAME", help="what the server calls the model (default: as MODEL)")
    parser.add_argument("--api-key-env", metavar="NAME", help="the environment's variable that has the server's key")
    add_prompts(parser)
    parser.add_argument(
        "--seeds", action="store_true",
        help="check bert-base-uncased and gpt2 from the Hub, by the rows that public notebooks print of them: about "
        "a megabyte each; no other argument but --local-files-only",
    )  # fmt: skip


def run(arguments: Any) -> int:
    """Print the comparison: 0 where all is equal within the tolerance, 1 where not, `NOT_RUN` where none was made."""
    if arguments.seeds:
        return _seeds(arguments)
    if arguments.print_texts:
        return _print_texts()
    if arguments.vectors is not None or arguments.url is not None:
        return _vectors(arguments)
    _refuse(arguments, "--vectors or --url", "texts", "served_as", "api_key_env", "prompt_name", "prompt")
    from minibert.files.writing import is_stdout, output_ending
    from minibert.verify.verify import verify

    if arguments.encoder and arguments.side:
        raise ValueError("--encoder compares a whole model, which has no sides; leave out --side")
    if arguments.save is not None:
        output_ending(arguments.save, (".safetensors",))
    report = verify(
        arguments.model,
        arguments.text,
        encoder=arguments.encoder,
        side=arguments.side,
        against=arguments.against,
        save=arguments.save,
        only=arguments.only,
        **from_hub(arguments),
    )
    print_lines(report.lines, sys.stderr if arguments.save is not None and is_stdout(arguments.save) else None)
    return 0 if report.passed else 1


def _refuse(arguments: Any, what: str, *names: str) -> None:
    """Refuse options that belong to something else. Raises ValueError."""
    for name in names:
        if getattr(arguments, name):
            raise ValueError(f"--{name.replace('_', '-')} is for {what}; leave it out")


def _print_texts() -> int:
    import json

    from minibert.verify.texts import TEXTS

    print_lines(json.dumps(each._asdict()) for each in TEXTS)
    return 0


def _vectors(arguments: Any) -> int:
    from minibert.verify.vectors import verify_vectors

    _refuse(arguments, "intermediates, not for vectors", "encoder", "side", "text", "save", "against", "only")
    if arguments.url is None:
        _refuse(arguments, "--url", "served_as", "api_key_env")
    names = ("vectors", "texts", "url", "api_key_env", "served_as", "prompt_name", "prompt")
    asked = {name: getattr(arguments, name) for name in names}
    report = verify_vectors(arguments.model, **asked, **from_hub(arguments))
    print_lines(report.lines)
    return 0 if report.passed else 1


def _seeds(arguments: Any) -> int:
    from minibert.verify.seeds import SEEDS, verify_seed

    others = ("encoder", "named", "side", "revision", "text", "save", "against", "only", "vectors", "texts", "url")
    if any(getattr(arguments, name) for name in others):
        raise ValueError("--seeds names its own models and commits; leave out all else but --local-files-only")
    reports = []
    for seed in SEEDS:
        reports.append(verify_seed(seed, arguments.local_files_only))
        print_lines([*reports[-1].lines, ""])
    verdicts = ["passed" if r.passed else "DIFFERENT" if r.ran else "not run here" for r in reports]
    print_lines([f"{seed.model}: {verdict}" for seed, verdict in zip(SEEDS, verdicts, strict=True)])
    if "DIFFERENT" in verdicts:
        return 1
    return NOT_RUN if "not run here" in verdicts else 0
