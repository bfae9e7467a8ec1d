"""Make tests/reference/encoder: tiny whole models, and all that the reference computes from them.

    python scripts/reference/encoder.py --minilm FOLDER            write tests/reference/encoder anew
    python scripts/reference/encoder.py --minilm FOLDER --check    make it elsewhere, compare; exit 1 on a difference

The reference is transformers on torch with eager attention, on one CPU thread. Each case becomes a folder:

    config.json, model.safetensors   as save_pretrained writes them (not for minilm)
    case.json                        family, kinds of batches, order of the trace
    trace.safetensors                "<kind>|inputs|<name>" and "<kind>|<key>", key as in an encoder's trace

A key is a module's path, its value that module's output. Three keys are not the output of a module: `scores` (the input
of softmax, zero where masked), `context` (the input of the output projection) and `sum` (with the residual). They are
read from the arguments of the next module or function. Keys of the input layer are not stored: tests/reference has
them.
"""

from __future__ import annotations

import re
import shutil
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import check
import numpy as np
import torch
import transformers
from cases import VISION
from check import ROOT, fill, seeded
from safetensors.numpy import save_file

import minibert
from minibert.equations.input_layer import Array
from minibert.families.parts.block_names import by_module
from minibert.models.run.blocks import Stack

TARGET = ROOT / "tests" / "reference" / "encoder"
VOCAB, WIDTH, HEADS, INNER, BLOCKS, POSITIONS = 29, 12, 2, 20, 2, 12
BATCH, LENGTH = 2, 5
TEXT = "Stop!"  # MiniLM's sentence: four tokens, since every intermediate of all blocks is stored
MOST = ("right_pad", "left_pad", "pads_inside", "one_token", "longest")
ALL = ("plain", *MOST)
SIZES = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS,
    "intermediate_size": INNER, "max_position_embeddings": POSITIONS,
}  # fmt: skip
DISTIL = {
    "vocab_size": VOCAB, "dim": WIDTH, "n_layers": BLOCKS, "n_heads": HEADS, "hidden_dim": INNER,
    "max_position_embeddings": POSITIONS,
}  # fmt: skip
TYPES = {"layer_types": ["sliding_attention", "full_attention"]}
ROTARY = {**SIZES, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0}  # queries wider than the model
GROWING = {  # queries from the fourth token on have another factor
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                        "original_max_position_embeddings": 3, "llama_4_scaling_beta": 0.5},
}  # fmt: skip
GEMMA = {**ROTARY, **TYPES, "query_pre_attn_scalar": 5}
GEMMA2 = {  # scores are not divided, so heads are narrow here
    **ROTARY, "head_dim": 4, "sliding_window": 2, "sliding_window_pattern": 2, "global_head_dim": 6,
    "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 8, "embedding_dim": 14,
}  # fmt: skip
T5 = {
    "vocab_size": VOCAB, "d_model": WIDTH, "d_kv": 8, "d_ff": INNER, "num_layers": BLOCKS, "num_heads": HEADS,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 7,
}  # fmt: skip
BART = {
    "vocab_size": VOCAB, "d_model": WIDTH, "encoder_layers": BLOCKS, "decoder_layers": 1, "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": 8, "encoder_attention_heads": HEADS, "decoder_attention_heads": 1,
    "max_position_embeddings": POSITIONS, "pad_token_id": 0,
}  # fmt: skip
ALBERT = {**SIZES, "embedding_size": 8}
MODERN = {**SIZES, "num_hidden_layers": 2, "local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0}
DEBERTA = {
    **SIZES, "type_vocab_size": 0, "relative_attention": True, "position_biased_input": False, "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"], "position_buckets": 4, "norm_rel_ebd": "layer_norm",
}  # fmt: skip
CLIP = {**SIZES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": VOCAB - 1, "projection_dim": 8}
GPT = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": BLOCKS, "n_head": HEADS, "n_positions": POSITIONS}
BIASED = {"head_dim": None, "num_key_value_heads": None, "attention_bias": True, "mlp_bias": True}
LINEAR = {"hidden_act": "relu", "rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}}


class Case(NamedTuple):
    """One folder: the class `save` writes the file, and the class `base` runs it."""

    family: str
    save: str
    config: dict[str, Any]
    kinds: tuple[str, ...]
    variant: str = ""
    pad: int = 0
    longest: int = POSITIONS
    other_base: str = ""  # not the stem of `save` and "Model"
    today: bool = False  # today's names in the file, if published files have older names
    spread: int = 5  # a factor for the seeded numbers: below 0.1 attention would be nearly even, and gelu nearly linear

    @property
    def name(self) -> str:
        return f"{self.family}{self.variant and '-' + self.variant}"

    @property
    def base(self) -> str:
        return self.other_base or re.sub(r"(For[A-Z]\w+|LMHeadModel|MTModel|Model)$", "Model", self.save)


CASES = (
    Case("bert", "BertForMaskedLM", SIZES, (*ALL, "types")),
    Case("bert", "BertModel", SIZES | {"hidden_act": "gelu_new"}, ("plain",), "base"),
    Case("bert", "BertModel", SIZES | {"is_decoder": True}, ("plain", "left_pad"), "causal"),
    Case("roberta", "RobertaForMaskedLM", SIZES | {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
         ("right_pad", "longest", "mask_unlike_ids"), pad=1, longest=POSITIONS - 2),
    Case("xlm-roberta", "XLMRobertaModel", SIZES | {"pad_token_id": 1}, ("right_pad",), pad=1, longest=POSITIONS - 2),
    Case("camembert", "CamembertModel", SIZES | {"pad_token_id": 1, "hidden_act": "gelu_pytorch_tanh"}, ("right_pad",),
         pad=1, longest=POSITIONS - 2),
    Case("electra", "ElectraForPreTraining", SIZES | {"embedding_size": 8, "hidden_act": "silu"},
         ("right_pad", "types")),
    Case("ernie", "ErnieModel", SIZES | {"use_task_id": True, "hidden_act": "relu"}, ("right_pad", "types")),
    Case("distilbert", "DistilBertForMaskedLM", DISTIL, ("plain", "right_pad", "one_token", "longest")),
    Case("mpnet", "MPNetForMaskedLM", SIZES | {"pad_token_id": 1, "max_position_embeddings": 24},
         (*ALL[1:4], "longest", "mask_unlike_ids"), pad=1, longest=22),
    Case("gpt2", "GPT2LMHeadModel", GPT, (*ALL, "positions", "types")),
    Case("gpt2", "GPT2Model", GPT | {"n_inner": INNER, "scale_attn_by_inverse_layer_idx": True}, ("plain",), "inverse"),
    Case("gpt2", "GPT2Model", GPT | {"n_head": 6, "n_inner": INNER, "scale_attn_weights": False,
         "activation_function": "gelu"}, ("plain",), "unscaled", spread=3),
    Case("albert", "AlbertForMaskedLM", ALBERT, (*MOST, "types")),
    Case("albert", "AlbertModel", ALBERT | {"num_hidden_layers": 3, "num_hidden_groups": 2, "inner_group_num": 2,
         "hidden_act": "gelu"}, ("right_pad",), "groups"),
    Case("modernbert", "ModernBertForMaskedLM", MODERN, (*MOST, "plain")),
    Case("modernbert", "ModernBertModel", MODERN | {"attention_bias": True, "mlp_bias": True, "norm_bias": True,
         "hidden_activation": "silu", **TYPES, "local_attention": 3}, ("pads_inside",), "biased"),
    Case("deberta-v2", "DebertaV2ForMaskedLM", DEBERTA, (*MOST, "plain")),
    Case("deberta-v2", "DebertaV2Model", DEBERTA | {"pos_att_type": "c2p|p2c", "share_att_key": False,
         "position_buckets": -1, "max_relative_positions": 3, "norm_rel_ebd": "none", "type_vocab_size": 2,
         "position_biased_input": True}, ("right_pad", "types"), "own-maps"),
    Case("deberta-v2", "DebertaV2Model", SIZES | {"pos_att_type": ["c2p"], "embedding_size": 8},
         ("pads_inside", "longest"), "no-distances"),
    Case("clip_text_model", "CLIPTextModelWithProjection", CLIP, MOST, other_base="CLIPTextModel"),
    Case("clip_text_model", "CLIPTextModel", CLIP | {"eos_token_id": 2, "hidden_act": "gelu"}, ("right_pad",), "base"),
    Case("clip", "CLIPModel", {"text_config": CLIP, "vision_config": VISION, "projection_dim": 8}, ("right_pad",),
         other_base="CLIPTextModel"),
    Case("nomic_bert", "NomicBertForMaskedLM", SIZES, (*MOST, "types")),
    Case("nomic_bert", "NomicBertModel", SIZES, ("right_pad",), "today", today=True),
    Case("gte", "GteForMaskedLM", SIZES, (*MOST, "plain"), pad=1),
    Case("gte", "GteModel", SIZES | {"type_vocab_size": 0, **LINEAR}, ("right_pad",), "today", today=True, pad=1),
    Case("jina_embeddings_v3", "JinaEmbeddingsV3ForMaskedLM", SIZES | {"pad_token_id": 1}, (*MOST, "plain"), pad=1),
    Case("jina_embeddings_v3", "JinaEmbeddingsV3Model", SIZES | {"pad_token_id": 1, "type_vocab_size": 2, **LINEAR},
         ("types",), "today", today=True, pad=1),
    Case("llama", "LlamaForCausalLM", ROTARY | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0,
         "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}}, MOST),
    Case("llama", "LlamaModel", ROTARY | {**BIASED, "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0,
         "factor": 4.0}}, ("left_pad",), "biased"),
    Case("mistral", "MistralForCausalLM", ROTARY | {"sliding_window": 3}, MOST),
    Case("mistral", "MistralModel", ROTARY | {"sliding_window": None}, ("longest",), "whole"),
    Case("ministral3", "Ministral3ForCausalLM", ROTARY | GROWING, MOST),
    Case("ministral3", "Ministral3Model", ROTARY | GROWING | {"sliding_window": 3, "is_causal": False},
         ("pads_inside", "longest"), "both-ways"),
    Case("qwen2", "Qwen2ForCausalLM", ROTARY | {"use_sliding_window": True, "sliding_window": 3,
         "max_window_layers": 1}, MOST),
    Case("qwen2", "Qwen2Model", ROTARY, ("right_pad",), "whole"),
    Case("qwen3", "Qwen3ForCausalLM", ROTARY, (*MOST, "plain")),
    Case("qwen3", "Qwen3Model", ROTARY | {"attention_bias": True, "use_sliding_window": True, "sliding_window": 2,
         "layer_types": ["full_attention", "sliding_attention"]}, ("longest",), "window"),
    Case("eurobert", "EuroBertForMaskedLM", ROTARY | {"head_dim": 6}, (*MOST, "plain")),
    Case("eurobert", "EuroBertModel", ROTARY | {**BIASED, "hidden_act": "gelu",
         "rope_parameters": {"rope_type": "default", "rope_theta": 250000.0}}, ("pads_inside",), "biased"),
    Case("ultrabert", "UltrabertForMaskedLM", ROTARY | {"num_hidden_layers": 3, "sliding_window": 2,
         "prediction_head_size": 10}, (*MOST, "plain")),
    Case("ultrabert", "UltrabertModel", ROTARY | {**BIASED, "attention_windows": [0, 1], "rope_theta": [300.0, 20.0]},
         ("longest",), "older"),
    Case("gemma3_text", "Gemma3ForCausalLM", GEMMA | {"sliding_window": 3}, MOST, other_base="Gemma3TextModel",
         spread=3),
    Case("embedding_gemma2_text", "EmbeddingGemma2TextModel", GEMMA2, (*MOST, "plain"), spread=3),
    Case("embedding_gemma2", "EmbeddingGemma2Model", {"text_config": {**GEMMA2, "attention_bias": True,
         "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
         "full_attention": {"rope_type": "default", "rope_theta": 200.0}}}, "vision_config": None,
         "audio_config": None}, ("pads_inside",), spread=3),
    Case("t5", "T5ForConditionalGeneration", T5, MOST, other_base="T5EncoderModel", spread=3),
    Case("bart", "BartForConditionalGeneration", BART, MOST),
    Case("mbart", "MBartForConditionalGeneration", BART | {"scale_embedding": True, "activation_function": "relu"},
         MOST),
    Case("marian", "MarianMTModel", BART | {"scale_embedding": True, "activation_function": "silu",
         "decoder_start_token_id": 0}, MOST),
    Case("pegasus", "PegasusForConditionalGeneration", BART, MOST),
    Case("t5", "T5EncoderModel", T5 | {"feed_forward_proj": "gated-gelu"}, ("plain",), "gated", spread=3),
    Case("mt5", "MT5EncoderModel", T5, ("right_pad", "plain"), spread=3),
    Case("umt5", "UMT5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-silu"}, MOST,
         other_base="UMT5EncoderModel", spread=3),
    Case("gemma3_text", "Gemma3TextModel", GEMMA | {"sliding_window": 5, "use_bidirectional_attention": True,
         "attention_bias": True}, MOST, "both-ways", spread=3),
)  # fmt: skip


def build(case: Case, folder: Path) -> torch.nn.Module:
    """Save the case's model by its class, then read it with the base model's class, as a user would."""
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    model = getattr(transformers, case.save)(config)
    fill(model, case.spread, around=case.family != "gemma3_text")
    check.save_alone(model, folder, save_original_format=not case.today)
    return load(getattr(transformers, case.base), folder)


def load(base: Any, folder: Path) -> torch.nn.Module:
    model: torch.nn.Module = base.from_pretrained(folder, attn_implementation="eager").eval()
    return getattr(model, "language_model", model)  # the tower for texts, if there are several


def make_inputs(case: Case, kind: str) -> dict[str, Array]:
    """The batch of one kind: ids by formula, never the pad id by accident."""
    shape = {"one_token": (1, 1), "longest": (1, case.longest)}.get(kind, (BATCH, LENGTH))
    ids = seeded.integers(shape, VOCAB - 1, salt=zlib.crc32(f"{case.name} {kind}".encode()))
    ids += ids >= case.pad
    mask = np.ones(shape, np.int64)
    if kind == "right_pad":
        mask[1, -2:] = 0
    elif kind in ("left_pad", "positions"):
        mask[1, :2] = 0
    elif kind == "pads_inside":
        mask[0, 2] = mask[1, 0] = mask[1, 2] = 0
    made: dict[str, Array] = {"input_ids": np.where(mask == 1, ids, case.pad)}
    if kind == "mask_unlike_ids":  # masked words, and padding that is not masked
        mask[0, 1] = mask[1, 3] = 0
        made["input_ids"][0, 2] = made["input_ids"][1, 0] = case.pad
    if not mask.all():
        made["attention_mask"] = mask
    if kind == "positions":
        made["position_ids"] = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
    elif kind == "types":
        made["token_type_ids"] = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
        if case.family == "ernie":
            made["task_type_ids"] = np.array([[0, 1, 2, 2, 0], [2, 2, 1, 1, 0]])
    return made


class Recorder:
    """Hooks on the modules of one model, by the names of the bound blocks."""

    def __init__(self, model: torch.nn.Module, stack: Stack) -> None:
        self.model, self.stack, self.trace = model, stack, dict[str, torch.Tensor]()
        modules = dict(model.named_modules())
        keys = (*(key for block in stack.blocks for key in block.modules), *filter(None, [stack.last_norm]))
        for path, own in by_module({key: key for key in keys}).items():
            modules[path].register_forward_hook(lambda _m, _given, output, own=own: self.keep(own, output))
        for path, own in by_module(stack.module_inputs).items():
            modules[path].register_forward_pre_hook(lambda _m, given, own=own: self.keep(own, given))

    def keep(self, keys: list[str], value: Any) -> None:
        key = next((key for key in keys if key not in self.trace), None)
        if key is None:  # DeBERTa's maps are called once more, for its rows of distances
            return
        value = value[0] if isinstance(value, tuple) else value
        if key in self.stack.transposed_in_reference:
            value = value.transpose(1, 2)
        # distilbert's feed-forward goes through apply_chunking_to_forward, which changes nothing
        self.trace[key] = value.detach().clone(memory_format=torch.contiguous_format)

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        plain = torch.nn.functional.softmax

        def watched(x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
            self.softmaxed.append(x.detach().clone())
            return plain(x, *rest, **named)

        self.trace.clear()
        self.softmaxed = list[torch.Tensor]()
        given = {name: torch.from_numpy(array) for name, array in inputs.items()}
        runs: Any = self.model.get_encoder() if hasattr(self.model, "decoder") else self.model
        with torch.no_grad(), mock.patch.object(torch.nn.functional, "softmax", watched):
            result = runs(**given, output_hidden_states=True, output_attentions=True)
        if self.stack.last_norm != "final_layer_norm":  # CLIP's last hidden state has not passed the norm
            assert torch.equal(result.hidden_states[-1], result.last_hidden_state)
        return {key: value.contiguous().numpy() for key, value in self.ordered(result).items()}

    def ordered(self, result: Any) -> dict[str, torch.Tensor]:
        """Return all values in the order of the computation."""
        made = {"hidden_states.0": result.hidden_states[0]}
        for i, (block, scores) in enumerate(zip(self.stack.blocks, self.softmaxed, strict=True)):
            self.trace[block.attention.scores] = scores.masked_fill(scores < -1e30, 0)
            self.trace[block.attention.probabilities] = result.attentions[i]
            self.trace[f"hidden_states.{i + 1}"] = result.hidden_states[i + 1]
            made |= {key: self.trace[key] for key in block.keys(i, self.stack)}
        made[f"hidden_states.{len(self.stack.blocks)}"] = result.last_hidden_state
        return made


def write(folder: Path, source: Path, model: torch.nn.Module, batches: dict[str, dict[str, Array]], about: Any) -> None:
    stored: dict[str, Array] = {}
    order: list[str] = []
    recorder = Recorder(model, minibert.load_encoder(source).stack)
    for kind, inputs in batches.items():
        trace = recorder.run(inputs)
        order = list(trace)
        stored |= {f"{kind}|inputs|{name}": array for name, array in inputs.items()}
        stored |= {f"{kind}|{key}": value for key, value in trace.items()}
    save_file(stored, folder / "trace.safetensors")
    facts = {**about, "kinds": list(batches), "order": order}
    check.write_json(folder / "case.json", facts, depth=1)


def make_all(target: Path, minilm: Path) -> None:
    """Write every case, and MiniLM's trace of one sentence."""
    shutil.rmtree(target, ignore_errors=True)
    check.quiet()
    for case in CASES:
        folder = target / case.name
        folder.mkdir(parents=True)
        model = build(case, folder)
        batches = {kind: make_inputs(case, kind) for kind in case.kinds}
        write(folder, folder, model, batches, {"family": case.family, "architecture": case.save})
    folder = target / "minilm"
    folder.mkdir(parents=True)
    ids = transformers.AutoTokenizer.from_pretrained(minilm)(TEXT)["input_ids"]
    model = load(transformers.BertModel, minilm)
    write(folder, minilm, model, {"plain": {"input_ids": np.array([ids])}}, {"family": "bert", "text": TEXT})
    check.write_manifest(target, "scripts/reference/encoder.py")


differences = partial(check.compare_folders, only=[])


def main() -> int:
    parser = check.parser_of(__doc__, minilm=True)
    arguments = parser.parse_args()
    if arguments.minilm is None:
        parser.error("needs --minilm FOLDER or the environment variable MINIBERT_MODEL")
    return check.make_or_check(arguments.check, TARGET, partial(make_all, minilm=Path(arguments.minilm)), differences)


if __name__ == "__main__":
    sys.exit(main())
