"""`layer.nearest`: the rows nearest to a word's, as words; which row a word has, and what is said where it has none."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from checkpoints import BERT, write, write_wordpiece
from peaks import with_peak
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import minibert
from minibert.cli import main
from minibert.equations.similarity import BLOCK

# the same rows in float64 by another order of additions: measured 3e-16
TOLERANCE = 1e-14


@pytest.mark.parametrize(("word", "token"), [("king", "king"), ("Paris", "paris"), ("##ing", "##ing")])
def test_the_neighbours_in_a_real_table_are_those_of_the_definition(word: str, token: str, minilm: Path) -> None:
    layer = minibert.load(minilm)
    table = np.asarray(layer.word_embeddings.weight, np.float64)
    tokens = (minilm / "vocab.txt").read_text("utf-8").splitlines()
    row = table[tokens.index(token)]
    cosines = table @ row / np.sqrt(np.sum(table * table, axis=1) * (row @ row))
    left_out = re.compile(r"\[(unused\d+|PAD|UNK|CLS|SEP|MASK)\]")
    kept = [i for i, name in enumerate(tokens) if name != token and not left_out.fullmatch(name)]
    best = sorted(kept, key=lambda i: -cosines[i])[:20]
    found = layer.nearest(word, 20)
    assert [name for name, _ in found] == [tokens[i] for i in best]
    assert np.abs([cosine for _, cosine in found] - cosines[best]).max() <= TOLERANCE
    assert {name for name, _ in layer.nearest(word, 10**6)} == {tokens[i] for i in kept}


def test_a_word_is_looked_up_as_it_stands_in_a_text(tmp_path: Path) -> None:
    """Of GPT-2's two rows, "dog" and "Ġdog", the second is the word's; either can be had by its own name."""
    words = ["dog", "Ġdog", "cat", "d", "o", "g", "Ġ", "c", "a", "t", "ca", "do", "Ġd"]
    merges = [("d", "o"), ("do", "g"), ("Ġ", "dog"), ("c", "a"), ("ca", "t"), ("Ġ", "d")]
    reader = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    reader.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reader.decoder = decoders.ByteLevel()
    folder = write(tmp_path, BERT)
    reader.save(str(folder / "tokenizer.json"))
    layer = minibert.load(folder)
    row = {word: layer.word_embeddings(i).astype(np.float64) for i, word in enumerate(words)}

    def cosine(a: str, b: str) -> float:
        return float(row[a] @ row[b] / np.sqrt((row[a] @ row[a]) * (row[b] @ row[b])))

    for word, token in (("dog", "Ġdog"), ("Ġdog", "Ġdog"), ("cat", "cat"), ("Ġd", "Ġd")):
        found = layer.nearest(word, 100)
        assert {name for name, _ in found} == set(words) - {token}, "no row beyond the tokenizer's"
        assert all(abs(similarity - cosine(token, name)) <= TOLERANCE for name, similarity in found)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("embeddings", r"'embeddings' has no row of its own: it is 4 pieces here, em ##bed ##ding ##s; ask for one"),
        ("new york", r"2 pieces here, new york; "),
        ("☃", r"'☃' is unknown to this vocabulary, which has \[UNK\] for it"),
        ("", "'' has no token in this vocabulary; give a word"),
    ],
)
def test_a_word_without_a_row_is_told_what_it_is(word: str, says: str, minilm: Path) -> None:
    with pytest.raises(ValueError, match=says):
        minibert.load(minilm).nearest(word)


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """Of a table of 20 MB some blocks of rows are held at a time, and a few numbers for each row."""
    rows, dim = 20_000, 256
    config = {**BERT, "vocab_size": rows, "hidden_size": dim}
    names = {"word": rows, "position": 16, "token_type": 2}
    tensors = {f"embeddings.{name}_embeddings.weight": np.ones((n, dim), np.float16) for name, n in names.items()}
    tensors |= {f"embeddings.LayerNorm.{part}": np.ones(dim, np.float16) for part in ("weight", "bias")}
    layer = minibert.load(write_wordpiece(write(tmp_path, config, tensors)))
    layer.nearest("we")
    found, peak = with_peak(lambda: layer.nearest("we"))
    assert found and peak < 5 * BLOCK * dim * 8 < rows * dim * 4


def test_the_command_prints_words_with_cosines(minilm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nearest", "king", "Paris", "-k", "2", "-m", str(minilm)]) == 0
    said = "king\n  kings   0.6904\n  queen   0.6273\n\nParis\n  parisian   0.5689\n  france     0.5090\n"
    assert capsys.readouterr() == (said, "")
    assert main(["nearest", "king", "embeddings", "-m", str(minilm)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "4 pieces" in err
