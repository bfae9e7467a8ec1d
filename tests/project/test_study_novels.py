"""The small GPT-2 of words: what it is, what it has learned, and the script that trained it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import novels
import numpy as np
import training

import minibert
from minibert.equations.heads import cross_entropy

# the weights' SHA-256, and how many bytes the folder has at most
DIGEST, MOST_BYTES = "5fe2dc4afe9b827de43f578a2a1cc2e699198b72f3c9ec97e8a7e88d0860f681", 3_000_000
# near the end of Persuasion, which it has not learned
UNSEEN = """Mrs Croft left them, and Captain Wentworth, having sealed his letter with great rapidity, was indeed ready,
and had even a hurried, agitated air, which shewed impatience to be gone. Anne knew not how to understand it. She had
the kindest "Good morning, God bless you!" from Captain Harville"""
LOSS, ROUNDING = 4.2323, 1e-3  # measured; the file is fixed, so only rounding may differ
PAIRS_OF_WORDS = 5.0025  # there, the loss of a model that counts which word follows which in the part to learn
LINES = ["CHAPTER I", *["Emma's aunt--\"Mrs. Weston\"--had a tete-a-tete, at one o'clock."] * 20]


def tokenizer_as_shipped() -> novels.Tokenizer:
    vocab = json.loads((novels.SHIPPED / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    return novels.tokenizer_of(sorted(vocab, key=lambda word: vocab[word])[2:])


def test_the_end_of_each_novel_is_kept_for_testing(tmp_path: Path) -> None:
    novel = tmp_path / "novel.txt"
    novel.write_text("\n".join(LINES), "utf-8")
    assert novels.parted([novel] * 2) == ([" ".join(LINES[1:19])] * 2, [" ".join(LINES[19:])] * 2)


def test_a_row_begins_with_each_sentence_and_a_rare_word_is_no_target() -> None:
    tokenizer = novels.tokenizer_of(["emma", "'s", "aunt", "--", "mrs.", "had", "a", ",", "at", "one", "o'clock", "."])
    rows = novels.as_ids(tokenizer, [" ".join(LINES[1:])])
    assert rows.ids.shape[1] == rows.targets.shape[1] == 64 and len(rows.ids) == 15  # sentences, each after another
    assert tokenizer.decode(rows.ids[0, :16]) == "emma's aunt -- mrs. -- had a, at one o'clock."
    names = [tokenizer.id_to_token(i) for i in rows.ids[0, :15]]
    assert names[:5] == [training.END, "emma", "'s", "aunt", "--"] and names[6] == names[10] == novels.RARE
    assert np.array_equal(rows.ids[:, 1:], rows.targets[:, :-1]) and np.array_equal(rows.ids[0], rows.ids[1])
    assert np.array_equal(rows.counts, rows.targets != tokenizer.token_to_id(novels.RARE))


def test_it_is_the_file_that_was_trained_with_what_training_writes(tmp_path: Path) -> None:
    assert hashlib.sha256((novels.SHIPPED / "model.safetensors").read_bytes()).hexdigest() == DIGEST
    assert sum(path.stat().st_size for path in novels.SHIPPED.iterdir()) < MOST_BYTES
    model = training.model_of(training.random_weights(sizes=novels.SIZES), novels.SIZES)
    novels.save(model, tokenizer_as_shipped(), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in novels.SHIPPED.iterdir()}
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (novels.SHIPPED / name).read_bytes()


def test_what_it_has_learned_holds_for_a_text_that_it_never_saw() -> None:
    with minibert.load_encoder(novels.SHIPPED) as encoder:
        batch = encoder.tokenize(UNSEEN)
        logits, after = encoder.logits(**batch)[:, :-1], batch["input_ids"][:, 1:]
        likely = [word["token_str"] for word in encoder.next_words("She had been very", k=3)]
        goes_on = encoder.complete("She was", tokens=12, temperature=0.7)
    loss = cross_entropy(logits, after)[after != 1].mean()
    assert abs(loss - LOSS) <= ROUNDING and loss < PAIRS_OF_WORDS - 0.5
    assert goes_on.startswith("She was ") and novels.RARE not in goes_on
    assert likely == ["fond", "happy", "much"]


def test_training_learns() -> None:
    """As the letters' training, with other sizes and rows."""
    rows = novels.as_ids(tokenizer_as_shipped(), [UNSEEN * 8])
    tested = rows.of(np.arange(2))
    start = training.random_weights(sizes=novels.SIZES)
    *_, (_, vector) = training.train(start, rows, 6, 4, novels.SIZES)
    before, after = (training.losses(training.model_of(v, novels.SIZES), tested).mean() for v in (start, vector))
    assert after < before - 0.05
