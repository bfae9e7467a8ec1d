"""`gpt2-novels` was trained here: a small GPT-2 whose tokens are words, on the six novels of Jane Austen (1775-1817).

    python scripts/study/novels.py *.txt      half an hour of one core; writes gpt2-novels in build/study/

Each file is a novel as plain text, or another text of yours. The novels are in the public domain; their texts are those
of R's package janeaustenr, which has them from Project Gutenberg: `writeLines(janeaustenr::emma, "emma.txt")` writes
one. Steps, loss and saved tensors are those of `training.py`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import training
from numpy.lib.stride_tricks import sliding_window_view
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from minibert.equations.whole_models import Gpt2Weights

SHIPPED = Path(__file__).resolve().parent / "gpt2-novels"
SIZES = training.Sizes(vocab=3000, positions=64, dim=128, blocks=4)
STEPS, BATCH = 3000, 32
RARE = "<rare>"  # each word that is not among the most frequent 2,998
# quotation marks, brackets and digits are left out
TOKEN = r"mrs?\.|'s\b|[a-z]+(?:-[a-z]+|'(?!s\b)[a-z]+)*|--|[.,;:!?]"


def parted(novels: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Split each novel: the last tenth of its lines is kept for testing. Headings of chapters are left out."""
    to_learn, to_test = [], []
    for novel in novels:
        lines = novel.read_text("utf-8").splitlines()
        lines = [line for line in lines if not re.match(r"\s*(chapter|volume)\b", line, re.IGNORECASE)]
        end = len(lines) * 9 // 10
        to_learn.append(" ".join(lines[:end]))
        to_test.append(" ".join(lines[end:]))
    return to_learn, to_test


def tokenizer_of(words: Sequence[str]) -> Tokenizer:
    """Make a tokenizer of these words, in lower case: the end token begins a text."""
    special = (training.END, RARE)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate((*special, *words))}, unk_token=RARE))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), "removed", invert=True)
    # a space before each word, none before a comma
    spaces = decoders.WordPiece(cleanup=False), decoders.Fuse(), decoders.Replace(Regex(" (?=[.,;:!?]|'s)"), "")
    tokenizer.decoder = decoders.Sequence(list(spaces))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    begin = f"{training.END} $A"
    tokenizer.post_processor = processors.TemplateProcessing(single=begin, special_tokens=[(training.END, 0)])
    return tokenizer


def as_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> training.Words:
    """Make a row of each sentence: the end token, then 63 words from its beginning; targets are the next words.

    A rare word is read, but does not count as a target: so the model never says that a word is rare.
    """
    rows, ends = [], [i for token, i in tokenizer.get_vocab().items() if token in (".", "!", "?")]
    for text in texts:
        ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids)
        begins = np.flatnonzero(np.isin(ids[: -SIZES.positions], ends)) + 1
        rows.append(np.insert(sliding_window_view(ids, SIZES.positions)[begins], 0, 0, axis=1))
    ids = np.concatenate(rows)
    return training.Words(ids[:, :-1], ids[:, 1:], ids[:, 1:] != tokenizer.token_to_id(RARE))


def bounds(learned: training.Words, tested: training.Words) -> tuple[float, float]:
    """Compute the losses of two models that count: how often a word occurs, and how often after the word before it.

    To the pairs of each first word 100 are added, with second words as frequent as in all the text.
    """
    pairs = np.zeros((SIZES.vocab, SIZES.vocab))
    np.add.at(pairs, (learned.ids[learned.counts], learned.targets[learned.counts]), 1)
    now, after = tested.ids[tested.counts], tested.targets[tested.counts]
    single = (pairs.sum(axis=0) / pairs.sum())[after]
    mixed = (pairs[now, after] + 100 * single) / (pairs.sum(axis=1)[now] + 100)
    return float(-np.log(single).mean()), float(-np.log(mixed).mean())


def save(model: Gpt2Weights, tokenizer: Tokenizer, folder: Path) -> Path:
    """Write a checkpoint that any reader of GPT-2 opens, its weights rounded to float16."""
    sizes = {"vocab_size": SIZES.vocab, "n_positions": SIZES.positions, "n_embd": SIZES.dim, "n_layer": SIZES.blocks}
    named = {"bos_token": training.END, "eos_token": training.END, "unk_token": RARE}
    tensors = {name: array.astype(np.float16) for name, array in training.tensors_of(model).items()}
    return training.save_checkpoint(folder, tensors, training.CONFIG | sizes, tokenizer, named)


def main() -> None:
    to_learn, to_test = parted([Path(name) for name in sys.argv[1:]])
    frequent = Counter(re.findall(TOKEN, " ".join(to_learn).lower())).most_common(SIZES.vocab - 2)
    tokenizer = tokenizer_of([word for word, _ in frequent])
    learned, tested = (as_ids(tokenizer, texts) for texts in (to_learn, to_test))
    tested = tested.of(np.arange(0, len(tested.ids), 8))
    words, pairs = bounds(learned, tested)
    print(f"{len(learned.ids):,} sentences; loss by words {words:.3f}, by pairs of words {pairs:.3f}", flush=True)
    folder = Path(__file__).resolve().parents[2] / "build" / "study" / "gpt2-novels"
    start = training.random_weights(sizes=SIZES)
    for step, (loss, vector) in enumerate(training.train(start, learned, STEPS, BATCH, SIZES), 1):
        if step % 100 == 0:
            model = training.model_of(vector, SIZES)
            test_loss = training.losses(model, tested).mean()
            print(f"step {step:5,}: loss {loss:.3f}, on the test words {test_loss:.3f}", flush=True)
            save(model, tokenizer, folder)
    print(folder)


if __name__ == "__main__":
    main()
