"""The tokenizer classes of transformers 5: how each splits a text, given a vocabulary and tokenizer_config.json.

A class of this table reads the vocabulary from tokenizer.json, but not its rules: normalizer, splitting and mostly the
template come from the class and the settings. transformers does the same, so ids and vectors are equal. Every
other class reads tokenizer.json unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

GENERIC = "TokenizersBackend"  # reads tokenizer.json unchanged
SPACE = "▁"  # how a vocabulary of sentencepiece writes a space
# how GPT-2's successors split a text; copied from transformers
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class Settings(NamedTuple):
    """The settings of a folder that a class reads.

    flag: key of tokenizer_config.json and default -> true or false, or None if that is the default. token: "cls" ->
    "[CLS]". charsmap: the map of characters in tokenizer.json, None without one.
    """

    flag: Callable[[str, bool | None], bool | None]
    token: Callable[[str], str]
    charsmap: Any = None


class Rules(NamedTuple):
    """The steps of a class. model: attributes of the model that the file cannot change. decoder: tokens -> text."""

    normalizer: Any = None
    splitting: Any = None
    model: Mapping[str, Any] = {}
    decoder: Any = None


class Template(NamedTuple):
    """The special tokens around texts, by their names: "cls $A sep"; `:1` after a name is its segment."""

    single: str
    pair: str


class TokenizerClass(NamedTuple):
    """One class: its rules and its template (None: the file's), its named tokens.

    kind: the algorithm by the library's name; "" for any. older: the file that is read if there is no tokenizer.json.
    maker: the family that published such files. unknown: the row of Unigram's unknown letters, or the named token with
    this row. takes_left: the mask includes the space before it. keeps: a template of the file stays. plain: flags of
    named tokens in the file are ignored. types: the model gets token_type_ids. pads: the side of padding. The settings
    override `types` and `pads`.
    """

    rules: Callable[[Any, Settings], Rules] | None
    template: Template | None
    tokens: Mapping[str, str]
    kind: str = "BPE"
    older: str = ""
    maker: str = ""
    unknown: int | str | None = None
    takes_left: bool = False
    keeps: bool = False
    plain: bool = False
    types: bool = False
    pads: str = "right"


BERT_TEMPLATE = Template("cls $A sep", "cls $A sep $B:1 sep:1")
ROBERTA_TEMPLATE = Template("cls $A sep", "cls $A sep sep $B sep")
FAIRSEQ_TEMPLATE = Template("bos $A eos", "bos $A eos eos $B eos")
XLNET_TEMPLATE = Template("$A sep cls:2", "$A sep $B:1 sep:1 cls:2")
T5_TEMPLATE = Template("$A eos", "$A eos $B eos")
BERT_TOKENS = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
ROBERTA_TOKENS = {
    "bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>",
}  # fmt: skip
GPT2_TOKENS = {"unk": "<|endoftext|>", "bos": "<|endoftext|>", "eos": "<|endoftext|>"}


def _bert(lib: Any, settings: Settings) -> Rules:
    """Split at spaces and punctuation, then greedily into the longest pieces of the vocabulary."""
    normalizer = lib.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=settings.flag("strip_accents", None),
        lowercase=settings.flag("do_lower_case", True),
    )
    model = {"unk_token": settings.token("unk"), "max_input_chars_per_word": 100, "continuing_subword_prefix": "##"}
    return Rules(normalizer, lib.pre_tokenizers.BertPreTokenizer(), model, lib.decoders.WordPiece(prefix="##"))


def _dpr(lib: Any, settings: Settings) -> Rules:
    """Split like BERT, but ignore do_lower_case, as transformers' class does."""
    flag = settings.flag
    return _bert(lib, settings._replace(flag=lambda key, usual: usual if key == "do_lower_case" else flag(key, usual)))


def _byte_level(lib: Any, settings: Settings) -> Rules:
    """Merge bytes pair by pair, in the order in which the pairs were learned."""
    splitting = lib.pre_tokenizers.ByteLevel(add_prefix_space=settings.flag("add_prefix_space", False))
    return Rules(None, splitting, _bpe(), lib.decoders.ByteLevel())


def _gpt_neox(lib: Any, settings: Settings) -> Rules:
    return _byte_level(lib, settings)._replace(normalizer=lib.normalizers.NFC())


def _cohere(lib: Any, settings: Settings) -> Rules:
    rules = _gpt_neox(lib, settings)
    split = lib.pre_tokenizers
    return rules._replace(splitting=split.Sequence([split.Digits(individual_digits=True), rules.splitting]))


def _qwen2(lib: Any, settings: Settings) -> Rules:
    split = lib.pre_tokenizers
    steps = [
        split.Split(lib.Regex(QWEN), behavior="isolated", invert=False),
        split.ByteLevel(add_prefix_space=settings.flag("add_prefix_space", False), use_regex=False),
    ]
    return Rules(lib.normalizers.NFC(), split.Sequence(steps), _bpe(), lib.decoders.ByteLevel())


def _clip(lib: Any, settings: Settings) -> Rules:
    change, split = lib.normalizers, lib.pre_tokenizers
    normalizer = change.Sequence([change.NFC(), change.Replace(lib.Regex(r"\s+"), " "), change.Lowercase()])
    steps = [split.Split(lib.Regex(CLIP), behavior="removed", invert=True), split.ByteLevel(add_prefix_space=False)]
    return Rules(normalizer, split.Sequence(steps), _bpe("</w>", settings.token("unk")), lib.decoders.ByteLevel())


def _openai(lib: Any, settings: Settings) -> Rules:
    normalizer = lib.normalizers.BertNormalizer(lowercase=True)
    decoder = lib.decoders.BPEDecoder(suffix="</w>")
    return Rules(normalizer, lib.pre_tokenizers.BertPreTokenizer(), _bpe("</w>", settings.token("unk")), decoder)


def _gemma(lib: Any, settings: Settings) -> Rules:
    splitting = lib.pre_tokenizers.Split(pattern=" ", behavior="merged_with_previous", invert=False)
    model = {**_bpe(None, settings.token("unk")), "fuse_unk": True, "byte_fallback": True}
    return Rules(lib.normalizers.Replace(" ", SPACE), splitting, model, _from_bytes(lib))


def _llama(lib: Any, settings: Settings) -> Rules:
    scheme = "always" if settings.flag("legacy", False) else "first"
    scheme = scheme if settings.flag("add_prefix_space", True) else "never"
    splitting = lib.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    decoder = _from_bytes(lib, *([] if scheme == "never" else [lib.decoders.Strip(content=" ", left=1)]))
    return Rules(None, splitting, {**_bpe(None), "fuse_unk": True, "byte_fallback": True}, decoder)


def _from_bytes(lib: Any, *steps: Any) -> Any:
    """Return the decoder of a vocabulary that spells unknown letters as bytes."""
    decode = lib.decoders
    return decode.Sequence([decode.Replace(SPACE, " "), decode.ByteFallback(), decode.Fuse(), *steps])


def _bpe(ending: str | None = "", unknown: str | None = None) -> dict[str, Any]:
    return {
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None if ending is None else "",
        "end_of_word_suffix": ending,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }


def _spaces(lib: Any, scheme: str) -> tuple[Any, Any]:
    """Return the step that writes the space before each word as a letter, and the decoder that reverses it."""
    options = {"replacement": SPACE, "prepend_scheme": scheme}
    return lib.pre_tokenizers.Metaspace(**options), lib.decoders.Metaspace(**options)


def _words(lib: Any, normalizer: Any, scheme: str = "always") -> Rules:
    """Split at white space."""
    metaspace, decoder = _spaces(lib, scheme)
    return Rules(
        normalizer, lib.pre_tokenizers.Sequence([lib.pre_tokenizers.WhitespaceSplit(), metaspace]), {}, decoder
    )


def _unigram(lib: Any, settings: Settings) -> Rules:
    """Map characters as the file says, split into words, and each word into its most probable pieces."""
    return _words(lib, settings.charsmap, "always" if settings.flag("add_prefix_space", True) else "never")


def _albert(lib: Any, settings: Settings) -> Rules:
    scheme = "always" if settings.flag("add_prefix_space", True) else "never"
    return _words(lib, _quotes(lib, settings, not settings.flag("keep_accents", False), True), scheme)


def _xlnet(lib: Any, settings: Settings) -> Rules:
    return _words(lib, _quotes(lib, settings, True, False))


def _quotes(lib: Any, settings: Settings, no_accents: bool, lower_case: bool) -> Any:
    change = lib.normalizers
    steps = [change.Replace("``", '"'), change.Replace("''", '"')]
    steps += [change.NFKD(), change.StripAccents()] if no_accents else []
    steps += [change.Lowercase()] if settings.flag("do_lower_case", lower_case) else []
    return change.Sequence(steps + ([] if settings.charsmap is None else [settings.charsmap]))


def _deberta_v2(lib: Any, settings: Settings) -> Rules:
    change, split = lib.normalizers, lib.pre_tokenizers
    steps = [change.Lowercase()] if settings.flag("do_lower_case", False) else []
    steps += [change.Replace(lib.Regex(r"\s{2,}|[\n\r\t]"), " "), change.NFC(), change.Strip(left=False, right=True)]
    splits = [split.Punctuation(behavior="isolated")] if settings.flag("split_by_punct", False) else []
    metaspace, decoder = _spaces(lib, "always" if settings.flag("add_prefix_space", True) else "first")
    return Rules(change.Sequence(steps), split.Sequence([*splits, metaspace]), decoder=decoder)


def _pegasus(lib: Any, settings: Settings) -> Rules:
    change = lib.normalizers
    first = change.Replace(lib.Regex(r"\n"), " ") if settings.charsmap is None else settings.charsmap
    normalizer = change.Sequence([first, change.Replace(lib.Regex(r" {2,}"), " ")])
    metaspace, decoder = _spaces(lib, "always")
    return Rules(normalizer, metaspace, decoder=decoder)


_BERT = TokenizerClass(_bert, BERT_TEMPLATE, BERT_TOKENS, "WordPiece", "vocab.txt", "BERT", types=True)
_ROBERTA = TokenizerClass(_byte_level, ROBERTA_TEMPLATE, ROBERTA_TOKENS, "BPE", "vocab.json", "RoBERTa")
_ALBERT_TOKENS = {**BERT_TOKENS, "bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "pad": "<pad>"}
_DEBERTA_TOKENS = {**BERT_TOKENS, "bos": "[CLS]", "eos": "[SEP]"}
_XLNET_TOKENS = {**ROBERTA_TOKENS, "sep": "<sep>", "cls": "<cls>"}
_CLIP_TOKENS = {**GPT2_TOKENS, "bos": "<|startoftext|>", "pad": "<|endoftext|>"}
_T5_TOKENS = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_COHERE_TOKENS = {
    "unk": "<UNK>", "bos": "<BOS_TOKEN>", "eos": "<|END_OF_TURN_TOKEN|>", "pad": "<PAD>", "cls": "<CLS>",
    "sep": "<SEP>", "mask": "<MASK_TOKEN>",
}  # fmt: skip

CLASSES: Mapping[str, TokenizerClass] = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT._replace(types=False),
    "ElectraTokenizer": _BERT,
    "LayoutLMTokenizer": _BERT,
    "DPRQuestionEncoderTokenizer": _BERT._replace(rules=_dpr),
    "DPRContextEncoderTokenizer": _BERT._replace(rules=_dpr),
    "MobileBertTokenizer": _BERT,
    "SqueezeBertTokenizer": _BERT,
    "LxmertTokenizer": _BERT,
    "ConvBertTokenizer": _BERT._replace(rules=None),
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "LEDTokenizer": _ROBERTA,
    "LongformerTokenizer": _ROBERTA,
    "MvpTokenizer": _ROBERTA,
    "MPNetTokenizer": TokenizerClass(
        _bert, ROBERTA_TEMPLATE, {**ROBERTA_TOKENS, "unk": "[UNK]"}, "WordPiece", takes_left=True
    ),
    "XLMRobertaTokenizer": TokenizerClass(_unigram, FAIRSEQ_TEMPLATE, ROBERTA_TOKENS, kind="Unigram", unknown=3),
    "CamembertTokenizer": TokenizerClass(
        _unigram, FAIRSEQ_TEMPLATE, ROBERTA_TOKENS, kind="Unigram", unknown="unk", takes_left=True
    ),
    "GPT2Tokenizer": TokenizerClass(_byte_level, None, GPT2_TOKENS, "BPE", "vocab.json", "GPT-2"),
    "GPTNeoXTokenizer": TokenizerClass(_gpt_neox, Template("$A", "$A $B:1"), {**GPT2_TOKENS, "pad": "<|padding|>"}),
    "CohereTokenizer": TokenizerClass(_cohere, None, _COHERE_TOKENS, pads="left"),
    "Qwen2Tokenizer": TokenizerClass(
        _qwen2, None, dict.fromkeys(("unk", "eos", "pad"), "<|endoftext|>"), "BPE", "vocab.json", "Qwen", plain=True
    ),
    "LlamaTokenizer": TokenizerClass(_llama, None, {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}, pads="left"),
    "GemmaTokenizer": TokenizerClass(
        _gemma, None, {"unk": "<unk>", "bos": "<bos>", "eos": "<eos>", "pad": "<pad>", "mask": "<mask>"}, pads="left"
    ),
    "CLIPTokenizer": TokenizerClass(_clip, FAIRSEQ_TEMPLATE, _CLIP_TOKENS),
    "OpenAIGPTTokenizer": TokenizerClass(_openai, None, {"unk": "<unk>"}, "BPE", "vocab.json", "GPT"),
    "AlbertTokenizer": TokenizerClass(_albert, BERT_TEMPLATE, _ALBERT_TOKENS, kind="Unigram", unknown=1, keeps=True),
    "DebertaV2Tokenizer": TokenizerClass(
        _deberta_v2, BERT_TEMPLATE, _DEBERTA_TOKENS, kind="Unigram", unknown="unk", types=True
    ),
    "XLNetTokenizer": TokenizerClass(
        _xlnet, XLNET_TEMPLATE, _XLNET_TOKENS, kind="Unigram", unknown=0, takes_left=True, pads="left"
    ),
    "T5Tokenizer": TokenizerClass(
        lambda lib, settings: _words(lib, settings.charsmap), T5_TEMPLATE, _T5_TOKENS, kind="Unigram", unknown=2
    ),
    "PegasusTokenizer": TokenizerClass(
        _pegasus, Template("$A eos", "$A $B eos"), {**_T5_TOKENS, "mask": "<mask_2>"}, kind="Unigram", unknown="unk"
    ),
}

AS_IT_STANDS = TokenizerClass(None, None, {}, kind="")  # every other class
# transformers builds these by rules that minibert does not have, regardless of tokenizer.json
ELSEWHERE = frozenset((
    "BarthezTokenizer", "BartphoTokenizer", "BertGenerationTokenizer", "BertJapaneseTokenizer", "BertTokenizerLegacy",
    "BertweetTokenizer", "BigBirdTokenizer", "BioGptTokenizer", "BlenderbotSmallTokenizer", "BlenderbotTokenizer",
    "ByT5Tokenizer", "CTRLTokenizer", "CanineTokenizer", "ClvpTokenizer", "CodeGenTokenizer", "CodeLlamaTokenizer",
    "CpmAntTokenizer", "CpmTokenizer", "DPRReaderTokenizer", "DebertaTokenizer", "DiaTokenizer", "EsmTokenizer",
    "EsmcTokenizer", "FNetTokenizer", "FSMTTokenizer", "FastSpeech2ConformerTokenizer", "FlaubertTokenizer",
    "FunnelTokenizer", "GPTNeoXJapaneseTokenizer", "GPTSw3Tokenizer", "HerbertTokenizer", "LasrTokenizer",
    "LayoutLMv2Tokenizer", "LayoutLMv3Tokenizer", "LayoutXLMTokenizer", "LukeTokenizer", "M2M100Tokenizer",
    "MBart50Tokenizer", "MLukeTokenizer", "MarkupLMTokenizer", "MgpstrTokenizer", "MyT5Tokenizer", "NllbTokenizer",
    "NougatTokenizer", "PLBartTokenizer", "PerceiverTokenizer", "PhobertTokenizer", "Pop2PianoTokenizer",
    "ProphetNetTokenizer", "Qwen3_5Tokenizer", "RagTokenizer", "ReformerTokenizer", "RemBertTokenizer",
    "RoCBertTokenizer", "RoFormerTokenizer", "SeamlessM4TTokenizer", "Siglip2Tokenizer", "SiglipTokenizer",
    "Speech2TextTokenizer", "SpeechT5Tokenizer", "SplinterTokenizer", "TapasTokenizer", "Tipsv2Tokenizer",
    "UdopTokenizer", "VideoPrismTokenizer", "VitsTokenizer", "Wav2Vec2CTCTokenizer", "Wav2Vec2PhonemeCTCTokenizer",
    "XGLMTokenizer",
))  # fmt: skip


def class_of(declared: str | None, usual: str | None, byte_level: Callable[[], bool] = bool) -> str:
    """Choose the class as AutoTokenizer does: the declared class overrides the usual one of the model's type.

    >>> class_of("BertTokenizerFast", "RobertaTokenizer"), class_of(None, "BertTokenizer")
    ('BertTokenizer', 'BertTokenizer')
    >>> class_of("PreTrainedTokenizerFast", "BertTokenizer"), class_of("MyTokenizer", "BertTokenizer")
    ('TokenizersBackend', 'TokenizersBackend')
    """
    name = (declared or usual or GENERIC).removesuffix("Fast")
    if usual == GENERIC or (name == "LlamaTokenizer" and byte_level()):
        return GENERIC  # files of this type declare a wrong class, or Llama's class for a byte-level vocabulary
    return name if name in CLASSES or name in ELSEWHERE else GENERIC
