"""Trials of the exercises that are no step of a model, with mistakes made by hand; see also `trials.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from drawn_models import DEPTH, drawn
from judge import Trial
from switched_off import ALL

import minibert
from minibert.equations.blocks import Linear, softmax

# -- rows and vectors --------------------------------------------------------------------------------------------


def cosine(seed: int) -> list[Trial]:
    a, b = np.random.default_rng(seed).standard_normal((2, 9)) * 3
    lengths = np.linalg.norm(a), np.linalg.norm(b)
    return [Trial((a, b), a @ b / (lengths[0] * lengths[1]), lambda: iter([
        ("not divided by the lengths", "A longer row would count as more similar.", a @ b),
        ("divided by only one length", "Both rows have a length.", a @ b / lengths[0]),
        ("divided by only one length", "Both rows have a length.", a @ b / lengths[1]),
        ("divided by the squares of the lengths", "np.linalg.norm includes the root; a @ a does not.",
         a @ b / (lengths[0] * lengths[1]) ** 2),
        ("multiplied by a length", "a @ b / x * y multiplies by y: put x * y in brackets.",
         a @ b / lengths[0] * lengths[1]),
        ("divided by the sum of the lengths", "The lengths are multiplied.", a @ b / sum(lengths)),
        ("1 - cosine", "Return the cosine itself: 1 if the directions are the same.",
         1 - a @ b / (lengths[0] * lengths[1])),
        ("the distance", "The cosine is the product of both, divided by both lengths.", np.linalg.norm(a - b)),
    ]))]  # fmt: skip


def ids_of(seed: int) -> list[Trial]:
    random = np.random.default_rng(seed)
    words, positions, types = (random.standard_normal((rows, 8)) for rows in (19, 14, 2))
    words *= random.uniform(0.5, 5, (19, 1))  # some long rows
    types, positions = types * 4, positions * 4
    ids = random.integers(0, 19, 5 + seed % 6)
    sums = words[ids] + positions[: len(ids)] + types[0]

    def nearest(rows: np.ndarray) -> np.ndarray:
        return ((words - rows[:, None]) ** 2).sum(axis=-1).argmin(axis=-1)

    def wrong() -> Iterator[tuple[str, str, Any]]:
        of = positions[: len(ids)]
        rows = sums - of - types[0]
        yield "positions not subtracted", "The positions are in the sum.", nearest(sums - types[0])
        yield "types not subtracted", "Row 0 of the types is in each sum.", nearest(sums - of)
        yield "nothing subtracted", "Positions and type 0 are in the sum.", nearest(sums)
        yield "positions subtracted, types added", "Both are in the sum.", nearest(rows + 2 * types[0])
        yield "the farthest row", "The nearest has the smallest distance: argmin.", _farthest(words, rows)
        yield (
            "the largest product",
            "A long row has large products with every row: use distances.",
            (rows @ words.T).argmax(-1),
        )
        yield "type 1 subtracted", "A single text has type 0.", nearest(sums - of - types[1])

    return [Trial((sums, words, positions, types), ids, wrong)]


def _farthest(words: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return ((words - rows[:, None]) ** 2).sum(axis=-1).argmax(axis=-1)


def share(seed: int) -> list[Trial]:
    start, goal, between = np.random.default_rng(seed).standard_normal((3, 8))
    way, gone = goal - start, between - start
    right, length = gone @ way / (way @ way), np.linalg.norm(way)
    return [Trial((start, goal, between), right, lambda: iter([
        ("divided by the length, not by its square", "The share is in lengths of the way.", right * length),
        ("not divided", "The share is in lengths of the way.", gone @ way),
        ("the cosine", "Return how far, not in which direction.", gone @ way / np.linalg.norm(gone) / length),
        ("counted from the goal", "The start has the share 0.", 1 - right),
        ("start not subtracted", "The share is of between - start.", between @ way / (way @ way)),
        ("the way's sign", "The way is goal - start.", -right),
        ("the ratio of the lengths", "Only the part in the direction of the way counts.",
         np.linalg.norm(gone) / length),
    ]))]  # fmt: skip


def likeliest(seed: int) -> list[Trial]:
    logits = np.random.default_rng(seed).standard_normal((7, 23))
    last = int(logits[-1].argmax())
    return [Trial((logits,), last, lambda: iter([
        ("first token instead of the last", "The last token predicts the next token.", int(logits[0].argmax())),
        ("place among all logits", "argmax of a table counts through all rows.", int(logits.argmax())),
        ("the smallest logit", "The likeliest has the largest.", int(logits[-1].argmin())),
    ]))]  # fmt: skip


# -- changes of a model ------------------------------------------------------------------------------------------


def without(seed: int) -> list[Trial]:
    way = drawn("bert", seed)
    model, batch = way.encoder, {"input_ids": way.ids[None]}
    block, head, heads = seed % 2, (seed + 1) % 2, model.stack.heads

    def of(blocks: list[int], kept: np.ndarray) -> np.ndarray:
        weights = kept[:, None, None].astype(np.float32)
        return model(**batch, change={f"attentions.{i}": lambda x: x * weights for i in blocks})

    other = np.arange(heads) != head
    return [Trial((model, batch, block, head), of([block], other), lambda: iter([
        ("nothing is changed", "Pass the change to the call: change=.", model(**batch)),
        ("block and head exchanged", "The pair is (block, head).", of([head], np.arange(heads) != block)),
        ("the head of another block", "Blocks are counted from 0.", of([1 - block], other)),
        ("the head of every block", "Only that block's head is knocked out.", of([*range(DEPTH)], other)),
        ("all heads of the block", "Only one head is knocked out.", of([block], other * 0)),
        ("the other heads knocked out", "Knock out the one head; keep the rest.", of([block], ~other)),
        ("the whole block", "heads=, not blocks=.", model(**batch, change=minibert.knock_out(model, blocks=[block]))),
    ]), may=ALL)]  # fmt: skip


def only_first(seed: int) -> list[Trial]:
    weights = softmax(np.random.default_rng(seed).standard_normal((2, 3, 5, 5)))
    right, query, kept, head = (np.zeros_like(weights) for _ in range(4))
    right[..., 0], query[:, :, 0], head[:, 0, :, 0] = 1, 1, 1
    kept[...] = weights
    kept[..., 0] = 1
    last = np.flip(right, -1)
    return [Trial((weights,), right, lambda: iter([
        ("the first query, not the first key", "The axes are (texts, heads, query, key): the key is the last.", query),
        ("the rest of the weights kept", "All weights but the first have to become 0.", kept),
        ("only the first head", "Every head is changed: [..., 0].", head),
        ("the last key", "The first has place 0.", last),
        ("nothing is changed", "Return the array that you made.", weights),
        ("first weight unchanged", "It has to become 1.", weights * right),
    ]), writes=True)]  # fmt: skip


def patched(seed: int) -> list[Trial]:
    way, random = drawn("bert", seed), np.random.default_rng(seed)
    model, place, i = way.encoder, int(random.integers(1, len(way.ids))), 1
    other = way.ids.copy()
    other[place] = (other[place] + 3) % 19
    text, source = {"input_ids": way.ids[None]}, {"input_ids": other[None]}

    def of(where: Any, at: int = i, into: dict = text, out_of: dict = source) -> np.ndarray:
        values = model.trace(**into)[f"hidden_states.{at}"].copy()
        values[0, where] = model.trace(**out_of)[f"hidden_states.{i}"][0, where]
        return model(**into, change={f"hidden_states.{at}": values})[0]

    return [Trial((model, text, source, i, place), of(place), lambda: iter([
        ("nothing is changed", "Pass the change to the call: change=.", model(**text)[0]),
        ("all tokens patched", "Patch only the token at `place`.", of(slice(None))),
        ("another place patched", "Patch the token at `place`.", of(place - 1)),
        ("another block's state", "Use the state before block i.", of(place, i - 1)),
        ("the two texts exchanged", "The first text gets the state of the second.", of(place, i, source, text)),
    ]), may=ALL)]  # fmt: skip


def falls(seed: int) -> list[Trial]:
    way = drawn("gpt2", seed)
    model, ids, heads = way.encoder, way.ids.tolist(), way.encoder.stack.heads

    def logits(pair: tuple[int, int] | None = None, place: int = -1) -> np.ndarray:
        change = pair and minibert.knock_out(model, heads=[pair])
        return model.logits([ids], head="next_word", change=change)[0, place].astype(np.float64)

    def log(logits: np.ndarray) -> np.ndarray:
        return np.log(softmax(logits))

    def of(block: int, place: int = -1, f: Any = log, step: int = 1) -> np.ndarray:
        word, before = int(logits(place=place).argmax()), f(logits(place=place))
        return np.array([before[word] - f(logits((block, head)[::step], place))[word] for head in range(heads)])

    block, before = 1, log(logits()).max()
    return [Trial((model, ids, block), of(block), lambda: iter([
        ("without the log", "Return by how much the log falls.", of(block, f=softmax)),
        ("logits for log probabilities", "softmax first, then the log: softmax depends on all logits.",
         of(block, f=lambda x: x)),
        ("the sign", "A fall is the log before, minus the log after.", -of(block)),
        ("block and head exchanged", "The pair is (block, head).", of(block, step=-1)),
        ("the heads of the first block", "Use the given block.", of(0)),
        ("first token instead of the last", "The last token predicts the next token.", of(block, 0)),
        ("the log after, no fall", "Subtract it from the log before.", before - of(block)),
        ("the likeliest token chosen again", "Use the word that was likeliest before the change.",
         np.array([before - log(logits((block, head))).max() for head in range(heads)])),
    ]), may=ALL)]  # fmt: skip


def carried(seed: int) -> list[Trial]:
    way = drawn("gpt2", seed)
    model, ids, depth = way.encoder, way.ids.tolist(), len(way.encoder.stack.blocks)
    place = len(ids) - 2
    other = [*ids[:place], (ids[place] + 3) % 19, *ids[place + 1 :]]
    word = int(model.logits([ids], head="next_word")[0, -1].argmax())

    def chance(given: list[int], change: Any = None, log: bool = True) -> float:
        p = softmax(model.logits([given], head="next_word", change=change)[0, -1].astype(np.float64))[word]
        return float(np.log(p) if log else p)

    def of(text: Any = ids, into: Any = other, where: Any = None, log: bool = True, share: bool = True) -> np.ndarray:
        trace, found = model.trace([text]), np.empty((depth + 1, len(ids)))
        clean, corrupted = chance(text, log=log), chance(into, log=log)
        for i, token in np.ndindex(*found.shape):
            values = model.trace([into])[f"hidden_states.{i}"].copy()
            which = token if where is None else where
            values[0, which] = trace[f"hidden_states.{i}"][0, which]
            found[i, token] = chance(into, {f"hidden_states.{i}": values}, log) - corrupted
        return found / (clean - corrupted) if share else found

    right = of()
    return [Trial((model, ids, other, word), right, lambda: iter([
        ("not divided", "A share is in lengths of the difference of both texts.", of(share=False)),
        ("probabilities without the log", "Compare the logs of the probabilities.", of(log=False)),
        ("the two texts exchanged", "`other` is run, with states of `ids`.", of(other, ids)),
        ("all tokens patched", "Patch one token at a time.", of(where=slice(None))),
        ("counted from the other end", "0 is the prediction of `other`, 1 of `ids`.", 1 - right),
        ("the last state left out", "There are depth + 1 states: the last leaves the last block.", right[:-1]),
    ]), may=ALL, close=1e-3)]  # fmt: skip


# -- attention ---------------------------------------------------------------------------------------------------


def nine_terms(seed: int) -> list[Trial]:
    random = np.random.default_rng(seed)
    seq, dim, head_dim = (int(random.integers(*ends)) for ends in ((4, 7), (8, 12), (3, 6)))
    parts = random.standard_normal((3, seq, dim))
    query, key = (Linear(random.standard_normal((head_dim, dim)), random.standard_normal(head_dim)) for _ in range(2))

    def of(at: Any = 2, by: float = head_dim**0.5, bias: float = 1) -> np.ndarray:
        q, k = (parts @ each.weight.T for each in (query, key))
        q[at] += bias * query.bias
        k[at] += bias * key.bias
        return q[:, None] @ k[None].swapaxes(-1, -2) / by

    right = of()
    return [Trial((parts, query, key), right, lambda: iter([
        ("biases left out", "They belong to the rest, the last part.", of(bias=0)),
        ("the biases in every part", "Then they are in the sum three times: add them to the last part.",
         of(slice(None))),
        ("the biases in the word's part", "They belong to the rest, the last part.", of(0)),
        ("no division by sqrt(head_dim)", "Each term is divided, as the score is.", of(by=1)),
        ("division by head_dim", "Terms are divided by its root.", of(by=head_dim)),
        ("query's and key's parts exchanged", "The query's part is the first axis.", right.swapaxes(0, 1)),
        ("rows and columns exchanged", "Rows are queries, columns keys.", right.swapaxes(2, 3)),
        ("the sum of the terms", "Return all nine.", right.sum(axis=(0, 1))),
    ]))]  # fmt: skip


# -- words -------------------------------------------------------------------------------------------------------


def logits_gradient(seed: int) -> list[Trial]:
    random = np.random.default_rng(seed)
    logits, target = random.standard_normal(11) * 2, int(random.integers(11))
    p, one = softmax(logits), np.eye(11)[target]
    return [Trial((logits, target), p - one, lambda: iter([
        ("the sign", "The loss falls as the target's logit grows: its gradient is below 0.", one - p),
        ("1 not subtracted", "The target's logit enters the loss twice.", p),
        ("softmax forgotten", "The gradient consists of probabilities, not of logits.", logits - one),
        ("1 subtracted everywhere", "Subtract it only at the target.", p - 1),
        ("exp not divided by its sum", "Probabilities have the sum 1.", np.exp(logits) - one),
        ("the value of the loss", "Return how the loss changes with each logit.", -np.log(p)),
    ]), may=(softmax,))]  # fmt: skip


def adam_step(seed: int) -> list[Trial]:
    random = np.random.default_rng(seed)
    weight, grad, mean = random.standard_normal((3, 6))
    square, step, rate = random.random(6) + 0.1, 3, 0.2

    def of(grad: np.ndarray = grad, first: bool = True, second: bool = True, root: float = 0.5, sign: int = 1) -> Any:
        m = (0.9 * mean + 0.1 * grad) / (1 - 0.9**step if first else 1)
        s = (0.999 * square + 0.001 * grad**2) / (1 - 0.999**step if second else 1)
        return weight - sign * rate * m / (s**root + 1e-8)

    old = mean / (1 - 0.9**step) / np.sqrt(square / (1 - 0.999**step))
    return [Trial((weight, grad, mean, square, step, rate), of(), lambda: iter([
        ("no correction", "Both averages began at 0: divide them by 1 - beta**step.", of(first=False, second=False)),
        ("only the square corrected", "Divide the mean by 1 - 0.9**step too.", of(first=False)),
        ("only the mean corrected", "Divide the square by 1 - 0.999**step too.", of(second=False)),
        ("root forgotten", "Divide by the root of the square.", of(root=1)),
        ("a step uphill", "Subtract the step.", of(sign=-1)),
        ("the old averages", "First update both with the gradient.", weight - rate * old),
        ("plain gradient descent", "The step is the mean divided by the root of the square.", weight - rate * grad),
    ]))]  # fmt: skip


def training_step(seed: int) -> list[Trial]:
    random = np.random.default_rng(seed)
    h, table, rate = random.standard_normal((5, 4)), random.standard_normal((9, 4)), 0.7
    targets = random.integers(0, 9, 5)
    p, one = softmax(h @ table.T), np.eye(9)[targets]
    step = (p - one).T @ h

    return [Trial((h, table, targets, rate), table - rate * step / 5, lambda: iter([
        ("the sum for the mean", "The loss is a mean over the tokens: divide by their number.", table - rate * step),
        ("a step uphill", "Subtract the gradient.", table + rate * step / 5),
        ("1 not subtracted", "The gradient of a token's logits is p, minus 1 at its target.",
         table - rate * p.T @ h / 5),
        ("only the targets' rows moved", "Softmax gives every row a gradient.",
         table - rate * np.where(one.any(axis=0)[:, None], step, 0) / 5),
        ("the gradient alone", "Return the table after the step.", step / 5),
        ("the step without the table", "Subtract it from the table.", -rate * step / 5),
        ("rate left out", "The gradient is multiplied by it.", table - step / 5),
    ]), may=(softmax,))]  # fmt: skip


def sampled(seed: int) -> list[Trial]:
    random = np.random.default_rng(seed)
    logits, chances, k, temperature = random.standard_normal(12) * 2, random.random(60), 5, 1.7

    def of(k: int = k, temperature: float = temperature, again: bool = True) -> np.ndarray:
        kept = logits >= np.sort(logits)[-k]
        p = np.where(kept, np.exp(logits / temperature), 0)
        p = p / (p if again else np.exp(logits / temperature)).sum()
        return np.minimum((np.cumsum(p) <= chances[:, None]).sum(axis=-1), len(p) - 1)

    return [Trial((logits, temperature, k, chances), of(), lambda: iter([
        ("all tokens kept", "Only the k likeliest can be drawn.", of(len(logits))),
        ("temperature left out", "The logits are divided by it.", of(temperature=1)),
        ("times the temperature", "Divide the logits by it: a high one evens them out.", of(temperature=1 / 1.7)),
        ("one token too few kept", "Keep the k likeliest, the k-th too.", of(k - 1)),
        ("one token too many kept", "Keep only the k likeliest.", of(k + 1)),
        ("cut after softmax", "The kept probabilities need the sum 1 again.", of(again=False)),
        ("always the likeliest", "The chance decides which token is drawn.", np.full(60, logits.argmax())),
    ]), may=(softmax,))]  # fmt: skip


def wordpiece(seed: int) -> list[Trial]:
    random = np.random.default_rng(seed)

    def letters(most: int) -> str:
        return "".join(random.choice(list("abc"), int(random.integers(1, most))))

    vocab = {"[UNK]", "a", "b", "##a", "##c", *("##" * (i % 2) + letters(4) for i in range(16))}
    return [_wordpiece_trial(letters(8), frozenset(vocab)) for _ in range(25)]


def _wordpiece_trial(word: str, vocab: frozenset[str]) -> Trial:
    def cut(marked: bool = True, longest: bool = True, keeps: bool = False) -> np.ndarray:
        pieces, begin = list[str](), 0
        while begin < len(word):
            ends = range(begin + 1, len(word) + 1)
            fits = [end for end in ends if ("##" * (begin > 0) * marked) + word[begin:end] in vocab]
            if not fits:
                return np.array([*pieces, "[UNK]"] if keeps else ["[UNK]"])
            end = fits[-1] if longest else fits[0]
            pieces.append(("##" * (begin > 0) * marked) + word[begin:end])
            begin = end
        return np.array(pieces)

    right = cut()
    return Trial((word, set(vocab)), right, lambda: iter([
        ("the shortest piece chosen", "Choose the longest of the pieces that fit.", cut(longest=False)),
        ("## forgotten", "In the vocabulary a piece inside a word begins with ##.", cut(marked=False)),
        ("pieces kept before [UNK]", "A word with a part that does not fit is [UNK] as a whole.", cut(keeps=True)),
        ("## removed", "Return the pieces as the vocabulary spells them.",
         np.array([piece.removeprefix("##") for piece in right.tolist()])),
        ("no [UNK]", "A word with a part that does not fit is [UNK].", cut(keeps=True)[:-1]),
    ]))  # fmt: skip


def static_rows(seed: int) -> list[Trial]:
    random = np.random.default_rng(seed)
    x, count, a = random.standard_normal((14, 6)) @ random.standard_normal((6, 6)) + 2, 3, 0.05

    def of(centred: bool = True, first: int = 2, share: bool = True, keep: Any = slice(count), by: float = 1) -> Any:
        rows = x - x.mean(axis=0) * centred
        rows = rows @ np.linalg.svd(rows, full_matrices=False)[2].T[:, keep]
        p = 1 / (np.arange(len(x)) + first)
        p = p / (p.sum() if share else 1)
        return rows * (a / (a + p))[:, None] ** by

    return [Trial((x, count, a), of(), lambda: iter([
        ("mean not subtracted", "Subtract the mean of all rows before the components.", of(False)),
        ("ranks from 1", "The first token has the rank 2 here.", of(first=1)),
        ("ranks from 0", "The first token has the rank 2 here.", of(first=0)),
        ("probabilities not divided by their sum", "The sum of all p is 1.", of(share=False)),
        ("the last components", "The first ones have the most variance; np.linalg.eigh returns them last.",
         of(keep=slice(-count, None))),
        ("weights left out", "Each row is multiplied by a / (a + p).", of(by=0)),
        ("divided by the weights", "Each row is multiplied by a / (a + p).", of(by=-1)),
        ("no components", "Project the rows first.", (x - x.mean(axis=0))[:, :count] * 1.0),
    ]), used=lambda rows: rows @ rows.T)]  # fmt: skip


BY_HAND = (
    cosine, ids_of, share, likeliest, without, only_first, patched, falls, carried, nine_terms, logits_gradient,
    adam_step, training_step, sampled, wordpiece, static_rows,
)  # fmt: skip
