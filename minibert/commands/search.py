"""`minibert search`: the texts of a folder of `bulk` that answer a question best."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert.errors import MinibertError, Option, error_of, parts_of

from .common import Parser, add_k, add_model, add_prompts, print_lines, tell, tell_truncated, texts_of
from .similar import add_why, largest_pairs, why_line

if TYPE_CHECKING:
    from minibert.bulk.stored import StoredVectors
    from minibert.models.open.load_encoder import TextModel
    from minibert.models.run.pipeline import TextPipeline, Truncated
    from minibert.models.sentences.token_pairs import SimilarityPairs

QUESTIONS = 512  # compared at once, in one reading of the folder
RESULTS = 1 << 20  # results kept at once: with a large -k, fewer questions are compared together

ABOUT = """Prints for each question the best rows: score, id and text, or the columns that
--show names. Every vector is compared; Arrow files are memory-mapped, not
loaded. Scores are the similarity that the model's folder names, usually the
cosine. With one bit per number (binary, ubinary) the score is minus the Hamming
distance, the number of bits that differ. A question gets the model's prompt
"query", if it has one."""
EXAMPLE = 'minibert search ./vectors "How do I reset my password?" -k 3'


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("folder", type=Path, metavar="VECTORS", help="a folder that `minibert bulk` wrote")
    parser.add_argument("texts", nargs="*", metavar="QUESTION", help="one or more questions; or use --questions")
    parser.add_argument(
        "--questions", metavar="FILE",
        help='a file of questions: lines, or .jsonl, .csv or .parquet with a column "text"; - for stdin',
    )  # fmt: skip
    add_k(parser, "rows")
    parser.add_argument(
        "--show", nargs="+", metavar="COLUMN",
        help="columns that `minibert bulk` kept, after the questions (default: the column of the texts)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a line of JSON: question, measure, results")
    add_why(parser)
    add_prompts(parser)
    add_model(parser, side=False, default="the model that made the vectors; no other is accepted", threads=True)


def run(arguments: Any) -> None:
    """Print the results of each question."""
    from minibert.bulk.stored import StoredVectors
    from minibert.equations.quantization import BITS
    from minibert.models.run.pipeline import chunked
    from minibert.models.sentences.token_pairs import check_sum

    if bool(arguments.texts) == (arguments.questions is not None):
        raise ValueError("give questions as arguments, or a file of them with --questions; not both, not none")
    truncated: list[Truncated] = []
    stored = StoredVectors(arguments.folder)
    for name in arguments.show or ():
        stored.column(name, ())  # raises for a column that was not kept, before the model is opened
    if arguments.why:
        stored.column(stored.meta["text_column"], ())
        if stored.precision in BITS:
            raise ValueError(f"{stored.path} has {stored.precision} vectors, and their Hamming distance is no sum over "
                             "pairs of tokens; leave out --why")  # fmt: skip
    model = _model(arguments, stored)
    with model.model:
        if arguments.why:
            check_sum(model.model)
        questions = arguments.texts or _read(arguments.questions)
        prompt_name, prompt = arguments.prompt_name, arguments.prompt
        if prompt_name is prompt is None and "query" in model.model.prompts:
            prompt_name = "query"
        query_pipeline = model.model.pipeline(prompt_name, prompt, task="query").noting(truncated)
        chunks = chunked(questions, max(1, min(QUESTIONS, RESULTS // max(1, arguments.k))))
        print_lines(_in_chunks(chunks, truncated, partial(_answers, stored, model, query_pipeline, arguments)))
    tell_truncated(truncated, "question")
    if stored.precision in BITS:
        tell(f"{stored.precision} vectors are compared by Hamming distance: a score is minus the bits that differ")


def _model(arguments: Any, stored: StoredVectors) -> TextModel:
    """Open the model that made the vectors, with the same options. Raises ValueError for another model."""
    from minibert.bulk.stored import IDENTITY, difference
    from minibert.models.open.load_encoder import open_vectors
    from minibert.models.sentences.sentence_config import SentenceOptions

    meta, name = stored.meta, arguments.named or stored.meta["model_path"]
    revision = arguments.revision or (meta["commit"] if arguments.named is None else None)
    hub = {**arguments.hub, "revision": revision}
    arguments.unnamed = False  # the folder names it
    try:
        options = SentenceOptions(**(meta.get("options") or {}))
        model = open_vectors(name, overrides=options, threads=arguments.threads, **hub)
    except MinibertError as error:
        if arguments.named is not None:
            raise
        made_with, advice = f"{stored.path} was made with the model {name}: ", " names it where it is now"
        raise error_of(type(error), made_with, *parts_of(error), "; ", Option("model"), advice) from None
    if changed := difference(meta, model.named_in(meta)):
        model.model.close()
        setting, wanted, current = changed
        if setting == IDENTITY:
            why = f"its {IDENTITY} is {current}, that of the vectors' model {wanted}"
        else:
            why = f"{next(iter(current))} is not the same file"
        wrong = f"{stored.path} was made with another model than {name}: {why}"
        raise ValueError(f"{wrong}; name {meta['model_path']} as it was then, or run bulk again")
    return model


def _read(file: str) -> Iterator[str]:
    """Read the questions of a file. Raises ValueError for a file without questions, and for a row without a text."""
    from minibert.bulk.texts import ENDINGS, NO_TEXT, PLACE, Texts

    if ENDINGS.get(Path(file).suffix.lower(), "lines") == "lines":
        yield from texts_of(file, [])
        return
    any_text = False
    for table in Texts([file], keep=()).rows():
        for text, place in zip(table["text"].to_pylist(), table[PLACE].to_pylist(), strict=True):
            if text is None:
                raise ValueError(f"{place}: {NO_TEXT}")
            if text.strip():
                any_text = True
                yield text
    if not any_text:
        raise ValueError(f"{file}: expected questions, found none")


def _in_chunks(
    chunks: Iterable[list[str]], truncated: list[Truncated], answers: Callable[[list[str]], Iterator[str]]
) -> Iterator[str]:
    """Yield the answers of all chunks; `truncated` then counts over all chunks, not within one."""
    start = 0
    for chunk in chunks:
        before = len(truncated)
        yield from answers(chunk)
        truncated[before:] = [(start + i, count) for i, count in truncated[before:]]
        start += len(chunk)


def _answers(
    stored: StoredVectors, model: TextModel, query_pipeline: TextPipeline, arguments: Any, questions: list[str]
) -> Iterator[str]:
    from minibert.equations.quantization import BITS
    from minibert.models.sentences.token_pairs import pairs_of

    alone, digits = len(arguments.texts) == 1, 0 if stored.precision in BITS else 3
    numbers, scores = stored.search(query_pipeline.all(questions), arguments.k)
    names = arguments.show or [stored.meta["text_column"]]
    ids, columns = stored.ids(numbers.ravel()), {name: stored.column(name, numbers.ravel()) for name in names}
    texts = stored.column(stored.meta["text_column"], numbers.ravel()) if arguments.why else {}

    def split(question: str, row: int) -> SimilarityPairs:
        return pairs_of(question, query_pipeline, texts[row], model.pipeline, model.model.sentence_config.measure)

    for question, rows, row_scores in zip(questions, numbers.tolist(), scores.tolist(), strict=True):
        row_values = [{name: column[row] for name, column in columns.items()} for row in rows]
        if arguments.json:
            shown = [
                {"columns": _finite(values)} if arguments.show else {"text": values[names[0]]} for values in row_values
            ]
            triples = zip(rows, row_scores, shown, strict=True)
            results = [{"score": score, "id": ids[row], **fields} for row, score, fields in triples]
            for result, row in zip(results, rows if arguments.why else (), strict=False):
                pairs = largest_pairs(split(question, row))
                result["why"] = [{"token": one, "other": other, "adds": adds} for one, other, adds in pairs]
            # an id may be a date
            yield json.dumps({"question": question, "measure": stored.measure, "results": results}, default=str)
            continue
        if not alone:
            yield question
        for row, score, values in zip(rows, row_scores, row_values, strict=True):
            cells = ("null" if value is None else str(value) for value in values.values())
            line = "  ".join([f"{score:.{digits}f}", str(ids[row]), *cells]).rstrip()
            yield line if alone else f"  {line}"
            if arguments.why:
                yield "  " * (not alone) + why_line(split(question, row))


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinities, which JSON lacks, by null."""
    return {name: None if isinstance(x, float) and not isfinite(x) else x for name, x in values.items()}
