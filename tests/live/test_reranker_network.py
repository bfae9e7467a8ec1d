"""The scores that sentence-transformers prints in its own documentation of `CrossEncoder.rank`: pytest -m network"""

from __future__ import annotations

import pytest

import minibert

pytestmark = pytest.mark.network

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
PRINTED = [
    (0, 10.678577423095703), (2, 9.761673927307129), (1, -3.3099513053894043), (5, -4.898908615112305),
    (4, -5.0829620361328125), (3, -6.478001594543457),
]  # fmt: skip
FAST = 1e-4  # they were computed by kernels of a graphics processor


def test_the_printed_scores_of_six_documents() -> None:
    encoder = minibert.load_encoder("cross-encoder/ms-marco-MiniLM-L6-v2")
    found = encoder.rank(QUERY, DOCUMENTS, return_documents=True)
    assert [each["corpus_id"] for each in found] == [number for number, _ in PRINTED]
    assert [each["score"] for each in found] == pytest.approx([score for _, score in PRINTED], abs=FAST)
    assert [each["text"] for each in found] == [DOCUMENTS[number] for number, _ in PRINTED]
