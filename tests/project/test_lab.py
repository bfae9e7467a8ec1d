"""The lab: its answers are right, each blank says that it is open, and its check names each mistake in three lines."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import blanks
import block_gradients
import numpy as np
import pytest
from command_line import STUDY, Patch, Printed

from minibert import knock_out
from minibert.equations import activations, blocks, input_layer, similarity, static
from minibert.families.parts.modules import LayerNorm

Answer = Callable[..., Any]
NOTEBOOKS = ("1_input_layer", "2_attention", "3_change_it", "4_words")


@cache
def drawn_once(trials: Answer, seed: int) -> Any:
    """The trials of one exercise; an answer is given copies of what is in them."""
    return trials(seed)


@pytest.fixture
def lab(minilm: Path, monkeypatch: Patch) -> Iterator[ModuleType]:
    """The plumbing as a notebook has it, on the real checkpoint."""
    monkeypatch.setattr(sys, "argv", ["lab"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for variable in ("MINIBERT_BERT", "MINIBERT_GPT2"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MINIBERT_MODEL", str(minilm))
    import lab

    once = {name: partial(drawn_once, trials) for name, trials in lab.TRIALS.items()}
    monkeypatch.setattr(lab, "TRIALS", once)
    yield lab
    for name in ("lab", "study"):
        sys.modules.pop(name, None)


def code_cells(name: str) -> list[str]:
    """The code cells of a notebook in percent format."""
    parts = re.split(r"^# %%(.*)\n", (STUDY / "lab" / f"{name}.py").read_text("utf-8"), flags=re.MULTILINE)
    return [text for mark, text in zip(parts[1::2], parts[2::2], strict=True) if "markdown" not in mark]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_answers_are_right_and_blanks_say_that_they_are_open(name: str, lab: ModuleType, capsys: Printed) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    for place, cell in enumerate(code_cells(name)):
        answers = re.findall(r"(?m)^def (\w+)\(", cell)[:1] if blanks.found(cell) else []
        assert len(answers) == (place > 0), "each cell but the first has an exercise"
        assert not blanks.found(blanks.opened(cell)), "no answer is left in the blanks"
        for source in (blanks.opened(cell), cell) if answers else (cell,):
            exec(compile(source, f"{name}, cell {place}", "exec"), space)
            printed = capsys.readouterr().out
            still_open = f"{answers[0]} is still open: write your answer" if answers else ""
            assert printed.startswith(still_open if source != cell else f"{answers[0]}: right\n" if answers else "")


def test_every_exercise_is_tried(lab: ModuleType) -> None:
    cells = [cell for name in NOTEBOOKS for cell in code_cells(name)[1:]]
    asked = [re.findall(r"(?m)^def (\w+)\(", cell)[0] for cell in cells]
    assert sorted(asked) == sorted(lab.TRIALS) and len(asked) == 34


def said(lab: ModuleType, name: str, answer: Answer, printed: Printed) -> str:
    """Return the lines that the check prints for an answer, called by the exercise's name."""
    tried: Any = lambda *arguments: answer(*arguments)  # noqa: E731
    tried.__name__ = name
    return checked(lab, tried, printed)


def checked(lab: ModuleType, answer: Answer, printed: Printed) -> str:
    lab.check(answer)
    out: str = printed.readouterr().out
    assert 1 <= out.count("\n") <= 3 and "Traceback" not in out
    return out.replace("\n", " ")


def mean(x: Any) -> Any:
    return x.mean(axis=-1, keepdims=True)


def softmax(x: Any, axis: int | None = -1) -> Any:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def norm(x: Any, weight: Any = 1, bias: Any = 0, eps: float = 0.0) -> Any:
    return (x - mean(x)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def attend(x: Any, block: Any, heads: int, axis: int = -1, mask: bool = False) -> Any:
    q, k, v = (
        (x @ each.weight.T + each.bias).reshape(len(x), heads, -1).swapaxes(0, 1)
        for each in (block.query, block.key, block.value)
    )
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(len(x), dtype=bool) | (not mask), scores, -1e9)
    return (softmax(scores, axis) @ v).swapaxes(0, 1).reshape(len(x), -1) @ block.output.weight.T + block.output.bias


def gpt2_block(x: Any, block: Any, heads: int, eps: float, first: bool = True) -> Any:
    x = x + attend(norm(x, *block.norm_1, eps) if first else x, block, heads, mask=True)
    up = norm(x, *block.norm_2, eps) @ block.up.weight.T + block.up.bias
    return x + activations.gelu_tanh(up) @ block.down.weight.T + block.down.bias


def nearest(words: Any, rows: Any) -> Any:
    return ((words - rows[:, None]) ** 2).sum(-1).argmin(-1)


def falls(model: Any, ids: Any, block: int, f: Answer = lambda x: np.log(softmax(x)), step: int = 1) -> list[float]:
    def last(*pairs: tuple[int, ...]) -> Any:
        return f(model.logits([ids], head="next_word", change=knock_out(model, heads=pairs) if pairs else None)[0, -1])

    return [last().max() - last((block, head)[::step])[last().argmax()] for head in range(model.stack.heads)]


def drawn(logits: Any, k: int, chances: Any) -> list[int]:
    sums = np.cumsum(softmax(np.where(logits >= np.sort(logits)[-k], logits, -np.inf)))
    return [int((sums > chance).argmax()) for chance in chances]


def pieces(word: str, vocab: set[str], longest: bool = True, mark: str = "##") -> list[str]:
    found, begin = list[str](), 0
    while begin < len(word):
        fits = [i for i in range(begin + 1, len(word) + 1) if mark * (begin > 0) + word[begin:i] in vocab]
        if not fits:
            return ["[UNK]"]
        end = fits[-1 if longest else 0]
        found.append(mark * (begin > 0) + word[begin:end])
        begin = end
    return found


# of each exercise that is a step of a model one or two of verify's list, which tests/verify holds, and all others
WRONG: tuple[tuple[str, Answer, str], ...] = (
    ("word_rows", lambda words, ids: words[ids + 1], "rows of ids +1"),
    ("word_rows", lambda words, ids: words[ids[:-1]], "a forgotten row: the last one"),
    ("word_rows", lambda words, ids: words[ids].T, "exchange the axes"),
    ("word_rows", lambda words, ids: words[ids].astype(int), "these are whole numbers"),
    ("position_rows", lambda positions, ids: positions[1 : len(ids) + 1], "positions from 1"),
    ("position_rows", lambda positions, ids: positions[ids], "positions[ids], rows of the ids"),
    ("position_rows", lambda positions, ids: positions[: len(ids) + 1], "1 row too many"),
    ("total", lambda words, positions, types: words + positions + types[1], "type 1 for all tokens"),
    ("total", lambda words, rows, types: np.add(words, rows, out=words) + types[0], "changes its arguments"),
    ("even", lambda x, eps: (x - mean(x)) / (x.std(-1, keepdims=True) + eps), "eps outside the root"),
    ("even", lambda x, eps: (x - x.mean(0)) / np.sqrt(x.var(0) + eps), "norm over the axis before the last"),
    ("even", lambda x, eps: norm(x), "eps missing, or 1e-12"),
    ("even", lambda x, eps: (x - x.mean(-1)) / np.sqrt(x.var(-1) + eps), "keepdims=True keeps an axis"),
    ("even", lambda x, eps: (x - mean(x)) / x.std(-1, keepdims=True, ddof=1), "divided by dim - 1, eps missing"),
    ("even", lambda x, eps: x - mean(x) / np.sqrt(x.var(-1, keepdims=True) + eps), "the mean alone is divided"),
    ("output", lambda x, weight, bias: (x + bias) * weight, "bias added before the weight"),
    ("output", lambda x, weight, bias: x * bias + weight, "weight and bias exchanged"),
    ("output", lambda x, weight, bias: x * weight[:-1] + bias, "shapes do not fit"),
    ("cosine", lambda a, b: 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b), "1 - cosine"),
    ("cosine", lambda a, b: a @ b, "not divided by the lengths"),
    ("input_layer", lambda i, w, p, t, n: norm(w[i] + p[: len(i)], n.weight, n.bias, n.eps), "type rows left out"),
    ("input_layer", lambda i, w, p, t, n: norm(w[i] + p[i] + t[0], n.weight, n.bias, n.eps), "positions[ids]"),
    ("input_layer", lambda i, w, p, t, n: norm(x := w[i] + p[: len(i)] + t[0]) * (1 - 1 / x.shape[1]) ** 0.5 * n.weight
                                          + n.bias, "divided by dim - 1, eps missing"),
    ("ids_of", lambda sums, words, p, t: nearest(words, sums - p[: len(sums)]), "types not subtracted"),
    ("ids_of", lambda sums, words, p, t: 1.0 * nearest(words, sums - p[: len(sums)] - t[0]), "whole numbers, found"),
    ("scores", lambda q, k: q @ k.T, "no division by sqrt(head_dim)"),
    ("scores", lambda q, k: q @ k.T / q.shape[1], "division by head_dim"),
    ("scores", lambda q, k: q @ k / np.sqrt(q.shape[1]), "shapes do not fit"),
    ("scores", lambda q, k: k @ q.T / np.sqrt(q.shape[1]), "scores of k and q"),
    ("scores", lambda q, k: softmax(q @ k.T / np.sqrt(q.shape[1])), "weights, not scores"),
    ("weights", lambda scores: softmax(scores, 0), "softmax over the queries"),
    ("weights", lambda scores: softmax(scores, None), "softmax over queries and keys"),
    ("weights", lambda scores: np.exp(scores) / np.exp(scores).sum(-1), "divided by the sums of other rows"),
    ("weights", np.exp, "not divided by the sum of the row"),
    ("weights", lambda scores: 1 / (1 + np.exp(-scores)), "sigmoid for softmax"),
    ("context", lambda weights, v: weights.T @ v, "probabilities transposed"),
    ("parted", lambda q, heads: q.reshape(heads, len(q), -1), "heads split without transposing"),
    ("parted", lambda q, heads: np.array([q[:, i::heads] for i in range(heads)]), "heads interleaved"),
    ("causal", lambda s: np.where(np.tri(len(s), k=1, dtype=bool), s, -1e9), "one token too far"),
    ("added", lambda x, context, output: x + context @ output.weight + output.bias, "weight transposed"),
    ("attend", lambda x, block, heads: attend(x, block, heads, axis=-2), "softmax over the queries"),
    ("attend", lambda x, block, heads: attend(x[::-1], block, heads), "numbers are wrong"),
    ("whole_model", lambda x, blocks, heads, eps: blocks.pop() and x, "changes its arguments"),
    ("likeliest", lambda logits: int(logits[0].argmax()), "first token instead of the last"),
    ("likeliest", lambda logits: int(logits.argmax()), "place among all logits"),
    ("without", lambda model, text, block, head: model(**text), "nothing is changed"),
    ("without", lambda m, text, i, head: m(**text, change=knock_out(m, heads=[(head, i)])), "block and head exchanged"),
    ("only_first", lambda weights: np.eye(weights.shape[-1])[0], "shape (2, 3, 5, 5) is wanted"),
    ("without", lambda m, text, i, head: m(**text, change=knock_out(m, heads=[(5, 3)])), "no such block, head, token"),
    ("without", lambda m, text, i, head: m(np.full((1, 4), 1996)), "no such block, head, token"),
    ("lens", lambda x, norm, table: x @ table.T, "norm not applied"),
    ("share", lambda a, b, x: (x - a) @ (b - a) / np.linalg.norm(b - a), "divided by the length, not by its square"),
    ("patched", lambda model, text, other, i, place: model(**other)[0], "all tokens patched"),
    ("patched", lambda m, text, other, i, place: m.trace(**other)[f"hidden_states.{place + 3}"], "no such block, head"),
    ("falls", lambda model, ids, block: [0.0], "2 rows too few"),
    ("falls", lambda model, ids, block: falls(model, ids, block, lambda x: x), "logits for log probabilities"),
    ("falls", lambda model, ids, block: falls(model, ids, block, step=-1), "block and head exchanged"),
    ("logits_gradient", lambda logits, target: softmax(logits), "1 not subtracted"),
    ("masked_word", lambda x, place, dense, n, w, b: x[place] @ w.T + b, "numbers are wrong"),
    ("sampled", lambda logits, temperature, k, chances: drawn(logits, k, chances), "temperature left out"),
    ("sampled", lambda logits, t, k, chances: drawn(logits / t, len(logits), chances), "all tokens kept"),
    ("wordpiece", lambda word, vocab: pieces(word, vocab, longest=False), "the shortest piece chosen"),
    ("wordpiece", lambda word, vocab: pieces(word, vocab, mark=""), "## forgotten"),
    ("gpt2_block", lambda x, b, heads, eps: gpt2_block(x, b, heads, eps, first=False), "norm not applied, at h.*.ln_1"),
    ("static_rows", lambda x, count, a: (x - x.mean(0))[:, :count], "no components"),
    ("nine_terms", lambda parts, q, k: parts[:, None] @ q.weight.T @ (parts[None] @ k.weight.T).swapaxes(-1, -2)
                                       / len(q.bias) ** 0.5, "biases left out"),
    ("carried", lambda model, ids, other, word: np.zeros((3, len(ids))), "1 row too few"),
    ("adam_step", lambda weight, grad, mean, square, step, rate: weight - rate * grad, "plain gradient descent"),
    ("training_step", lambda h, table, targets, rate: table - rate * softmax(h @ table.T).T @ h / len(h), "1 not sub"),
)  # fmt: skip


def test_a_wrong_answer_gets_the_name_of_its_mistake(lab: ModuleType, capsys: Printed) -> None:
    for name, answer, mistake in WRONG:
        assert mistake in said(lab, name, answer, capsys), (name, mistake)


def cell(source: str) -> Answer:
    """The function that a notebook's cell ends with, beside the notebook's numbers."""
    space: dict[str, Any] = {"np": np, "head_dim": 32, "bias": np.ones(5), "river": {"input_ids": np.array([[1996]])}}
    space["norm"] = LayerNorm(np.ones(5), np.zeros(5), 1e-12)
    exec(source, space)
    answer: Answer = [*space.values()][-1]
    return answer


CELLS: tuple[tuple[str, str], ...] = (
    ("def scores(q, k): return q @ k.T / np.sqrt(head_dim)", "scores reads `head_dim` (32) from outside"),
    ("root = lambda: head_dim**0.5\ndef scores(q, k): return q @ k.T / root()", "scores reads `head_dim` (32) from"),
    ("def parted(q, heads): return q.reshape(heads, -1, head_dim)", "parted reads `head_dim` (32) from outside"),
    ("def without(model, text, block, head): return model(**river)", "without reads `river` from outside"),
    ("def even(x, eps): return norm(x)", "even reads `norm` from outside"),
    ("def total(words, positions, types): return words + river", "total reads `river` from outside"),
    ("def output(x, weight, bias): return x * weight", "output: bias missing"),
    ("def added(x, context, output): return context @ output.weight.T + output.bias", "added: residual missing"),
    ("def scores(q, k):\n    head_dim = q.shape[-1]\n    return q @ k.T / np.sqrt(head_dim)", "scores: right"),
    ("low = -1e9\ndef causal(s): return np.where(np.tri(len(s), dtype=bool), s, low)", "causal: right"),
)


def test_a_name_from_outside_the_function_is_the_mistake_that_is_named(lab: ModuleType, capsys: Printed) -> None:
    """Not an attribute, an argument or a local of the same name, nor if the answer is right."""
    for source, words in CELLS:
        assert checked(lab, cell(source), capsys).startswith(words), source


def test_an_answer_that_is_right_only_for_this_model_is_named(lab: ModuleType, capsys: Printed) -> None:
    q = np.random.default_rng(0).standard_normal((7, 32))
    for divisor in (32**0.5, 5.0):
        scores = cell(f"def scores(q, k): return q @ k.T / {divisor}")
        lab.check(scores, (q, q), q @ q.T / 32**0.5)
        right = "scores is right for this notebook's inputs and wrong in general: the random" in capsys.readouterr().out
        assert right == (divisor != 5)


def recursive(*arguments: Any) -> Any:
    return recursive(*arguments)


class Tensor:
    """As torch's that has a gradient."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("it requires grad")


ANYWHERE: tuple[tuple[Answer, str], ...] = (
    (lambda *given: ..., " is still open: write your answer in place of `...`"),
    (lambda *given: None, " returns None: is there a `return`"),
    (lambda *given: (x for x in [1.0]), " returns a generator, which can be read only once"),
    (lambda *given: given[99], " stops: IndexError: tuple index out of range"),
    (lambda *given: sys.exit(), " stops: SystemExit"),
    (lambda *given: np.sum, " returns a function: call it"),
    (lambda *given: {}, ", found dict"),
    (lambda *given: True, ", found True and False"),
    (lambda *given: Tensor(), " returns a Tensor, which NumPy cannot read: it requires grad"),
    (lambda *given: [[1.0], [1.0, 2.0]], " returns rows of different lengths"),
    (recursive, " calls itself without end"),
)


def test_what_is_no_answer_is_refused_in_each_exercise(lab: ModuleType, capsys: Printed) -> None:
    for i, (name, trials) in enumerate(lab.TRIALS.items()):
        wanted = np.asarray(trials(lab.SEEDS[0])[0].wanted)
        for answer, message in ANYWHERE if i == 0 else (ANYWHERE[i % len(ANYWHERE)], ANYWHERE[-i % len(ANYWHERE)]):
            assert message in said(lab, name, answer, capsys), (name, message)
        if wanted.dtype.kind == "f":
            nan = np.full(wanted.shape, np.nan)
            assert "some numbers are nan or infinite" in said(lab, name, lambda *given, nan=nan: nan, capsys)


RIGHT: tuple[tuple[str, Answer], ...] = (
    ("word_rows", lambda words, ids: [words[i] for i in ids]),
    ("position_rows", lambda positions, ids: tuple(positions[i].astype(float).tolist() for i, _ in enumerate(ids))),
    ("total", lambda words, positions, types: np.sum([words, positions, np.tile(types[0], (len(words), 1))], axis=0)),
    ("even", lambda x, eps: [(row - row.mean()) / (((row - row.mean()) ** 2).mean() + eps) ** 0.5 for row in x]),
    ("ids_of", lambda sums, words, p, t: tuple(nearest(words, sums - p[: len(sums)] - t[0]))),
    ("scores", lambda q, k: np.einsum("id,jd->ij", q, k, dtype=np.float64) / q.shape[1] ** 0.5),
    ("falls", falls),
    ("weights", lambda scores: [softmax(row - row.max()) for row in scores.astype(np.float64)]),
    ("parted", lambda q, heads: np.split(q, heads, axis=1)),
    ("causal", lambda s: np.where(np.tri(len(s), dtype=bool), s, -np.inf)),
    ("likeliest", lambda logits: np.argmax(logits[-1])),
    ("only_first", lambda weights: np.put_along_axis(weights, np.arange(weights.shape[-1]).reshape(1, 1, 1, -1),
                                                     np.eye(weights.shape[-1])[0], -1) or weights),
    ("logits_gradient", lambda logits, target: [p - (i == target) for i, p in enumerate(softmax(logits))]),
    ("wordpiece", lambda word, vocab: np.array(pieces(word, vocab))),
    ("gpt2_block", lambda x, *rest: gpt2_block(x.astype(np.float64), *rest)),
)  # fmt: skip


def test_other_right_ways_and_types_pass(lab: ModuleType, capsys: Printed) -> None:
    for name, answer in RIGHT:
        assert said(lab, name, answer, capsys) == f"{name}: right "


LIBRARY: tuple[tuple[str, Answer, Answer], ...] = (
    ("even", input_layer.layer_norm, lambda x, eps: input_layer.layer_norm(x, np.ones(x.shape[1]), 0 * x[0], eps)),
    ("weights", blocks.softmax, blocks.softmax),
    ("parted", blocks.split_heads, blocks.split_heads),
    ("cosine", similarity.cosine_similarity, lambda a, b: similarity.cosine_similarity([a], [b])[0, 0]),
    ("attend", blocks.self_attention, lambda x, block, heads: blocks.self_attention(x[None], block, heads)[0]),
    ("logits_gradient", block_gradients.cross_entropy_gradient,
     lambda logits, target: block_gradients.cross_entropy_gradient(np.ones(()), logits, np.array(target))),
    ("static_rows", static.covariance_components, lambda x, count, a: static.covariance_components(x, count)[0]),
)  # fmt: skip


def test_the_library_s_own_formula_is_no_answer_and_works_again_afterwards(lab: ModuleType, capsys: Printed) -> None:
    for name, function, answer in LIBRARY:
        code = function.__code__
        assert f"{name}: {function.__name__} is switched off" in said(lab, name, answer, capsys)
        assert function.__code__ is code
    with pytest.raises(KeyboardInterrupt):
        said(lab, "scores", interrupt, capsys)
    assert blocks.softmax(np.zeros(2)).tolist() == [0.5, 0.5], "after an answer was interrupted"


def interrupt(*_: Any) -> Any:
    raise KeyboardInterrupt


def test_an_answer_that_never_ends_is_stopped(lab: ModuleType, capsys: Printed, monkeypatch: Patch) -> None:
    """The classic: the loop of wordpiece forgets to go on. No `except Exception` around it keeps it alive."""
    if not hasattr(signal, "setitimer"):
        pytest.skip("this system stops no program after a time of computing")
    monkeypatch.setattr(lab, "SECONDS", 0.05)
    before = signal.getsignal(signal.SIGVTALRM)

    def endless(word: str, vocab: set[str]) -> list[str]:
        while word:
            with suppress(Exception):
                word = word[:]
        return []

    assert "wordpiece has not ended after 0.05 seconds" in said(lab, "wordpiece", endless, capsys)
    assert signal.getsignal(signal.SIGVTALRM) is before and signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


def test_each_mistake_made_by_hand_shows_on_some_input(lab: ModuleType) -> None:
    """One that shows nowhere would pass as right."""
    from judge import _same
    from trials_by_hand import BY_HAND

    for exercise in BY_HAND:
        seen = dict[str, bool]()
        for seed in lab.SEEDS:
            for trial in exercise(seed) if not seen or not all(seen.values()) else ():
                with np.errstate(all="ignore"):
                    for name, _, value in trial.wrong():
                        seen[name] = seen.get(name, False) or not _same(value, trial.wanted, trial)
        assert [name for name, shows in seen.items() if not shows] == [], exercise.__name__


def test_a_check_asks_for_the_function_by_its_name(lab: ModuleType, capsys: Printed) -> None:
    for wrong in (np.zeros(3), lambda x: x, np.exp):
        lab.check(wrong)
        assert capsys.readouterr().out.startswith("check takes a function of this lab by its own name")


def test_the_model_s_own_numbers_are_tried_too(lab: ModuleType, capsys: Printed) -> None:
    """A cell above may have been changed: the drawn inputs are right, the notebook's are not."""
    ended, context = list[bool](), cell("def context(weights, v): return weights @ v")
    lab.check(context, (np.eye(2), np.eye(2)), 2 * np.eye(2))
    assert "context: the shape is right, but" in capsys.readouterr().out
    lab.check(context, (np.eye(2), np.eye(2)), np.eye(2), then=lambda: ended.append(True))
    assert capsys.readouterr().out == "context: right\n" and ended
