"""Every family as a row: which steps, in which order, on which tensors. Data only; nothing is computed here.

The order of the steps is the order of evaluation, and it shows in the bits: BERT adds (word + type) + position,
ConvBERT (word + position) + type, and they differ in a third of all float32 entries.

To add a family, write a row and pass it to `load(..., family=row)`; see README.md beside this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from minibert.equations.input_layer import sinusoidal_positions

from .config import Config
from .family import Family, Scheme
from .frozen import replace
from .steps import Add, Binder, Mask, Norm, Positions, Project, Scale, Tokens

if TYPE_CHECKING:
    from .attention_schemes import AttentionPosition

# -- conditions and numbers that a config decides ----------------------------------------------------------------


def projected(config: Config) -> bool:
    """The tables are narrower (or wider) than the model."""
    return config.integer("embedding_size") != config.integer("hidden_size")


def projected_words(config: Config) -> bool:
    """The same in OPT's words."""
    return config.integer("word_embed_proj_dim") != config.integer("hidden_size")


def typed(config: Config) -> bool:
    """There are token types."""
    return config.integer("type_vocab_size") > 0


def sqrt_width(config: Config) -> float:
    """The factor of Vaswani et al. 2017."""
    return math.sqrt(config.integer("hidden_size"))


def embedding_multiplier(config: Config) -> float:
    """Granite's factor, a number of its own."""
    return config.number("embedding_multiplier")


def module_scale(config: Config) -> float:
    """The factor inside the word module, 1 where the config asks for none."""
    return sqrt_width(config) if scaled(config) else 1.0


def switch(key: str, default: bool) -> Callable[[Config], bool]:
    """The condition "this key of the config is true"."""
    return partial(_is_on, key, default)  # keywords of a partial could be changed


def _is_on(key: str, default: bool, config: Config) -> bool:
    return config.flag(key, default)


scaled = switch("scale_embedding", False)  # word rows are multiplied by sqrt(width)


def many_languages(config: Config) -> bool:
    """XLM adds a row for the language where it knows more than one."""
    return config.flag("use_lang_emb", True) and config.integer("n_langs") > 1


def sinusoids_in_halves(rows: int, dim: int) -> Any:
    """The table that Marian and Pegasus files may leave out, since a formula makes it."""
    return sinusoidal_positions(rows, dim, layout="halves")


def scheme(name: str, **families_own: Any) -> Scheme:
    """The position scheme inside attention that `attention_schemes` has under this name."""
    return partial(_bind_scheme, name, tuple(families_own.items()))


def _bind_scheme(
    name: str, families_own: tuple[tuple[str, Any], ...], config: Config, binder: Binder, side: str
) -> AttentionPosition | None:
    from . import attention_schemes  # here, since the input layer itself never needs it

    found: AttentionPosition | None = getattr(attention_schemes, name)(config, binder, side, **dict(families_own))
    return found


# -- the rows ----------------------------------------------------------------------------------------------------

WORD = Tokens(path="embeddings.word_embeddings", head="cls.predictions.decoder.weight")
TYPE = Add(path="embeddings.token_type_embeddings", ids="token_type_ids", rows="type_vocab_size", missing=0)
POSITION = Positions(path="embeddings.position_embeddings")
NORM = Norm(path="embeddings.LayerNorm")
PRINTED = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
BERT_DEFAULTS = {"layer_norm_eps": 1e-12, "pad_token_id": 0, "type_vocab_size": 2, "max_position_embeddings": 512}
# with "relative_key" positions act inside attention and no position row is added here
ABSOLUTE = {"position_embedding_type": "absolute"}
NARROW = "embedding_size"  # families whose tables are narrower than the model

BERT = Family(
    model_type="bert",
    steps=(WORD, TYPE, POSITION, NORM),
    prefixes=("bert.",),
    tree={"embeddings": "BertEmbeddings"},
    order=PRINTED,
    defaults=BERT_DEFAULTS,
    only=ABSOLUTE,
    tokenizer="BertTokenizer",
)

ROBERTA = replace(
    BERT,
    model_type="roberta",
    steps=(
        replace(WORD, head="lm_head.decoder.weight"),
        TYPE,
        replace(POSITION, rule="padding", padding_idx="pad_token_id"),
        NORM,
    ),
    prefixes=("roberta.",),
    tree={"embeddings": "RobertaEmbeddings"},
    order=("word_embeddings", "token_type_embeddings", "LayerNorm", "position_embeddings"),
    defaults={**BERT_DEFAULTS, "pad_token_id": 1},
    tokenizer="RobertaTokenizer",
)

XLM_ROBERTA = replace(
    ROBERTA, model_type="xlm-roberta", tree={"embeddings": "XLMRobertaEmbeddings"}, tokenizer="XLMRobertaTokenizer"
)
CAMEMBERT = replace(
    ROBERTA, model_type="camembert", tree={"embeddings": "CamembertEmbeddings"}, tokenizer="CamembertTokenizer"
)

DISTILBERT = replace(
    BERT,
    model_type="distilbert",
    steps=(replace(WORD, head="vocab_projector.weight"), replace(POSITION, cached=False), replace(NORM, eps=1e-12)),
    prefixes=("distilbert.",),
    tree={"embeddings": "Embeddings"},
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    defaults={"pad_token_id": 0, "max_position_embeddings": 512},
)

ALBERT = replace(
    BERT,
    model_type="albert",
    tokenizer="AlbertTokenizer",
    steps=(
        replace(WORD, width=NARROW, head="predictions.decoder.weight"),
        replace(TYPE, width=NARROW),
        replace(POSITION, width=NARROW, cached=False),
        replace(NORM, width=NARROW),
        Project(path="encoder.embedding_hidden_mapping_in"),
    ),
    prefixes=("albert.",),
    tree={"": "AlbertModel", "embeddings": "AlbertEmbeddings", "encoder": "AlbertTransformer"},
    defaults={**BERT_DEFAULTS, "embedding_size": 128},
)

ELECTRA = replace(
    BERT,
    model_type="electra",
    steps=(
        replace(WORD, width=NARROW, head="generator_lm_head.weight"),
        replace(TYPE, width=NARROW),
        replace(POSITION, width=NARROW),
        replace(NORM, width=NARROW),
        Project(path="embeddings_project", when=projected),
    ),
    prefixes=("electra.",),
    tree={"": "ElectraModel", "embeddings": "ElectraEmbeddings"},
    defaults={**BERT_DEFAULTS, "embedding_size": 128},
)

MPNET = replace(
    BERT,
    model_type="mpnet",
    tokenizer="MPNetTokenizer",
    attention=scheme("mpnet_bias"),
    # the padding row is fixed to 1 in the reference, whatever config.json says
    steps=(
        replace(WORD, padding_idx=1, head="lm_head.decoder.weight"),
        replace(POSITION, rule="padding", padding_idx=1, cached=False),
        NORM,
    ),
    prefixes=("mpnet.",),
    tree={"embeddings": "MPNetEmbeddings"},
    defaults={**BERT_DEFAULTS, "pad_token_id": 1, "relative_attention_num_buckets": 32},
)

DEBERTA_V2 = replace(
    BERT,
    model_type="deberta-v2",
    tokenizer="DebertaV2Tokenizer",
    attention=scheme("deberta_log_buckets"),
    steps=(
        replace(WORD, width=NARROW),
        replace(POSITION, width=NARROW, cached=False, when=switch("position_biased_input", True)),
        replace(TYPE, width=NARROW, when=typed),
        Project(path="embeddings.embed_proj", biased=False, when=projected),
        NORM,
        Mask(),
    ),
    prefixes=("deberta.",),
    tree={"embeddings": "DebertaV2Embeddings"},
    order=(*PRINTED[:3], "embed_proj", "LayerNorm"),
    unused_endings=("position_ids", "position_embeddings.weight"),
    aliases={"embedding_size": "hidden_size"},
    defaults={**BERT_DEFAULTS, "layer_norm_eps": 1e-7, "type_vocab_size": 0},
)

ERNIE = replace(
    BERT,
    model_type="ernie",
    steps=(
        WORD,
        TYPE,
        POSITION,
        Add(
            path="embeddings.task_type_embeddings", ids="task_type_ids", rows="task_type_vocab_size", missing=0,
            when=switch("use_task_id", False),
        ),
        NORM,
    ),
    prefixes=("ernie.", "bert."),
    tree={"embeddings": "ErnieEmbeddings"},
    unused_endings=("position_ids", "task_type_embeddings.weight"),
    defaults={**BERT_DEFAULTS, "task_type_vocab_size": 3},
)  # fmt: skip

NOMIC_BERT = replace(
    BERT,
    model_type="nomic_bert",
    # the second key is that of published files, which the reference leaves unread too
    attention=scheme("rotary", theta=1000.0, theta_keys=("rope_theta", "rotary_emb_base")),
    # the file calls the norm emb_ln, the module is embeddings.LayerNorm
    steps=(WORD, TYPE, replace(NORM, names=("embeddings.LayerNorm", "emb_ln"))),
    prefixes=("nomic_bert.",),
    tree={"embeddings": "NomicBertEmbeddings"},
    checked_prefixes=("embeddings.", "emb_ln."),
    aliases={  # the words of published files, which the reference leaves unread: it has their values as its defaults
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "intermediate_size": "n_inner",
        "layer_norm_eps": "layer_norm_epsilon",
    },
    only={},
    later_arguments=("position_ids",),
)

MODERNBERT = Family(
    model_type="modernbert",
    tokenizer="TokenizersBackend",
    attention=scheme("layered_rotary"),
    steps=(
        Tokens(path="embeddings.tok_embeddings", head="decoder.weight"),
        Norm(path="embeddings.norm", eps="norm_eps", biased=switch("norm_bias", False)),
    ),
    prefixes=("model.",),
    tree={"embeddings": "ModernBertEmbeddings"},
    defaults={"norm_eps": 1e-5, "norm_bias": False, "pad_token_id": 50283},
    later_arguments=("position_ids",),
)

CONVBERT = replace(
    ELECTRA,
    model_type="convbert",
    steps=(
        replace(WORD, width=NARROW, head="generator_lm_head.weight"),
        replace(POSITION, width=NARROW, cached=False),
        replace(TYPE, width=NARROW),
        replace(NORM, width=NARROW),
        Project(path="embeddings_project", when=projected),
    ),
    prefixes=("convbert.",),
    tree={"": "ConvBertModel", "embeddings": "ConvBertEmbeddings"},
    defaults={**BERT_DEFAULTS, "embedding_size": 768, "pad_token_id": 1},
)

GPT2_WORDS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
GPT2 = Family(
    model_type="gpt2",
    steps=(
        Tokens(path="wte", padding_idx=None),
        Positions(path="wpe"),
        Add(
            path="wte", names=("wte.weight", "lm_head.weight"), ids="token_type_ids", rows="vocab_size", role=" (types)"
        ),
    ),
    prefixes=("transformer.",),
    tree={"": "GPT2Model"},
    checked_prefixes=(),
    aliases=GPT2_WORDS,
    defaults={"layer_norm_epsilon": 1e-5, "pad_token_id": None},
    tokenizer="GPT2Tokenizer",
)

OPENAI_GPT = replace(
    GPT2,
    model_type="openai-gpt",
    tokenizer="OpenAIGPTTokenizer",
    steps=(
        Tokens(path="tokens_embed", padding_idx=None),
        Positions(path="positions_embed", cached=False),
        replace(GPT2.steps[2], path="tokens_embed", names=("tokens_embed.weight", "lm_head.weight")),
    ),
    tree={"": "OpenAIGPTModel"},
    unused_endings=("position_ids",),
)

GPT_NEO = replace(
    GPT2,
    model_type="gpt_neo",
    tree={"": "GPTNeoModel"},
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
)

OPT = Family(
    model_type="opt",
    steps=(
        Tokens(path="decoder.embed_tokens", width="word_embed_proj_dim"),
        Project(path="decoder.project_in", source="word_embed_proj_dim", biased=False, when=projected_words),
        Positions(path="decoder.embed_positions", rule="mask", extra=2, prints_as="OPTLearnedPositionalEmbedding"),
    ),
    prefixes=("model.",),
    tree={"decoder": "OPTDecoder"},
    order=("embed_tokens", "embed_positions", "project_in"),
    checked_prefixes=(),
    aliases={"word_embed_proj_dim": "hidden_size"},
    defaults={"pad_token_id": 1},
    tokenizer="GPT2Tokenizer",
)

GPT_NEOX = Family(
    model_type="gpt_neox",
    tokenizer="GPTNeoXTokenizer",
    attention=scheme("rotary", share=0.25, theta_keys=("rotary_emb_base",), share_key="rotary_pct"),
    steps=(Tokens(path="embed_in", padding_idx=None, head="embed_out.weight"),),
    prefixes=("gpt_neox.",),
    tree={"": "GPTNeoXModel"},
    checked_prefixes=(),
    defaults={"tie_word_embeddings": False},
    later_arguments=("position_ids",),
)

LLAMA = Family(
    model_type="llama",
    attention=scheme("rotary"),
    steps=(Tokens(path="embed_tokens"),),
    prefixes=("model.",),
    tree={"": "LlamaModel"},
    checked_prefixes=(),
    defaults={"tie_word_embeddings": False, "pad_token_id": None},
    later_arguments=("position_ids",),
)


def _llama_like(model_type: str, name: str, tokenizer: str = "TokenizersBackend", **own: Any) -> Family:
    """A row of Llama's kin: its class in the reference, and what it changes."""
    return replace(LLAMA, model_type=model_type, tree={"": name}, tokenizer=tokenizer, **own)


MISTRAL = _llama_like("mistral", "MistralModel")
QWEN2 = _llama_like("qwen2", "Qwen2Model", "Qwen2Tokenizer", always_usual=True)
QWEN3 = _llama_like("qwen3", "Qwen3Model", "Qwen2Tokenizer", defaults={**LLAMA.defaults, "head_dim": 128})
MIXTRAL = _llama_like("mixtral", "MixtralModel", attention=scheme("rotary", theta=1000000.0))
OLMO2 = _llama_like("olmo2", "Olmo2Model", defaults={**LLAMA.defaults, "pad_token_id": 1})
PHI3 = _llama_like(
    "phi3",
    "Phi3Model",
    # a part of the head may rotate, and longrope goes by two older names
    attention=scheme("rotary", share=1.0, longrope_names=("su", "yarn")),
    defaults={**LLAMA.defaults, "pad_token_id": 32000, "original_max_position_embeddings": 4096},
)
GRANITE = _llama_like(
    "granite",
    "GraniteModel",
    steps=(*LLAMA.steps, Scale(factor=embedding_multiplier, embeds=True)),
    defaults={**LLAMA.defaults, "embedding_multiplier": 1.0},
)
COHERE2 = _llama_like(
    "cohere2",
    "Cohere2Model",
    "CohereTokenizer",
    attention=scheme("rotary", pairing="neighbours"),  # in its sliding layers; the full ones have no positions
    defaults={"tie_word_embeddings": True, "pad_token_id": 0},
)

# A file in bfloat16 is computed in float32, so the factor is a float32 number too: of width 3072 it is 55.4256. The
# reference that is not told a dtype computes such a file in bfloat16, where its module makes 55.5 of the factor.
GEMMA_TOKENS = replace(LLAMA.steps[0], scale=sqrt_width, prints_as="GemmaTextScaledWordEmbedding")
GEMMA = _llama_like(
    "gemma",
    "GemmaModel",
    "GemmaTokenizer",
    steps=(GEMMA_TOKENS,),
    defaults={"tie_word_embeddings": True, "pad_token_id": 0, "head_dim": 256},
)
GEMMA2 = replace(
    GEMMA,
    model_type="gemma2",
    steps=(replace(GEMMA_TOKENS, prints_as="Gemma2TextScaledWordEmbedding"),),
    tree={"": "Gemma2Model"},
)
GEMMA3_TEXT = replace(
    GEMMA,
    model_type="gemma3_text",
    attention=scheme("gemma3_rotary"),
    steps=(replace(GEMMA_TOKENS, prints_as="Gemma3TextScaledWordEmbedding"),),
    tree={"": "Gemma3TextModel"},
)

BLOOM = Family(
    model_type="bloom",
    attention=scheme("alibi"),
    steps=(
        Tokens(path="word_embeddings", padding_idx=None),
        Norm(path="word_embeddings_layernorm", eps="layer_norm_epsilon"),
    ),
    prefixes=("transformer.",),
    tree={"": "BloomModel"},
    checked_prefixes=(),
    aliases={"hidden_size": "n_embed", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
    defaults={"layer_norm_epsilon": 1e-5},
)

# own table, the shared one, the other side's, the output's: a tied table is stored once, under any of its names
TIED = ("{side}.embed_tokens.weight", "shared.weight", "{other}.embed_tokens.weight")
BOTH = ("encoder", "decoder")
D_MODEL = {"hidden_size": "d_model"}

T5 = Family(
    model_type="t5",
    tokenizer="T5Tokenizer",
    attention=scheme("t5_bias"),
    # words alone: T5 has no sinusoids and no position table; its relative bias acts inside attention
    steps=(Tokens(path="{side}.embed_tokens", names=TIED, padding_idx=None),),
    prefixes=("transformer.",),
    tree={"{side}": "T5Stack"},
    checked_prefixes=(),
    aliases={
        **D_MODEL,
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
        "max_position_embeddings": "n_positions",
    },
    # old files hold n_positions, which nothing reads; without it there is no number to give: T5 has no limit
    defaults={
        "n_positions": None,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
    },
    sides=BOTH,
    shared="shared",
)

MT5 = replace(T5, model_type="mt5", tree={"{side}": "MT5Stack"})

BART_WORDS = {**D_MODEL, "num_attention_heads": "encoder_attention_heads", "num_hidden_layers": "encoder_layers"}
BART_TOKENS = Tokens(path="{side}.embed_tokens", names=TIED, scale=module_scale, prints_as="BartScaledWordEmbedding")
BART_POSITIONS = Positions(path="{side}.embed_positions", extra=2, prints_as="BartLearnedPositionalEmbedding")
BART_NORM = Norm(path="{side}.layernorm_embedding", eps=1e-5)
BART = Family(
    model_type="bart",
    steps=(BART_TOKENS, BART_POSITIONS, BART_NORM),
    prefixes=("model.",),
    tree={"{side}": "Bart{Side}"},
    checked_prefixes=(),
    aliases=BART_WORDS,
    defaults={"pad_token_id": 1},
    sides=BOTH,
    tokenizer="RobertaTokenizer",
)

MBART = replace(
    BART,
    model_type="mbart",
    tokenizer=None,  # a language after each text, which tokenizer.json knows
    steps=(
        replace(BART_TOKENS, prints_as="MBartScaledWordEmbedding"),
        replace(BART_POSITIONS, prints_as="MBartLearnedPositionalEmbedding"),
        BART_NORM,
    ),
    tree={"{side}": "MBart{Side}"},
)

FIXED_POSITIONS = Positions(
    path="{side}.embed_positions", generate=sinusoids_in_halves, prints_as="MarianSinusoidalPositionalEmbedding"
)
MARIAN = Family(
    model_type="marian",
    # the decoder may have a vocabulary of its own, and it scales the caller's inputs_embeds too
    steps=(Tokens(path="{side}.embed_tokens", names=TIED), Scale(factor=sqrt_width, when=scaled), FIXED_POSITIONS),
    decoder=(
        Tokens(path="{side}.embed_tokens", names=TIED, rows="decoder_vocab_size"),
        Scale(factor=sqrt_width, when=scaled, embeds=True),
        FIXED_POSITIONS,
    ),
    prefixes=("model.",),
    tree={"{side}": "Marian{Side}"},
    checked_prefixes=(),
    aliases={**BART_WORDS, "decoder_vocab_size": "vocab_size"},
    sides=BOTH,
)

PEGASUS_POSITIONS = replace(FIXED_POSITIONS, prints_as="PegasusSinusoidalPositionalEmbedding")
PEGASUS = replace(
    MARIAN,
    model_type="pegasus",
    tokenizer="PegasusTokenizer",
    steps=(*MARIAN.steps[:2], PEGASUS_POSITIONS),
    decoder=(MARIAN.steps[0], MARIAN.decoder[1], PEGASUS_POSITIONS),
    tree={"{side}": "Pegasus{Side}"},
    aliases=BART_WORDS,
    defaults={"pad_token_id": 0},
)

XLM = Family(
    model_type="xlm",
    steps=(
        Tokens(path="embeddings", head="pred_layer.proj.weight"),
        Positions(path="position_embeddings", cached=False),
        Add(path="lang_embeddings", ids="langs", rows="n_langs", when=many_languages),
        Add(
            path="embeddings", names=("embeddings.weight", "pred_layer.proj.weight"), ids="token_type_ids",
            rows="vocab_size", padding_idx="pad_token_id", role=" (types)",
        ),
        Norm(path="layer_norm_emb"),
        Mask(counted=True),
    ),
    prefixes=("transformer.",),
    tree={"": "XLMModel"},
    order=("position_embeddings", "lang_embeddings", "embeddings", "layer_norm_emb"),
    checked_prefixes=(),
    aliases={
        "hidden_size": "emb_dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "n_words": "vocab_size",
        "pad_index": "pad_token_id",
    },
    defaults={"pad_token_id": 2, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "n_langs": 1},
)  # fmt: skip

XLNET = Family(
    model_type="xlnet",
    tokenizer="XLNetTokenizer",
    attention=scheme("xlnet_sinusoids"),
    steps=(Tokens(path="word_embedding", padding_idx=None, head="lm_loss.weight"),),
    prefixes=("transformer.",),
    tree={"": "XLNetModel"},
    checked_prefixes=(),
    aliases={**D_MODEL, "n_token": "vocab_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    later_arguments=("token_type_ids",),
)

WHISPER = Family(
    model_type="whisper",
    steps=(
        Tokens(path="decoder.embed_tokens", head="proj_out.weight"),
        Positions(path="decoder.embed_positions", rows="max_target_positions", prints_as="WhisperPositionalEmbedding"),
    ),
    prefixes=("model.",),
    tree={"decoder": "WhisperDecoder"},
    checked_prefixes=(),
    aliases={**BART_WORDS, "max_position_embeddings": "max_target_positions"},
    defaults={"pad_token_id": 50256},
    sides=("decoder",),  # and no older tokenizer files: the tokens that begin a transcript are in tokenizer.json alone
)

CLIP_TEXT_MODEL = Family(
    model_type="clip_text_model",
    steps=(
        Tokens(path="embeddings.token_embedding", padding_idx=None),
        Positions(path="embeddings.position_embedding", cached=False),
    ),
    prefixes=("text_model.",),
    tree={"embeddings": "CLIPTextEmbeddings"},
    section="text_config",
    defaults={"max_position_embeddings": 77, "pad_token_id": 1, "vocab_size": 49408, "hidden_size": 512},
)

CLIP = replace(CLIP_TEXT_MODEL, model_type="clip", tokenizer="CLIPTokenizer")

ROWS = (
    BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, DISTILBERT, ALBERT, ELECTRA, MPNET, DEBERTA_V2, ERNIE, NOMIC_BERT,
    MODERNBERT, CONVBERT, GPT2, OPENAI_GPT, GPT_NEO, OPT, GPT_NEOX, LLAMA, MISTRAL, QWEN2, QWEN3, MIXTRAL, OLMO2, PHI3,
    GRANITE, COHERE2, GEMMA, GEMMA2, GEMMA3_TEXT, BLOOM, T5, MT5, BART, MBART, MARIAN, PEGASUS, XLM, XLNET, WHISPER,
    CLIP_TEXT_MODEL, CLIP,
)  # fmt: skip
FAMILIES: Mapping[str, Family] = MappingProxyType({row.model_type: row for row in ROWS})
"""model_type -> row. Read-only, and so is all that a row holds; `frozen.replace` makes another row."""
