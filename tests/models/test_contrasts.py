"""What a whole model knows that its input layer does not: three contrasts, and one where both err.

Each first sentence shares words with the second and meaning with the third.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import minibert
from minibert.equations.sentences import cosine

FIGURES = 5e-4  # a cosine printed with three digits

CONTRASTS = [
    # first, shares words, shares meaning, cosines of the input layer, of the whole encoder
    (
        ("How do I reset my password?", "How do I boil an egg?", "I forgot my login credentials"),
        (0.734, 0.593),
        (0.177, 0.678),
    ),
    (
        (
            "The bank raised its interest rates.",
            "The bank of the river was muddy.",
            "Loans have become more expensive.",
        ),
        (0.608, 0.499),
        (0.294, 0.454),
    ),
    (
        ("What time does the store open?", "What time does the train leave?", "When can I go shopping there?"),
        (0.785, 0.610),
        (0.521, 0.642),
    ),
]
NEGATION = ("The movie was not good.", "The movie was good.", "I did not enjoy the film.")


@pytest.mark.parametrize(("sentences", "layer_figures", "encoder_figures"), CONTRASTS)
def test_the_input_layer_counts_words_and_the_encoder_knows_what_is_meant(
    minilm: Path,
    sentences: tuple[str, str, str],
    layer_figures: tuple[float, float],
    encoder_figures: tuple[float, float],
) -> None:
    vectors = minibert.load(minilm).embed(sentences)
    words, meaning = cosine(vectors[:1], vectors[1:])[0]
    assert words > meaning
    assert np.abs(np.subtract((words, meaning), layer_figures)).max() <= FIGURES
    encoder = minibert.load_encoder(minilm)
    vectors = encoder.encode(sentences)
    words, meaning = encoder.similarity(vectors[0], vectors[1:])[0]
    assert meaning > words
    assert np.abs(np.subtract((words, meaning), encoder_figures)).max() <= FIGURES


def test_a_negation_is_beyond_the_encoder_too(minilm: Path) -> None:
    encoder = minibert.load_encoder(minilm)
    vectors = encoder.encode(NEGATION)
    opposite, same = encoder.similarity(vectors[0], vectors[1:])[0]
    assert opposite > same
    assert np.abs(np.subtract((opposite, same), (0.800, 0.738))).max() <= FIGURES
