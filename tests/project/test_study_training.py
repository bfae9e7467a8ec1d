"""The small models of the study files: what they are, what they have learned, that training is right."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import masked
import novels
import numpy as np
import pytest
import training

import minibert
from minibert.equations.heads import cross_entropy
from minibert.equations.whole_models import gpt2_model

SHIPPED = {  # the weights' SHA-256, and how many bytes the folder has at most
    "training": ("5b2b6240e0d5963f403c642cbc121b25049187ae654a3141dd86b117e6f4e5e4", 1_000_000),
    "masked": ("275afbdc61f30af6a69e609436e1c0158cb2093812bb2965ab6c4c29cedc957d", 150_000),
    "novels": ("5fe2dc4afe9b827de43f578a2a1cc2e699198b72f3c9ec97e8a7e88d0860f681", 3_000_000),
}
# what it has not learned is in the words' last tenth: measured 2.0220; the file is fixed, so only rounding may differ
TEST_LOSS, ROUNDING = 2.0220, 1e-3
PAIRS_OF_LETTERS = 2.514  # the loss of a model that knows only how often each letter follows another
# 250 steps, with a schedule of their own: measured 2.304; the bits of a training depend on the processor
SHORT, SHORT_LOSS, BAND = 250, 2.304, 0.05
# two right programs differ in the last bits of a matrix product: measured 1e-6
CLOSE = 2e-5


def test_the_word_list_is_that_of_a_vocabulary(minilm: Path) -> None:
    tokens = (minilm / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert training.words() == training.whole_words(tokens)


@pytest.mark.parametrize("study", [training, masked, novels], ids=lambda study: study.__name__)
def test_it_is_the_file_that_was_trained_with_what_training_writes(study: Any, tmp_path: Path) -> None:
    digest, most_bytes = SHIPPED[study.__name__]
    assert hashlib.sha256((study.SHIPPED / "model.safetensors").read_bytes()).hexdigest() == digest
    assert sum(path.stat().st_size for path in study.SHIPPED.iterdir()) < most_bytes
    if study is novels:
        model = training.model_of(training.random_weights(sizes=novels.SIZES), novels.SIZES)
        novels.save(model, tokenizer_as_shipped(), tmp_path)
    else:
        weights = study.random_weights()
        study.save(weights if study is masked else study.model_of(weights), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in study.SHIPPED.iterdir()}
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (study.SHIPPED / name).read_bytes()


def test_what_it_has_learned_holds_for_words_that_it_never_saw() -> None:
    to_learn, to_test = training.parted(training.words())
    assert (len(to_learn), len(to_test)) == (19534, 2171) and not set(to_learn) & set(to_test)
    tested = training.as_ids(to_test)
    with minibert.load_encoder(training.SHIPPED) as encoder:
        logits = encoder.logits(input_ids=tested.ids, attention_mask=np.ones_like(tested.ids))
        # and by the names of letters, so that ids, tokenizer and table agree
        assert encoder.tokenize(to_test[7])["input_ids"][0].tolist() == tested.ids[7, : len(to_test[7]) + 1].tolist()
    loss = cross_entropy(logits, tested.targets)[tested.counts].mean()
    assert abs(loss - TEST_LOSS) <= ROUNDING
    assert loss < PAIRS_OF_LETTERS - 0.4
    shifted = cross_entropy(logits, tested.ids)[tested.counts].mean()
    assert shifted > loss + 1, "it says what comes next, not what stands there"


def test_a_saved_model_is_read_as_the_formulas_compute_it(tmp_path: Path) -> None:
    """Norms, biases and all maps are random: a turned weight, or query and key exchanged, would show."""
    vector = training.random_weights() + np.float32(0.1) * np.random.default_rng(1).standard_normal(152832, np.float32)
    model = training.model_of(vector)
    with minibert.load_encoder(training.save(model, tmp_path)) as encoder:
        batch = encoder.tokenize("unbelievable")
        found = encoder.logits(**batch)
    expected = gpt2_model(batch["input_ids"], batch["attention_mask"], model, training.HEADS)
    assert np.abs(expected).max() > 1
    assert np.abs(found - expected).max() <= CLOSE * np.abs(expected).max()


def test_halves_of_a_batch_add_up_to_the_whole() -> None:
    words = training.as_ids(["the", "bank", "of", "a", "river", "was", "muddy"])
    vector, rows = training.random_weights(), np.arange(7)
    assert words.of(rows).ids.shape == (7, 1 + len("muddy"))
    loss, gradient = training.batch_gradient(vector, words, rows)
    whole_loss, whole = training.loss_and_gradient(vector, words, int(words.counts.sum()))
    assert abs(loss - whole_loss) <= 1e-5 and np.abs(gradient - whole).max() <= 1e-5 * np.abs(whole).max()
    model = training.model_of(vector)
    assert np.array_equal(training.vector_of(model), vector)
    assert abs(training.losses(model, words).mean() - loss) <= 1e-5


@pytest.mark.release
def test_training_again_finds_as_good_a_model() -> None:
    to_learn, to_test = training.parted(training.words())
    for _, weights in training.train(training.random_weights(), training.as_ids(to_learn), SHORT):
        vector = weights
    loss = training.losses(training.model_of(vector), training.as_ids(to_test)).mean()
    assert abs(loss - SHORT_LOSS) <= BAND


# -- BERT -------------------------------------------------------------------------------------------------------


# of the words' last tenth, each letter hidden once: measured 1.8307; the file is fixed, so only rounding may differ
MASKED_LOSS = 1.8307
BOTH_NEIGHBOURS = 1.993  # the loss of a model that counts which letter stands between two others
FIRST_STEPS = 15  # steps, with a schedule of their own: the loss falls by 0.04; down the wrong way it rises


def test_the_bert_has_learned_what_holds_for_words_that_it_never_saw() -> None:
    words = masked.one_hidden(masked.as_ids(training.parted(training.words())[1]))
    assert len(words.ids) == 14977
    with minibert.load_encoder(masked.SHIPPED) as encoder:
        logits = encoder.logits(input_ids=words.ids, attention_mask=(words.ids != masked.PAD).astype(int))
        best = [encoder.fill(text, k=1)[0][0]["token_str"] for text in ("questi[MASK]n", "walki[MASK]g", "q[MASK]een")]
    assert best == ["o", "n", "u"]
    loss = cross_entropy(logits[words.hidden], words.targets[words.hidden]).mean()
    assert abs(loss - MASKED_LOSS) <= ROUNDING and loss < BOTH_NEIGHBOURS - 0.1


def test_a_saved_model_is_read_as_training_computes_it(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    vector = masked.vector_of(masked.random_weights())
    weights = masked.model_of(vector + np.float32(0.3) * random.standard_normal(len(vector), np.float32))
    words = masked.masked(masked.as_ids(["unbelievable", "bank"]), random)
    with minibert.load_encoder(masked.save(weights, tmp_path)) as encoder:
        logits = encoder.logits(input_ids=words.ids, attention_mask=(words.ids != masked.PAD).astype(int))
    found = cross_entropy(logits[words.hidden], words.targets[words.hidden])
    assert np.abs(found - masked.losses(weights, words)).max() <= 1e-4 * found.max()


def test_the_gradient_is_what_trying_finds() -> None:
    random = np.random.default_rng(1)
    vector = masked.vector_of(masked.random_weights()).astype(np.float64)
    vector += 0.1 * random.standard_normal(len(vector))
    words = masked.masked(masked.as_ids(["bank", "river", "muddy", "a"]), random)
    _, gradient = masked.loss_and_gradient(masked.model_of(vector), words)
    exact = masked.vector_of(gradient)
    for place in random.choice(len(vector), 60, replace=False):
        step = 1e-5 * (np.arange(len(vector)) == place)
        more, less = (masked.losses(masked.model_of(each), words).mean() for each in (vector + step, vector - step))
        assert abs((more - less) / 2e-5 - exact[place]) < 1e-7


def test_training_of_the_bert_learns() -> None:
    to_learn, to_test = training.parted(training.words())
    words, weights = masked.one_hidden(masked.as_ids(to_test[:200])), [masked.random_weights()]
    weights += [masked.model_of(vector) for _, vector in masked.train(masked.as_ids(to_learn), FIRST_STEPS)][-1:]
    before, after = (masked.losses(each, words).mean() for each in weights)
    assert after < before - 0.02


# -- GPT-2 of words, trained on novels ------------------------------------------------------------------------------


# near the end of Persuasion, which it has not learned
UNSEEN = """Mrs Croft left them, and Captain Wentworth, having sealed his letter with great rapidity, was indeed ready,
and had even a hurried, agitated air, which shewed impatience to be gone. Anne knew not how to understand it. She had
the kindest "Good morning, God bless you!" from Captain Harville"""
LOSS = 4.2323  # measured
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


def test_what_the_gpt2_of_words_has_learned_holds_for_a_text_that_it_never_saw() -> None:
    with minibert.load_encoder(novels.SHIPPED) as encoder:
        batch = encoder.tokenize(UNSEEN)
        logits, after = encoder.logits(**batch)[:, :-1], batch["input_ids"][:, 1:]
        likely = [word["token_str"] for word in encoder.next_words("She had been very", k=3)]
        goes_on = encoder.complete("She was", tokens=12, temperature=0.7)
    loss = cross_entropy(logits, after)[after != 1].mean()
    assert abs(loss - LOSS) <= ROUNDING and loss < PAIRS_OF_WORDS - 0.5
    assert goes_on.startswith("She was ") and novels.RARE not in goes_on
    assert likely == ["fond", "happy", "much"]


def test_training_of_the_gpt2_of_words_learns() -> None:
    """As the letters' training, with other sizes and rows."""
    rows = novels.as_ids(tokenizer_as_shipped(), [UNSEEN * 8])
    tested = rows.of(np.arange(2))
    start = training.random_weights(sizes=novels.SIZES)
    *_, (_, vector) = training.train(start, rows, 6, 4, novels.SIZES)
    before, after = (training.losses(training.model_of(v, novels.SIZES), tested).mean() for v in (start, vector))
    assert after < before - 0.05
