"""`minibert similar`: how similar texts are, or which lines of a file are nearest to one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from minibert.files.lines import STDIN, raw_lines
from minibert.models.open.options import SENTENCES, add_options

from .common import Parser, add_k, add_model, load_model, print_lines, tell_empty, tell_truncated
from .embed import BAR_AFTER, wants_bar

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder
    from minibert.models.sentences.comparing import Vectors

ABOUT = """Prints the table of all similarities. With --file it prints the lines of a file
that are nearest to the text, best first. The measure is the one that the
model's folder names, by default the cosine. With --file the text gets the
model's prompt "query" and the lines its prompt "document", if it has them. A
second model orders them better: see `minibert rank`."""
EXAMPLE = 'minibert similar "How do I reset my password?" --file questions.txt'


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="two or more texts; with --file one")
    parser.add_argument(
        "--file", metavar="LINES", help="a file of texts, one per line; - for stdin; empty lines are skipped"
    )
    add_k(parser, "lines")
    add_options(parser, "sentences", "measure")
    add_model(parser, side=False, usual=SENTENCES, threads=True)


def run(arguments: Any) -> None:
    """Print the table, or the nearest lines."""
    texts, file = arguments.texts, arguments.file
    if file is None and len(texts) < 2:
        raise ValueError("give two texts, or one and --file")
    if file is not None and len(texts) > 1:
        raise ValueError(
            f"--file takes one text to look for, found {len(texts)}; quotes make one text of several words"
        )
    cut, empty = list[int](), list[int]()
    with load_model(arguments) as encoder:
        if file is None:
            print_lines(table(encoder, texts, cut))
        else:
            found = nearest(encoder, texts[0], file, arguments.k, cut, empty)
            print_lines(f"{score:.3f}  {line}" for score, line in found)
    tell_empty(len(empty))
    tell_truncated(len(cut))


def table(encoder: Encoder, texts: list[str], cut: list[int]) -> Iterator[str]:
    """Give a line for each text: its number, its similarity to each text, and the text.

    Of late interaction each is a query in its line, and a document in its column.
    """
    if encoder.result == "tokens":
        vectors, others = encoder.encode_query(texts), encoder.encode_document(texts)
    else:
        vectors = others = encoder.pipeline().noting(cut).all(texts)
    columns = range(1, len(texts) + 1)
    yield "".join(["    ", *(f"{i:>8}" for i in columns)])
    for i, row, text in zip(columns, encoder.similarity(vectors, others), texts, strict=True):
        yield "".join([f"{i:>4}", *(f"{number:8.3f}" for number in row), f"  {text}"])


def nearest(
    encoder: Encoder, text: str, file: str, k: int, cut: list[int], empty: list[int]
) -> list[tuple[float, str]]:
    """Give the k lines of a file nearest to a text, best first, each with its similarity.

    Lines are read in chunks: memory holds the best ones and one chunk of others.
    """
    from minibert.models.run.pipeline import chunked, shown
    from minibert.models.sentences.comparing import token_vectors_of
    from minibert.models.sentences.search import searching

    late = encoder.result == "tokens"
    query: Vectors = encoder.encode_query([text])
    cut += filter(None, [encoder.tokens_cut(text, "query", task="query")])
    pipeline = encoder.pipeline("document", task="document").noting(cut)
    lines: dict[int, str] = {}  # the best so far, and those not yet compared

    def read() -> Iterator[list[str]]:
        chunks, count = chunked(lines_of(file, empty), pipeline.chunk), 0
        for chunk in shown(chunks, None, "similar", BAR_AFTER) if wants_bar(file == STDIN, prints=False) else chunks:
            lines.update(enumerate(chunk, count))
            count += len(chunk)
            yield chunk

    scores: list[float] = []
    vectors: Iterator[Vectors] = pipeline.stream(read())
    if late:
        query, vectors = token_vectors_of(query, "text"), (token_vectors_of(each, "lines") for each in vectors)
    for ids, found in searching(query, vectors, k, encoder.similarity):
        lines, scores = {i: lines[i] for i in ids[0].tolist()}, found[0].tolist()
    return list(zip(scores, lines.values(), strict=True))


def lines_of(file: str, empty: list[int]) -> Iterator[str]:
    """Give the lines that are not empty, and note the numbers of those that are.

    Raises ValueError with the line's number for bytes that are no text, and for a file without a text.
    """
    number, name = 0, "stdin" if file == STDIN else file
    for number, line in enumerate(raw_lines(file), 1):
        try:
            text = line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"line {number} of {name} is not UTF-8 ({error.reason}); convert it, with iconv or so"
            ) from None
        if text.strip():
            yield text
        else:
            empty.append(number)
    if number == len(empty):
        raise ValueError(f"{name}: expected texts, one on each line, found none")
