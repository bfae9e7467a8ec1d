"""Make tests/reference/heads: tiny models with a head, and what the reference computes with it.

    python scripts/reference/heads.py            write tests/reference/heads anew
    python scripts/reference/heads.py --check    make it elsewhere, compare; exit 1 on a difference

The reference is transformers on torch with eager attention, on one CPU thread. Each case becomes a folder:

    config.json, model.safetensors   as save_pretrained writes them, or with the tensors that `changed` gives
    case.json                        family, class, the head's name, kinds of batches
    trace.safetensors                "<kind>|inputs|<name>" and "<kind>|<key>", key as in `encoder.trace(head=...)`

A key is a module's path, its value that module's output; for an activation that is no module, the input of the next
module. `logits` is the class's output of that name.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from check import ROOT, fill, make_or_check, parser_of, quiet, save_alone, write_json, write_manifest
from encoder import DEBERTA, DISTIL, GEMMA, GPT, MODERN, ROTARY, SIZES, Case, differences, load, make_inputs
from safetensors.numpy import load_file, save_file

import minibert
from minibert.equations.input_layer import Array

TARGET = ROOT / "tests" / "reference" / "heads"
Tensors = dict[str, Array]
ONE = {**SIZES, "num_hidden_layers": 1}
ROBERTA = {**ONE, "pad_token_id": 1, "layer_norm_eps": 1e-5}
MPNET = {**ONE, "pad_token_id": 1, "max_position_embeddings": 24}
ELECTRA = {**ONE, "embedding_size": 8, "hidden_act": "silu"}
GPT_ONE, DISTIL_ONE = {**GPT, "n_layer": 1}, {**DISTIL, "n_layers": 1}
NAMED = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
EVERY, FIRST = ("plain", "right_pad", "left_pad"), ("plain", "right_pad")


def same(tensors: Tensors) -> Tensors:
    return tensors


def both_names(tensors: Tensors) -> Tensors:
    """Write as in older files: each tied tensor under both of its names."""
    more = {"cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"]}  # fmt: skip
    return tensors | {name: np.array(x) for name, x in more.items()}


def both_and_unlike(tensors: Tensors) -> Tensors:
    """Write both names with unlike numbers: the reference then uses the head's, whatever config.json says."""
    return {name: x + np.float32("decoder" in name) for name, x in both_names(tensors).items()}


def only_the_head_s(tensors: Tensors) -> Tensors:
    """Write the table only under the head's name."""
    twice = both_names(tensors)
    return {name: x for name, x in twice.items() if name != "bert.embeddings.word_embeddings.weight"}


def unprefixed(tensors: Tensors) -> Tensors:
    """Write as the Hub's first GPT-2: names of the base model, and no table for the head."""
    return {name.removeprefix("transformer."): x for name, x in tensors.items()}


def older_gte(tensors: Tensors) -> Tensors:
    """Write as files of the model_type "new", which the reference calls gte."""
    return {name.replace("gte.", "new."): x for name, x in tensors.items()}


class HeadCase(NamedTuple):
    """One folder. `changed` turns the class's saved tensors into the file's; `pad` is the id of padding."""

    family: str
    save: str
    head: str
    config: dict[str, Any]
    kinds: tuple[str, ...]
    pad: int = 0
    variant: str = ""
    changed: Callable[[Tensors], Tensors] = same

    @property
    def name(self) -> str:
        return f"{self.family}-{self.head}{self.variant and '-' + self.variant}"


def answering(family: str, stem: str, sizes: dict[str, Any]) -> HeadCase:
    return HeadCase(family, f"{stem}ForQuestionAnswering", "answer", sizes, ("right_pad",))


def like_bert(family: str, stem: str) -> list[HeadCase]:
    return [
        HeadCase(family, f"{stem}ForMaskedLM", "masked_word", ONE, EVERY),
        HeadCase(family, f"{stem}ForSequenceClassification", "classes", ONE | NAMED, FIRST),
        HeadCase(family, f"{stem}ForTokenClassification", "token_classes", ONE | NAMED, EVERY),
        answering(family, stem, ONE),
        HeadCase(family, f"{stem}ForNextSentencePrediction", "next_sentence", ONE, (*FIRST, "types")),
    ]


def like_roberta(family: str, stem: str, sizes: dict[str, Any]) -> list[HeadCase]:
    # hidden_act is relu: the head has gelu all the same
    return [
        HeadCase(family, f"{stem}ForMaskedLM", "masked_word", sizes | {"hidden_act": "relu"}, EVERY, 1),
        HeadCase(family, f"{stem}ForSequenceClassification", "classes", sizes | NAMED, FIRST, 1),
        HeadCase(family, f"{stem}ForTokenClassification", "token_classes", sizes | NAMED, ("right_pad",), 1),
        answering(family, stem, sizes)._replace(pad=1),
    ]


BERT = like_bert("bert", "Bert")
UNTIED = ONE | {"tie_word_embeddings": False}
CASES = (
    *BERT,
    BERT[0]._replace(config=ONE | {"hidden_act": "gelu_new"}, variant="gelu_new", kinds=("plain",)),
    BERT[0]._replace(variant="both_names", kinds=("plain",), changed=both_names),
    BERT[0]._replace(variant="both_and_unlike", kinds=("plain",), changed=both_and_unlike),
    BERT[0]._replace(variant="only_the_heads", kinds=("plain",), changed=only_the_head_s),
    BERT[0]._replace(config=UNTIED, variant="untied", kinds=("plain",)),
    BERT[1]._replace(config=ONE | {"num_labels": 1}, variant="one", kinds=("plain",)),
    HeadCase("bert", "BertForPreTraining", "masked_word", ONE, ("plain",), variant="pretraining"),
    HeadCase("bert", "BertLMHeadModel", "next_word", ONE | {"is_decoder": True}, ("plain", "right_pad")),
    *like_bert("ernie", "Ernie"),
    *like_roberta("roberta", "Roberta", ROBERTA),
    *like_roberta("xlm-roberta", "XLMRoberta", ROBERTA),
    *like_roberta("camembert", "Camembert", ROBERTA),
    *like_roberta("mpnet", "MPNet", MPNET),
    HeadCase("electra", "ElectraForMaskedLM", "masked_word", ELECTRA, EVERY),
    HeadCase("electra", "ElectraForSequenceClassification", "classes", ELECTRA | NAMED, FIRST),
    HeadCase("electra", "ElectraForTokenClassification", "token_classes", ELECTRA | NAMED, ("right_pad",)),
    HeadCase("electra", "ElectraForPreTraining", "replaced_token", ELECTRA, EVERY),
    answering("electra", "Electra", ELECTRA),
    answering("distilbert", "DistilBert", DISTIL_ONE),
    answering("gpt2", "GPT2", GPT_ONE),
    HeadCase("distilbert", "DistilBertForMaskedLM", "masked_word", DISTIL_ONE | {"activation": "relu"}, FIRST),
    HeadCase("distilbert", "DistilBertForSequenceClassification", "classes", DISTIL_ONE | NAMED, FIRST),
    HeadCase("distilbert", "DistilBertForTokenClassification", "token_classes", DISTIL_ONE | NAMED, ("right_pad",)),
    HeadCase("gpt2", "GPT2LMHeadModel", "next_word", GPT_ONE, EVERY),
    HeadCase("gpt2", "GPT2LMHeadModel", "next_word", GPT_ONE, ("plain",), variant="unprefixed", changed=unprefixed),
    HeadCase("gpt2", "GPT2LMHeadModel", "next_word", GPT_ONE | {"tie_word_embeddings": False}, ("plain",),
             variant="untied"),
    HeadCase("gpt2", "GPT2ForSequenceClassification", "classes", GPT_ONE | NAMED | {"pad_token_id": 0},
             (*EVERY, "ends_with_pad", "pads_alone")),
    HeadCase("gpt2", "GPT2ForSequenceClassification", "classes", GPT_ONE | NAMED, ("one",), variant="no_pad_id"),
    HeadCase("gpt2", "GPT2ForTokenClassification", "token_classes", GPT_ONE | NAMED, ("right_pad",)),
)  # fmt: skip


MODERN_ONE = {**MODERN, "num_hidden_layers": 1}
ROTARY_ONE = {**ROTARY, "num_hidden_layers": 1}
GEMMA_ONE = {**GEMMA, "num_hidden_layers": 1, "layer_types": ["full_attention"]}
HEAD_BIASES = {"classifier_bias": True, "norm_bias": True, "classifier_activation": "silu", "decoder_bias": False}


def like_llama(family: str, stem: str, sizes: dict[str, Any]) -> list[HeadCase]:
    named = sizes | NAMED | {"pad_token_id": 0}
    return [
        HeadCase(family, f"{stem}ForCausalLM", "next_word", sizes, ("right_pad", "left_pad")),
        HeadCase(family, f"{stem}ForSequenceClassification", "classes", named, ("plain", "left_pad", "ends_with_pad")),
        HeadCase(family, f"{stem}ForTokenClassification", "token_classes", named, ("right_pad",)),
        answering(family, stem, sizes),
    ]


MODERNBERT = [
    HeadCase("modernbert", "ModernBertForMaskedLM", "masked_word", MODERN_ONE, EVERY),
    HeadCase("modernbert", "ModernBertForSequenceClassification", "classes", MODERN_ONE | NAMED, FIRST),
    HeadCase("modernbert", "ModernBertForTokenClassification", "token_classes", MODERN_ONE | NAMED, EVERY),
    answering("modernbert", "ModernBert", MODERN_ONE),
]
EURO = {**ROTARY_ONE, "head_dim": None}
EUROBERT = [
    HeadCase("eurobert", "EuroBertForMaskedLM", "masked_word", EURO, EVERY),
    HeadCase("eurobert", "EuroBertForSequenceClassification", "classes", EURO | NAMED, EVERY),
    HeadCase("eurobert", "EuroBertForTokenClassification", "token_classes", EURO | NAMED, EVERY),
]
ULTRA = {**EURO, "hidden_act": "relu", "prediction_head_size": 10}
ULTRABERT = [
    HeadCase("ultrabert", "UltrabertForMaskedLM", "masked_word", ULTRA, EVERY),
    HeadCase("ultrabert", "UltrabertForSequenceClassification", "classes", ULTRA | NAMED, FIRST),
    HeadCase("ultrabert", "UltrabertForTokenClassification", "token_classes", ULTRA | NAMED, EVERY),
    answering("ultrabert", "Ultrabert", ULTRA),
]
# hidden_act is relu: the head has gelu all the same
GTE = HeadCase("gte", "GteForMaskedLM", "masked_word", ONE | {"hidden_act": "relu"}, EVERY, 1)
DEBERTA_ONE = {**DEBERTA, "num_hidden_layers": 1, "embedding_size": 8}
DEBERTA_V2 = [each._replace(config=each.config | DEBERTA_ONE) for each in like_bert("deberta-v2", "DebertaV2")[:4]]
OWN_WORDS = {**DEBERTA_ONE, "embedding_size": DEBERTA["hidden_size"], "legacy": False}
QWEN3 = like_llama("qwen3", "Qwen3", ROTARY_ONE)
CASES = (
    *CASES,
    *MODERNBERT,
    MODERNBERT[0]._replace(config=MODERN_ONE | HEAD_BIASES, variant="biased", kinds=("plain",)),
    MODERNBERT[1]._replace(config=MODERN_ONE | NAMED | {"classifier_pooling": "mean"}, variant="mean", kinds=FIRST),
    *like_bert("nomic_bert", "NomicBert")[:3],
    *(each._replace(config=each.config | {"embedding_size": 8}) for each in like_bert("albert", "Albert")[:4]),
    GTE, GTE._replace(variant="older", changed=older_gte),
    GTE._replace(save="GteForSequenceClassification", head="classes", config=GTE.config | NAMED, kinds=FIRST),
    GTE._replace(save="GteForTokenClassification", head="token_classes", config=GTE.config | NAMED),
    *like_roberta("jina_embeddings_v3", "JinaEmbeddingsV3", ROBERTA),
    *DEBERTA_V2,
    DEBERTA_V2[0]._replace(config=OWN_WORDS, variant="own"),
    DEBERTA_V2[1]._replace(config=DEBERTA_ONE | {"num_labels": 1, "pooler_hidden_act": "tanh"}, variant="one"),
    *like_llama("llama", "Llama", ROTARY_ONE),
    *like_llama("mistral", "Mistral", ROTARY_ONE),
    *like_llama("ministral3", "Ministral3", ROTARY_ONE),
    *like_llama("qwen2", "Qwen2", ROTARY_ONE),
    *QWEN3,
    QWEN3[0]._replace(config=ROTARY_ONE | {"tie_word_embeddings": True}, variant="tied", kinds=("plain",)),
    *EUROBERT,
    EUROBERT[0]._replace(config=EURO | {"tie_word_embeddings": True, "mlp_bias": True}, variant="tied",
                         kinds=("plain",)),
    *(EUROBERT[1]._replace(config=EURO | NAMED | {"classifier_pooling": each}, variant=each, kinds=FIRST)
      for each in ("bos", "mean")),
    *ULTRABERT,
    ULTRABERT[0]._replace(config=ULTRA | {"tie_word_embeddings": True}, variant="tied", kinds=("plain",)),
    ULTRABERT[1]._replace(config=ULTRA | NAMED | {"classifier_pooling": "mean"}, variant="mean", kinds=FIRST),
    HeadCase("gemma3_text", "Gemma3ForCausalLM", "next_word", GEMMA_ONE, ("right_pad",)),
    HeadCase("gemma3_text", "Gemma3TextForSequenceClassification", "classes", GEMMA_ONE | NAMED | {"pad_token_id": 0},
             ("plain", "right_pad")),
)  # fmt: skip


def build(case: HeadCase, folder: Path) -> torch.nn.Module:
    """Save the case's model by its class, change the file, and read it with the same class."""
    config = transformers.AutoConfig.for_model(case.family, **case.config)
    kind = getattr(transformers, case.save)
    model = kind(config)
    fill(model, 5, around=case.family != "gemma3_text")
    save_alone(model, folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(case.changed(tensors), folder / "model.safetensors", {"format": "pt"})
    return load(kind, folder)


def batch(case: HeadCase, kind: str) -> dict[str, Array]:
    """Build a batch as for whole models. "ends_with_pad": unmasked pad ids at the ends; "pads_alone": only pad ids."""
    plain = Case(case.name, case.family, case.save, "", {}, (), case.pad)
    if kind == "one":
        return {name: ids[:1] for name, ids in make_inputs(plain, "plain").items()}
    made = make_inputs(plain, kind)
    if kind == "ends_with_pad":
        made["input_ids"][:, -1] = case.pad
    elif kind == "pads_alone":
        made["input_ids"][0] = case.pad
    return made


def run(case: HeadCase, model: torch.nn.Module, folder: Path, inputs: dict[str, Array]) -> dict[str, Array]:
    """Compute the output of each of the head's modules, and the logits."""
    kept: dict[str, torch.Tensor] = {}
    modules = dict(model.named_modules())
    head = minibert.load_encoder(folder).head(case.head)
    paths = [path for path, _ in head.works] + [head.path]
    for path, after in zip(paths, [*paths[1:], ""], strict=True):
        own = next((prefix + path for prefix in ("", f"{model.base_model_prefix}.") if prefix + path in modules), "")
        if own:
            modules[own].register_forward_hook(lambda _m, _given, y, path=path: kept.__setitem__(path, y))
        else:
            modules[after].register_forward_pre_hook(lambda _m, given, path=path: kept.__setitem__(path, given[0]))
    with torch.no_grad():
        result = model(**{name: torch.from_numpy(ids) for name, ids in inputs.items()})
    if case.head == "answer":
        kept["logits"] = torch.stack([result["start_logits"], result["end_logits"]], dim=-1)
    else:
        kept["logits"] = result["logits"] if "logits" in result else result["prediction_logits"]
    if head.pooling == "last":
        del kept[head.path]  # the reference computes it for every token
    return {key: np.array(value.numpy()) for key, value in kept.items()}


def make_all(target: Path) -> None:
    """Write every case."""
    shutil.rmtree(target, ignore_errors=True)
    quiet()
    for case in CASES:
        folder = target / case.name
        folder.mkdir(parents=True)
        model = build(case, folder)
        stored: dict[str, Array] = {}
        for kind in case.kinds:
            inputs = batch(case, kind)
            stored |= {f"{kind}|inputs|{name}": ids for name, ids in inputs.items()}
            stored |= {f"{kind}|{key}": value for key, value in run(case, model, folder, inputs).items()}
        save_file(stored, folder / "trace.safetensors")
        facts = {"family": case.family, "architecture": case.save, "head": case.head, "kinds": case.kinds}
        write_json(folder / "case.json", facts, depth=1)
    write_manifest(target, "scripts/reference/heads.py")


def main() -> int:
    return make_or_check(parser_of(__doc__).parse_args().check, TARGET, make_all, differences)


if __name__ == "__main__":
    sys.exit(main())
