"""Other ways from texts to vectors: the model with one thing changed.

A setting is the encoder with another `SentenceConfig` or another tokenizer, a text is changed by a function, a wrong
model is an entry of the list of mistakes with `on_vectors`. No way is two of these.
"""

from __future__ import annotations

import json
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
from minibert.models.encoder import Encoder
from minibert.models.run.pipeline import TextPipeline
from minibert.verify.judge.formats import narrowed
from minibert.verify.mistakes.mistake import At, Mistake, reason, with_mistake
from minibert.verify.mistakes.mistakes import MISTAKES
from minibert.verify.mistakes.plain import all_places, begin, kept
from minibert.verify.mistakes.wrong_formulas import Formula

Make = Callable[[list[str]], Array]
Rules = dict[str, Any]  # those of a tokenizer.json
Row = tuple[str, str, Rules]  # a way's name, its remedy, and what `_by` takes

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
ALL, WIDE = slice(None), 1 << 20  # of tokens, and of numbers
STATES = 16  # texts whose hidden states are kept: of 512 tokens they are many megabytes
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
        ((_, spans),) = self.tokenizer.encode_with_spans(["a"])
        inner = [i for i, span in enumerate(spans) if span is not None] or [0]
        first, last = inner[0], len(spans) - 1 - inner[-1]  # special tokens before and behind a text
        self.special, either = first + last, [("first special token", first, 0), ("last special token", 0, last)]
        self.ends = [(name, slice(begin, -end or None))
                     for name, begin, end in (("special tokens", first, last), *either) if begin or end]  # fmt: skip
        steps = (Step(str(i), "after", step, (), step) for i, step in enumerate(self.own.after))
        self.pooled = At(encoder, "pooling", by_key(steps))  # what is done to pooled vectors
        self._states = lru_cache(STATES)(partial(self._all_states, [at.plan for at in all_places(encoder)]))

    def settings(self) -> Iterator[Way]:
        """List other settings of the folder, other texts, and other tokenizers."""
        for part in self._poolings, self._modules, self._prompts, self._lengths, self._texts, self._rules:
            for name, remedy, changes in part():
                yield Way(name, remedy, self._by(**changes))

    def mistakes(self, formats: bool = False) -> Iterator[Way]:
        """List the mistakes that a whole model can have; formats: the model with its parameters in narrower ones."""
        for mistake in MISTAKES:
            if mistake.rounding if formats else mistake.on_vectors and not mistake.rounding:
                yield Way(mistake.rounding or mistake.name, reason(mistake, self.encoder), self._with(mistake))

    def computed_in(self, rounding: Formula) -> Make:
        """Make vectors with all parameters and all intermediates of the model rounded."""
        return self._with(Mistake("", "", lambda at: narrowed(rounding, at).values()))

    # -- from texts to vectors -----------------------------------------------------------------------------------

    def _by(
        self, prompt: str | None = None, text: Callable[[str], str] = str, then: Callable[[Array], Array] = np.asarray,
        tokenizer: Callable[[], Tokenizer] | None = None, rows: dict[str, Any] | None = None, **changes: Any,
    ) -> Make:  # fmt: skip
        """Make vectors by `encode` of the model with another text, another tokenizer or other settings.

        rows: what `_vector` takes, which then computes each text in the place of the model.
        """

        @cache
        def changed() -> TextPipeline:  # of vectors as wide as they come
            made = self.encoder.with_settings(tokenizer and tokenizer(), **{"dim": WIDE, **changes})
            steps = made.pipeline(prompt=self.before if prompt is None else prompt)
            steps.dim = None if steps.dim == WIDE else steps.dim
            return steps

        def make(texts: list[str]) -> Array:
            asked = [*map(text, texts)]
            if rows is None:
                return np.asarray(then(np.stack(changed().all(asked))))
            return np.stack([self._vector(changed(), each, **rows) for each in changed().tokenize(asked, 0)])

        return make

    def _vector(
        self, pipeline: TextPipeline, encoded: Encoded, taken: slice = ALL, pooled: slice = ALL, state: int = -1,
        padding: int = 0, seen: bool = False, plans: Sequence[Plan] = (),
    ) -> Array:  # fmt: skip
        """Compute a text's vector from one hidden state of the tokens that are taken, with padding behind them.

        It is NaN where no token is left. plans: those of a wrong model.
        """
        ids, types = encoded.input_ids[taken], encoded.token_type_ids
        whole = (*ids, *[self.tokenizer.pad_id] * padding)
        if not ids or not whole[pooled]:
            return np.full(self.own.width(), np.nan, np.float32)
        kinds = () if types is None or not self.encoder.embeddings.adds_types else (*types[taken], *[0] * padding)
        compute = partial(self._all_states, plans) if plans else self._states
        x = compute(whole, kinds, 0 if seen else padding)[state][pooled]
        return np.asarray(pipeline.pool(self.encoder.embeddings.pack([Encoded([*whole[pooled]], None)]), x)[0])

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
            return self._by(rows={"plans": plans}, after=tuple(step.formula for step in pooled.values()))

        return lambda texts: made()(texts)

    # -- settings: after the blocks ------------------------------------------------------------------------------

    def _poolings(self) -> Iterator[Row]:
        shown = "one token's" if self.own.picks else " and ".join(self.own.poolings)
        for name in POOLINGS:
            if (name,) != self.own.poolings or self.own.picks:
                yield f"pooling {name}", f"The pooling is {shown}.", {"poolings": (name,), "picks": None}
        for name, inner in self.ends:
            yield f"{name} left out of pooling", "Pool all tokens of the text.", {"rows": {"pooled": inner}}
            yield f"{name} left out", "Put them around each text, as the tokenizer does.", {"rows": {"taken": inner}}
        depth = len(self.encoder.stack.blocks)
        for i in range(depth):
            name = "last block missing" if i == depth - 1 else f"hidden_states.{i} pooled"
            yield name, f"Pool hidden_states.{depth}, which the last of {depth} blocks gives.", {"rows": {"state": i}}

    def _modules(self) -> Iterator[Row]:
        """List ways with a module left out or without its activation, other lengths, fewer numbers."""
        after, own = self.own.after, self.own.width()
        for i, step in enumerate(after):
            others = {"after": (*after[:i], *after[i + 1 :])}
            if step is normalized:
                yield "vectors not normalized", "Divide each vector by its length.", others
                continue
            name = NAMES.get(getattr(getattr(step, "func", step), "__name__", ""), f"module {i + 2} of modules.json")
            yield f"{name} left out", f"Apply {name} after pooling.", others
            for what, neutral in (("activation", TORCH["Identity"]), ("bias", None)):
                if (has := getattr(step, "keywords", {}).get(what)) is not None and has is not neutral:
                    without = (*after[:i], partial(step, **{what: neutral}), *after[i + 1 :])
                    yield f"{what} of {name} left out", f"This {name} has one.", {"after": without}
        if not self.own.ends_normalized:
            yield "vectors normalized", "Do not divide the vectors by their length.", {"then": normalized}
        if self.width < own:
            name, remedy = f"truncated to the first {self.width} numbers", f"Give all {own} numbers."
            yield name, remedy, {"truncate_dim": self.width}
            yield f"{name} and normalized again", remedy, {"truncate_dim": self.width, "then": normalized}
        if own < self.width == self.own.dim:
            yield "vectors not truncated", f"Give the first {own} numbers.", {"truncate_dim": None}

    # -- settings: texts and ids ---------------------------------------------------------------------------------

    def _prompts(self) -> Iterator[Row]:
        should = f"Put {self.before!r} before each text." if self.before else "Put nothing before the text."
        if self.before:
            yield "prompt missing", should, {"prompt": ""}
            yield "prompt doubled", should, {"prompt": self.before * 2}
            pooled = self.own.include_prompt
            remedy = "Pool the prompt's tokens too." if pooled else "Leave the prompt's tokens out of pooling."
            yield "prompt not pooled" if pooled else "prompt pooled", remedy, {"include_prompt": not pooled}
        named = {text: f"prompt {name!r}" for name, text in self.own.prompts.items() if text}
        for text in dict.fromkeys((*named, *PROMPTS)):
            if text != self.before:
                yield f"{named.get(text, repr(text))} put before the texts", should, {"prompt": text}

    def _lengths(self) -> Iterator[Row]:
        most, own = self.encoder.max_length, self.own.longest
        remedy = f"The longest length is {own or 'without a limit'}, special tokens among them."
        for length in sorted({*LENGTHS, *filter(None, (most, own))}):
            for longest, words in {length + self.special: " beside the special ones", length: ""}.items():
                if longest != own and (most is None or longest <= most):
                    yield f"truncated at {length} tokens{words}", remedy, {"longest": longest}
        end = "end" if self.tokenizer.truncates_left else "beginning"
        yield f"truncated at the {end}", "A text that is too long loses its other end.", {"tokenizer": self._other_end}
        if own is not None and self.special:
            changes = {"rows": {"taken": slice(own)}, "longest": None}
            yield "special tokens truncated", "Truncate the text's tokens, then put the special tokens.", changes
        for count in LETTERS:
            cut = itemgetter(slice(count))
            yield f"text cut at {count} letters", "The longest length counts tokens.", {"text": cut}

    def _other_end(self) -> Tokenizer:
        made = self.tokenizer.changed(lambda rules: None)
        made.truncates_left = not made.truncates_left
        return made

    def _texts(self) -> Iterator[Row]:
        changes: tuple[tuple[str, Callable[[str], str]], ...] = (
            ("lower-cased", str.lower), ("without accents", _plain_letters),
            ("without punctuation", lambda text: text.translate(dict.fromkeys(map(ord, string.punctuation)))),
            ("without letters beyond ASCII", lambda text: text.encode("ascii", "ignore").decode()),
            ("read as Latin-1", lambda text: text.encode().decode("latin-1")), ("trimmed", str.strip),
            *((f"in {form}", partial(unicodedata.normalize, form)) for form in ("NFC", "NFD", "NFKC")),
            ("in one line", lambda text: " ".join(text.splitlines())), ("after a space", lambda text: f" {text}"),
        )  # fmt: skip
        for name, change in changes:
            yield f"text {name}", "Pass the text unchanged, in UTF-8.", {"text": change}

    def _rules(self) -> Iterator[Row]:
        """List changes of the rules in tokenizer.json that apply to this model's."""
        rules = json.loads(self.tokenizer.rules())
        bert = next((step for step in _normalizers(rules) if step["type"] == "BertNormalizer"), {})
        strips = bool(bert.get("lowercase") if bert.get("strip_accents") is None else bert["strip_accents"])
        words = (rules["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        for name, there, part, values in (
            ("case kept", bert.get("lowercase"), "BertNormalizer", {"lowercase": False, "strip_accents": strips}),
            ("accents kept", strips, "BertNormalizer", {"strip_accents": False}),
            ("case and accents kept", strips, "BertNormalizer", {"lowercase": False, "strip_accents": False}),
            ("Chinese characters not set apart", bert.get("handle_chinese_chars"), "BertNormalizer",
             {"handle_chinese_chars": False}),
            ("control characters kept", bert.get("clean_text"), "BertNormalizer", {"clean_text": False}),
            ("punctuation not set apart", words, "", {"pre_tokenizer": {"type": "WhitespaceSplit"}}),
            ("words not cut into pieces", rules["model"].get("continuing_subword_prefix"), "model",
             {"continuing_subword_prefix": "\0"}),  # in no vocabulary
            ("long words cut into pieces", "max_input_chars_per_word" in rules["model"], "model",
             {"max_input_chars_per_word": 10**6}),
            ("special tokens of the text cut as words", rules["added_tokens"], "", {"added_tokens": []}),
        ):  # fmt: skip
            if there:
                tokenizer = partial(self.tokenizer.changed, partial(_set, part, values))
                yield name, "tokenizer.json has this rule otherwise: follow it.", {"tokenizer": tokenizer}

    # -- padding -------------------------------------------------------------------------------------------------

    def padding(self) -> Iterator[Way]:
        """List padding that is pooled, or gets attention weights, to each length that a program usually pads to."""
        most = self.encoder.max_length or max(LENGTHS)
        encoded = self.encoder.pipeline(prompt=self.before).tokenize([*self.texts], 0)
        counts = {text: len(each.input_ids) for text, each in zip(self.texts, encoded, strict=True)}
        fixed = {n for n in (LENGTHS[-1], self.own.longest) if n and max(counts.values()) <= n <= most}
        several = [dict.fromkeys(counts, n) for n in sorted(fixed)]
        for order in ([*self.texts], sorted(self.texts, key=len, reverse=True)):
            for size in sorted({min(size, len(order)) for size in (*REQUESTS, len(order))}):
                requests = [order[i : i + size] for i in range(0, len(order), size)]
                several.append({text: max(counts[each] for each in some) for some in requests for text in some})
        remedy = "Padding has no attention weight and no part in the pooling: pass the attention mask to both."
        for name, seen, pooled in (("padding pooled", False, True), ("padding seen", True, False),
                                   ("padding seen and pooled", True, True)):  # fmt: skip
            for lengths in several:
                yield Way(name, remedy, partial(self._padded, counts, lengths, seen, pooled))

    def _padded(
        self, counts: dict[str, int], lengths: dict[str, int], seen: bool, pooled: bool, texts: list[str]
    ) -> Array:
        made = list[Array]()
        for text in texts:
            padding = (lengths[text] if seen else max(lengths.values())) - counts[text]  # unseen it changes nothing
            taken = slice(lengths[text] if pooled else counts[text])
            made.append(self._by(rows={"pooled": taken, "padding": padding, "seen": seen})([text]))
        return np.concatenate(made)


def _normalizers(rules: Rules) -> list[Rules]:
    own = rules["normalizer"] or {"type": "Sequence", "normalizers": []}
    return list(own["normalizers"]) if own["type"] == "Sequence" else [own]


def _set(part: str, values: Rules, rules: Rules) -> None:
    """Change BERT's normalizer, the model, or all of the rules."""
    parts = [each for each in _normalizers(rules) if each["type"] == part] or [rules[part] if part else rules]
    for each in parts:
        each.update(values)


def _plain_letters(text: str) -> str:
    split = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", "".join(c for c in split if unicodedata.category(c) != "Mn"))
