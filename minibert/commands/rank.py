"""`minibert rank`: the lines of a file in the order in which they answer a query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from minibert.files.lines import STDIN
from minibert.models.open.options import add_options

from .common import RERANKER, Parser, add_k, add_model, load_model, print_lines, tell_empty, tell_truncated
from .embed import wants_bar
from .similar import lines_of

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder

ABOUT = """Prints the lines of a file, best first, each after its score. A reranker reads
the query and a line together. It ranks better than `similar` and takes longer,
so use it for a few hundred lines. A model of late interaction (ColBERT,
MultiVectorEncoder) ranks too."""
EXAMPLE = 'minibert rank "boiled eggs" --file recipes.txt -m ./ms-marco-MiniLM-L6-v2'


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("query", metavar="QUERY", help="the question or search text")
    parser.add_argument(
        "--file", metavar="LINES", required=True, help="texts, one per line; - for stdin; empty lines are skipped"
    )
    add_k(parser, "lines", None)
    add_model(parser, side=False, usual=RERANKER, threads=True)
    add_options(parser, "bits")


def run(arguments: Any) -> None:
    """Print the lines, best first."""
    with load_model(arguments) as encoder:
        encoder.rank(arguments.query, [])  # raises for a model that is no reranker, before any line is read
        bar = wants_bar(arguments.file == STDIN, prints=False)
        empty: list[int] = []
        print_lines(ranked(encoder, arguments.query, list(lines_of(arguments.file, empty)), arguments.k, bar))
    tell_empty(len(empty))


def ranked(encoder: Encoder, query: str, lines: list[str], k: int | None, bar: bool = False) -> Iterator[str]:
    """Give the k lines that answer best, each after its score; then say how many pairs were truncated."""
    own = encoder.sentence_config
    for each in encoder.rank(query, lines, k, return_documents=True, show_progress_bar=bar):
        yield f"{each['score']:7.3f}  {each['text']}"
    if encoder.result == "tokens":
        tell_truncated(int((encoder.tokens_cut(lines, "document", task="document") > 0).sum()))
        return
    pairs = encoder.sentence_tokenizer.encode([own.prompt() + query] * len(lines), lines, True, own.longest)
    tell_truncated(sum(each.truncated > 0 for each in pairs), "pair")
