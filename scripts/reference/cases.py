"""The tiny checkpoints that `make.py` builds: one row per case, sizes small enough to commit.

A case is one model folder, one side of it, and the batches it is asked for. Cases of one family differ in the form of
the file (saved from the base model or from a model with a head) or in a config value that changes the recipe. A new
family is a new row here and a new row in a file of `minibert/families/`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

VOCAB, WIDTH, NARROW, POSITIONS = 53, 16, 12, 16
UNEVEN = 20  # the width if rows are scaled: sqrt(16) is exact, and would hide how the factor is rounded
PAST = 3  # cached tokens in the kinds "cached" and "cached_mask"

# The kinds of batches of a family; more if the reference reads what the kind brings. A few families that ignore the
# mask, and all that read the mask or the pad id, get padding without a mask.
FEW = ("plain", "right_pad")
PADDED = (*FEW, "left_pad", "pads_inside", "inputs_embeds")
LEARNED = (*PADDED, "explicit_positions", "full_length")
TYPED = (*LEARNED, "types")
CACHED = (*TYPED, "cached")
UNMASKED = "right_pad_no_mask"
UNLIKE = "mask_unlike_ids"  # for families whose positions count ids or the mask


@dataclass(frozen=True)
class Case:
    """One folder under tests/reference.

    save, base: the classes that write the file and that are run on it; parts: the input part's modules, as paths
    in the base model; sum_enters: the norm, or the first block where there is none; position, offset: the module
    that is asked for positions, and what it adds to them; pad, longest: the id of padding and how many tokens fit;
    masked: where the mask's product is seen; scaled: the factor's name, where rows are multiplied outside any module.
    """

    name: str
    family: str
    save: str
    base: str
    parts: tuple[str, ...]
    config: dict[str, Any]
    kinds: tuple[str, ...]
    sum_enters: str
    position: str = ""
    offset: int = 0
    side: str = ""
    pad: int | None = 0
    longest: int = POSITIONS
    masked: str = ""
    scaled: str = ""


def variant(case: Case, name: str, save: str, kinds: tuple[str, ...] = ("plain",), **changes: Any) -> Case:
    """The same family from another class's file, with other values in its config; fields of Case change too."""
    fields = {key: changes.pop(key) for key in list(changes) if key in Case.__dataclass_fields__}
    return replace(case, name=name, save=save, kinds=kinds, config={**case.config, **changes}, **fields)


# a case on a few lines reads better than one argument a line
# fmt: off


VISION = {
    "hidden_size": 8, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 4,
    "patch_size": 4, "projection_dim": 8}

def small(**more: Any) -> dict[str, Any]:
    """The keys that most configs share, with the smallest sizes that still show a mistake."""
    return {
        "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 4, "max_position_embeddings": POSITIONS, **more}


def like_bert(
    name: str, stem: str, kinds: tuple[str, ...], *, extra: tuple[str, ...] = (), without: str = "-",
    fields: dict[str, Any] | None = None, **config: Any,
) -> Case:
    """A model with BERT's `embeddings`, without the parts named in `without`, and with `extra` modules after it."""
    names = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")
    parts = (*(f"embeddings.{part}" for part in names if without not in part), *extra)
    given = {"sum_enters": "embeddings.LayerNorm", "position": "embeddings.position_embeddings", **(fields or {})}
    return of(name, stem, parts, small(**config), kinds, **given)


def of(
    name: str, stem: str, parts: tuple[str, ...], config: dict[str, Any], kinds: tuple[str, ...], **fields: Any
) -> Case:
    """A family's first case: the base model's class writes the file."""
    return Case(name, name, f"{stem}Model", f"{stem}Model", parts, config, kinds, **fields)


def encoders() -> tuple[Case, ...]:
    counts_pads: dict[str, Any] = {"pad": 1, "longest": POSITIONS - 2}
    bert = like_bert("bert", "Bert", (*CACHED, UNMASKED))
    roberta = like_bert(
        "roberta", "Roberta", (*LEARNED, "cached", UNMASKED, UNLIKE), fields=counts_pads, pad_token_id=1,
        type_vocab_size=1, layer_norm_eps=1e-5)
    xlm_roberta = like_bert(
        "xlm-roberta", "XLMRoberta", (*FEW, "types", "cached", UNLIKE), fields=counts_pads, pad_token_id=1)
    camembert = like_bert(
        "camembert", "Camembert", (*FEW, "left_pad", "pads_inside", "full_length", UNLIKE),
        fields={"pad": 5, "longest": POSITIONS - 6}, pad_token_id=5, type_vocab_size=1)
    albert = like_bert("albert", "Albert", TYPED, extra=("encoder.embedding_hidden_mapping_in",), embedding_size=NARROW)
    electra = like_bert("electra", "Electra", CACHED, extra=("embeddings_project",), embedding_size=NARROW)
    mpnet = like_bert(
        "mpnet", "MPNet", (*LEARNED, UNMASKED, UNLIKE), without="type", fields=counts_pads, pad_token_id=1,
        layer_norm_eps=1e-5)
    tasks = ("embeddings.task_type_embeddings",)
    ernie = like_bert("ernie", "Ernie", (*CACHED, "tasks"), extra=tasks, use_task_id=True)
    unplaced: dict[str, Any] = {"kinds": (*PADDED, "types"), "without": "position"}
    nomic = like_bert("nomic_bert", "NomicBert", **unplaced, fields={"position": ""})
    pad_1 = {"fields": {"position": "", "pad": 1}, "pad_token_id": 1, "type_vocab_size": 2}
    gte = like_bert("gte", "Gte", **unplaced, **pad_1)
    jina = like_bert("jina_embeddings_v3", "JinaEmbeddingsV3", **unplaced, **pad_1)
    convbert = like_bert(
        "convbert", "ConvBert", TYPED, extra=("embeddings_project",), fields={"pad": 1}, pad_token_id=1,
        embedding_size=NARROW, num_attention_heads=4)
    return (
        bert, variant(bert, "bert-head", "BertForMaskedLM"), roberta,
        replace(xlm_roberta, save="XLMRobertaForMaskedLM"), replace(camembert, save="CamembertForMaskedLM"), albert,
        variant(albert, "albert-equal", "AlbertForMaskedLM", FEW, embedding_size=WIDTH), electra,
        variant(electra, "electra-equal", "ElectraForPreTraining", FEW, embedding_size=WIDTH, parts=electra.parts[:-1]),
        mpnet, variant(mpnet, "mpnet-pad5", "MPNetForMaskedLM", ("pads_inside",), pad_token_id=5, pad=5), ernie,
        variant(ernie, "ernie-plain", "ErnieForMaskedLM", FEW, use_task_id=False, parts=ernie.parts[:-1]), nomic,
        variant(nomic, "nomic_bert-head", "NomicBertForMaskedLM"), gte,
        variant(gte, "gte-head", "GteForMaskedLM", FEW, type_vocab_size=0, parts=(gte.parts[0], gte.parts[2])),
        jina, variant(jina, "jina_embeddings_v3-head", "JinaEmbeddingsV3ForMaskedLM"), convbert,
        variant(convbert, "convbert-equal", "ConvBertForMaskedLM",
            FEW, embedding_size=WIDTH, parts=convbert.parts[:-1]),
        *unlike_bert())


def unlike_bert() -> tuple[Case, ...]:
    config = {"dim": WIDTH, "n_layers": 1, "n_heads": 2, "hidden_dim": 4, "max_position_embeddings": POSITIONS}
    distilbert = like_bert("distilbert", "DistilBert", LEARNED, without="type")
    distilbert = replace(distilbert, config={"vocab_size": VOCAB, **config})
    deberta = like_bert(
        "deberta-v2", "DebertaV2", (*TYPED, "pads_inside_mask", UNMASKED), extra=("embeddings.embed_proj",),
        fields={"masked": "embeddings"}, embedding_size=NARROW, type_vocab_size=2)
    unbiased = variant(
        deberta, "deberta-v2-unbiased", "DebertaV2ForMaskedLM", ("plain", "left_pad", "pads_inside_mask"),
        parts=("embeddings.word_embeddings", "embeddings.LayerNorm"), position="", embedding_size=WIDTH,
        type_vocab_size=0, position_biased_input=False, relative_attention=True, norm_rel_ebd="layer_norm")
    special = small(pad_token_id=3, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    parts = ("embeddings.tok_embeddings", "embeddings.norm")
    modernbert = of("modernbert", "ModernBert", parts, special, PADDED, sum_enters="embeddings.norm", pad=3)
    return (
        distilbert, variant(distilbert, "distilbert-head", "DistilBertForMaskedLM"), deberta, unbiased,
        modernbert, variant(modernbert, "modernbert-bias", "ModernBertForMaskedLM", FEW, norm_bias=True))


def gpts() -> tuple[Case, ...]:
    config = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": 1, "n_head": 2, "n_positions": POSITIONS}
    enters: dict[str, Any] = {"sum_enters": "h.0", "pad": None}
    gpt2 = of(
        "gpt2", "GPT2", ("wte", "wpe"), {**config, "n_inner": 4}, (*CACHED, UNMASKED), **enters, position="wpe")
    openai = of(
        "openai-gpt", "OpenAIGPT", ("tokens_embed", "positions_embed"), config, TYPED, **enters,
        position="positions_embed")
    sizes = {
        "vocab_size": VOCAB, "hidden_size": WIDTH, "num_layers": 1, "num_heads": 2, "intermediate_size": 4,
        "attention_types": [[["global"], 1]], "max_position_embeddings": POSITIONS}
    neo = of("gpt_neo", "GPTNeo", ("wte", "wpe"), sizes, CACHED, **enters, position="wpe")
    sizes = small(pad_token_id=1, ffn_dim=4, word_embed_proj_dim=WIDTH)
    del sizes["intermediate_size"]
    parts = ("decoder.embed_tokens", "decoder.embed_positions")
    kinds = (*LEARNED, "pads_inside_mask", "cached", "cached_mask", UNMASKED, UNLIKE)
    opt = of("opt", "OPT", parts, sizes, kinds, sum_enters="decoder.layers.0", position=parts[1], offset=2, pad=1)
    return (
        gpt2, variant(gpt2, "gpt2-head", "GPT2LMHeadModel"), openai,
        variant(openai, "openai-gpt-head", "OpenAIGPTLMHeadModel"), neo,
        variant(neo, "gpt_neo-head", "GPTNeoForCausalLM"), opt, variant(
            opt, "opt-project", "OPTForCausalLM", (*FEW, "inputs_embeds", "cached_mask"),
            parts=(*parts, "decoder.project_in"), word_embed_proj_dim=NARROW))


def words_alone() -> tuple[Case, ...]:
    kinds, sizes = ("plain", "left_pad"), {"vocab_size": VOCAB, "n_layer": 1, "n_head": 2}
    enters: dict[str, Any] = {"sum_enters": "layers.0", "pad": None}
    llama = of("llama", "Llama", ("embed_tokens",), small(num_key_value_heads=2), kinds, **enters)
    neox = of("gpt_neox", "GPTNeoX", ("embed_in",), small(), kinds, **enters)
    bloom = of(
        "bloom", "Bloom", ("word_embeddings", "word_embeddings_layernorm"),
        {**sizes, "hidden_size": WIDTH, "pad_token_id": 3}, PADDED, sum_enters="word_embeddings_layernorm", pad=3)
    xlnet = of(
        "xlnet", "XLNet", ("word_embedding",), {**sizes, "d_model": WIDTH, "d_inner": 4}, kinds, sum_enters="layer.0",
        pad=5)
    return (
        llama, variant(llama, "llama-head", "LlamaForCausalLM"),
        replace(llama, name="mistral", family="mistral", save="MistralModel", base="MistralModel"),
        replace(llama, name="qwen2", family="qwen2", save="Qwen2ForCausalLM", base="Qwen2Model"),
        *like_llama(llama), neox, variant(neox, "gpt_neox-head", "GPTNeoXForCausalLM"), bloom,
        variant(bloom, "bloom-head", "BloomForCausalLM"), xlnet, variant(xlnet, "xlnet-head", "XLNetLMHeadModel"))


def like_llama(llama: Case) -> tuple[Case, ...]:
    """Today's decoders: words, with or without a factor. A factor shows whether inputs_embeds are multiplied too."""

    def of(name: str, stem: str, save: str = "Model", **more: Any) -> Case:
        fields = {"family": name, "base": f"{stem}Model", "pad": None, **more}
        return variant(llama, name, stem + save, fields.pop("kinds", llama.kinds), **fields)

    multiplied: dict[str, Any] = {"kinds": (*llama.kinds, "inputs_embeds"), "hidden_size": UNEVEN, "head_dim": 8}
    gemma = {**multiplied, "pad": 0, "pad_token_id": 0}
    pieces = {"hidden_size_per_layer_input": 4, "global_head_dim": 8, "num_global_key_value_heads": 1}
    return (
        of("qwen3", "Qwen3", "ForCausalLM", head_dim=16), of("ministral3", "Ministral3", "ForCausalLM", head_dim=8),
        of("eurobert", "EuroBert", pad=3, pad_token_id=3),
        of("ultrabert", "Ultrabert", pad=3, pad_token_id=3, layer_types=["sliding_attention"]),
        of("mixtral", "Mixtral", num_local_experts=2, num_experts_per_tok=1),
        of("olmo2", "Olmo2", pad=1, pad_token_id=1), of("phi3", "Phi3", "ForCausalLM", pad=3, pad_token_id=3),
        of("cohere2", "Cohere2", "ForCausalLM", pad=0, pad_token_id=0, layer_types=["sliding_attention"]),
        of("granite", "Granite", **multiplied, embedding_multiplier=12.7, scaled="embedding_multiplier"),
        of("gemma", "Gemma", "ForCausalLM", **gemma), of("gemma2", "Gemma2", **gemma),
        of("gemma3_text", "Gemma3Text", **gemma, layer_types=["full_attention"]),
        of("embedding_gemma2_text", "EmbeddingGemma2Text", **gemma, **pieces),
        replace(
            llama, name="embedding_gemma2", family="embedding_gemma2", save="EmbeddingGemma2Model", pad=0,
            base="EmbeddingGemma2Model", kinds=FEW, config={
                "text_config": small(
                    hidden_size=UNEVEN, head_dim=8, num_key_value_heads=1, pad_token_id=0, **pieces),
                "vision_config": None, "audio_config": None}))


def two_sides(
    name: str, family: str, stem: str, config: dict[str, Any], modules: tuple[str, ...], kinds: tuple[str, ...],
    saves: tuple[str, str] = ("Model", "ForConditionalGeneration"), *, sum_enters: str, **fields: Any,
) -> tuple[Case, ...]:
    """The encoder's side from one class's file, the decoder's from another's, so that each is committed once.

    The other side has no layers, if the config allows it.
    """
    made = []
    for side, save, other in zip(("encoder", "decoder"), saves, ("decoder", "encoder"), strict=True):
        position = f"{side}.embed_positions" if "embed_positions" in modules else ""
        cached = ("cached",) if position and side == "decoder" else ()
        sizes = {**config, f"{other}_layers": 0} if "encoder_layers" in config else config
        made.append(
            Case(
                f"{name}-{side}", family, stem + save, f"{stem}Model", tuple(f"{side}.{m}" for m in modules), sizes,
                (*kinds, *cached), side=side, sum_enters=f"{side}.{sum_enters}", position=position, **fields)
        )
    return tuple(made)


def encoder_decoder(**more: Any) -> dict[str, Any]:
    sides = {"layers": 1, "attention_heads": 2, "ffn_dim": 4}
    sizes = {f"{side}_{key}": size for side in ("encoder", "decoder") for key, size in sides.items()}
    return {"vocab_size": VOCAB, "d_model": WIDTH, "max_position_embeddings": POSITIONS, **sizes, **more}


def encoder_decoders() -> tuple[Case, ...]:
    t5 = {"vocab_size": VOCAB, "d_model": WIDTH, "d_kv": 8, "d_ff": 4, "num_layers": 1, "num_heads": 2}
    learned = ("embed_tokens", "embed_positions", "layernorm_embedding")
    bart: dict[str, Any] = {"sum_enters": "layernorm_embedding", "offset": 2, "pad": 1}
    some = (*FEW, "inputs_embeds", "full_length")
    scaled = encoder_decoder(scale_embedding=True, d_model=UNEVEN)
    bart_encoder, bart_decoder = two_sides(
        "bart", "bart", "Bart", encoder_decoder(), learned, (*PADDED, "full_length"), **bart
    )
    pad, saves = VOCAB - 1, ("Model", "MTModel")  # Marian pads with the last id
    marian = encoder_decoder(pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, forced_eos_token_id=0)
    separate: dict[str, Any] = {
        "share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCAB + 8, "tie_word_embeddings": False}
    return (
        *two_sides("t5", "t5", "T5", t5, ("embed_tokens",), FEW, sum_enters="block.0"),
        *two_sides(
            "mt5", "mt5", "MT5", t5, ("embed_tokens",), FEW, ("EncoderModel", "ForConditionalGeneration"),
            sum_enters="block.0"),
        *two_sides("umt5", "umt5", "UMT5", t5, ("embed_tokens",), FEW, sum_enters="block.0"),
        bart_encoder, bart_decoder, variant(bart_decoder, "bart-causal-decoder", "BartForCausalLM", FEW),
        variant(
            bart_decoder, "bart-scaled-decoder", bart_decoder.save, ("plain", "inputs_embeds"), scale_embedding=True,
            d_model=UNEVEN
        ),
        *two_sides("bart-untied", "bart", "Bart", encoder_decoder(tie_word_embeddings=False), learned, FEW, **bart),
        *two_sides("mbart", "mbart", "MBart", scaled, learned, some, **bart),
        *two_sides(
            "pegasus", "pegasus", "Pegasus", scaled, learned[:2], some, sum_enters="layers.0", scaled="embed_scale"
        ),
        *two_sides(
            "marian", "marian", "Marian", {**marian, "scale_embedding": True, "d_model": UNEVEN}, learned[:2],
            (*PADDED, "full_length"), saves, sum_enters="layers.0", pad=pad, scaled="embed_scale"),
        *two_sides(
            "marian-separate", "marian", "Marian", {**marian, **separate}, learned[:2], FEW, saves,
            sum_enters="layers.0", pad=pad))


def others() -> tuple[Case, ...]:
    xlm = of(
        "xlm", "XLM", ("embeddings", "position_embeddings", "layer_norm_emb", "lang_embeddings"),
        {
            "vocab_size": VOCAB, "emb_dim": WIDTH, "n_layers": 1, "n_heads": 2, "max_position_embeddings": POSITIONS,
            "n_langs": 3, "use_lang_emb": True},
        (*TYPED, "languages", "pads_inside_mask", UNMASKED), sum_enters="layer_norm_emb",
        position="position_embeddings", masked="attentions.0", pad=2)
    heard = encoder_decoder(
        encoder_layers=0, num_mel_bins=4, max_source_positions=6, max_target_positions=POSITIONS, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    del heard["max_position_embeddings"]
    whisper = of(
        "whisper", "Whisper", ("decoder.embed_tokens", "decoder.embed_positions"), heard, (*LEARNED, "cached"),
        side="decoder", sum_enters="decoder.layers.0", position="decoder.embed_positions")
    text = small(bos_token_id=1, eos_token_id=VOCAB - 1, pad_token_id=0, projection_dim=8)
    parts = ("embeddings.token_embedding", "embeddings.position_embedding")
    kinds = tuple(kind for kind in LEARNED if kind != "inputs_embeds")
    clip = of("clip_text_model", "CLIPText", parts, text, kinds, sum_enters="encoder", position=parts[1])
    both = {"text_config": text, "vision_config": VISION, "projection_dim": 8}
    return (
        xlm, variant(xlm, "xlm-one", "XLMWithLMHeadModel", ("plain", UNMASKED), n_langs=1, parts=xlm.parts[:-1]),
        whisper, variant(whisper, "whisper-head", "WhisperForConditionalGeneration"), clip,
        replace(clip, name="clip", family="clip", save="CLIPModel", kinds=FEW, config=both))


# fmt: on


CASES = (*encoders(), *gpts(), *words_alone(), *encoder_decoders(), *others())
