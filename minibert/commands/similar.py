"""`minibert similar` and `rank`: which lines of a file are nearest to a text, or answer a query best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from minibert.files.reading import STDIN
from minibert.models.open.options import SENTENCES, add_options

from . import common
from .common import Command, Parser, add_k, add_model, load_model, print_lines, tell_truncated

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder
    from minibert.models.run.pipeline import Truncated
    from minibert.models.sentences.comparing import Vectors
    from minibert.models.sentences.token_pairs import SimilarityPairs

SHOWN_PAIRS = 3  # under each result
RERANKER = "cross-encoder/ms-marco-MiniLM-L6-v2"


def _declare_similar(parser: Parser) -> None:
    add = parser.add_argument
    add("texts", nargs="+", metavar="TEXT", help="two or more texts; with --file one")
    add("--file", metavar="LINES", help="a file of texts, one per line; - for stdin; empty lines are skipped")
    add_k(parser, "lines")
    add_why(parser, "with --file: ")
    add_options(parser, "sentences", "measure")
    add_model(parser, side=False, usual=SENTENCES, threads=True)


def add_why(parser: Any, before: str = "") -> None:
    """Add --why."""
    parser.add_argument(
        "--why", action="store_true",
        help=f"{before}under each result, the three pairs of tokens that add most to the similarity, which is the sum "
        "over all pairs",
    )  # fmt: skip


def largest_pairs(split: SimilarityPairs) -> list[tuple[str, str, float]]:
    """Return the pairs of tokens that add most to a similarity, the largest first."""
    return [pair for pair in split.largest(SHOWN_PAIRS) if pair[2]]


def why_line(split: SimilarityPairs) -> str:
    """Return a line with the pairs of tokens that add most to a similarity, and what each adds.

    >>> import numpy as np
    >>> from minibert.models.sentences.token_pairs import SimilarityPairs
    >>> why_line(SimilarityPairs(["a", "b"], ["c"], np.array([[0.1], [0.3]])))
    '       b ~ c +0.3000   a ~ c +0.1000'
    """
    return " " * 7 + "   ".join(f"{one} ~ {other} {adds:+.4f}" for one, other, adds in largest_pairs(split))


def run_similar(arguments: Any) -> None:
    """Print the table, or the nearest lines."""
    texts, file = arguments.texts, arguments.file
    if file is None and len(texts) < 2:
        raise ValueError("give two texts, or one and --file")
    if file is not None and len(texts) > 1:
        raise ValueError(f"--file takes one text, found {len(texts)}; put a text of several words in quotes")
    if arguments.why and file is None:
        raise ValueError("--why is about the lines of a file; name one with --file")
    truncated: list[Truncated] = []
    truncated_lines: list[Truncated] = []
    empty: list[int] = []
    with load_model(arguments) as encoder:
        if arguments.why:
            from minibert.models.sentences.token_pairs import check_sum

            check_sum(encoder)
        if file is None:
            print_lines(table(encoder, texts, truncated))
        else:
            nearest_lines = nearest(encoder, texts[0], file, arguments.k, truncated, truncated_lines, empty)
            print_lines(lines_of(encoder, texts[0], nearest_lines, arguments.why))
    common.tell_empty(len(empty))
    tell_truncated(truncated)
    tell_truncated(truncated_lines, "line", empty=empty)


def lines_of(encoder: Encoder, text: str, results: list[tuple[float, str]], why: bool) -> Iterator[str]:
    """Yield each line after its similarity, and with `why` its largest pairs of tokens."""
    for score, line in results:
        yield f"{score:.3f}  {line}"
        if why:
            yield why_line(encoder.similarity_pairs(text, line, ("query", "document")))


def table(encoder: Encoder, texts: list[str], truncated: list[Truncated]) -> Iterator[str]:
    """Yield a line for each text: its number, its similarity to each text, and the text.

    With late interaction a text is a query in its line, and a document in its column.
    """
    if encoder.result == "tokens":
        vectors, others = encoder.encode_query(texts), encoder.encode_document(texts)
        counts = (encoder.tokens_cut(texts, task, task=task) for task in ("query", "document"))
        truncated += _lost(map(max, *counts))
    else:
        vectors = others = encoder.pipeline().noting(truncated).all(texts)
    columns = range(1, len(texts) + 1)
    yield "".join(["    ", *(f"{i:>8}" for i in columns)])
    for i, row, text in zip(columns, encoder.similarity(vectors, others), texts, strict=True):
        yield "".join([f"{i:>4}", *(f"{number:8.3f}" for number in row), f"  {text}"])


def nearest(
    encoder: Encoder,
    text: str,
    file: str,
    k: int,
    truncated: list[Truncated],
    truncated_lines: list[Truncated],
    empty: list[int],
) -> list[tuple[float, str]]:
    """Return the k lines of a file nearest to a text, best first, each with its similarity.

    truncated, truncated_lines, empty: receive the text if it is truncated, the truncated lines, and the empty lines.

    Lines are read in chunks: memory holds the best lines and one chunk.
    """
    from minibert.models.run.pipeline import chunked, shown
    from minibert.models.sentences.comparing import token_vectors_of
    from minibert.models.sentences.search import searching

    late = encoder.result == "tokens"
    query: Vectors = encoder.encode_query([text])
    truncated += [(0, count) for count in [encoder.tokens_cut(text, "query", task="query")] if count]
    pipeline = encoder.pipeline("document", task="document").noting(truncated_lines)
    lines: dict[int, str] = {}  # the best lines so far, and the lines not compared yet

    def read() -> Iterator[list[str]]:
        chunks, count = chunked(common.texts_of(file, empty), pipeline.chunk), 0
        bar = common.wants_bar(file == STDIN, prints=False)
        for chunk in shown(chunks, None, "similar", common.BAR_AFTER) if bar else chunks:
            lines.update(enumerate(chunk, count))
            count += len(chunk)
            yield chunk

    scores: list[float] = []
    vectors: Iterator[Vectors] = pipeline.stream(read())
    if late:
        query, vectors = token_vectors_of(query, "text"), (token_vectors_of(chunk, "lines") for chunk in vectors)
    for ids, best_scores in searching(query, vectors, k, encoder.similarity):
        lines, scores = {i: lines[i] for i in ids[0].tolist()}, best_scores[0].tolist()
    return list(zip(scores, lines.values(), strict=True))


def _declare_rank(parser: Parser) -> None:
    add = parser.add_argument
    add("query", metavar="QUERY", help="the question or search text")
    add("--file", metavar="LINES", required=True, help="texts, one per line; - for stdin; empty lines are skipped")
    add_k(parser, "lines", None)
    add_why(parser, "with late interaction: ")
    add_model(parser, side=False, usual=RERANKER, threads=True)
    add_options(parser, "bits")


def run_rank(arguments: Any) -> None:
    """Print the lines, best first."""
    with load_model(arguments) as encoder:
        encoder.rank(arguments.query, [])  # raises if the model is not a reranker, before any line is read
        if arguments.why and encoder.result != "tokens":
            raise ValueError("a CrossEncoder reads both texts together and makes no vectors, so its score is no sum "
                             "over pairs of tokens; leave out --why, or name a model of late interaction")  # fmt: skip
        empty: list[int] = []
        lines = list(common.texts_of(arguments.file, empty))
        print_lines(ranked(encoder, arguments, lines, empty))
    common.tell_empty(len(empty))


def ranked(encoder: Encoder, arguments: Any, lines: list[str], empty: Sequence[int]) -> Iterator[str]:
    """Yield the k lines that answer best, each after its score; then print which were truncated."""
    config, query = encoder.sentence_config, arguments.query
    bar = common.wants_bar(arguments.file == STDIN, prints=False)
    for result in encoder.rank(query, lines, arguments.k, return_documents=True, show_progress_bar=bar):
        yield f"{result['score']:7.3f}  {result['text']}"
        if arguments.why:
            yield "  " + why_line(encoder.similarity_pairs(query, result["text"]))
    if encoder.result == "tokens":
        tell_truncated(_lost(encoder.tokens_cut([query], "query", task="query")), "query", "text")
        tell_truncated(_lost(encoder.tokens_cut(lines, "document", task="document")), "line", empty=empty)
        return
    pairs = encoder.sentence_tokenizer.encode([config.prompt() + query] * len(lines), lines, True, config.longest)
    tell_truncated(_lost(pair.truncated for pair in pairs), "pair", "line", empty)


def _lost(counts: Iterable[int]) -> list[Truncated]:
    return [(i, int(count)) for i, count in enumerate(counts) if count]


COMMANDS = {
    "similar": Command(
        """Prints the table of all similarities. With --file it prints the lines of a file
that are nearest to the text, best first. The measure is the one that the
model's folder names, by default the cosine. With --file the text gets the
model's prompt "query" and the lines its prompt "document", if it has them. A
second model orders them better: see `minibert rank`.""",
        'minibert similar "How do I reset my password?" --file questions.txt',
        _declare_similar,
        run_similar,
    ),
    "rank": Command(
        """Prints the lines of a file, best first, each after its score. A reranker reads
the query and a line together. It ranks better than `similar` and takes longer,
so use it for a few hundred lines. A model of late interaction (ColBERT,
MultiVectorEncoder) ranks too.""",
        'minibert rank "boiled eggs" --file recipes.txt -m ./ms-marco-MiniLM-L6-v2',
        _declare_rank,
        run_rank,
    ),
}
