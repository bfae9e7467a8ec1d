"""The real Hub: what others have printed of well-known models, in parts of a megabyte and as a whole. pytest -m network

test_first_day.py runs all of this against a Hub of this machine, with files of the same names, sizes and layouts.

Of BERT the numbers of its own page on the Hub; of GPT-2 the text that picoGPT's page shows, 40 tokens, the likeliest;
of a reranker the scores that sentence-transformers prints in its documentation of `CrossEncoder.rank`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from command_line import Patch, Printed
from fake_hub import use
from printed_models import FACTS

import minibert
from minibert.cli import main
from minibert.verify.shipped import SEEDS

MOST = 1_000_000  # bytes of one model's header, rows, small tensors, config and tokenizer


@pytest.mark.network
def test_the_real_hub_gives_the_printed_numbers(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    from huggingface_hub import constants

    use(monkeypatch, constants.ENDPOINT, tmp_path)  # an empty cache: a whole file on this machine would prove less
    for more in ([], ["--local-files-only"]):
        assert main(["verify", "--seeds", *more]) == 0, capsys.readouterr().out
    kept = sum(path.stat().st_size for path in (tmp_path / "assets").rglob("*") if path.is_file())
    assert 0 < kept < MOST * len(SEEDS)


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


def test_position_rows_by_their_hashes() -> None:
    """The rows of bert-base-uncased's table that FACTS has were read from another copy of it."""
    known = FACTS["bert-base-uncased"]["rows_sha256"]
    with minibert.load("bert-base-uncased") as layer:
        rows = np.array(layer.position_embeddings.weight[: len(known)])
    assert [hashlib.sha256(row.tobytes()).hexdigest() for row in rows] == known


@pytest.mark.reference
def test_the_whole_of_t5_small_beside_transformers() -> None:
    assert main(["verify", "t5-small"]) == 0


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


QUERY = "Who wrote 'To Kill a Mockingbird'?"
DOCUMENTS = [
    "'To Kill a Mockingbird' is a novel by Harper Lee published in 1960. It was immediately successful, winning the "
    "Pulitzer Prize, and has become a classic of modern American literature.",
    "The novel 'Moby-Dick' was written by Herman Melville and first published in 1851. It is considered a masterpiece "
    "of American literature and deals with complex themes of obsession, revenge, and the conflict between good and "
    "evil.",
    "Harper Lee, an American novelist widely known for her novel 'To Kill a Mockingbird', was born in 1926 in "
    "Monroeville, Alabama. She received the Pulitzer Prize for Fiction in 1961.",
    "Jane Austen was an English novelist known primarily for her six major novels, which interpret, critique and "
    "comment upon the British landed gentry at the end of the 18th century.",
    "The 'Harry Potter' series, which consists of seven fantasy novels written by British author J.K. Rowling, is "
    "among the most popular and critically acclaimed books of the modern era.",
    "'The Great Gatsby', a novel written by American author F. Scott Fitzgerald, was published in 1925. The story is "
    "set in the Jazz Age and follows the life of millionaire Jay Gatsby and his pursuit of Daisy Buchanan.",
]
SCORES = [
    (0, 10.678577423095703), (2, 9.761673927307129), (1, -3.3099513053894043), (5, -4.898908615112305),
    (4, -5.0829620361328125), (3, -6.478001594543457),
]  # fmt: skip
FAST = 1e-4  # they were computed by kernels of a graphics processor


def test_the_printed_scores_of_six_documents() -> None:
    encoder = minibert.load_encoder("cross-encoder/ms-marco-MiniLM-L6-v2")
    found = encoder.rank(QUERY, DOCUMENTS, return_documents=True)
    assert [each["corpus_id"] for each in found] == [number for number, _ in SCORES]
    assert [each["score"] for each in found] == pytest.approx([score for _, score in SCORES], abs=FAST)
    assert [each["text"] for each in found] == [DOCUMENTS[number] for number, _ in SCORES]
