"""`minibert classify`: the labels of texts."""

from __future__ import annotations

from typing import Any

from .answers import bars, print_answers
from .common import Parser, add_k, add_model, load_model, tell_cut

ABOUT = """classify texts, with probabilities
The labels are the model's, such as POSITIVE and NEGATIVE. The model needs its
head for classes. Labels that can be true together do not add up to 1."""
EXAMPLE = 'minibert classify "The movie was good." "The movie was not good."'


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    add_k(parser, "labels")
    add_model(parser, side=False, usual="distilbert/distilbert-base-uncased-finetuned-sst-2-english", threads=True)


def run(arguments: Any) -> None:
    """Print each text, and below it its likeliest labels."""
    from minibert.models.run.cut_texts import CutTexts

    cut = CutTexts()
    with load_model(arguments) as encoder:
        encoder.max_seq_length = encoder.max_length  # truncates what is longer, and says so
        found = encoder.classify(arguments.texts, arguments.k)
        cut.add(encoder.sentence_tokenizer.encode(arguments.texts, None, True, encoder.max_seq_length))
    print_answers(arguments.texts, (bars([(each.label, each.probability) for each in labels]) for labels in found))
    tell_cut(cut.count)
