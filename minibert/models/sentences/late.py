"""Late interaction: a vector for each token of a text, as sentence-transformers' MultiVectorEncoder computes them.

A query may be padded with mask tokens, whose vectors count like its other vectors; some tokens of a document, such
as punctuation, may be left out. Older folders keep these settings elsewhere: PyLate's (up to version 3), and Stanford's
ColBERT, which has no modules.json.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.families.parts.bound_blocks import TORCH
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.models.run.packing import Packed
from minibert.models.run.pipeline import TextPipeline

from .folder import (
    IN_AND_OUT,
    MASK,
    MULTI,
    TOKENS,
    After,
    FolderFiles,
    Module,
    SavedFolder,
    by_stanford,
    dense,
    read_steps,
)

TASKS = ("query", "document")
USUAL = TASKS[1]  # the default task
PUNCTUATION = list(string.punctuation)
METADATA = "artifact.metadata"  # the settings of Stanford's ColBERT
PREFIXES = {"query": "query_prefix", "document": "document_prefix"}  # a task -> PyLate's key
MARKERS = ("[unused0]", "[unused1]")  # Stanford's default prefixes for queries and documents
MOVED = ("query_length", "document_length", "query_expansion")  # transformer settings that PyLate has elsewhere
FLAT = (*MOVED, "do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens", "skiplist_words")
FLAGS = ("do_query_expansion", "attend_to_expansion_tokens", "attend_to_mask_tokens", "mask_punctuation")
CLASSIC = 32  # tokens of a query in the first ColBERT
EXPANSION = ("strategy", "token", "length", "attend")


# -- computing ---------------------------------------------------------------------------------------------------


class Expansion(NamedTuple):
    """The mask tokens that pad a query."""

    length: int  # tokens of a padded query
    attend: bool  # whether other tokens attend to the mask tokens
    token: str | None = None  # None: the mask token

    def filled(self, text: Encoded, mask_id: int) -> Encoded:
        """Return a text padded with mask tokens up to the length."""
        missing = max(0, self.length - len(text.input_ids))
        types = text.token_type_ids and text.token_type_ids + [0] * missing
        ids, unseen = text.input_ids + [mask_id] * missing, 0 if self.attend else missing
        return text._replace(input_ids=ids, token_type_ids=types, unseen=unseen)


class LateInteraction(NamedTuple):
    """The settings of late interaction: what is computed after the last block, and which tokens count."""

    steps: tuple[After, ...] = ()  # applied to the last hidden states in turn
    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()  # tokens without a vector
    skips: tuple[str, ...] = (USUAL,)  # the tasks in which these tokens have no vector
    prefixes: tuple[str, ...] = ()  # parts of prompts, a token each if the vocabulary has it

    def steps_of(self, tokenizer: Tokenizer, task: str | None) -> dict[str, Any]:
        """Return the attributes of a `LatePipeline` for a task.

        Raises ValueError if the tokenizer has no such mask token, or pads on the left.
        """
        words = self.skipped if (task or USUAL) in self.skips else ()
        ids = [i for word in words if (i := tokenizer.id_of(word)) is not None]
        steps: dict[str, Any] = {"after": self.steps, "skipped": ids}
        if self.expansion is None or task != TASKS[0]:
            return steps
        if tokenizer.pads_left:
            left = "padding_side is left, in tokenizer_config.json or by its tokenizer_class; that is not computed here"
            raise ValueError(f"queries of this model are filled up before a text, since {left}. encode_document works")
        token = self.expansion.token or tokenizer.named.get("mask") or tokenizer.named.get("eos")
        i = None if token is None else tokenizer.id_of(token)
        if i is None:
            lacks = "which the tokenizer does not have; is this the right tokenizer?"
            raise ValueError(f"queries of this model are filled up with {token or 'a mask token'!r}, {lacks}")
        return steps | {"expansion": self.expansion, "mask_id": i}


class LatePipeline(TextPipeline):
    """The pipeline of token vectors."""

    skipped: Sequence[int] = ()  # ids of tokens that have no vector
    expansion: Expansion | None = None
    mask_id: int = 0

    def tokenize(self, texts: list[Any], start: int) -> list[Encoded]:
        """Return the ids of a chunk's texts; queries are padded with mask tokens."""
        encoded = super().tokenize(texts, start)
        return [self.expansion.filled(sequence, self.mask_id) for sequence in encoded] if self.expansion else encoded

    def pool(self, tile: Packed, x: Array) -> list[Array]:
        """Return the vectors of each text's tokens, without the skipped ones: (tokens, dim)."""
        kept = np.split(~np.isin(tile.ids, self.skipped), tile.starts[1:])
        return [rows[some] for rows, some in zip(super().pool(tile, x), kept, strict=True)]


# -- what a folder says ------------------------------------------------------------------------------------------


class LegacySettings(NamedTuple):
    """The settings of older folders, moved to the places that today's folders have."""

    settings: Mapping[str, Any] = {}  # transformer settings that its own file lacks
    prompts: Mapping[str, str] = {}  # task -> prompt
    prefixes: tuple[str, ...] = ()  # parts of these prompts that are one token
    modules: tuple[Module, ...] = ()  # to append to the folder's


def read_older(saved: SavedFolder) -> LegacySettings:
    """Read PyLate's keys in config_sentence_transformers.json; without modules.json the keys of Stanford's ColBERT."""
    top, modules, settings = saved.files, saved.modules, saved.settings
    metadata = {} if modules else top.object(METADATA)
    for older in (settings, metadata):
        for key in FLAGS:
            top.flag(older, key, False)  # raises for the text "false", which would count as true
    if not modules:
        return _of_stanford(metadata)
    prompts: dict[str, Any] = dict(settings.get("prompts") or {})
    prefixes = {task: settings[key] or "" for task, key in PREFIXES.items() if key in settings}
    moved = {
        key: settings[key] for key in MOVED if settings.get(key) is not None or (key == MOVED[2] and key in settings)
    }
    if "query_expansion" not in moved and any(key in settings for key in (*FLAT, *PREFIXES.values())):
        moved["query_expansion"] = None
        if settings.get("do_query_expansion") is not False:
            attend = settings.get("attend_to_expansion_tokens", settings.get("attend_to_mask_tokens"))
            moved["query_expansion"] = _fixed(moved.pop("query_length", None), attend)
    for task, prefix in prefixes.items():
        if not isinstance(prefix, str):
            raise top.refuse(f"the prefix of a {task} must be a text, found {prefix!r}")
        prompts[task] = prefix + (prompts.get(task) or "").removeprefix(prefix)
    kind = settings.get("model_type")
    completed = kind == "ColBERT" or (kind != MULTI and not by_stanford(top))
    skipped = settings.get("skiplist_words")
    if skipped is None and (prefixes or kind == "ColBERT"):
        skipped = PUNCTUATION
    return LegacySettings(moved, prompts, tuple(prefixes.values()), _completing(skipped) if completed else ())


def _completing(skipped: Any) -> tuple[Module, ...]:
    """Return the modules that an older folder does not list, because its library had them in code."""
    return Module(MASK, "", "", {"skiplist_words": skipped}), Module("Normalize", "", "", {IN_AND_OUT[0]: TOKENS})


def _of_stanford(metadata: Mapping[str, Any]) -> LegacySettings:
    keys = zip(TASKS, ("query_token_id", "doc_token_id"), MARKERS, strict=True)
    prompts = {task: f"{metadata.get(key) or usual} " for task, key, usual in keys}
    moved = {"query_expansion": _fixed(metadata.get("query_maxlen"), metadata.get("attend_to_mask_tokens"))}
    if metadata.get("doc_maxlen") is not None:
        moved["document_length"] = metadata["doc_maxlen"]
    skipped = PUNCTUATION if metadata.get("mask_punctuation", True) else []
    return LegacySettings(moved, prompts, tuple(prompts.values()), _completing(skipped))


def _fixed(length: Any, attend: Any) -> dict[str, Any]:
    return {"strategy": "fixed", "attend": bool(attend), "length": length or CLASSIC}


def read_late(
    saved: SavedFolder,
    settings: Mapping[str, Any],
    older: LegacySettings,
    dim: int,
    longest: int | None,
    dtype: np.dtype[Any] | None,
) -> tuple[LateInteraction, int]:
    """Read the modules after the transformer and how queries are padded; return the width of a token's vector too.

    settings: the transformer's, with `older.settings`. longest: rows of the position table.
    """
    late, steps, masked = LateInteraction(prefixes=older.prefixes), list[After](), False
    if not saved.modules:
        step, dim = _stanford(saved.files, dim, dtype)
        steps.append(step)
    for module in (*saved.modules[1:], *older.modules):
        files = saved.files.inside(module.path)
        if module.kind == MASK:
            if masked:
                raise files.refuse(f"a second {MASK} is not computed here")
            late, masked = _mask(late, module.settings, files), True
        else:
            added, dim = read_steps([module], saved.files, dim, dtype, TOKENS)
            steps += added
    expansion = _expansion(settings, saved.beside, longest)
    if expansion and not (masked or expansion.attend):
        expansion = None  # the mask tokens would be neither attended to nor scored
    return late._replace(steps=tuple(steps), expansion=expansion), dim


def _mask(late: LateInteraction, settings: Mapping[str, Any], files: FolderFiles) -> LateInteraction:
    files.check_keys(settings, ("skiplist_words", "skiplist_tasks", "keep_only_token_ids"))
    if only := settings.get("keep_only_token_ids"):
        raise files.refuse(f"'keep_only_token_ids' {only!r:.80} is not computed here; known are skiplist_words")
    tasks = settings.get("skiplist_tasks")
    tasks = [USUAL] if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    words = _strings(settings.get("skiplist_words") or [], "skiplist_words", files)
    return late._replace(skipped=words, skips=_strings(tasks, "skiplist_tasks", files))


def _strings(value: Any, key: str, files: FolderFiles) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise files.refuse(f"{key!r} must be a list of texts, found {value!r:.80}")
    return tuple(value)


def _expansion(settings: Mapping[str, Any], files: FolderFiles, longest: int | None) -> Expansion | None:
    setting = settings.get("query_expansion")
    if setting is None:
        return None
    options: dict[str, Any] = {"attend": False} | (setting if isinstance(setting, dict) else {})
    strategy, token, length, attend = map(options.get, EXPANSION)
    right = strategy in ("fixed", "min") and isinstance(token, str | None) and token != "" and type(attend) is bool
    if not right or type(length) is not int or length < 1 or not set(options) <= set(EXPANSION):
        expected = "the strategy fixed or min, a length >= 1, a token or none, and attend true or false"
        raise files.refuse(f"'query_expansion' must have {expected}, found {setting!r:.120}")
    most = settings.get("query_length")
    if (longest is not None and length > longest) or (isinstance(most, int | float) and most < length):
        limit = f"query_length is {most!r}" if longest is None or length <= longest else f"the table has {longest} rows"
        raise files.refuse(f"'query_expansion' fills queries up to {length} tokens, but {limit}")
    return Expansion(length, attend is True, token)


def _stanford(top: FolderFiles, dim: int, dtype: np.dtype[Any] | None) -> tuple[After, int]:
    """Read the linear map of the token vectors, which is among the transformer's tensors."""
    if dtype is None:
        return normalized, int(top.object(METADATA).get("dim", 128))
    weight = top.matrix("linear.weight", dtype)
    if weight.shape[1] != dim:
        raise top.refuse(f"'linear.weight' maps {weight.shape[1]} numbers, but the transformer gives {dim}")
    linear = partial(dense, weight=weight, bias=None, residual=None, activation=TORCH["Identity"], keeps=False)
    return linear, len(weight)
