"""Looks for the recipe by which vectors were made, from vectors and their texts alone.

First the right vectors. Where some differ, every mistake is tried on a few plain texts, alone and in pairs: most
mistakes of the model show there. Then all texts: a mistake that shows in some texts only, as with accents or where long
texts are truncated, is looked for among those that still differ. What fits all texts is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.verify.judge.compare import rms

from .vector_endings import endings
from .vector_mistake import VectorMistake
from .vector_mistakes import STORED, in_general, mistakes
from .vector_recipes import SAME, Maker, Recipe, lengths_beside, misses, sentences

# measured on all-MiniLM-L6-v2: 1.6e-3 where torch computes in float16, 1.4e-2 in bfloat16
LEVELS = (("float16", 5.0), ("bfloat16", 3.0), ("int8", 3.0))  # times what rounded weights change
PLAIN, PLAIN_TOKENS = 6, 32  # texts, and tokens of each, at most
# a mistake is preferred to none, and two to one, if they leave at most this share of the distance
ALONE, PAIR = 0.8, 0.5
# What leaves more than float16 rounds is named only if it leaves so little of the distance from the right vectors: a
# mistake that is near another one halves it. Attention weights times 0.9 are 0.74 of it from a softmax with one added.
EXPLAINS = 1 / 3
# A wrong model can be far more sensitive to rounding, on a text here and there: without its type rows all-MiniLM-L6-v2
# is 1.9e-5 from torch on one text, and torch as far from float64.
STRAY = 1e-4
AS_NEAR = 1.05  # times the least distance: what leaves about as little fits as well
LEAST_ON_GRID = 8  # numbers: fewer are on some grid by chance
OFF_STEP, TINY = 0.02, 1e-30  # of a step, for what float32 rounds
# what a recipe changes between token rows and vector, and the model itself: the same rows serve all of these
AFTER_BLOCKS = {"model", "unpooled", "poolings", "before", "between", "without", "given", "norm", "width", "stored"}
IN_SOME_TEXTS = {"text", "rules", "dropped", "longest", "other_end", "sliced", "chunks", "sentences"}
MOST_LOCAL = 3  # mistakes that show in some texts only
SHARED = {"rules"}  # what two mistakes may change, one after the other
UNUSUAL = (("first", 2), ("last", 2), ("exchanged", True))  # of special tokens
PADDED = {"pads", "seen", "left", "spread"}
LOOSE = 3.0  # times the plain texts' largest distance: longer texts round more


class Fit(NamedTuple):
    """Some mistakes together, and how far from them the vectors are."""

    mistakes: tuple[VectorMistake, ...]
    apart: Array

    @property
    def size(self) -> float:
        """The root mean square of all distances."""
        return rms(self.apart)

    @property
    def worst(self) -> float:
        """The largest distance."""
        return float(self.apart.max(initial=0.0))

    @property
    def name(self) -> str:
        return " + ".join(mistake.name for mistake in self.mistakes)

    @property
    def real(self) -> int:
        """How many are mistakes, and no narrower format."""
        return sum(not mistake.rounding for mistake in self.mistakes)


class Verdict(NamedTuple):
    """What fits all texts.

    fits      each as good as the others; an empty one is the right model
    level     "float32", "float16", "bfloat16", "int8": how exact the vectors are
    right     the distance of each vector from the right one
    ruled     mistakes that were tried alone, and the text that rules each out
    nearest   what came nearest where nothing fits
    """

    fits: list[Fit]
    level: str
    right: Array
    ruled: list[tuple[str, int]]
    nearest: Fit


class Judge:
    """Looks for the recipe by which vectors were made."""

    def __init__(self, maker: Maker, texts: Sequence[str], vectors: Array) -> None:
        self.maker, self.texts, self.vectors = maker, list(texts), vectors
        self.tokens = [len(maker.encoded(text, maker.right).input_ids) for text in self.texts]
        maker.lengths = lengths_beside(self.texts, self.tokens)
        self.right = np.concatenate([maker.vectors(text, maker.right) for text in texts])
        known = (*mistakes(maker), *endings(maker, vectors.shape[1]))
        held = [each for each in known if "stored" in each.changes and _holds(each.changes["stored"], vectors)]
        fewest = [each for each in held if each.rounding not in STORED][:1]  # what has few decimals has more too
        self.rounded = [each for each in held if each.rounding in STORED] + fewest
        self.stored = [each.rounding for each in self.rounded if each.rounding in STORED]
        self.known = [each for each in known if "stored" not in each.changes or each in self.rounded]
        self.both = cache(_both)  # the same function for the same two: by it tokenizers are kept
        self.scales: dict[str, float] = {}  # what rounding changes in this model

    def verdict(self) -> Verdict:
        whole = self._apart(())
        if whole.worst <= SAME:
            return Verdict([whole], "float32", whole.apart, [], whole)
        plain = self._plain()
        self._measure(plain)
        most = self.limits[-1][1]
        right = self._apart((), plain)
        if self.level(right.worst) not in ("", "int8"):  # padding of any of these texts would show more
            self.known = [mistake for mistake in self.known if not PADDED & set(mistake.changes)]
        alone = [self._apart((mistake,), plain, most) for mistake in self.known if self._changes(mistake, plain)]
        tiers = [[right], alone]
        if not any(fit.worst <= SAME for tier in tiers for fit in tier):
            pairs = self._pairs(alone)
            if self.rounded and self.level(right.worst):  # no pair of others gives numbers in this format
                pairs = [pair for pair in pairs if any("stored" in mistake.changes for mistake in pair)]
            tiers.append([self._apart(pair, plain, most) for pair in pairs])
        nearest = min((fit for tier in tiers for fit in tier), key=lambda fit: fit.size)
        fits = [whole for fit in self._chosen(tiers) for whole in self._of_all_texts(fit)]
        least = min((fit.real for fit in fits), default=0)
        fits = [fit for fit in fits if fit.real == least]
        exact = fits and all(_same(fit.apart) for fit in fits)
        level = "float32" if exact else self.level(max((fit.worst for fit in fits), default=np.inf))
        return Verdict(fits, level, whole.apart, self._ruled_out(alone, plain, fits), nearest)

    def form(self, verdict: Verdict) -> str | None:
        """The format that explains each number; "" for the model's own, None where none does.

        A difference that is only as large as rounding explains nothing: a bias that is missing can be smaller.
        """
        if not verdict.fits or any(fit.real for fit in verdict.fits):
            return None
        for fit in verdict.fits:
            if _same(fit.apart):
                return fit.mistakes[0].rounding if fit.mistakes else ""
        if not all(map(self.level, verdict.right)):
            return None
        for name in self.stored:
            if name == "bfloat16" or verdict.right.max() <= self.scales[name]:
                return name
        on_steps = on_grid(self.vectors, self.right) or on_grid(self.vectors.T, self.right.T)
        return "int8" if on_steps else None

    # -- distances -------------------------------------------------------------------------------------------

    def _recipe(self, together: Iterable[VectorMistake]) -> Recipe:
        changes: dict[str, Any] = {}
        for key, x in ((key, x) for mistake in together for key, x in mistake.changes.items()):
            changes[key] = self.both(changes[key], x) if key in changes else x
        return self.maker.right._replace(**changes)

    def _apart(
        self, together: tuple[VectorMistake, ...], which: Sequence[int] | None = None, most: float = np.inf
    ) -> Fit:
        """How far the vectors are from those with some mistakes."""
        which = range(len(self.texts)) if which is None else which
        own = [self.vectors[i] for i in which], [self.texts[i] for i in which]
        return Fit(together, misses(*own, self.maker, self._recipe(together), most))

    def _measure(self, plain: Sequence[int]) -> None:
        """See how far weights in narrower formats take the right vectors away: float16, bfloat16, int8."""
        texts = [self.texts[i] for i in plain]
        for name, times in LEVELS:
            made = misses(self.right[plain], texts, self.maker, self._recipe((in_general(name),)))
            self.scales[name] = max(times * float(made.max(initial=0.0)), SAME, *self.scales.values())

    @property
    def limits(self) -> list[tuple[str, float]]:
        """The name of each format, and how large a distance it explains."""
        return [("float32", SAME), *self.scales.items()]

    def level(self, worst: float) -> str:
        """Name the format that explains a distance; "" where none does."""
        return next((name for name, limit in self.limits if worst <= limit), "")

    def _plain(self) -> list[int]:
        """Some short texts in which only mistakes show that show in every text; without such, the shortest ones."""
        some = {"text", "rules", "dropped"}
        local = [self._recipe((m,)) for m in self.known if set(m.changes) & some and not m.alone]
        once = [i for i, text in enumerate(self.texts) if text not in self.texts[:i] and text not in self.maker.aside]
        order = sorted(once or range(len(self.texts)), key=lambda i: self.tokens[i])
        least = self.maker.before + self.maker.after + 2
        short = [i for i in order if least < self.tokens[i] <= PLAIN_TOKENS]
        plain = [i for i in short if not any(self._differ(recipe, self.maker.right, i) for recipe in local)]
        return (plain or [i for i in order if self.tokens[i]] or order)[:PLAIN]

    def _changes(self, mistake: VectorMistake, which: Sequence[int]) -> bool:
        """Whether a mistake shows in the ids of some texts, or in the model's vectors, or is made after these."""
        wrong = self._recipe((mistake,))
        if "model" in mistake.changes:
            texts = [self.texts[i] for i in which]
            return bool(misses(self.right[which], texts, self.maker, wrong, SAME).max() > SAME)
        if not set(mistake.changes) <= IN_SOME_TEXTS | {"prompts", "first", "last"}:
            return True
        return any(self._differ(wrong, self.maker.right, i) for i in which)

    def _differ(self, one: Recipe, other: Recipe, i: int) -> bool:
        """Whether a text has other ids by another recipe."""
        return bool(_ids(self.maker, self.texts[i], one) != _ids(self.maker, self.texts[i], other))

    # -- what fits -------------------------------------------------------------------------------------------

    def _pairs(self, alone: Sequence[Fit]) -> list[tuple[VectorMistake, ...]]:
        """Pairs of mistakes that can be made together; those with one change of the model stand side by side."""
        found = []
        for pair in combinations((fit.mistakes[0] for fit in alone if not fit.mistakes[0].alone), 2):
            fields = [key for mistake in pair for key in mistake.changes]
            odd = any(mistake.changes.get(field) == x for mistake in pair for field, x in UNUSUAL)
            # each would take the model for every length of padding
            costly = bool(PADDED & set(fields) and (odd or {"model", "prompts"} & set(fields)))
            costly |= any(mistake.rare for mistake in pair) and not set(fields) <= AFTER_BLOCKS
            if len(fields) == len(set(fields)) and not costly and not all(mistake.rounding for mistake in pair):
                found.append(pair)
        return sorted(found, key=lambda pair: [str(mistake.changes.get("model", "")) for mistake in pair])

    def _chosen(self, tiers: Sequence[Sequence[Fit]]) -> list[Fit]:
        """The fewest mistakes that leave about as little as more would: the best of them, and what is as good."""
        best = [min((fit.size for fit in tier), default=np.inf) for tier in tiers]
        for depth, tier in enumerate(tiers):
            fitting = [fit for fit in tier if self.level(fit.worst) and self._explains(fit, best[0])]
            if not fitting:
                continue
            own = min(fit.size for fit in fitting)
            gains = [
                deeper >= own * (ALONE if depth == 0 and i == 1 else PAIR) for i, deeper in enumerate(best) if i > depth
            ]
            if min(fit.worst for fit in fitting) <= SAME or all(gains):
                return [fit for fit in fitting if fit.size <= max(SAME, AS_NEAR * own)]
        return []

    def _explains(self, fit: Fit, right: float) -> bool:
        """Whether mistakes leave little of the distance from the right vectors; a format is no mistake."""
        return not fit.real or self.level(fit.worst) in ("float32", "float16") or fit.size <= EXPLAINS * right

    def _of_all_texts(self, fit: Fit) -> list[Fit]:
        """Take all texts; where some differ, add mistakes that show only in them."""
        limit = max(SAME, LOOSE * fit.worst)
        whole = self._apart(fit.mistakes)
        if fit.mistakes and _same(whole.apart):
            return [whole]
        wrong = sorted(np.flatnonzero(whole.apart > limit).tolist(), key=lambda i: self.tokens[i])
        if not wrong:
            return [whole]
        level = [fit.mistakes]
        for _ in range(MOST_LOCAL):
            several = self._one_more(level, wrong, limit)  # each may come in two orders
            level = list({frozenset(each.name for each in some): some for some in several}.values())
            fits = [some for some in level if self._apart(some, wrong, limit).worst <= limit]
            if found := [again for again in map(self._apart, fits) if again.worst <= limit]:
                return found
        return []

    def _one_more(
        self, level: Iterable[tuple[VectorMistake, ...]], wrong: Sequence[int], limit: float
    ) -> Iterator[tuple[VectorMistake, ...]]:
        """Add to some mistakes each that shows in some texts only and makes one fit that did not."""
        for some in level:
            free = IN_SOME_TEXTS - {key for mistake in some for key in mistake.changes} | SHARED
            left = [i for i, far in zip(wrong, self._apart(some, wrong).apart, strict=True) if far > limit]
            for more in self.known:
                local = not more.rounding and set(more.changes) <= free and more not in some
                if local and self._helps((*some, more), left, limit):
                    yield (*some, more)

    def _helps(self, together: tuple[VectorMistake, ...], wrong: Sequence[int], limit: float) -> bool:
        """Whether at least one of the texts that differ then fits; it has other ids then."""
        before, after = self._recipe(together[:-1]), self._recipe(together)
        return any(self._differ(before, after, i) and self._apart(together, [i]).worst <= limit for i in wrong)

    def _ruled_out(self, alone: Sequence[Fit], plain: Sequence[int], fits: Sequence[Fit]) -> list[tuple[str, int]]:
        """Each mistake that does not fit alone, and the first text that says so."""
        kept = {mistake.name for fit in fits for mistake in fit.mistakes}
        limit = max([SAME, *(LOOSE * fit.worst for fit in fits)])
        return [
            (fit.name, plain[int(np.argmax(fit.apart > limit))])
            for fit in alone
            if fit.name not in kept and fit.worst > limit
        ]


def _both(one: Callable[[Any], None], other: Callable[[Any], None]) -> Callable[[Any], None]:
    """Two changes one after the other."""

    def both(rules: Any) -> None:
        one(rules)
        other(rules)

    return both


def _holds(rounding: Callable[[Array], Array], x: Array) -> bool:
    """Whether a format has all these numbers as they are."""
    return bool(np.array_equal(rounding(x), x))


def on_grid(x: Array, right: Array) -> bool:
    """Whether each row of x is what 256 equal steps round the right one to: a vector's scale, or a dimension's."""
    if x.shape[1] < LEAST_ON_GRID:
        return False
    low, high = (f(x, axis=1, keepdims=True).astype(np.float64) for f in (np.min, np.max))
    found = np.zeros(len(x), bool)
    for steps in range(1, 256):
        step = np.maximum((high - low) / steps, TINY)
        whole = np.abs((x - low) / step - np.rint((x - low) / step)) <= OFF_STEP
        found |= (whole & (np.abs(x - right) <= (0.5 + OFF_STEP) * step)).all(1)
    return bool(found.all())


def _same(apart: Array) -> bool:
    """Whether distances are those of one computation: some text in ten may be further away, by `STRAY` at most."""
    return bool(apart.max(initial=0.0) <= STRAY and np.count_nonzero(apart > SAME) <= len(apart) / 10)


def _ids(maker: Maker, text: str, recipe: Recipe) -> Any:
    try:
        ids = maker.encoded(text, recipe).input_ids
        return ids, (recipe.chunks is not None and len(ids) > recipe.chunks) or (
            recipe.sentences and len(sentences(text)) > 1
        )
    except (ValueError, TypeError):
        return None
