"""The variants of a model that a port may compute by mistake: the model with one thing changed.

A setting is the encoder with another `SentenceConfig` or another tokenizer, a text is changed by a function, a wrong
model has a mistake of the list with `on_vectors`. No variant combines two of these.
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
from minibert.families.parts.bound_blocks import TORCH
from minibert.families.parts.plan import Plan, Step, by_key, value
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.models.encoder import Encoder
from minibert.models.run.pipeline import TextPipeline
from minibert.verify.mistakes import MISTAKES
from minibert.verify.mistakes.mistake import At, Mistake, all_places, begin, kept, reason, with_mistake
from minibert.verify.mistakes.wrong_modules import Formula
from minibert.verify.places import narrowed

Make = Callable[[list[str]], Array]  # texts -> their vectors
Rules = dict[str, Any]  # fields of a tokenizer.json
Setting = tuple[str, str, Rules]  # a variant's name, its remedy, and the arguments of `_encode`

LENGTHS = (128, 256, 384, 512)  # tokens
LETTERS = (256, 500, 512, 1000, 1024, 2000)  # letters to which a text is cut before it is tokenized
REQUESTS = (8, 16, 32)  # texts that are padded together
PROMPTS = (
    "query: ", "passage: ", "search_query: ", "search_document: ",
    "Represent this sentence for searching relevant passages: ", "title: none | text: ",
    "task: search result | query: ",
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
)  # E5, Nomic, BGE, EmbeddingGemma and Qwen  # fmt: skip
NAMES = {"dense": "Dense", "steady": "projection", "layer_norm": "LayerNorm"}  # a function's name -> the module's
ALL, WIDE = slice(None), 1 << 20  # all tokens, and more numbers than any vector has
STATES = 16  # texts whose hidden states are cached; the states of 512 tokens take many megabytes


class Variant(NamedTuple):
    """One variant: its name, the remedy if a port computes it, and the function from texts to its vectors."""

    name: str
    remedy: str
    make: Make


class Variants:
    """List the variants of one model.

    prompt: the right prompt. texts: all texts that are compared; their lengths decide the padding. width: of the
    vectors that are to be explained.
    """

    def __init__(self, encoder: Encoder, prompt: str, texts: Sequence[str], width: int) -> None:
        self.encoder, self.prompt, self.texts, self.width = encoder, prompt, texts, width
        self.config, self.tokenizer = encoder.sentence_config, encoder.sentence_tokenizer
        ((_, spans),) = self.tokenizer.encode_with_spans(["a"])
        inner = [i for i, span in enumerate(spans) if span is not None] or [0]
        first, last = inner[0], len(spans) - 1 - inner[-1]  # special tokens before and after a text
        self.special, either = first + last, [("first special token", first, 0), ("last special token", 0, last)]
        self.ends = [(name, slice(begin, -end or None))
                     for name, begin, end in (("special tokens", first, last), *either) if begin or end]  # fmt: skip
        steps = (Step(str(i), "after", step, (), step) for i, step in enumerate(self.config.after))
        self.pooled = At(encoder, "pooling", by_key(steps))  # the modules after pooling
        self._states = lru_cache(STATES)(partial(self._all_states, [at.plan for at in all_places(encoder)]))

    def settings(self) -> Iterator[Variant]:
        """List other settings of the folder, other texts, and other tokenizers."""
        for part in self._poolings, self._modules, self._prompts, self._lengths, self._texts, self._rules:
            for name, remedy, changes in part():
                yield Variant(name, remedy, self._encode(**changes))

    def mistakes(self, formats: bool = False) -> Iterator[Variant]:
        """List the mistakes of a whole model; with `formats`, the model with parameters in narrower formats."""
        for mistake in MISTAKES:
            if mistake.rounding if formats else mistake.on_vectors and not mistake.rounding:
                yield Variant(mistake.rounding or mistake.name, reason(mistake, self.encoder), self._with(mistake))

    def computed_in(self, rounding: Formula) -> Make:
        """Return the model with all its parameters and intermediates rounded."""
        return self._with(Mistake("", "", lambda at: narrowed(rounding, at).values()))

    # -- from texts to vectors -----------------------------------------------------------------------------------

    def _encode(
        self, prompt: str | None = None, text: Callable[[str], str] = str, then: Callable[[Array], Array] = np.asarray,
        tokenizer: Callable[[], Tokenizer] | None = None, rows: dict[str, Any] | None = None, **changes: Any,
    ) -> Make:  # fmt: skip
        """Encode with another text, another tokenizer or other settings.

        rows: the arguments of `_vector`, which then computes each text instead of the model's blocks.
        """

        @cache
        def changed() -> TextPipeline:  # without truncation of the vectors
            encoder = self.encoder.with_settings(tokenizer and tokenizer(), **{"dim": WIDE, **changes})
            steps = encoder.pipeline(prompt=self.prompt if prompt is None else prompt)
            steps.dim = None if steps.dim == WIDE else steps.dim
            return steps

        def make(texts: list[str]) -> Array:
            changed_texts = [*map(text, texts)]
            if rows is None:
                return np.asarray(then(np.stack(changed().all(changed_texts))))
            encoded = changed().tokenize(changed_texts, 0)
            return np.stack([self._vector(changed(), text_ids, **rows) for text_ids in encoded])

        return make

    def _vector(
        self, pipeline: TextPipeline, encoded: Encoded, taken: slice = ALL, pooled: slice = ALL, state: int = -1,
        padding: int = 0, seen: bool = False, plans: Sequence[Plan] = (),
    ) -> Array:  # fmt: skip
        """Compute a text's vector from one hidden state of the tokens in `taken`, with padding after them.

        It is NaN if no token is left. seen: padding gets attention weights. plans: the steps of a wrong model.
        """
        ids, types = encoded.input_ids[taken], encoded.token_type_ids
        padded = (*ids, *[self.tokenizer.pad_id] * padding)
        if not ids or not padded[pooled]:
            return np.full(self.config.width(), np.nan, np.float32)
        kinds = (*types[taken], *[0] * padding) if types is not None and self.encoder.embeddings.adds_types else ()
        compute = partial(self._all_states, plans) if plans else self._states
        x = compute(padded, kinds, 0 if seen else padding)[state][pooled]
        tile = self.encoder.embeddings.pack([Encoded([*padded[pooled]], None)])
        return np.asarray(pipeline.pool(tile, x)[0])

    def _all_states(
        self, plans: Sequence[Plan], ids: tuple[int, ...], types: tuple[int, ...], unseen: int
    ) -> list[Array]:
        """Compute the hidden states of one text, (seq, dim) each; the last `unseen` tokens are masked."""
        batch = {"input_ids": np.array([ids], np.int64)} | ({"token_type_ids": np.array([types])} if types else {})
        if unseen:
            batch["attention_mask"] = (np.arange(len(ids)) < len(ids) - unseen).astype(np.int64)[None]
        values = begin(batch)
        for i, plan in enumerate(plans):
            value(f"hidden_states.{i}", plan, values)
            values = kept(values)
        return [values[f"hidden_states.{i}"][0] for i in range(len(plans))]

    def _with(self, mistake: Mistake) -> Make:
        """Return a function that makes the model with a mistake; it raises TypeError if this model cannot have it."""

        @cache  # rounded weights are a copy, made once
        def wrong_model() -> Make:
            places = [*all_places(self.encoder), self.pooled]
            wrong = [with_mistake(mistake, at) for at in places]
            if not any(wrong):
                raise TypeError(f"this model has no place for {mistake.name!r}")
            *plans, pooled = [plan or at.plan for plan, at in zip(wrong, places, strict=True)]
            return self._encode(rows={"plans": plans}, after=tuple(step.formula for step in pooled.values()))

        return lambda texts: wrong_model()(texts)

    # -- settings: after the blocks ------------------------------------------------------------------------------

    def _poolings(self) -> Iterator[Setting]:
        shown = "one token's" if self.config.picks else " and ".join(self.config.poolings)
        for name in POOLINGS:
            if (name,) != self.config.poolings or self.config.picks:
                yield f"pooling {name}", f"The pooling is {shown}.", {"poolings": (name,), "picks": None}
        for name, inner in self.ends:
            yield f"{name} left out of pooling", "Pool all tokens of the text.", {"rows": {"pooled": inner}}
            yield f"{name} left out", "Add them to each text, as the tokenizer does.", {"rows": {"taken": inner}}
        depth = len(self.encoder.stack.blocks)
        for i in range(depth):
            name = "last block missing" if i == depth - 1 else f"hidden_states.{i} pooled"
            yield name, f"Pool hidden_states.{depth}, the output of the last of {depth} blocks.", {"rows": {"state": i}}

    def _modules(self) -> Iterator[Setting]:
        """List modules left out or without activation or bias, normalized vectors, and vectors of other widths."""
        after, width = self.config.after, self.config.width()
        for i, step in enumerate(after):
            without = {"after": (*after[:i], *after[i + 1 :])}
            if step is normalized:
                yield "vectors not normalized", "Divide each vector by its length.", without
                continue
            name = NAMES.get(getattr(getattr(step, "func", step), "__name__", ""), f"module {i + 2} of modules.json")
            yield f"{name} left out", f"Apply {name} after pooling.", without
            for option, neutral in (("activation", TORCH["Identity"]), ("bias", None)):
                if (present := getattr(step, "keywords", {}).get(option)) is not None and present is not neutral:
                    changed = (*after[:i], partial(step, **{option: neutral}), *after[i + 1 :])
                    yield f"{option} of {name} left out", f"This {name} has one.", {"after": changed}
        if not self.config.ends_normalized:
            yield "vectors normalized", "Do not divide the vectors by their length.", {"then": normalized}
        if self.width < width:
            name, remedy = f"truncated to the first {self.width} numbers", f"Give all {width} numbers."
            yield name, remedy, {"truncate_dim": self.width}
            yield f"{name} and normalized again", remedy, {"truncate_dim": self.width, "then": normalized}
        if width < self.width == self.config.dim:
            yield "vectors not truncated", f"Give the first {width} numbers.", {"truncate_dim": None}

    # -- settings: texts and ids ---------------------------------------------------------------------------------

    def _prompts(self) -> Iterator[Setting]:
        should = f"Put {self.prompt!r} before each text." if self.prompt else "Put nothing before the text."
        if self.prompt:
            yield "prompt missing", should, {"prompt": ""}
            yield "prompt doubled", should, {"prompt": self.prompt * 2}
            pooled = self.config.include_prompt
            remedy = "Pool the prompt's tokens too." if pooled else "Leave the prompt's tokens out of pooling."
            yield "prompt not pooled" if pooled else "prompt pooled", remedy, {"include_prompt": not pooled}
        named = {text: f"prompt {name!r}" for name, text in self.config.prompts.items() if text}
        for text in dict.fromkeys((*named, *PROMPTS)):
            if text != self.prompt:
                yield f"{named.get(text, repr(text))} put before the texts", should, {"prompt": text}

    def _lengths(self) -> Iterator[Setting]:
        most, right = self.encoder.max_length, self.config.longest
        remedy = f"The longest length is {right or 'without a limit'}, special tokens included."
        for length in sorted({*LENGTHS, *filter(None, (most, right))}):
            for longest, beside in {length + self.special: " beside the special ones", length: ""}.items():
                if longest != right and (most is None or longest <= most):
                    yield f"truncated at {length} tokens{beside}", remedy, {"longest": longest}
        name = f"truncated at the {'end' if self.tokenizer.truncates_left else 'beginning'}"
        yield name, "Truncate a text that is too long at its other end.", {"tokenizer": self._other_end}
        if right is not None and self.special:
            changes = {"rows": {"taken": slice(right)}, "longest": None}
            yield "special tokens truncated", "Truncate the text's tokens, then add the special tokens.", changes
        for count in LETTERS:
            cut = itemgetter(slice(count))
            yield f"text cut at {count} letters", "The longest length counts tokens.", {"text": cut}

    def _other_end(self) -> Tokenizer:
        tokenizer = self.tokenizer.changed(lambda rules: None)
        tokenizer.truncates_left = not tokenizer.truncates_left
        return tokenizer

    def _texts(self) -> Iterator[Setting]:
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

    def _rules(self) -> Iterator[Setting]:
        """List changes of the rules that this model's tokenizer.json has."""
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
             {"continuing_subword_prefix": "\0"}),  # not in any vocabulary
            ("long words cut into pieces", "max_input_chars_per_word" in rules["model"], "model",
             {"max_input_chars_per_word": 10**6}),
            ("special tokens of the text cut as words", rules["added_tokens"], "", {"added_tokens": []}),
        ):  # fmt: skip
            if there:
                tokenizer = partial(self.tokenizer.changed, partial(_set, part, values))
                yield name, "tokenizer.json has another rule: follow it.", {"tokenizer": tokenizer}

    # -- padding -------------------------------------------------------------------------------------------------

    def padding(self) -> Iterator[Variant]:
        """List padding that is pooled or gets attention weights, to each length that programs usually pad to."""
        most = self.encoder.max_length or max(LENGTHS)
        encoded = self.encoder.pipeline(prompt=self.prompt).tokenize([*self.texts], 0)
        counts = {text: len(ids.input_ids) for text, ids in zip(self.texts, encoded, strict=True)}
        fixed = {n for n in (LENGTHS[-1], self.config.longest) if n and max(counts.values()) <= n <= most}
        paddings = [dict.fromkeys(counts, n) for n in sorted(fixed)]  # text -> its padded length
        for order in ([*self.texts], sorted(self.texts, key=len, reverse=True)):
            for size in sorted({min(size, len(order)) for size in (*REQUESTS, len(order))}):
                requests = [order[i : i + size] for i in range(0, len(order), size)]
                paddings.append({text: max(counts[other] for other in some) for some in requests for text in some})
        remedy = "Padding has no attention weight and no part in the pooling: pass the attention mask to both."
        for name, seen, pooled in (("padding pooled", False, True), ("padding seen", True, False),
                                   ("padding seen and pooled", True, True)):  # fmt: skip
            for lengths in paddings:
                yield Variant(name, remedy, partial(self._padded, counts, lengths, seen, pooled))

    def _padded(
        self, counts: dict[str, int], lengths: dict[str, int], seen: bool, pooled: bool, texts: list[str]
    ) -> Array:
        vectors = list[Array]()
        for text in texts:
            # padding that is not seen changes no state: with one length for all, the states are computed once
            padding = (lengths[text] if seen else max(lengths.values())) - counts[text]
            tokens = slice(lengths[text] if pooled else counts[text])
            vectors.append(self._encode(rows={"pooled": tokens, "padding": padding, "seen": seen})([text]))
        return np.concatenate(vectors)


def _normalizers(rules: Rules) -> list[Rules]:
    normalizer = rules["normalizer"] or {"type": "Sequence", "normalizers": []}
    return list(normalizer["normalizers"]) if normalizer["type"] == "Sequence" else [normalizer]


def _set(part: str, values: Rules, rules: Rules) -> None:
    """Change fields of BERT's normalizer, of the model, or of all rules."""
    parts = [step for step in _normalizers(rules) if step["type"] == part] or [rules[part] if part else rules]
    for changed in parts:
        changed.update(values)


def _plain_letters(text: str) -> str:
    split = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", "".join(c for c in split if unicodedata.category(c) != "Mn"))
