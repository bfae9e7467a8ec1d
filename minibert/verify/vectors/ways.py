"""Other ways from texts to vectors: the model with one thing changed.

A setting is the encoder with another `SentenceConfig` or another tokenizer, a text is changed by a function, a wrong
model is an entry of the list of mistakes with `on_vectors`. No way is two of these.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import POOLINGS, normalized
from minibert.families.parts.activations import TORCH
from minibert.families.parts.plan import Plan, Step, by_key, value
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.files.tokenizer_static import unknown_token
from minibert.models.encoder import Encoder
from minibert.models.run.pipeline import Pipeline
from minibert.verify.judge.formats import narrowed
from minibert.verify.mistakes.mistake import At, Mistake, reason, with_mistake
from minibert.verify.mistakes.mistakes import MISTAKES
from minibert.verify.mistakes.plain import all_places, begin, kept
from minibert.verify.mistakes.wrong_formulas import Formula

Make = Callable[[list[str]], Array]
Hand = Callable[[Encoded], tuple[list[int], Array]]  # ids of the tokens that are pooled, and their rows
Rules = dict[str, Any]  # those of a tokenizer.json

LENGTHS = (128, 256, 384, 512)  # of tokens
LETTERS = (256, 500, 512, 1000, 1024, 2000)  # of a text, counted before there are tokens
REQUESTS = (8, 16, 32)  # texts that are padded together
PROMPTS = (
    "query: ", "passage: ", "search_query: ", "search_document: ",
    "Represent this sentence for searching relevant passages: ", "title: none | text: ",
    "task: search result | query: ",
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
)  # of E5, Nomic, BGE, EmbeddingGemma and Qwen  # fmt: skip
NAMES = {"dense": "Dense", "steady": "projection", "layer_norm": "LayerNorm"}
ALL = slice(None)
STATES = 16  # texts whose hidden states are kept: of 512 tokens they are many megabytes
NOWHERE = "\0"  # in no vocabulary
FORMS = ("float16", "bfloat16")


class Way(NamedTuple):
    """A way from texts to vectors: its name, the remedy where it is wrong, and what makes vectors by it."""

    name: str
    remedy: str
    make: Make


class Ways:
    """Lists the ways that one model can be computed by.

    before: the right prompt. texts: all that are asked, whose lengths say how each is padded. width: of the vectors
    that are to be explained.
    """

    def __init__(self, encoder: Encoder, before: str, texts: Sequence[str], width: int) -> None:
        self.encoder, self.before, self.texts, self.width = encoder, before, texts, width
        self.own, self.tokenizer = encoder.sentence_config, encoder.sentence_tokenizer
        inner = self.tokenizer.pieces("a")
        (whole,) = self.tokenizer.encode(["a"])
        places = range(len(whole.input_ids) - len(inner) + 1)
        first = next((i for i in places if whole.input_ids[i : i + len(inner)] == inner), 0)
        last = len(whole.input_ids) - first - len(inner)  # special tokens behind a text
        steps = (Step(str(i), "after", step, (), step) for i, step in enumerate(self.own.after))
        self.pooled = At(encoder, "pooling", by_key(steps))  # what is done to pooled vectors
        self._states = lru_cache(STATES)(partial(self._all_states, [at.plan for at in all_places(encoder)]))
        ends = ("special tokens", first, last), ("first special token", first, 0), ("last special token", 0, last)
        self.ends = [(name, slice(begin, -end or None)) for name, begin, end in ends if begin or end]
        self.special = first + last

    def settings(self) -> Iterator[Way]:
        """List other settings of the folder, other texts, and other tokenizers."""
        for part in (self._poolings, self._modules, self._prompts, self._lengths, self._texts, self._rules,
                     self._special_tokens, self._layers):  # fmt: skip
            yield from part()

    def wrong_models(self) -> Iterator[Way]:
        """List the mistakes that a whole model can have."""
        for mistake in MISTAKES:
            if mistake.on_vectors and not mistake.rounding:
                yield Way(mistake.name, reason(mistake, self.encoder), self._with(mistake))

    def formats(self) -> Iterator[Way]:
        """List the model with its parameters in narrower formats."""
        for mistake in MISTAKES:
            if mistake.rounding:
                yield Way(mistake.rounding, mistake.name, self._with(mistake))

    def computed_in(self, rounding: Formula) -> Make:
        """Make vectors with all parameters and all intermediates of the model rounded."""
        return self._with(Mistake("", "", lambda at: narrowed(rounding, at).values()))

    # -- from texts to vectors -----------------------------------------------------------------------------------

    def _by(
        self, prompt: str | None = None, text: Callable[[str], str] = str, then: Callable[[Array], Array] = np.asarray,
        tokenizer: Callable[[], Tokenizer] | None = None, hand: Hand | None = None, **changes: Any,
    ) -> Make:  # fmt: skip
        """Make vectors by `encode` of the model with another text, another tokenizer or other settings.

        hand: computes each text's rows in the place of the model; of a text that it leaves no token the vector is NaN.
        """

        @cache
        def changed() -> Pipeline:
            made = self.encoder.with_settings(tokenizer and tokenizer(), **changes)
            return made.pipeline(prompt=self.before if prompt is None else prompt)

        def one(encoded: Encoded, compute: Hand) -> Array:
            ids, rows = compute(encoded)
            if not ids:
                return np.full(self.own.width(), np.nan, np.float32)
            found: Array = changed().results(self.encoder.embeddings.pack([Encoded(ids, None)]), rows)[0]
            return found

        def make(texts: list[str]) -> Array:
            asked = [*map(text, texts)]
            if hand is None:
                return np.asarray(then(np.asarray(changed().all(asked))))
            return np.stack([one(encoded, hand) for encoded in changed().tokenize(asked, 0)])

        return make

    def _rows(
        self, encoded: Encoded, taken: slice = ALL, pooled: slice = ALL, state: int = -1, padding: int = 0,
        seen: bool = False, plans: Sequence[Plan] = (),
    ) -> tuple[list[int], Array]:  # fmt: skip
        """Compute the rows of one hidden state of the tokens that are taken, with padding behind them.

        Gives ids and rows of the tokens that are pooled. plans: those of a wrong model.
        """
        ids, types = encoded.input_ids[taken], encoded.token_type_ids
        if not ids:
            return [], np.zeros((0, self.encoder.dim), np.float32)
        kinds = () if types is None or not self.encoder.embeddings.adds_types else (*types[taken], *[0] * padding)
        compute = partial(self._all_states, plans) if plans else self._states
        made = [*ids, *[self.tokenizer.pad_id] * padding]
        return made[pooled], compute((*made,), kinds, 0 if seen else padding)[state][pooled]

    def _all_states(
        self, plans: Sequence[Plan], ids: tuple[int, ...], types: tuple[int, ...], unseen: int
    ) -> list[Array]:
        """Compute the hidden states of one text, (seq, dim) each; no token sees the last `unseen` ones."""
        batch = {"input_ids": np.array([ids], np.int64)} | ({"token_type_ids": np.array([types])} if types else {})
        if unseen:
            batch["attention_mask"] = (np.arange(len(ids)) < len(ids) - unseen).astype(np.int64)[None]
        values = begin(batch)
        for i, plan in enumerate(plans):
            value(f"hidden_states.{i}", plan, values)
            values = kept(values)
        return [values[f"hidden_states.{i}"][0] for i in range(len(plans))]

    def _with(self, mistake: Mistake) -> Make:
        """Make vectors of the model with a mistake in it; TypeError where it cannot be made in this one."""

        @cache  # rounded weights are a copy: made once, and not kept
        def made() -> Make:
            places = [*all_places(self.encoder), self.pooled]
            wrong = [with_mistake(mistake, at) for at in places]
            if not any(wrong):
                raise TypeError(f"this model has no place for {mistake.name!r}")
            *plans, pooled = [plan or at.plan for plan, at in zip(wrong, places, strict=True)]
            after = tuple(step.formula for step in pooled.values())
            return self._by(hand=partial(self._rows, plans=plans), after=after)

        return lambda texts: made()(texts)

    # -- settings: after the blocks ------------------------------------------------------------------------------

    def _after(self, steps: Sequence[Any], **changes: Any) -> Make:
        """Make vectors with other modules after the blocks, whose width is seen by trying them."""

        def make(texts: list[str]) -> Array:
            x = np.ones((1, self.encoder.dim * len(changes.get("poolings", self.own.poolings))), np.float32)
            for step in steps:
                x = step(x)
            return self._by(after=tuple(steps), dim=x.shape[1], **changes)(texts)

        return make

    def _poolings(self) -> Iterator[Way]:
        shown = "one token's" if self.own.picks else " and ".join(self.own.poolings)
        for name in POOLINGS:
            if (name,) != self.own.poolings or self.own.picks:
                make = self._after(self.own.after, poolings=(name,), picks=None)
                yield Way(f"pooling {name}", f"The pooling is {shown}.", make)
        for name, inner in self.ends:
            make = self._by(hand=partial(self._rows, pooled=inner))
            yield Way(f"{name} left out of pooling", "Pool all tokens of the text.", make)

    def _modules(self) -> Iterator[Way]:
        """List ways with a module left out or without its activation, other lengths, fewer numbers."""
        after, own = self.own.after, self.own.width()
        for i, step in enumerate(after):
            others = self._after((*after[:i], *after[i + 1 :]))
            if step is normalized:
                yield Way("vectors not normalized", "Divide each vector by its length.", others)
                continue
            name = NAMES.get(getattr(getattr(step, "func", step), "__name__", ""), f"module {i + 2} of modules.json")
            yield Way(f"{name} left out", f"Apply {name} after pooling.", others)
            for what, neutral in (("activation", TORCH["Identity"]), ("bias", None)):
                if (has := getattr(step, "keywords", {}).get(what)) is not None and has is not neutral:
                    make = self._by(after=(*after[:i], partial(step, **{what: neutral}), *after[i + 1 :]))
                    yield Way(f"{what} of {name} left out", f"This {name} has one.", make)
        if not self.own.ends_normalized:
            yield Way("vectors normalized", "Do not divide the vectors by their length.", self._by(then=normalized))
        if self.width < own:
            name, remedy = f"truncated to the first {self.width} numbers", f"Give all {own} numbers."
            yield Way(name, remedy, self._by(truncate_dim=self.width))
            yield Way(f"{name} and normalized again", remedy, self._by(truncate_dim=self.width, then=normalized))
        if own < self.width == self.own.dim:
            yield Way("vectors not truncated", f"Give the first {own} numbers.", self._by(truncate_dim=None))

    def _layers(self) -> Iterator[Way]:
        depth = len(self.encoder.stack.blocks)
        for i in range(depth):
            name = "last block missing" if i == depth - 1 else f"hidden_states.{i} pooled"
            make = self._by(hand=partial(self._rows, state=i))
            yield Way(name, f"Pool hidden_states.{depth}, which the last of {depth} blocks gives.", make)

    # -- settings: texts and ids ---------------------------------------------------------------------------------

    def _prompts(self) -> Iterator[Way]:
        should = f"Put {self.before!r} before each text." if self.before else "Put nothing before the text."
        if self.before:
            yield Way("prompt missing", should, self._by(prompt=""))
            yield Way("prompt doubled", should, self._by(prompt=self.before * 2))
            pooled = self.own.include_prompt
            name = "prompt not pooled" if pooled else "prompt pooled"
            remedy = "Pool the prompt's tokens too." if pooled else "Leave the prompt's tokens out of pooling."
            yield Way(name, remedy, self._by(include_prompt=not pooled))
        named = {text: f"prompt {name!r}" for name, text in self.own.prompts.items() if text}
        for text in dict.fromkeys((*named, *PROMPTS)):
            if text != self.before:
                yield Way(f"{named.get(text, repr(text))} put before the texts", should, self._by(prompt=text))

    def _lengths(self) -> Iterator[Way]:
        most, own = self.encoder.max_length, self.own.longest
        remedy = f"The longest length is {own or 'without a limit'}, special tokens among them."
        for length in sorted({*LENGTHS, *filter(None, (most, own))}):
            for more, words in ((0, ""), (self.special, " beside the special ones"))[: 1 + (self.special > 0)]:
                if length + more != own and (most is None or length + more <= most):
                    yield Way(f"truncated at {length} tokens{words}", remedy, self._by(longest=length + more))
        left = self.tokenizer.truncates_left
        yield Way(f"truncated at the {'end' if left else 'beginning'}", "A text that is too long loses its other end.",
                  self._by(tokenizer=self._other_end))  # fmt: skip
        if own is not None and self.special:
            yield Way("special tokens truncated", "Truncate the text's tokens, then put the special tokens.",
                      self._by(hand=partial(self._rows, taken=slice(own)), longest=None))  # fmt: skip
        for count in LETTERS:
            make = self._by(text=itemgetter(slice(count)))
            yield Way(f"text cut at {count} letters", "The longest length counts tokens.", make)

    def _other_end(self) -> Tokenizer:
        made = self.tokenizer.changed(lambda rules: None)
        made.truncates_left = not made.truncates_left
        return made

    def _special_tokens(self) -> Iterator[Way]:
        for name, inner in self.ends:
            make = self._by(hand=partial(self._rows, taken=inner))
            yield Way(f"{name} left out", "Put them around each text, as the tokenizer does.", make)
        unknown = unknown_token(self._tokenizer_rules()["model"])
        dropped = None if unknown is None else self.tokenizer.id_of(unknown)
        if dropped is not None:
            remedy = "Keep the unknown token: the model has a row for it. model2vec's own encode drops it."
            make = self._by(hand=lambda encoded: self._rows(
                Encoded([i for i in encoded.input_ids if i != dropped], None)))  # fmt: skip
            yield Way("unknown token left out", remedy, make)

    def _tokenizer_rules(self) -> Rules:
        rules = list[Rules]()
        self.tokenizer.changed(rules.append)
        return rules[0]

    def _texts(self) -> Iterator[Way]:
        changes: tuple[tuple[str, Callable[[str], str]], ...] = (
            ("lower-cased", str.lower), ("without accents", _plain_letters), ("without punctuation", _no_punctuation),
            ("without letters beyond ASCII", lambda text: text.encode("ascii", "ignore").decode()),
            ("read as Latin-1", lambda text: text.encode().decode("latin-1")), ("trimmed", str.strip),
            *((f"in {form}", partial(unicodedata.normalize, form)) for form in ("NFC", "NFD", "NFKC")),
            ("in one line", lambda text: " ".join(text.splitlines())), ("after a space", lambda text: f" {text}"),
        )  # fmt: skip
        for name, change in changes:
            yield Way(f"text {name}", "Pass the text as it is written, in UTF-8.", self._by(text=change))

    def _rules(self) -> Iterator[Way]:
        """List changes of the rules in tokenizer.json that apply to this model's."""
        rules = self._tokenizer_rules()
        bert = next((step for step in _normalizers(rules) if step["type"] == "BertNormalizer"), {})
        strips = bert.get("lowercase") if bert.get("strip_accents") is None else bert["strip_accents"]
        pieces = rules["model"].get("continuing_subword_prefix")
        for name, there, change in (
            ("case kept", bert.get("lowercase"), partial(_set, {"lowercase": False, "strip_accents": bool(strips)})),
            ("accents kept", strips, partial(_set, {"strip_accents": False})),
            ("case and accents kept", strips, partial(_set, {"lowercase": False, "strip_accents": False})),
            ("Chinese characters not set apart", bert.get("handle_chinese_chars"),
             partial(_set, {"handle_chinese_chars": False})),
            ("control characters kept", bert.get("clean_text"), partial(_set, {"clean_text": False})),
            ("text not normalized", rules["normalizer"], lambda rules: rules.update(normalizer=None)),
            ("punctuation not set apart", (rules["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer",
             lambda rules: rules.update(pre_tokenizer={"type": "WhitespaceSplit"})),
            ("words not cut into pieces", pieces,
             lambda rules: rules["model"].update(continuing_subword_prefix=NOWHERE)),
            ("pieces looked up without their prefix", pieces,
             lambda rules: rules["model"].update(continuing_subword_prefix="")),
            ("long words cut into pieces", "max_input_chars_per_word" in rules["model"],
             lambda rules: rules["model"].update(max_input_chars_per_word=10**6)),
            ("special tokens of the text cut as words", rules["added_tokens"],
             lambda rules: rules.update(added_tokens=[])),
        ):  # fmt: skip
            if there:
                make = self._by(tokenizer=partial(self.tokenizer.changed, change))
                yield Way(name, "tokenizer.json has this rule otherwise: follow it.", make)

    # -- settings: padding ---------------------------------------------------------------------------------------

    def padding(self) -> Iterator[Way]:
        """List padding that is pooled, or gets attention weights, to each length that a program usually pads to."""
        most = self.encoder.max_length or max(LENGTHS)
        encoded = self.encoder.pipeline(prompt=self.before).tokenize([*self.texts], 0)
        counts = {text: len(each.input_ids) for text, each in zip(self.texts, encoded, strict=True)}
        fixed = {n for n in (LENGTHS[-1], self.own.longest) if n and max(counts.values()) <= n <= most}
        several = [dict.fromkeys(counts, n) for n in sorted(fixed)]
        orders = [list(self.texts), sorted(self.texts, key=len, reverse=True)]
        for size in (*(size for size in REQUESTS if size < len(self.texts)), len(self.texts)):
            for order in orders:
                requests = [order[i : i + size] for i in range(0, len(order), size)]
                several.append({text: max(counts[each] for each in some) for some in requests for text in some})
        for name, seen, pooled in (("padding pooled", False, True), ("padding seen", True, False),
                                   ("padding seen and pooled", True, True)):  # fmt: skip
            remedy = "Padding has no attention weight and no part in the pooling: pass the attention mask to both."
            for lengths in several:
                yield Way(name, remedy, partial(self._padded, counts, lengths, seen, pooled))

    def _padded(
        self, counts: dict[str, int], lengths: dict[str, int], seen: bool, pooled: bool, texts: list[str]
    ) -> Array:
        made = list[Array]()
        for text in texts:
            padding = (lengths[text] if seen else max(lengths.values())) - counts[text]  # unseen it changes nothing
            taken = slice(lengths[text] if pooled else counts[text])
            made.append(self._by(hand=partial(self._rows, pooled=taken, padding=padding, seen=seen))([text]))
        return np.concatenate(made)


def _normalizers(rules: Rules) -> list[Rules]:
    own = rules["normalizer"] or {"type": "Sequence", "normalizers": []}
    return list(own["normalizers"]) if own["type"] == "Sequence" else [own]


def _set(values: Rules, rules: Rules) -> None:
    """Change BERT's normalizer; where accents follow the case, they are named too."""
    for step in _normalizers(rules):
        if step["type"] == "BertNormalizer":
            step.update(values)


def _plain_letters(text: str) -> str:
    split = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", "".join(c for c in split if unicodedata.category(c) != "Mn"))


def _no_punctuation(text: str) -> str:
    return "".join(c for c in text if c not in string.punctuation)
