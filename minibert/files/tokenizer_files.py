"""A model's tokenizer files -> its tokenizer, built as transformers builds it: see `tokenizer_classes`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from minibert.errors import MinibertError, TokenizerError

from . import tokenizer_classes as classes
from .reading import FileName, read_object
from .tokenizer import Tokenizer, without_panic
from .tokenizer_classes import Settings, Template, TokenizerClass, class_of

Find = Callable[[str], FileName | None]
Json = dict[str, Any]

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt",
)  # fmt: skip
NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")  # the special tokens with a name, in the order of their rows
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")  # flags of an added token
LONGEST = 512  # tokens of a text that sentence-transformers and model2vec use
UNUSED = re.compile(r"\[unused\d+\]")
NO_LETTER = "\U0010ffff"  # in no vocabulary
CONVERT = (
    "make tokenizer.json once, where transformers is installed: "
    "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
)


class _UnfitError(Exception):
    """A wrong setting; `open_tokenizer` adds the folder to the error."""


def open_tokenizer(
    find: Find,
    usual: str | None,
    pad_id: int | None,
    where: str,
    declared: str | None = None,
    *,
    always_usual: bool = False,
) -> Tokenizer:
    """Open tokenizer.json, else vocab.txt, else vocab.json with merges.txt.

    find: returns a file's path or None. usual: the tokenizer class of the model's type. declared: the class that
    config.json names; tokenizer_config.json overrides both. always_usual: ignore declared classes. Raises
    TokenizerError.
    """
    path = find("tokenizer.json")
    settings = read_object(find("tokenizer_config.json"), TokenizerError)
    if "added_tokens_decoder" not in settings:  # unless the file is of the newer kind
        settings |= read_object(find("special_tokens_map.json"), TokenizerError)
    own = settings.get("tokenizer_class")
    for file, name in (("tokenizer_config.json", own), ("config.json", declared)):
        if name is not None and not (isinstance(name, str) and name):
            raise TokenizerError(f"{where}: {file}: 'tokenizer_class' must be a name, found {name!r:.40}")
    if always_usual:
        own = declared = None
    name = class_of(own or declared, usual, lambda: path is not None and _mentions(path, b'"ByteLevel"'))
    if name in classes.ELSEWHERE:
        raise TokenizerError(
            f"{where}: the tokenizer class {name} has rules that minibert does not have; if tokenizer.json alone gives "
            "the right ids, set tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json"
        )
    row = classes.CLASSES.get(name, classes.AS_IT_STANDS)
    try:
        with without_panic(str(path)):
            if path is not None:
                reader = _from_json(path, row, settings, find, bool(own))
            elif row.older and (path := find(row.older)) is not None:
                reader = _from_older(path, row, settings, find, where)
            else:
                raise TokenizerError(
                    f"{where} has no tokenizer: expected tokenizer.json, or vocab.txt, or vocab.json with merges.txt; "
                    f"pass ids, or {CONVERT}"
                )
        reader.encode_special_tokens = settings.get("split_special_tokens") is True
        named = {key.removesuffix("_token"): token.content for key, token in _named_tokens(row, settings).items()}
        truncates, pads = _is_left(settings, "truncation_side"), _is_left(settings, "padding_side", row.pads)
        return Tokenizer(reader, pad_id, str(path), truncates, named, _typed(row, settings), pads)
    except _UnfitError as error:
        raise TokenizerError(f"{where}: {error}") from None
    except MinibertError:
        raise
    except Exception as error:  # noqa: BLE001  the library's Rust core raises bare Exception
        path = path or find("vocab.txt") or find("vocab.json")
        raise TokenizerError(f"{path}: unreadable tokenizer file ({error}); fetch it again, or {CONVERT}") from None


def open_without_special_tokens(find: Find, where: str) -> Tokenizer:
    """Open tokenizer.json alone, without special tokens around a text, for static models. Raises TokenizerError."""
    path = find("tokenizer.json")
    if path is None:
        raise TokenizerError(f"{where} has no tokenizer.json, which a static model needs; fetch it beside the tensors")
    from tokenizers import Tokenizer as Reader

    try:
        with without_panic(str(path)):
            reader = Reader.from_file(str(path))
    except MinibertError:
        raise
    except Exception as error:  # noqa: BLE001  the library's Rust core raises bare Exception
        raise TokenizerError(f"{path}: unreadable tokenizer file ({error}); fetch it again") from None
    left = (reader.truncation or {}).get("direction") == "left"
    return Tokenizer(reader, None, str(path), left).without_special_tokens()


def _mentions(path: FileName, word: bytes) -> bool:
    with open(path, "rb") as file:
        return word in file.read()


def _from_json(path: FileName, row: TokenizerClass, settings: Json, find: Find, declared: bool) -> Any:
    from tokenizers import Tokenizer as Reader

    stored, pieces = _stored(path, row)
    kind = type(stored.model).__name__
    if row.kind not in ("", kind):
        if declared:
            raise TokenizerError(
                f"{path}: tokenizer_config.json names {settings['tokenizer_class']}, which is for {row.kind}, but "
                f"this file's model is {kind}; set tokenizer_class to PreTrainedTokenizerFast to read it as it stands"
            )
        row = classes.AS_IT_STANDS
    reader, added = stored, stored.get_added_tokens_decoder()
    if row.rules is not None:
        say = _say(settings, row, stored.normalizer)
        model = stored.model if pieces is None else _unigram(pieces, row, say)
        if pieces is not None:
            numbered = Reader(model)
            numbered.add_tokens([token for _, token in sorted(added.items())])
            added = numbered.get_added_tokens_decoder()
        reader = Reader(model)  # and none of the file's added tokens
        reader.post_processor = stored.post_processor
        _apply(reader, row, say)
    _add_tokens(reader, row, settings, find, added)
    _put_template(reader, row, settings)
    return reader


def _stored(path: FileName, row: TokenizerClass) -> tuple[Any, list[tuple[str, float]] | None]:
    """Return the file's tokenizer; for a class of Unigram also its pieces, with scores read by Python's parser.

    transformers does the same. The library's parser reads many scores one unit in the last place off, and then it
    chooses the wrong one of two equally likely splits. It also takes twice as long.
    """
    from tokenizers import Tokenizer as Reader

    stored = read_object(path, TokenizerError) if row.kind == "Unigram" else {}
    model = stored.get("model")
    if not isinstance(model, dict) or model.get("type", "Unigram") != "Unigram" or not isinstance(model["vocab"], list):
        return Reader.from_file(str(path)), None
    pieces = [(token, score) for token, score in model["vocab"]]
    stored["model"] = {"type": "Unigram", "vocab": [[NO_LETTER, 0.0]], "unk_id": 0}
    return Reader.from_str(json.dumps(stored)), pieces


def _from_older(path: FileName, row: TokenizerClass, settings: Json, find: Find, where: str) -> Any:
    from tokenizers import Tokenizer as Reader
    from tokenizers import models

    say = _say(settings, row, None)
    if row.kind == "WordPiece":
        reader = Reader(models.WordPiece(models.WordPiece.read_file(str(path)), unk_token=say.token("unk")))
    else:
        merges = find("merges.txt")
        if merges is None:
            raise TokenizerError(f"{where} has vocab.json but no merges.txt; both are needed: fetch it")
        reader = Reader(models.BPE.from_file(str(path), str(merges)))
    needed = [*(["unk"] if row.kind == "WordPiece" else []), *_names(row.template)]
    needed += ["bos"] if settings.get("add_bos_token") and say.token("bos") else []
    for token in map(say.token, needed):
        if reader.token_to_id(token) is None:
            raise TokenizerError(f"{path}: no token {token!r}, which every text needs; is this {row.of}'s file?")
    _apply(reader, row, say)
    _add_tokens(reader, row, settings, find, {})
    _put_template(reader, row, settings, older=True)
    return reader


# -- settings ----------------------------------------------------------------------------------------------------


def _say(settings: Json, row: TokenizerClass, normalizer: Any) -> Settings:
    def flag(key: str, default: bool | None) -> bool | None:
        found = settings.get(key)
        if found is not None and not isinstance(found, bool):
            raise _UnfitError(f"tokenizer_config.json: {key!r} must be true or false, found {found!r:.40}")
        return default if found is None else found

    tokens = _named_texts(settings)
    steps = normalizer if type(normalizer).__name__ == "Sequence" else [normalizer]
    charsmap = next((step for step in steps if type(step).__name__ == "Precompiled"), None)
    return Settings(flag, lambda name: tokens.get(name) or row.tokens.get(name, ""), charsmap)


def _is_left(settings: Json, key: str, usual: str = "right") -> bool:
    side = settings.get(key, usual)
    if side not in ("right", "left"):
        raise _UnfitError(f"tokenizer_config.json: {key!r} must be 'right' or 'left', found {side!r:.40}")
    return bool(side == "left")


def _typed(row: TokenizerClass, settings: Json) -> bool:
    """Whether the model gets token types: as the settings say, else the class."""
    names = settings.get("model_input_names")
    if names is None:
        return row.types
    if not isinstance(names, list):
        raise _UnfitError(f"tokenizer_config.json: 'model_input_names' must be a list of names, found {names!r:.40}")
    return "token_type_ids" in names


def _content(value: Any, key: str) -> str | None:
    """Return the text of a token, which is stored as a string or as an object with flags."""
    found = value.get("content") if isinstance(value, dict) else value
    if found is not None and not isinstance(found, str):
        raise _UnfitError(f"tokenizer_config.json: {key!r} must be a token, found {value!r:.40}")
    return found


def _named_texts(settings: Json) -> dict[str, str]:
    """Return the special tokens that the settings name: "cls" -> "[CLS]"."""
    found = {name: _content(settings.get(f"{name}_token"), f"{name}_token") for name in NAMED}
    return {name: text for name, text in found.items() if text is not None}


# -- parts -------------------------------------------------------------------------------------------------------


def _unigram(pieces: list[tuple[str, float]], row: TokenizerClass, say: Settings) -> Any:
    """Build the model of these pieces; the class says which row unknown letters have."""
    from tokenizers import models

    unknown = row.unknown
    if not isinstance(unknown, int):
        wanted = say.token(str(unknown))
        unknown = next((i for i, (token, _) in enumerate(pieces) if token == wanted), 0)
    return models.Unigram(pieces, unknown, False)


def _apply(reader: Any, row: TokenizerClass, say: Settings) -> None:
    import tokenizers

    assert row.rules is not None
    rules = row.rules(tokenizers, say)
    for name, value in rules.model.items():
        if getattr(reader.model, name) != value:
            setattr(reader.model, name, value)
    reader.normalizer, reader.pre_tokenizer, reader.decoder = rules.normalizer, rules.splitting, rules.decoder


def _add_tokens(reader: Any, row: TokenizerClass, settings: Json, find: Find, stored: Mapping[int, Any]) -> None:
    """Add the tokens that are found in a text before it is split, in the order of their rows."""
    from tokenizers import AddedToken

    listed = _listed_tokens(settings, find, stored)
    by_content = {token.content: token for token in listed.values()}
    adding = [token for _, token in sorted(listed.items())]
    named = {token.content: by_content.get(token.content, token) for token in _named_tokens(row, settings).values()}
    known = {token.content for token in [*reader.get_added_tokens_decoder().values(), *adding]}
    adding += [token for content, token in named.items() if content not in known]
    for token in adding:
        token.special = token.special or token.content in named
    reader.add_tokens(adding)
    if row.plain:
        reader.add_tokens([AddedToken(content, special=True) for content in named])


def _listed_tokens(settings: Json, find: Find, stored: Mapping[int, Any]) -> dict[int, Any]:
    from tokenizers import AddedToken

    listed = settings.get("added_tokens_decoder")
    if listed is not None:
        try:
            return {int(row): AddedToken(token["content"], **_flags(token)) for row, token in listed.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _UnfitError(f"tokenizer_config.json: added_tokens_decoder is not readable ({error})") from None
    names = {*_named_texts(settings).values(), *(_content(token, "extra_special_tokens") for token in _extra(settings))}
    found = {}
    for content, row in read_object(find("added_tokens.json"), TokenizerError).items():
        if type(row) is not int:
            raise _UnfitError(f"added_tokens.json: {content!r} must have an id, found {row!r:.40}")
        found[row] = AddedToken(content, normalized=content not in names, special=content in names)
    return {**found, **stored}


def _flags(token: Json) -> Json:
    return {flag: token[flag] for flag in FLAGS if flag in token}


def _extra(settings: Json) -> list[Any]:
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    found = list(extra.values()) if isinstance(extra, dict) else extra
    if not isinstance(found, list):
        raise _UnfitError(f"tokenizer_config.json: special tokens must be a list, found {extra!r:.40}")
    return found


def _named_tokens(row: TokenizerClass, settings: Json) -> dict[str, Any]:
    """Return the special tokens with a name, then the extra ones: as the settings say, else the class."""
    from tokenizers import AddedToken

    named: Json = {f"{name}_token": row.tokens.get(name) for name in NAMED}
    named |= {key: value for key, value in settings.items() if key.endswith("_token") and isinstance(value, str | dict)}
    named |= {f"extra {i}": token for i, token in enumerate(_extra(settings))}
    found = {}
    for key, value in named.items():
        flags = _flags(value) if isinstance(value, dict) else {"lstrip": key == "mask_token" and row.takes_left}
        if (content := _content(value, key)) is not None:
            found[key] = AddedToken(content, **{"special": True, "normalized": False, **flags})
    return found


def _names(template: Template | None) -> list[str]:
    parts = "" if template is None else template.single
    return list(dict.fromkeys(part.partition(":")[0] for part in parts.split() if part[0] != "$"))


def _put_template(reader: Any, row: TokenizerClass, settings: Json, older: bool = False) -> None:
    """Set the class's template; if neither class nor file has one, put the tokens of the settings around a text."""
    template, tokens = row.template, {**row.tokens, **_named_texts(settings)}
    if reader.post_processor is not None and (template is None or row.keeps):
        return
    if template is None or not _names(template):  # only older files follow add_bos_token, tokenizer.json overrides it
        begin = "bos" if older and settings.get("add_bos_token") and "bos" in tokens else ""
        end = "eos" if older and settings.get("add_eos_token") and "eos" in tokens else ""
        template = Template(f"{begin} $A {end}", f"{begin} $A {end} {begin and begin + ':1'} $B:1 {end and end + ':1'}")
    from tokenizers import processors

    def filled(parts: str) -> list[str]:
        each = (part.partition(":") for part in parts.split())
        return [f"{part if part[0] == '$' else tokens[part]}:{segment or 0}" for part, _, segment in each]

    used = sorted({tokens[name] for name in _names(template)})
    rows = {token: reader.token_to_id(token) for token in used}
    if absent := [token for token, row_ in rows.items() if row_ is None]:
        raise _UnfitError(f"no token {absent[0]!r}, which tokenizer_config.json puts around a text")
    if template is classes.ROBERTA_TEMPLATE:  # for this class a token's span in the text begins after its space
        cls, sep = tokens["cls"], tokens["sep"]
        spaced, trims = settings.get("add_prefix_space") is True, settings.get("trim_offsets") is not False
        reader.post_processor = processors.RobertaProcessing((sep, rows[sep]), (cls, rows[cls]), trims, spaced)
        return
    reader.post_processor = processors.TemplateProcessing(
        single=filled(template.single), pair=filled(template.pair), special_tokens=list(rows.items())
    )


# -- the tokenizer of a static model ---------------------------------------------------------------------------------


class StaticTokenizer(NamedTuple):
    """The new tokenizer, its tokenizer.json, and its tokens in order, each with its id in the old tokenizer."""

    tokenizer: Tokenizer
    content: bytes
    tokens: list[str]
    ids: list[int]


def static_tokenizer(old: Tokenizer) -> StaticTokenizer:
    """Make a static model's tokenizer from an encoder's, as model2vec 0.10 does with the package skeletoken.

    Tokens without a row in the static model go, and ids are numbered anew. Tokens added to the vocabulary ([CLS],
    [MASK], a user's words) go too, except the padding and the unknown token. No special token is put around a text.
    A byte-level tokenizer (GPT-2) splits the first word like any other, after a space; if an earlier rule splits words
    (Qwen), each piece gets a space.

    Raises TokenizerError for a vocabulary that has one token twice, or no token left.
    """
    from tokenizers import Tokenizer as Reader

    rules = json.loads(old.rules())
    model, kind = rules["model"], old.kind
    unigram = kind == "Unigram"
    vocabulary = {token: i for i, (token, _) in enumerate(model["vocab"])} if unigram else dict(model["vocab"])
    if len(vocabulary) != len(model["vocab"]):
        raise TokenizerError("the tokenizer's vocabulary has a token twice, so an id does not say which row it takes")
    unknown = unknown_token(model)
    kept = {old.named.get("unk", unknown), old.named.get("pad"), unknown}
    added = {token["content"]: token for token in rules["added_tokens"]}
    vocabulary |= {content: token["id"] for content, token in added.items()}
    dropped = {token for token in vocabulary if UNUSED.match(token)} | (added.keys() - kept)
    tokens = sorted(vocabulary.keys() - dropped, key=vocabulary.__getitem__)
    if not tokens:
        raise TokenizerError("the tokenizer has no token but those that are added to it; there is nothing to distill")
    new = {token: i for i, token in enumerate(tokens)}
    if unigram:
        scores = dict(model["vocab"])
        model["vocab"] = [[token, scores.get(token, min(scores.values()))] for token in tokens]
        model["unk_id"] = new.get(unknown)
    else:
        model["vocab"] = new
    if kind == "BPE":
        model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & dropped]
    rules["added_tokens"] = [{**added[token], "id": new[token]} for token in tokens if token in added]
    rules |= {
        "post_processor": None,
        "padding": None,
        "truncation": {"direction": "Right", "max_length": LONGEST, "strategy": "LongestFirst", "stride": 0},
    }
    splitting = rules["pre_tokenizer"] or {}
    for step in splitting.get("pretokenizers", [splitting]):
        if step.get("type") == "ByteLevel":
            step["add_prefix_space"] = True
    content = json.dumps(rules, ensure_ascii=False, separators=(",", ":"))
    return StaticTokenizer(
        Tokenizer(Reader.from_str(content)), content.encode(), tokens, [vocabulary[t] for t in tokens]
    )


def unknown_token(model: dict[str, Any]) -> str | None:
    """Return the token for unknown words; `model` as in tokenizer.json."""
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else str(model["vocab"][model["unk_id"]][0])
    found: str | None = model.get("unk_token")
    return found
