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
    changed: Callable[[Tensors], Tensors] = dict

    @property
    def name(self) -> str:
        return f"{self.family}-{self.head}{self.variant and '-' + self.variant}"

    def but(self, variant: str, kinds: tuple[str, ...] = ("plain",), **config: Any) -> HeadCase:
        """Return the case with other batches and other settings in config.json."""
        return self._replace(variant=variant, kinds=kinds, config=self.config | config)


def of(family: str, stem: str, sizes: dict[str, Any], pad: int = 0, **kinds: tuple[str, ...]) -> list[HeadCase]:
    """Return a family's cases: the head of each and its batches. Classes have names."""
    named = {head: sizes | NAMED if "classes" in head else sizes for head in kinds}
    return [HeadCase(family, stem + CLASSES[head], head, named[head], each, pad) for head, each in kinds.items()]


def like_roberta(family: str, stem: str, sizes: dict[str, Any]) -> list[HeadCase]:
    kinds = {"masked_word": EVERY, "classes": FIRST, "token_classes": PADDED, "answer": PADDED}
    masked, *others = of(family, stem, sizes, 1, **kinds)
    return [masked._replace(config=sizes | RELU), *others]


def like_llama(family: str, stem: str, sizes: dict[str, Any]) -> list[HeadCase]:
    next_word, classes = ("right_pad", "left_pad"), ("plain", "left_pad", "ends_with_pad")
    return of(family, stem, sizes, next_word=next_word, classes=classes, token_classes=PADDED, answer=PADDED)


CLASSES = {
    "masked_word": "ForMaskedLM", "classes": "ForSequenceClassification", "token_classes": "ForTokenClassification",
    "answer": "ForQuestionAnswering", "next_sentence": "ForNextSentencePrediction", "next_word": "ForCausalLM",
    "replaced_token": "ForPreTraining",
}  # fmt: skip
EVERY, FIRST, PADDED = ("plain", "right_pad", "left_pad"), ("plain", "right_pad"), ("right_pad",)
FOUR = {"masked_word": EVERY, "classes": FIRST, "token_classes": EVERY, "answer": PADDED}
FIVE = FOUR | {"next_sentence": (*FIRST, "types")}
NAMED = {"id2label": {0: "no", 1: "maybe", 2: "yes"}, "label2id": {"no": 0, "maybe": 1, "yes": 2}}
RELU = {"hidden_act": "relu"}  # the head has gelu all the same
ONE = {**SIZES, "num_hidden_layers": 1}
ROBERTA = {**ONE, "pad_token_id": 1, "layer_norm_eps": 1e-5}
MPNET = {**ONE, "pad_token_id": 1, "max_position_embeddings": 24}
ELECTRA = {**ONE, "embedding_size": 8, "hidden_act": "silu"}
GPT_ONE, DISTIL_ONE = {**GPT, "n_layer": 1}, {**DISTIL, "n_layers": 1}
MODERN_ONE, ROTARY_ONE, GEMMA_ONE = ({**each, "num_hidden_layers": 1} for each in (MODERN, ROTARY, GEMMA))
GEMMA_ONE["layer_types"] = ["full_attention"]
EURO = {**ROTARY_ONE, "head_dim": None}
ULTRA = {**EURO, "hidden_act": "relu", "prediction_head_size": 10}
DEBERTA_ONE = {**DEBERTA, "num_hidden_layers": 1, "embedding_size": 8}
BIASES = {"classifier_bias": True, "norm_bias": True, "classifier_activation": "silu", "decoder_bias": False}
BERT = of("bert", "Bert", ONE, **FIVE)
GPT2_WORD = HeadCase("gpt2", "GPT2LMHeadModel", "next_word", GPT_ONE, EVERY)
GPT2_CLASSES = HeadCase("gpt2", "GPT2ForSequenceClassification", "classes", GPT_ONE | NAMED, ("one",))
GTE = of("gte", "Gte", ONE | RELU, 1, **{key: FOUR[key] for key in ("masked_word", "classes", "token_classes")})
DEBERTA_V2 = of("deberta-v2", "DebertaV2", DEBERTA_ONE, **FOUR)
MODERNBERT = of("modernbert", "ModernBert", MODERN_ONE, **FOUR)
EUROBERT = of("eurobert", "EuroBert", EURO, masked_word=EVERY, classes=EVERY, token_classes=EVERY)
ULTRABERT = of("ultrabert", "Ultrabert", ULTRA, **FOUR)
QWEN3 = like_llama("qwen3", "Qwen3", ROTARY_ONE)
CASES = (
    *BERT,
    BERT[0].but("gelu_new", hidden_act="gelu_new"),
    BERT[0].but("both_names")._replace(changed=both_names),
    BERT[0].but("both_and_unlike")._replace(changed=both_and_unlike),
    BERT[0].but("only_the_heads")._replace(changed=only_the_head_s),
    BERT[0].but("untied", tie_word_embeddings=False),
    BERT[0].but("pretraining")._replace(save="BertForPreTraining"),
    BERT[1].but("one")._replace(config=ONE | {"num_labels": 1}),
    HeadCase("bert", "BertLMHeadModel", "next_word", ONE | {"is_decoder": True}, FIRST),
    *of("ernie", "Ernie", ONE, **FIVE),
    *like_roberta("roberta", "Roberta", ROBERTA),
    *like_roberta("xlm-roberta", "XLMRoberta", ROBERTA),
    *like_roberta("camembert", "Camembert", ROBERTA),
    *like_roberta("mpnet", "MPNet", MPNET),
    *like_roberta("jina_embeddings_v3", "JinaEmbeddingsV3", ROBERTA),
    *of("electra", "Electra", ELECTRA, **FOUR | {"token_classes": PADDED, "replaced_token": EVERY}),
    *of("distilbert", "DistilBert", DISTIL_ONE | {"activation": "relu"}, masked_word=FIRST),
    *of("distilbert", "DistilBert", DISTIL_ONE, classes=FIRST, token_classes=PADDED, answer=PADDED),
    GPT2_WORD,
    GPT2_WORD.but("unprefixed")._replace(changed=unprefixed),
    GPT2_WORD.but("untied", tie_word_embeddings=False),
    GPT2_CLASSES.but("", (*EVERY, "ends_with_pad", "pads_alone"), pad_token_id=0),
    GPT2_CLASSES.but("no_pad_id", ("one",)),
    *of("gpt2", "GPT2", GPT_ONE, token_classes=PADDED, answer=PADDED),
    *MODERNBERT,
    MODERNBERT[0].but("biased", **BIASES),
    MODERNBERT[1].but("mean", FIRST, classifier_pooling="mean"),
    *of("nomic_bert", "NomicBert", ONE, masked_word=EVERY, classes=FIRST, token_classes=EVERY),
    *of("albert", "Albert", ONE | {"embedding_size": 8}, **FOUR),
    *GTE,
    GTE[0].but("older", EVERY)._replace(changed=older_gte),
    *DEBERTA_V2,
    DEBERTA_V2[0].but("own", EVERY, embedding_size=DEBERTA["hidden_size"], legacy=False),
    DEBERTA_V2[1]._replace(config=DEBERTA_ONE | {"num_labels": 1, "pooler_hidden_act": "tanh"}, variant="one"),
    *like_llama("llama", "Llama", ROTARY_ONE),
    *like_llama("mistral", "Mistral", ROTARY_ONE),
    *like_llama("ministral3", "Ministral3", ROTARY_ONE),
    *like_llama("qwen2", "Qwen2", ROTARY_ONE),
    *QWEN3,
    QWEN3[0].but("tied", tie_word_embeddings=True),
    *EUROBERT,
    EUROBERT[0].but("tied", tie_word_embeddings=True, mlp_bias=True),
    *(EUROBERT[1].but(each, FIRST, classifier_pooling=each) for each in ("bos", "mean")),
    *ULTRABERT,
    ULTRABERT[0].but("tied", tie_word_embeddings=True),
    ULTRABERT[1].but("mean", FIRST, classifier_pooling="mean"),
    *of("gemma3_text", "Gemma3", GEMMA_ONE, next_word=PADDED),
    *of("gemma3_text", "Gemma3Text", GEMMA_ONE, classes=FIRST),
)


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
    plain = Case(case.family, case.save, {}, (), case.name.removeprefix(f"{case.family}-"), case.pad)
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
