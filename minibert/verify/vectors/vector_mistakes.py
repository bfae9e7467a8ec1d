"""The mistakes that are made between a text and its vector: what each changes in the right recipe, and what to do.

`mistakes` lists those that one model can have. Where a model's own setting is the wrong one, there is no such mistake.
"""

from __future__ import annotations

import html
import json
import math
import string
import unicodedata
from collections.abc import Iterator
from functools import partial
from itertools import combinations

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention
from minibert.families.static import STATIC
from minibert.files.tokenizer_static import unknown_token
from minibert.models.encoder import Encoder
from minibert.verify.mistakes import wrong_models as models
from minibert.verify.mistakes.mistake import Mistake, with_mistake
from minibert.verify.mistakes.mistakes import MISTAKES
from minibert.verify.mistakes.plain import all_places
from minibert.verify.mistakes.wrong_attention import SCALE, by_root, scaled
from minibert.verify.mistakes.wrong_formulas import to_bfloat16, to_float16, to_int8
from minibert.verify.mistakes.wrong_masks import PADDING_SEEN
from minibert.verify.mistakes.wrong_steps import dense, rounded, rounded_weight

from .vector_endings import modules, poolings
from .vector_mistake import Found, VectorMistake
from .vector_recipes import Maker, Rules

LENGTHS = (64, 128, 256, 384, 512)
LETTERS = (256, 500, 512, 1000, 1024, 2000)  # of a text, counted before there are tokens
NOWHERE = "\0"  # in no vocabulary
WORDS = (100, 128, 200, 256, 384, 512)
ENDS = {"BERT": (101, 102), "RoBERTa": (0, 2), "Llama": (1, 2)}  # ids of what stands before and after a text
PROMPTS = (
    "query: ", "passage: ", "search_query: ", "search_document: ",
    "Represent this sentence for searching relevant passages: ",
)  # of E5, Nomic and BGE, added by hand to others  # fmt: skip
RARE_PROMPTS = (
    "clustering: ", "classification: ", "document: ", "title: none | text: ", "task: search result | query: ",
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
)  # of Nomic, EmbeddingGemma and Qwen  # fmt: skip


def mistakes(maker: Maker) -> list[VectorMistake]:
    """List the mistakes that can be made with this model."""
    parts = (_prompts, _texts, _lengths, _special_tokens, _models, _blocks, poolings, modules, _roundings)
    return [mistake for part in parts for mistake in part(maker)]


# -- text -> ids -------------------------------------------------------------------------------------------------


def _prompts(maker: Maker) -> Found:
    right = maker.right.prompts
    own = "".join(right)
    if right:
        yield VectorMistake("prompt missing", f"Put {own!r} before each text.", {"prompts": ()})
        yield VectorMistake("prompt doubled", f"Put {own!r} before each text once.", {"prompts": right * 2})
        if maker.right.skip_prompt:
            yield VectorMistake("prompt pooled", "Leave the prompt's tokens out of pooling.", {"skip_prompt": False})
    named = {text: f"prompt {name!r}" for name, text in maker.own.prompts.items() if text}
    for text in dict.fromkeys((*named, *PROMPTS, *RARE_PROMPTS)):
        if text != own:
            should = f"Put {own!r} before each text, not {text!r}." if own else "Put nothing before the text."
            name, alone = f"{named.get(text, repr(text))} put before the texts", text not in {*named, *PROMPTS}
            yield VectorMistake(name, should, {"prompts": (text,)}, alone=alone)


def _normalizers(rules: Rules) -> list[Rules]:
    own = rules["normalizer"] or {"type": "Sequence", "normalizers": []}
    return own["normalizers"] if own["type"] == "Sequence" else [own]


def _set(key: str, value: bool, rules: Rules) -> None:
    """Change one of BERT's settings; where accents follow the case, they stay as they are."""
    for step in _normalizers(rules):
        if step["type"] == "BertNormalizer":
            if key == "lowercase" and step["strip_accents"] is None:
                step["strip_accents"] = step["lowercase"]
            step[key] = value


def _kept_whole(rules: Rules) -> None:
    _set("lowercase", False, rules)
    _set("strip_accents", False, rules)


def _prefixed(prefix: str, rules: Rules) -> None:
    rules["model"]["continuing_subword_prefix"] = prefix


def _any_length(rules: Rules) -> None:
    rules["model"]["max_input_chars_per_word"] = 10**6


def _without_added(rules: Rules) -> None:
    rules["added_tokens"] = []


def _split_at_spaces(rules: Rules) -> None:
    rules["pre_tokenizer"] = {"type": "WhitespaceSplit"}


def _plain_letters(text: str) -> str:
    split = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", "".join(c for c in split if unicodedata.category(c) != "Mn"))


def _no_punctuation(text: str) -> str:
    return "".join(c for c in text if c not in string.punctuation)


def _letters(count: int, text: str) -> str:
    return text[:count]


def _words(count: int, text: str) -> str:
    words = text.split()
    return " ".join(words[:count]) if len(words) > count else text


def _texts(maker: Maker) -> Found:
    rules: list[Rules] = []
    maker.encoder.sentence_tokenizer.changed(rules.append)
    bert = next((step for step in _normalizers(rules[0]) if step["type"] == "BertNormalizer"), None)
    if bert is not None:
        strips = bert["lowercase"] if bert["strip_accents"] is None else bert["strip_accents"]
        for key, has, name, remedy in (
            ("lowercase", bert["lowercase"], "case kept", "Lower-case the text: this vocabulary has no capitals."),
            ("strip_accents", strips, "accents kept", "Remove accents (NFD, then drop category Mn)."),
            ("handle_chinese_chars", bert["handle_chinese_chars"], "Chinese characters not set apart",
             "Put spaces around each CJK character before words are split."),
            ("clean_text", bert["clean_text"], "control characters kept", "Drop control characters from the text."),
        ):  # fmt: skip
            if has:
                yield VectorMistake(name, remedy, {"rules": partial(_set, key, False)})
        if bert["lowercase"] and strips:
            remedy = "Lower-case the text and remove accents, as a tokenizer without capitals does."
            yield VectorMistake("case and accents kept", remedy, {"rules": _kept_whole})
    if rules[0]["normalizer"] is not None:
        remedy = "Apply the tokenizer's normalizer: case, accents, control characters."
        yield VectorMistake("text not normalized", remedy, {"rules": lambda rules: rules.update(normalizer=None)})
    if bert is None or not bert["lowercase"]:  # else it alters special tokens alone
        remedy = "This vocabulary has capitals: leave the text as it is."
        yield VectorMistake("text lower-cased", remedy, {"text": str.lower})
    for name, remedy, change in (
        ("accents removed", "Leave accents in the text.", _plain_letters),
        ("letters beyond ASCII dropped", "Pass the text as UTF-8.",
         lambda text: text.encode("ascii", "ignore").decode()),
        ("text read as Latin-1", "Read the text as UTF-8.", lambda text: text.encode().decode("latin-1")),
        ("text in NFC", "Do not normalize the text yourself.", partial(unicodedata.normalize, "NFC")),
        ("text in NFKC", "Do not normalize the text yourself.", partial(unicodedata.normalize, "NFKC")),
        ("text in NFD", "Do not normalize the text yourself.", partial(unicodedata.normalize, "NFD")),
        ("ends of lines replaced by spaces", "Leave ends of lines in the text.",
         lambda text: " ".join(text.splitlines())),
        ("text trimmed", "Leave spaces around the text.", str.strip),
        ("text escaped as HTML", "Pass the text itself, without HTML's entities.", html.escape),
        ("a space put before the text", "Pass the text as it is.", lambda text: f" {text}"),
    ):  # fmt: skip
        yield VectorMistake(name, remedy, {"text": change})
    pieces = rules[0]["model"].get("continuing_subword_prefix")
    if pieces:
        remedy = f"Look up each word's pieces, those that follow with {pieces!r} before them."
        for name, prefix in (("words not cut into pieces", NOWHERE), (f"pieces looked up without {pieces!r}", "")):
            yield VectorMistake(name, remedy, {"rules": partial(_prefixed, prefix)}, alone=True)
    if "max_input_chars_per_word" in rules[0]["model"]:
        remedy = "A word of very many letters is unknown: the tokenizer says from how many on."
        yield VectorMistake("long words cut into pieces", remedy, {"rules": _any_length})
    if any(added["special"] for added in rules[0]["added_tokens"]):
        remedy = "A special token that is written in a text is that token."
        yield VectorMistake("special tokens of the text cut as words", remedy, {"rules": _without_added})
    if (rules[0]["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer":
        remedy = "Each punctuation mark is a word of its own."
        yield VectorMistake("punctuation not set apart", remedy, {"rules": _split_at_spaces}, alone=True)
    yield VectorMistake("punctuation left out", "Pass the text as it is.", {"text": _no_punctuation}, alone=True)
    yield VectorMistake("text in quotes", "Pass the text itself, not as JSON.", {"text": json.dumps}, alone=True)
    remedy = "The longest length counts tokens."
    for count in LETTERS:
        yield VectorMistake(f"text cut at {count} letters", remedy, {"text": partial(_letters, count)})
    for count in WORDS:
        yield VectorMistake(f"text cut at {count} words", remedy, {"text": partial(_words, count)})
    unknown = unknown_token(rules[0]["model"])
    if unknown is not None:
        dropped = maker.encoder.sentence_tokenizer.id_of(unknown)
        remedy = "Keep the unknown token: the model has a row for it."
        if maker.encoder.embeddings.family is STATIC:
            remedy = (
                "Leave the unknown token's row in the mean, as sentence-transformers does; model2vec's encode drops it."
            )
        yield VectorMistake("unknown token left out", remedy, {"dropped": dropped})


def _lengths(maker: Maker) -> Found:
    right, most = maker.right.longest, maker.encoder.max_length
    shown = "no limit" if right is None else f"{right} tokens, special ones among them"
    for length in sorted({*LENGTHS, *([most] if most else [])}):
        if length != right and (most is None or length <= most):
            yield VectorMistake(f"truncated at {length} tokens", f"The longest length is {shown}.", {"longest": length})
    if right is not None and maker.before + maker.after:
        more = right + maker.before + maker.after
        if most is None or more <= most:
            name = "special tokens not counted in the longest length"
            yield VectorMistake(name, f"The longest length is {shown}.", {"longest": more})
    if right is not None:
        remedy = "A text that is too long is truncated: its end has no part in the vector."
        for length in sorted({*(n for n in LENGTHS if most is None or n <= most), right}):
            yield VectorMistake(f"average of chunks of {length} tokens", remedy, {"chunks": length})
        remedy = "A text is one sequence of tokens, whatever sentences it has."
        yield VectorMistake("average of sentences", remedy, {"sentences": True}, alone=True)
        own, other = ("beginning", "end")[:: 1 if maker.encoder.sentence_tokenizer.truncates_left else -1]
        remedy = f"A text that is too long loses its {own}."
        yield VectorMistake(f"truncated at the {other}", remedy, {"other_end": True})
        if maker.before + maker.after:
            remedy = "Truncate the text's tokens first, then put the special tokens."
            yield VectorMistake("special tokens truncated", remedy, {"sliced": True})
            both = {"other_end": True, "sliced": True}
            yield VectorMistake(f"truncated at the {other}, special tokens too", remedy, both)


def _special_tokens(maker: Maker) -> Found:
    once = "Put them once, as the tokenizer does."
    if maker.before:
        yield VectorMistake("no special token at the beginning", "Add it, as the tokenizer does.", {"first": 0})
        yield VectorMistake("special token at the beginning twice", once, {"first": 2})
    if maker.after:
        yield VectorMistake("no special token at the end", "Add it, as the tokenizer does.", {"last": 0})
        yield VectorMistake("special token at the end twice", once, {"last": 2})
    if maker.before and maker.after:
        yield VectorMistake("special tokens missing", "Add them, as the tokenizer does.", {"first": 0, "last": 0})
        yield VectorMistake("all special tokens twice", once, {"first": 2, "last": 2})
        remedy = "Put each at its own end of the text."
        yield VectorMistake("special tokens exchanged", remedy, {"exchanged": True})
    if maker.before == maker.after == 1:
        remedy = "Put those that this model's tokenizer puts."
        rows = maker.encoder.embeddings.steps[0].module.table.shape[0]
        for whose, ends in ENDS.items():
            if ends != maker.ends and max(ends) < rows:
                yield VectorMistake(f"special tokens of {whose}", remedy, {"ends": ends}, alone=True)


# -- ids -> rows -------------------------------------------------------------------------------------------------


RUN_ALL = "There are {} blocks; run all."
PLACED = "Each block has its place: there are {}."
HEAD_SIZES = (32, 64, 128)  # which programs for one model take for every model's
SCORED = "There are {} heads."
LAST = "The rows to pool are those that the last block gives."
SUMMED = "Each part adds what it makes to what entered it, once."
ADDED = "Each linear map adds its bias, and a norm after its weight."
ONE_BLOCK = "The other blocks are right: look at what is read and computed for this one."
IN_ONE_BLOCK = {
    "no division by sqrt(head_dim)", "division by sqrt(dim)", "activation left out", "activation gelu",
    "activation gelu_new", "activation quick_gelu", "activation relu", "activation silu", "weight transposed",
    "residual from before the norm", "residual from the normed x", "norm not applied", "heads interleaved",
    "heads split without transposing", "gate and up exchanged", "queries and keys not rotated",
    "q k v in another order: k q v",
}  # fmt: skip
MOST_HEADS, MOST_BLOCKS = 64, 12  # of more blocks those side by side alone, of which there are fewer pairs


def _models(maker: Maker) -> Found:
    done = {"bias missing", "token types exchanged"}  # of linear maps and of norms; below each has a name of its own
    for mistake in (*_of_vectors(maker.encoder), *sorted(MISTAKES, key=lambda each: not each.on_vectors)):
        if mistake.name in done or (mistake.where == "local" and not mistake.on_vectors):
            continue
        if any(with_mistake(mistake, at) for at in all_places(maker.encoder)):
            done.add(mistake.name)
            rare = not mistake.on_vectors
            yield VectorMistake(mistake.name, mistake.why, {"model": mistake}, mistake.rounding, rare)
    remedy = "Attention weights of padding must be 0: pass the attention mask."
    yield VectorMistake(PADDING_SEEN, remedy, {"seen": True})
    yield VectorMistake(f"{PADDING_SEEN} and pooled", remedy, {"seen": True, "pads": True})
    yield VectorMistake(f"{PADDING_SEEN}, before the text", remedy, {"seen": True, "left": True})
    if any(at.of("positions") for at in all_places(maker.encoder)):
        remedy = "Positions begin at the text's first token: pad on the right, or pass position_ids."
        yield VectorMistake("padding before the text counted in positions", remedy, {"left": True})


def _root_of(size: int, own: BoundAttention) -> float:
    return 1 / math.sqrt(size)


def _blocks(maker: Maker) -> Found:
    """What is wrong in one block of several."""
    blocks = [at for at in all_places(maker.encoder) if at.block]
    known = (*models.of_one_block(maker.encoder), *(each for each in MISTAKES if each.name in IN_ONE_BLOCK))
    for at in blocks if 1 < len(blocks) <= MOST_BLOCKS else ():
        for name, mistake in {each.name: each for each in known if with_mistake(each, at)}.items():
            one = mistake._replace(wrong=models.in_block(mistake.wrong, at.i))
            yield VectorMistake(f"{name} in block {at.i}", ONE_BLOCK, {"model": one}, alone=True)


def _of_vectors(encoder: Encoder) -> Iterator[Mistake]:
    """What shows in vectors alone: where a port's blocks can be compared, these have other names."""
    depth, own = len(encoder.stack.blocks), [block.attention for block in encoder.stack.blocks][:1]
    yield Mistake("last block missing", RUN_ALL.format(depth), models.without_block(-1), on_vectors=True)
    yield Mistake("first block missing", RUN_ALL.format(depth), models.without_block(0), on_vectors=True)
    for i, j in combinations(range(depth), 2):
        if depth <= MOST_BLOCKS or j == i + 1:
            order = models.blocks_by(models.exchanged(i, j))
            yield Mistake(f"blocks {i} and {j} exchanged", PLACED.format(depth), order)
    reverse = models.blocks_by(lambda i, depth: depth - 1 - i)
    yield Mistake("blocks in reverse", PLACED.format(depth), reverse)
    for i in range(depth):
        yield Mistake(f"block {i} in all places", PLACED.format(depth), models.blocks_by(partial(models.always, i)))
    for attention in own:
        width = attention.heads * attention.head_dim
        for many in range(1, min(width, MOST_HEADS) + 1):
            if width % many == 0:
                yield Mistake(f"number of heads {many}", SCORED.format(attention.heads), models.heads(many))
    for name, where in (
        ("biases of linear maps missing", models.of_maps), ("biases of norms missing", models.of_norms),
        ("all biases missing", lambda at, step: True), ("biases of the feed-forward missing", models.of_feed_forward),
        ("biases of queries, keys and values missing", models.of_looks),
        *models.of_each_map(encoder),
    ):  # fmt: skip
        yield Mistake(name, ADDED, models.without_biases(where))
    for name, where in models.of_each_norm(encoder):
        yield Mistake(name, ADDED, models.without_biases(where))
    for size in HEAD_SIZES:
        if any(attention.head_dim != size and by_root(attention) for attention in own):
            yield Mistake(f"division by sqrt({size})", SCALE, scaled(partial(_root_of, size)), on_vectors=True)
    for name, where in models.each_residual(encoder):
        yield Mistake(name, SUMMED, models.without_residual(where))
    yield Mistake("norm of the input layer not applied", "Normalize before the blocks.", models.without_first_norm,
                  on_vectors=True)  # fmt: skip
    for name, others in (
        ("first and last block", range(1, 2)), ("input layer and last block", range(1)),
        ("last two blocks", range(depth - 1, depth)), ("last four blocks", range(depth - 3, depth)),
        ("all blocks", range(1, depth)),
    ):  # fmt: skip
        if depth > 1 and others.start >= 0:
            yield Mistake(f"{name} averaged", LAST, models.last_state(models.mean_of_states, others))
    yield Mistake("tokens normalized before pooling", LAST, models.last_state(models.unit_rows))


# -- narrower numbers --------------------------------------------------------------------------------------------


STORED = {"float16": to_float16, "bfloat16": to_bfloat16}
MOST_DECIMALS = 6  # more are within float32's own rounding; of one most vectors are zeros
OFF_GRID = np.float32(1.0029)  # a factor that no narrow format has


def in_general(form: str) -> VectorMistake:
    """Weights rounded as float16, bfloat16 or int8 would round numbers that are on no grid.

    Rounded to the format in which their file has them, weights stay as they are; what is computed in it does not.
    """
    rounding = STORED.get(form, to_int8)

    def off_grid(x: Array) -> Array:
        return np.asarray(rounding(x * OFF_GRID) / OFF_GRID)

    wrong = dense(partial(rounded_weight, rounding=off_grid)) if form == "int8" else rounded(off_grid)
    return VectorMistake(form, "", {"model": Mistake(form, "", wrong)}, form)


def rounded_to(decimals: int, x: Array) -> Array:
    """Numbers as a text shows them with so many decimals."""
    return np.round(x.astype(np.float64), decimals).astype(np.float32)


def _roundings(maker: Maker) -> Found:
    for form, rounding in STORED.items():
        yield VectorMistake(f"vectors stored as {form}", "The numbers are rounded.", {"stored": rounding}, form)
    for count in range(2, MOST_DECIMALS + 1):
        name, rounding = f"{count} decimals", partial(rounded_to, count)
        yield VectorMistake(f"vectors rounded to {name}", "The numbers are rounded.", {"stored": rounding}, name)
