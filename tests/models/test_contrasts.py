"""What a whole model knows that its input layer does not: three contrasts, and two where both err.

Each first sentence shares words with the second and meaning with the third.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
ROLES = ("The cat chased the mouse.", "The mouse chased the cat.", "A cat was after a mouse.")
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


@pytest.mark.parametrize(("sentences", "figures"), [(NEGATION, (0.800, 0.738)), (ROLES, (0.985, 0.749))])
def test_a_negation_and_who_does_what_are_beyond_the_encoder_too(
    minilm: Path, sentences: list[str], figures: tuple[float, float]
) -> None:
    encoder = minibert.load_encoder(minilm)
    vectors = encoder.encode(sentences)
    opposite, same = encoder.similarity(vectors[0], vectors[1:])[0]
    assert opposite > same
    assert np.abs(np.subtract((opposite, same), figures)).max() <= FIGURES


def test_readme_shows_what_the_script_prints(minilm: Path) -> None:
    root = Path(__file__).parents[2]
    script = root / "scripts" / "readme" / "contrasts.py"
    environment = {**os.environ, "MINIBERT_MODEL": str(minilm), "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=True)
    readme = (root / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"contrasts\.py -->\n```\n(.*?)```", readme, re.DOTALL)
    assert shown is not None
    texts, numbers = zip(
        *((re.sub(r"\d\.\d+", "~", text.strip()), re.findall(r"\d\.\d+", text)) for text in (done.stdout, shown[1])),
        strict=True,
    )
    assert texts[0] == texts[1]
    assert len(numbers[0]) == 20
    # another processor's last bits may turn the last of three digits
    assert np.abs(np.array(numbers[0], float) - np.array(numbers[1], float)).max() < 1.1e-3
    assert all(text in done.stdout for three, *_ in CONTRASTS for text in three)


@pytest.mark.parametrize("recipe", ["classify.py", "nearest.py"])
def test_the_recipes_page_shows_them_as_they_are_run(recipe: str) -> None:
    folder = Path(__file__).parents[2] / "scripts" / "readme" / "recipes"
    code = (folder / recipe).read_text(encoding="utf-8").strip()
    assert code in (folder / "README.md").read_text(encoding="utf-8")
    assert len([line for line in code.splitlines() if line]) <= 7  # the import, and six lines
