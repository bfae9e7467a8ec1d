"""How a text becomes a vector, with every part that a port or a server gets wrong as a field of its own.

A `Recipe` says how; `Maker` computes a text's vector by it. What a wrong model computes comes from the same blocks and
the same poolings as the right vectors: only what is fed to them, or bound in them, is another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert.equations import fast
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.equations.sentences import POOLINGS, normalized
from minibert.families.parts.plan import Step, by_key, value
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.models.encoder import Encoder
from minibert.verify.mistakes.mistake import At, Mistake, with_mistake
from minibert.verify.mistakes.plain import all_places, begin, kept

Rules = dict[str, Any]  # those of a tokenizer.json
FIXED = (8, 16, 32, 64, 128, 256, 512)  # to these lengths texts are padded
# The distance of two vectors as a share of the length. Measured on all-MiniLM-L6-v2: 1.3e-6 between right programs,
# plain float32 loops among them.
SAME = 1e-5
SHORT, KEPT = 64, 100  # tokens of a text whose hidden states are kept, and how many texts have them

# those of `POOLINGS`, and what no model is pooled by
POOLED: dict[str, Callable[..., Array]] = {
    **POOLINGS,
    "sum": lambda rows, skip: rows[:, skip:].sum(axis=1),
    "max, padding as 0": lambda rows, skip: np.maximum(POOLINGS["max"](rows, skip), 0),
    "cls and mean averaged": lambda rows, skip: (rows[:, 0] + POOLINGS["mean"](rows, skip)) / 2,
}


class Recipe(NamedTuple):
    """How one text becomes one vector; the fields stand in the order of computing.

    prompts      texts put before the text; `text` changes the text itself
    rules        what is changed in the tokenizer's rules
    longest      tokens, special ones among them
    other_end    a text that is too long is cut at its other end
    sliced       it is cut after special tokens are put, and loses those of that end
    chunks       how many tokens of a longer text make one vector, special ones among them: the mean of these is given
    sentences    a text's sentences make one vector each: the mean of these is given
    dropped      an id whose tokens are left out
    first, last  how many times the special tokens before and after the text are there
    exchanged    those after it stand before it
    ends         other ids in the place of the first and the last one
    model        a mistake of the list, made in the whole model
    seen         whether padding gets attention weights
    left         padding stands before the text, and positions count it
    pads         whether padding is pooled; to which length texts are padded is not known, so each is tried
    spread       their mean is divided by that length, though only the text's tokens are summed
    unpooled     whether special tokens before and after the text are left out of pooling
    skip_prompt  the prompt's tokens are not pooled
    poolings     names in `POOLED`
    before       the module after pooling is applied to each token, before it
    between      what is done between pooling and the modules after it
    without      which module after pooling is left out, by its number
    given        which one is given other arguments, and these
    norm         what the vector is divided by its length with in the end, or by another measure
    width        how many of the first numbers are given
    stored       what the finished vector is rounded to
    """

    prompts: tuple[str, ...]
    longest: int | None
    poolings: tuple[str, ...]
    skip_prompt: bool
    width: int | None
    text: Callable[[str], str] = str
    rules: Callable[[Rules], None] | None = None
    other_end: bool = False
    sliced: bool = False
    chunks: int | None = None
    sentences: bool = False
    dropped: int | None = None
    first: int = 1
    last: int = 1
    exchanged: bool = False
    ends: tuple[int, int] | None = None
    model: Mistake | None = None
    seen: bool = False
    left: bool = False
    pads: bool = False
    spread: bool = False
    unpooled: tuple[bool, bool] = (False, False)
    before: bool = False
    between: Callable[[Array], Array] | None = None
    without: int | None = None
    given: tuple[int, dict[str, Any]] = (0, {})
    norm: Callable[[Array], Array] | None = None
    stored: Callable[[Array], Array] | None = None


class Plain:
    """An encoder whose blocks compute by their steps, padding too, with a mistake if there is one.

    right: the same without a mistake, whose hidden states of short texts go into the first block that is wrong.
    """

    def __init__(self, encoder: Encoder, mistake: Mistake | None = None, right: Plain | None = None) -> None:
        self.dim, self._right, self._known = encoder.dim, right, dict[str, dict[str, Array]]()
        places = list(all_places(encoder))
        wrong = [mistake and with_mistake(mistake, at) for at in places]
        self._first = next((i for i, plan in enumerate(wrong) if plan), 0)
        plans = [plan or at.plan for plan, at in zip(wrong, places, strict=True)]
        self._plans = [{key: _in_fewer_passes(step) for key, step in plan.items()} for plan in plans]

    def __call__(self, input_ids: Any, **batch: Any) -> Array:
        short = self._right is not None and isinstance(input_ids, list) and len(input_ids[0]) <= SHORT
        values, first = begin({"input_ids": input_ids, **batch}), self._first if short else 0
        if self._right is not None and first:
            known = self._right.states(input_ids, **batch)
            values |= {f"hidden_states.{i}": known[f"hidden_states.{i}"] for i in range(first)}
        return np.asarray(self._run(values, first)[f"hidden_states.{len(self._plans) - 1}"])

    def _run(self, values: dict[str, Any], first: int = 0) -> dict[str, Any]:
        for i, plan in enumerate(self._plans[first:], first):
            value(f"hidden_states.{i}", plan, values)
            values = kept(values)  # what a block computes is dropped: of 512 tokens it is many megabytes
        return values

    def states(self, input_ids: Any, **batch: Any) -> dict[str, Array]:
        """Give every hidden state; those of the first texts are kept."""
        key = repr((input_ids, batch))
        if key in self._known:
            return self._known[key]
        found = self._run(begin({"input_ids": input_ids, **batch}))
        if len(self._known) < KEPT:
            self._known[key] = found
        return found


def after_pooling(encoder: Encoder) -> At:
    """What sentence-transformers does after pooling."""
    own = enumerate(encoder.sentence_config.after)
    return At(encoder, "pooling", by_key(Step(str(i), "after", step, (), step) for i, step in own))


def _formulas(at: At, mistake: Mistake | None) -> list[Callable[..., Any]]:
    return [step.formula for step in ((mistake and with_mistake(mistake, at)) or at.plan).values()]


def _in_fewer_passes(step: Step) -> Step:
    if step.kind == "softmax" and step.formula is softmax:
        return step._replace(formula=fast.softmax)
    formula: Any = step.formula
    return step._replace(formula=fast.faster(formula)) if step.kind == "activation" else step


class NoTokensError(ValueError):
    """A mistake leaves no token of a text: what a wrong program then gives is not known."""


class Maker:
    """Computes vectors by recipes. Token rows are kept, since most recipes differ in other things than these."""

    def __init__(self, encoder: Encoder, prompt_name: str | None = None, prompt: str | None = None) -> None:
        own = encoder.sentence_config
        before = own.prompt(prompt_name, prompt)
        self.encoder, self.own = encoder, own
        self.right = Recipe((before,) if before else (), own.longest, own.poolings, not own.include_prompt, own.width())
        self.tokenizers: dict[Any, Tokenizer] = {(None, False): encoder.sentence_tokenizer}
        self.models: dict[Any, Encoder | Plain] = {None: encoder}
        self.plain = Plain(encoder)
        self._steps: dict[Any, list[Callable[..., Array]]] = {}  # after pooling
        self.lengths: dict[str, set[int]] = {}  # of each text of a comparison: how long the texts beside it may be
        self.aside: dict[str, str] = {}  # texts whose vectors rule out nothing, and why
        self.fitted: list[int] = []  # lengths to which texts were padded that fitted, the last one first
        self._rows: dict[Any, Array] = {}
        inner = encoder.sentence_tokenizer.pieces("a")
        (whole,) = encoder.sentence_tokenizer.encode(["a"])
        self.before = next(
            (i for i in range(len(whole.input_ids)) if whole.input_ids[i : i + len(inner)] == inner), 0
        )  # how many special tokens are put before and after a text
        self.after = len(whole.input_ids) - self.before - len(inner)
        self.ends = whole.input_ids[0], whole.input_ids[-1]

    def vectors(self, text: str, recipe: Recipe) -> Array:
        """Give the vector, or each one that is possible: (n, dim). Raises ValueError for what cannot be computed."""
        return np.concatenate([x for _, x in self.ways(text, recipe)])

    def ways(self, text: str, recipe: Recipe) -> Iterator[tuple[int, Array]]:
        """Give each vector that is possible, (1, dim), with the length that its text was padded to; 0 for none."""
        if recipe.sentences:
            yield from ((0, x) for x in self._averages(sentences(text), recipe._replace(sentences=False)))
            return
        for encoded in self._encodings(text, recipe):
            if recipe.chunks is not None and len(encoded.input_ids) > recipe.chunks:
                yield from ((0, x) for x in self._averages(self._chunks(encoded, recipe.chunks), recipe))
                continue
            if recipe.pads or recipe.seen or recipe.left or recipe.spread:
                found = self._padded(text, encoded, recipe)
            else:
                found = iter([(0, self._pooled(self._tokens(encoded, recipe), encoded, recipe))])
            for length, pooled in found:
                yield length, self._finished(pooled, recipe)

    def encoded(self, text: str, recipe: Recipe) -> Encoded:
        return next(iter(self._encodings(text, recipe)))

    def _encodings(self, text: str, recipe: Recipe) -> Iterator[Encoded]:
        """Tokenize one text; with other special tokens a long text may be truncated before they are put, or after."""
        more = self.before * (recipe.first - 1) + self.after * (recipe.last - 1)
        whole, done = "".join((*recipe.prompts, recipe.text(text))), list[Encoded]()
        for further in (0, -more):
            longest = None if recipe.longest is None else recipe.longest + further
            room = None if recipe.sliced or recipe.chunks else longest
            (found,) = self.tokenizer(recipe).encode([whole], None, truncation=True, max_length=room)
            made = self._with_special(found, recipe)
            if recipe.sliced and longest is not None:
                places = range(len(made.input_ids))
                made = _taken(made, places[-longest:] if self.tokenizer(recipe).truncates_left else places[:longest])
            ways = [made]
            if (
                longest is not None and len(made.input_ids) > longest and not recipe.chunks
            ):  # as those that are written in the text are cut
                ways.append(_taken(made, [*range(longest - self.after), *range(-self.after, 0)]))
            for way in ways:
                if way not in done:
                    done.append(way)
                    yield way

    def _with_special(self, right: Encoded, recipe: Recipe) -> Encoded:
        """Put the special tokens as the recipe says."""
        places = list(range(len(right.input_ids)))
        end = len(places) - self.after
        first, inner, last = places[: self.before], places[self.before : end], places[end:]
        if recipe.exchanged:
            first, last = last, first
        inner = [i for i in inner if right.input_ids[i] != recipe.dropped]
        made = _taken(right, [*first * recipe.first, *inner, *last * recipe.last])
        if recipe.ends is not None:
            made.input_ids[0], made.input_ids[-1] = recipe.ends
        return made

    def _chunks(self, whole: Encoded, most: int) -> list[Encoded]:
        """Cut a long text into chunks, each with its special tokens."""
        places = range(len(whole.input_ids))
        first, inner, last = places[: self.before], places[self.before : len(places) - self.after], places[::-1]
        room = max(1, most - self.before - self.after)
        parts = [[*first, *inner[i : i + room], *reversed(last[: self.after])] for i in range(0, len(inner), room)]
        return [_taken(whole, part) for part in parts]

    def _averages(self, parts: Sequence[Encoded | str], recipe: Recipe) -> Iterator[Array]:
        """Give the mean of a text's parts: of their vectors, or of these times how many tokens there are; each as it
        is, or divided by its length, where that is the model's end."""
        several = [self.encoded(part, recipe) if isinstance(part, str) else part for part in parts]
        pooled = np.concatenate([self._pooled(self._tokens(part, recipe), part, recipe) for part in several])
        many = np.array([[len(part.input_ids)] for part in several], np.float32)
        made = np.concatenate([self._finished(x[None], recipe) for x in pooled])
        for weights in (np.ones_like(many), many):
            share = weights / weights.sum()
            yield self._finished((pooled * share).sum(0, keepdims=True), recipe)
            mean = (made * share).sum(0, keepdims=True)
            yield mean
            if self.own.ends_normalized:
                yield normalized(mean)

    def tokenizer(self, recipe: Recipe) -> Tokenizer:
        key = recipe.rules, recipe.other_end
        if key not in self.tokenizers:
            made = self.tokenizers[None, False].changed(recipe.rules or (lambda rules: None))
            made.truncates_left ^= recipe.other_end
            self.tokenizers[key] = made
        return self.tokenizers[key]

    def model(self, recipe: Recipe) -> Encoder | Plain:
        """Give the model as the recipe changes it. Only the last one is kept: rounded weights are a copy."""
        if recipe.model not in self.models:
            self.models = {None: self.encoder, recipe.model: Plain(self.encoder, recipe.model, self.plain)}
        return self.models[recipe.model]

    # -- ids -> rows -----------------------------------------------------------------------------------------

    def _tokens(self, encoded: Encoded, recipe: Recipe, padding: int = 0) -> Array:
        """The last hidden state of one text, and of padding that counts as tokens: (seq, dim)."""
        key = (tuple(encoded.input_ids), padding, recipe.model, recipe.seen, recipe.left)
        if key in self._rows:
            return self._rows[key]
        model, given = self.model(recipe), dict[str, Any]()
        before, after = [padding, 0][:: 1 if recipe.left else -1] if recipe.seen else (0, 0)
        pad_id = self.encoder.sentence_tokenizer.pad_id
        ids = [*[pad_id] * before, *encoded.input_ids, *[pad_id] * after]
        if not ids:
            return np.zeros((0, model.dim), np.float32)
        if padding and not recipe.seen:
            given["position_ids"] = self.encoder.embeddings.trace([ids])["position_ids"] + padding
        if self.encoder.embeddings.adds_types and encoded.token_type_ids:
            given["token_type_ids"] = [[*[0] * before, *encoded.token_type_ids, *[0] * after]]
        self._rows[key] = np.asarray(model([ids], **given)[0])
        return self._rows[key]

    def _padded(self, text: str, encoded: Encoded, recipe: Recipe) -> Iterator[tuple[int, Array]]:
        """Pool the text with each padding that there may have been: first with that which has fitted others."""
        count, most = len(encoded.input_ids), self.encoder.max_length or max(FIXED)
        beside = set().union(*self.lengths.values())
        if recipe.seen or recipe.left:  # each takes the model anew
            beside = {n for n in self.lengths.get(text, ()) if n <= max(FIXED)}
        lengths = [n for n in sorted({count, *beside, *FIXED}) if count <= n <= most]  # the longest has none
        known = [n for n in self.fitted if n in lengths]
        for length in (*known, *(n for n in lengths if n not in known)):
            if recipe.spread:
                pooled = self._pooled(self._tokens(encoded, recipe), encoded, recipe)
                yield length, pooled * np.float32(count / length)
                continue
            if recipe.seen or recipe.left:
                rows = self._tokens(encoded, recipe, length - count)
                if not recipe.pads and len(rows) == length:
                    rows = rows[length - count :] if recipe.left else rows[:count]
            else:
                rows = self._beside(encoded, recipe, length if length in known else lengths[-1])[:length]
            yield length, self._pooled(rows, encoded, recipe)

    def _beside(self, encoded: Encoded, recipe: Recipe, length: int) -> Array:
        """The rows of a text and of padding that no token sees: at least `length`."""
        key = ("beside", tuple(encoded.input_ids), recipe.model)
        if key not in self._rows or len(self._rows[key]) < length:
            model = self.model(recipe)
            count = len(encoded.input_ids)
            ids = np.array([[*encoded.input_ids, *[self.encoder.sentence_tokenizer.pad_id] * (length - count)]])
            model = model if isinstance(model, Plain) else Plain(model)
            self._rows[key] = model(ids, attention_mask=(np.arange(length) < count).astype(np.int64)[None])[0]
        return self._rows[key]

    # -- rows -> vector --------------------------------------------------------------------------------------

    def _pooled(self, rows: Array, encoded: Encoded, recipe: Recipe) -> Array:
        skip = 0
        if recipe.skip_prompt and recipe.prompts:
            (alone,) = self.tokenizer(recipe).encode(
                ["".join(recipe.prompts)], None, truncation=True, max_length=recipe.longest
            )
            skip = len(alone.input_ids) - self.after
        first, last = recipe.unpooled
        rows = rows[first * self.before * recipe.first : len(rows) - last * self.after * recipe.last]
        if not len(rows) and recipe != self.right:
            raise NoTokensError
        if recipe.before:
            rows = self._after(recipe)[0](rows)
        if self.own.picks is not None and recipe.poolings == self.right.poolings:
            return rows[self.own.picks(np.array([encoded.input_ids]))]
        return np.concatenate([POOLED[name](rows[None], skip) for name in recipe.poolings], axis=1)

    def _finished(self, x: Array, recipe: Recipe) -> Array:
        place, given = recipe.given
        x = recipe.between(x) if recipe.between else x
        for i, step in enumerate(self._after(recipe)):
            if i != recipe.without and not (recipe.before and i == 0):
                x = step(x, **(given if i == place else {}))
        x = x[:, : None if recipe.width == self.own.dim else recipe.width]  # without a Dense there may be more
        return recipe.norm(x) if recipe.norm else x

    def _after(self, recipe: Recipe) -> list[Callable[..., Array]]:
        """What is done after pooling."""
        if recipe.model not in self._steps:
            self._steps[recipe.model] = _formulas(after_pooling(self.encoder), recipe.model)
        return self._steps[recipe.model]


def sentences(text: str) -> list[str]:
    """Cut a text after each full stop, question mark and exclamation mark that a space follows.

    >>> sentences("One. Two? 3.5 is three")
    ['One.', 'Two?', '3.5 is three']
    """
    return re.split(r"(?<=[.!?])\s+", text)


def _taken(encoded: Encoded, places: Sequence[int]) -> Encoded:
    ids, types = encoded.input_ids, encoded.token_type_ids
    return Encoded([ids[i] for i in places], None if types is None else [types[i] for i in places])


def lengths_beside(texts: Sequence[str], tokens: Sequence[int]) -> dict[str, set[int]]:
    """How many tokens the longest text of a request has, for each text: in requests of any size, in the texts' order
    and from the longest on, as sentence-transformers sorts them."""
    found: dict[str, set[int]] = {}
    in_order = range(len(texts))
    for order in (in_order, sorted(in_order, key=lambda i: -len(texts[i]))):
        for size in range(1, len(texts) + 1):
            for start in range(0, len(texts), size):
                request = order[start : start + size]
                longest = max(tokens[i] for i in request)
                for i in request:
                    found.setdefault(texts[i], set()).add(longest)
    return found


def distances(vector: Array, made: Array) -> Array:
    """The distance to each of `made` as a share of its length: (dim,), (n, dim) -> (n,); infinity for another width."""
    if made.shape[1:] != vector.shape:
        return np.full(len(made), np.inf)
    wide, true = vector.astype(np.float64), made.astype(np.float64)
    length = np.sqrt(np.vecdot(true, true))
    with np.errstate(invalid="ignore"):  # infinity less infinity
        apart = np.sqrt(np.vecdot(wide - true, wide - true)) / np.where(length == 0, 1, length)
    return np.where(np.isfinite(apart), apart, np.inf)


def as_stored(vector: Array, made: Array, rounding: Callable[[Array], Array]) -> Array:
    """Round `made` (1, dim) to the format of a stored vector; a number that may go either way goes the vector's.

    Between right programs a few numbers of a vector lie on two sides of a tie, and a whole step apart once rounded.
    """
    spread = SAME / 10 * np.abs(made).max(initial=0)
    with np.errstate(invalid="ignore"):  # a mistake may leave infinities, and their difference is NaN
        either = (vector == rounding(made - spread)) | (vector == rounding(made + spread))
    return np.where(either, vector, rounding(made))


def nearest(vector: Array, text: str, maker: Maker, recipe: Recipe) -> float:
    """The distance of a vector from the text's, by a recipe; of several ways that of the first that is the same.

    Infinity where there is no such vector; 0, which rules out nothing, where the mistake leaves no token of the text.
    """
    best = np.inf
    if text in maker.aside:
        return 0.0
    try:
        for length, made in maker.ways(text, recipe._replace(stored=None)):
            made = made if recipe.stored is None else as_stored(vector, made, recipe.stored)
            best = min(best, float(distances(vector, made)[0]))
            if best <= SAME:
                if length:
                    maker.fitted = [length, *(n for n in maker.fitted if n != length)]
                return best
    except NoTokensError:
        return 0.0
    except (ValueError, TypeError, IndexError, KeyError):  # this mistake cannot be made with this text
        return float("inf")
    return best


def misses(vectors: Iterable[Array], texts: Sequence[str], maker: Maker, recipe: Recipe, most: float = np.inf) -> Array:
    """`nearest` of every text (texts,); after the first one that is further away than `most` all are infinite."""
    found = np.full(len(texts), np.inf)
    for i, (vector, text) in enumerate(zip(vectors, texts, strict=True)):
        found[i] = nearest(vector, text, maker, recipe)
        if found[i] > most:
            break
    return found
