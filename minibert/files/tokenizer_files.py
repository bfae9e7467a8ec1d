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
NO_LETTER = "\U0010ffff"  # not in any vocabulary
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
    config = read_object(find("tokenizer_config.json"), TokenizerError)
    if "added_tokens_decoder" not in config:  # unless the file is of the newer kind
        config |= read_object(find("special_tokens_map.json"), TokenizerError)
    named_class = config.get("tokenizer_class")
    for file, name in (("tokenizer_config.json", named_class), ("config.json", declared)):
        if name is not None and not (isinstance(name, str) and name):
            raise TokenizerError(f"{where}: {file}: 'tokenizer_class' must be a name, found {name!r:.40}")
    if always_usual:
        named_class = declared = None
    name = class_of(named_class or declared, usual, lambda: path is not None and _mentions(path, b'"ByteLevel"'))
    if name in classes.ELSEWHERE:
        advice = "set tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json"
        why = f"the tokenizer class {name} has rules that minibert does not have"
        raise TokenizerError(f"{where}: {why}; if tokenizer.json alone gives the right ids, {advice}")
    class_ = classes.CLASSES.get(name, classes.AS_IT_STANDS)
    try:
        with without_panic(str(path)):
            if path is not None:
                reader = _from_json(path, class_, config, find, bool(named_class))
            elif class_.older and (path := find(class_.older)) is not None:
                reader = _from_older(path, class_, config, find, where)
            else:
                expected = "tokenizer.json, or vocab.txt, or vocab.json with merges.txt"
                raise TokenizerError(f"{where} has no tokenizer: expected {expected}; pass ids, or {CONVERT}")
        reader.encode_special_tokens = config.get("split_special_tokens") is True
        named = {key.removesuffix("_token"): token.content for key, token in _named_tokens(class_, config).items()}
        truncates_left, pads_left = _is_left(config, "truncation_side"), _is_left(config, "padding_side", class_.pads)
        return Tokenizer(reader, pad_id, str(path), truncates_left, named, _typed(class_, config), pads_left)
    except _UnfitError as error:
        raise TokenizerError(f"{where}: {error}") from None
    except MinibertError:
        raise
    except Exception as error:  # noqa: BLE001  the library's Rust core raises bare Exception
        path = path or find("vocab.txt") or find("vocab.json")
        raise TokenizerError(f"{path}: unreadable tokenizer file ({error}); fetch it again, or {CONVERT}") from None


def open_without_special_tokens(find: Find, where: str) -> Tokenizer:
    """Open only tokenizer.json, without special tokens around a text, for static models. Raises TokenizerError."""
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
    truncates_left = (reader.truncation or {}).get("direction") == "left"
    return Tokenizer(reader, None, str(path), truncates_left).without_special_tokens()


def _mentions(path: FileName, word: bytes) -> bool:
    with open(path, "rb") as file:
        return word in file.read()


def _from_json(path: FileName, class_: TokenizerClass, config: Json, find: Find, declared: bool) -> Any:
    from tokenizers import Tokenizer as Reader

    stored, pieces = _read_stored(path, class_)
    kind = type(stored.model).__name__
    if class_.kind not in ("", kind):
        if declared:
            names = f"tokenizer_config.json names {config['tokenizer_class']}, which is for {class_.kind}"
            advice = "set tokenizer_class to PreTrainedTokenizerFast to read it as it stands"
            raise TokenizerError(f"{path}: {names}, but this file's model is {kind}; {advice}")
        class_ = classes.AS_IT_STANDS
    reader, added = stored, stored.get_added_tokens_decoder()
    if class_.rules is not None:
        settings = _class_settings(config, class_, stored.normalizer)
        model = stored.model if pieces is None else _unigram(pieces, class_, settings)
        if pieces is not None:
            numbered = Reader(model)
            numbered.add_tokens([token for _, token in sorted(added.items())])
            added = numbered.get_added_tokens_decoder()
        reader = Reader(model)  # and none of the file's added tokens
        reader.post_processor = stored.post_processor
        _apply(reader, class_, settings)
    _add_tokens(reader, class_, config, find, added)
    _put_template(reader, class_, config)
    return reader


def _read_stored(path: FileName, class_: TokenizerClass) -> tuple[Any, list[tuple[str, float]] | None]:
    """Return the file's tokenizer; for a class of Unigram also its pieces, with scores read by Python's parser.

    transformers does the same. The library's parser reads many scores one unit in the last place off, and then it
    chooses the wrong one of two equally likely splits. It also takes twice as long.
    """
    from tokenizers import Tokenizer as Reader

    rules = read_object(path, TokenizerError) if class_.kind == "Unigram" else {}
    model = rules.get("model")
    if not isinstance(model, dict) or model.get("type", "Unigram") != "Unigram" or not isinstance(model["vocab"], list):
        return Reader.from_file(str(path)), None
    pieces = [(token, score) for token, score in model["vocab"]]
    rules["model"] = {"type": "Unigram", "vocab": [[NO_LETTER, 0.0]], "unk_id": 0}
    return Reader.from_str(json.dumps(rules)), pieces


def _from_older(path: FileName, class_: TokenizerClass, config: Json, find: Find, where: str) -> Any:
    from tokenizers import Tokenizer as Reader
    from tokenizers import models

    settings = _class_settings(config, class_, None)
    if class_.kind == "WordPiece":
        reader = Reader(models.WordPiece(models.WordPiece.read_file(str(path)), unk_token=settings.token("unk")))
    else:
        merges = find("merges.txt")
        if merges is None:
            raise TokenizerError(f"{where} has vocab.json but no merges.txt; both are needed: fetch it")
        reader = Reader(models.BPE.from_file(str(path), str(merges)))
    needed = [*(["unk"] if class_.kind == "WordPiece" else []), *_names(class_.template)]
    needed += ["bos"] if config.get("add_bos_token") and settings.token("bos") else []
    for token in map(settings.token, needed):
        if reader.token_to_id(token) is None:
            raise TokenizerError(f"{path}: no token {token!r}, which every text needs; is this {class_.maker}'s file?")
    _apply(reader, class_, settings)
    _add_tokens(reader, class_, config, find, {})
    _put_template(reader, class_, config, older=True)
    return reader


# -- settings ----------------------------------------------------------------------------------------------------


def _class_settings(config: Json, class_: TokenizerClass, normalizer: Any) -> Settings:
    def flag(key: str, default: bool | None) -> bool | None:
        value = config.get(key)
        if value is not None and not isinstance(value, bool):
            raise _UnfitError(f"tokenizer_config.json: {key!r} must be true or false, found {value!r:.40}")
        return default if value is None else value

    tokens = _named_texts(config)
    steps = normalizer if type(normalizer).__name__ == "Sequence" else [normalizer]
    charsmap = next((step for step in steps if type(step).__name__ == "Precompiled"), None)
    return Settings(flag, lambda name: tokens.get(name) or class_.tokens.get(name, ""), charsmap)


def _is_left(config: Json, key: str, usual: str = "right") -> bool:
    side = config.get(key, usual)
    if side not in ("right", "left"):
        raise _UnfitError(f"tokenizer_config.json: {key!r} must be 'right' or 'left', found {side!r:.40}")
    return bool(side == "left")


def _typed(class_: TokenizerClass, config: Json) -> bool:
    """Whether the model gets token types: as tokenizer_config.json says, else the class."""
    names = config.get("model_input_names")
    if names is None:
        return class_.types
    if not isinstance(names, list):
        raise _UnfitError(f"tokenizer_config.json: 'model_input_names' must be a list of names, found {names!r:.40}")
    return "token_type_ids" in names


def _content(value: Any, key: str) -> str | None:
    """Return the text of a token, which is stored as a string or as an object with flags."""
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise _UnfitError(f"tokenizer_config.json: {key!r} must be a token, found {value!r:.40}")
    return text


def _named_texts(config: Json) -> dict[str, str]:
    """Return the special tokens that tokenizer_config.json names: "cls" -> "[CLS]"."""
    texts = {name: _content(config.get(f"{name}_token"), f"{name}_token") for name in NAMED}
    return {name: text for name, text in texts.items() if text is not None}


# -- parts -------------------------------------------------------------------------------------------------------


def _unigram(pieces: list[tuple[str, float]], class_: TokenizerClass, settings: Settings) -> Any:
    """Build the model from these pieces; the class decides the row of unknown letters."""
    from tokenizers import models

    unknown = class_.unknown
    if not isinstance(unknown, int):
        wanted = settings.token(str(unknown))
        unknown = next((i for i, (token, _) in enumerate(pieces) if token == wanted), 0)
    return models.Unigram(pieces, unknown, False)


def _apply(reader: Any, class_: TokenizerClass, settings: Settings) -> None:
    import tokenizers

    assert class_.rules is not None
    rules = class_.rules(tokenizers, settings)
    for name, value in rules.model.items():
        if getattr(reader.model, name) != value:
            setattr(reader.model, name, value)
    reader.normalizer, reader.pre_tokenizer, reader.decoder = rules.normalizer, rules.splitting, rules.decoder


def _add_tokens(reader: Any, class_: TokenizerClass, config: Json, find: Find, file_tokens: Mapping[int, Any]) -> None:
    """Add the tokens that are found in a text before it is split, in the order of their rows."""
    from tokenizers import AddedToken

    listed = _listed_tokens(config, find, file_tokens)
    by_content = {token.content: token for token in listed.values()}
    adding = [token for _, token in sorted(listed.items())]
    named = {token.content: by_content.get(token.content, token) for token in _named_tokens(class_, config).values()}
    known = {token.content for token in [*reader.get_added_tokens_decoder().values(), *adding]}
    adding += [token for content, token in named.items() if content not in known]
    for token in adding:
        token.special = token.special or token.content in named
    reader.add_tokens(adding)
    if class_.plain:
        reader.add_tokens([AddedToken(content, special=True) for content in named])


def _listed_tokens(config: Json, find: Find, file_tokens: Mapping[int, Any]) -> dict[int, Any]:
    from tokenizers import AddedToken

    listed = config.get("added_tokens_decoder")
    if listed is not None:
        try:
            return {int(i): AddedToken(token["content"], **_flags(token)) for i, token in listed.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _UnfitError(f"tokenizer_config.json: added_tokens_decoder is not readable ({error})") from None
    names = {*_named_texts(config).values(), *(_content(token, "extra_special_tokens") for token in _extra(config))}
    tokens = {}
    for content, i in read_object(find("added_tokens.json"), TokenizerError).items():
        if type(i) is not int:
            raise _UnfitError(f"added_tokens.json: {content!r} must have an id, found {i!r:.40}")
        tokens[i] = AddedToken(content, normalized=content not in names, special=content in names)
    return {**tokens, **file_tokens}


def _flags(token: Json) -> Json:
    return {flag: token[flag] for flag in FLAGS if flag in token}


def _extra(config: Json) -> list[Any]:
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    tokens = list(extra.values()) if isinstance(extra, dict) else extra
    if not isinstance(tokens, list):
        raise _UnfitError(f"tokenizer_config.json: special tokens must be a list, found {extra!r:.40}")
    return tokens


def _named_tokens(class_: TokenizerClass, config: Json) -> dict[str, Any]:
    """Return the special tokens with a name, then the extra ones: as tokenizer_config.json says, else the class."""
    from tokenizers import AddedToken

    named: Json = {f"{name}_token": class_.tokens.get(name) for name in NAMED}
    named |= {key: value for key, value in config.items() if key.endswith("_token") and isinstance(value, str | dict)}
    named |= {f"extra {i}": token for i, token in enumerate(_extra(config))}
    tokens = {}
    for key, value in named.items():
        flags = _flags(value) if isinstance(value, dict) else {"lstrip": key == "mask_token" and class_.takes_left}
        if (content := _content(value, key)) is not None:
            tokens[key] = AddedToken(content, **{"special": True, "normalized": False, **flags})
    return tokens


def _names(template: Template | None) -> list[str]:
    parts = "" if template is None else template.single
    return list(dict.fromkeys(part.partition(":")[0] for part in parts.split() if part[0] != "$"))


def _put_template(reader: Any, class_: TokenizerClass, config: Json, older: bool = False) -> None:
    """Set the class's template; if neither class nor file has one, use the tokens that tokenizer_config.json names."""
    template, tokens = class_.template, {**class_.tokens, **_named_texts(config)}
    if reader.post_processor is not None and (template is None or class_.keeps):
        return
    if template is None or not _names(template):  # only older files follow add_bos_token, tokenizer.json overrides it
        begin = "bos" if older and config.get("add_bos_token") and "bos" in tokens else ""
        end = "eos" if older and config.get("add_eos_token") and "eos" in tokens else ""
        template = Template(f"{begin} $A {end}", f"{begin} $A {end} {begin and begin + ':1'} $B:1 {end and end + ':1'}")
    from tokenizers import processors

    def with_tokens(parts: str) -> list[str]:
        steps = (part.partition(":") for part in parts.split())
        return [f"{part if part[0] == '$' else tokens[part]}:{segment or 0}" for part, _, segment in steps]

    used = sorted({tokens[name] for name in _names(template)})
    ids = {token: reader.token_to_id(token) for token in used}
    if absent := [token for token, i in ids.items() if i is None]:
        raise _UnfitError(f"no token {absent[0]!r}, which tokenizer_config.json puts around a text")
    if template is classes.ROBERTA_TEMPLATE:  # for this class a token's span in the text begins after its space
        cls, sep = tokens["cls"], tokens["sep"]
        spaced, trims = config.get("add_prefix_space") is True, config.get("trim_offsets") is not False
        reader.post_processor = processors.RobertaProcessing((sep, ids[sep]), (cls, ids[cls]), trims, spaced)
        return
    reader.post_processor = processors.TemplateProcessing(
        single=with_tokens(template.single), pair=with_tokens(template.pair), special_tokens=list(ids.items())
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
    new_ids = {token: i for i, token in enumerate(tokens)}
    if unigram:
        scores = dict(model["vocab"])
        model["vocab"] = [[token, scores.get(token, min(scores.values()))] for token in tokens]
        model["unk_id"] = new_ids.get(unknown)
    else:
        model["vocab"] = new_ids
    if kind == "BPE":
        model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & dropped]
    rules["added_tokens"] = [{**added[token], "id": new_ids[token]} for token in tokens if token in added]
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
    ids = [vocabulary[token] for token in tokens]
    return StaticTokenizer(Tokenizer(Reader.from_str(content)), content.encode(), tokens, ids)


def unknown_token(model: dict[str, Any]) -> str | None:
    """Return the token for unknown words; `model` as in tokenizer.json."""
    if model["type"] == "Unigram":
        return None if model["unk_id"] is None else str(model["vocab"][model["unk_id"]][0])
    token: str | None = model.get("unk_token")
    return token
