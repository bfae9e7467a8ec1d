"""The real bert-base-uncased and gpt2 (1 GB): words that others have printed. pytest -m network

Of BERT the numbers of its own page on the Hub; of GPT-2 the text that picoGPT's page shows, 40 tokens, the likeliest.
"""

from __future__ import annotations

import numpy as np
import pytest

import minibert

pytestmark = pytest.mark.network

PRINTED = 1e-5  # between two such prints of the same model: 3e-7
FILLED = {
    "Hello I'm a [MASK] model.": {
        "fashion": 0.1073106899857521, "role": 0.08774490654468536, "new": 0.05338378623127937,
        "super": 0.04667217284440994, "fine": 0.027095865458250046,
    },
    "The man worked as a [MASK].": {
        "carpenter": 0.09747550636529922, "waiter": 0.0523831807076931, "barber": 0.04962705448269844,
        "mechanic": 0.03788609802722931, "salesman": 0.037680890411138535,
    },
}  # fmt: skip
BEGUN = "Alan Turing theorized that computers would one day become"
WRITTEN = (
    " the most powerful machines on the planet.\n\nThe computer is a machine that can perform complex calculations, "
    "and it can perform these calculations in a way that is very similar to the human brain."
)


def test_words_for_a_mask() -> None:
    with minibert.load_encoder("bert-base-uncased") as encoder:
        for text, wanted in FILLED.items():
            (found,) = encoder.fill(text)
            assert [each["token_str"] for each in found] == list(wanted)
            scores = [each["score"] for each in found]
            np.testing.assert_allclose(scores, list(wanted.values()), rtol=0, atol=PRINTED)


def test_a_text_goes_on() -> None:
    with minibert.load_encoder("gpt2") as encoder:
        written = encoder.complete(BEGUN, tokens=40)
    assert written.rstrip("\n") == BEGUN + WRITTEN
