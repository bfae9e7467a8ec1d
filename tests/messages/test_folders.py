"""What loading says of folders and files that it does not take: one table of message -> call. Whole tables of settings
stand in the tests of what reads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
import word_models
from checkpoints import BERT, GPT2, T5, VOCAB, change_json, numbers, tensors, write, write_index
from encoder_files import CASE, copied
from reference_files import REFERENCE, opened

import minibert
from minibert.errors import CheckpointError, TokenizerError, UnknownFamilyError
from minibert.families.rows import FAMILIES
from minibert.models.open.extract import extract

Row = tuple[type[Exception], str, Callable[[Path], object]]
WORD = "embeddings.word_embeddings.weight"
LOADS = (minibert.load, minibert.load_encoder)


def made(config: Any = BERT, named: Any = None, load: Any = minibert.load, **options: Any) -> Callable[[Path], object]:
    """Load a folder of this config and these tensors."""
    return lambda folder: load(write(folder, config, named), **options)


def whole(name: str, **config: Any) -> Callable[[Path], object]:
    """Load a whole model of tests/reference whose config says something else."""
    return lambda folder: minibert.load_encoder(copied(CASE[name], folder, **config))


def without_config(folder: Path) -> Path:
    (write(folder) / "config.json").unlink()
    return folder / "config.json"


def too_few_blocks(folder: Path) -> object:
    change_json(encoders.write(folder, "gte") / "config.json", num_hidden_layers=1)
    return minibert.load_encoder(folder)


def of_another_clip(named: dict[str, Any], **config: Any) -> Callable[[Path], object]:
    settings = encoders.config("clip_text_model", **config)
    return made(settings, encoders.tensors(encoders.config("clip_text_model")) | named, minibert.load_encoder)


def fill_without_a_mask(folder: Path) -> object:
    word_models.write(folder, "bert")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    return minibert.load_encoder(folder).fill("[MASK]")


def damaged(name: str, content: bytes | None) -> Callable[[Path], object]:
    """Load a model after one of its files is written over, or removed."""

    def load(folder: Path) -> object:
        path = shutil.copytree(REFERENCE / "sentences-dense", folder / "model") / name
        path.write_bytes(content) if content is not None else path.unlink()
        return minibert.load_encoder(folder / "model").encode("we")

    return load


def without_a_shard(folder: Path) -> object:
    write_index(write(folder), dict.fromkeys(tensors(BERT), "one.safetensors"))
    (folder / "model.safetensors").unlink()
    return minibert.load(folder)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
NO_FOLDER = "no such folder; expected a folder with config.json and model.safetensors"
ELSEWHERE = "; for the Hub's model of this name run elsewhere, or rename the"
DTYPE = "dtype must be 'float32' or 'float64', found .*; narrow files are converted"
MLX = {"quantization": {"group_size": 32, "bits": 4}}
PACKED = tensors(BERT) | {WORD: ("U32", (16, 1), bytes(64))}
TURNED = tensors(GPT2) | {"wte.weight": tensors(GPT2)["wte.weight"].T.copy()}
TWICE = tensors(BERT) | {f"bert.{WORD}": numbers(VOCAB, 8, seed=9)}
DEEP = encoders.config("bert")
MISSPELT = {name.replace("embeddings.weight", "embedings.weigth"): array for name, array in tensors(BERT).items()}
EXPORTED = "minibert reads only safetensors; load the model that this was made from$"


def exported(place: str, config: bool) -> Callable[[Path], object]:
    """Load a folder as exporters leave it."""

    def load(folder: Path) -> object:
        write(folder)
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / "model.safetensors").rename(folder / place)
        if not config:
            (folder / "config.json").unlink()
        return minibert.load_encoder(folder)

    return load


NAMES: list[Row] = [
    *((CheckpointError, f"found only {place}: {EXPORTED}", exported(place, config)) for config in (True, False)
      for place in ("model.onnx", "onnx/model.onnx", "model-q4.gguf", "openvino_model.xml")),
    (CheckpointError, "found an empty folder$", minibert.load),
    (CheckpointError, NO_FOLDER, lambda tmp: minibert.load(tmp / "none")),
    (CheckpointError, NO_FOLDER, lambda tmp: minibert.load(str(tmp / "none"))),
    *((CheckpointError, NO_FOLDER, lambda _, name=name: minibert.load(name))
      for name in ("./none/such", "~/none/such/folder", "~nobody/x", "a/b/c", Path("x" * 5000).absolute(),
                   "none/", "./" + "x" * 5000, "./nul\0byte", "./\ud800")),
    *((CheckpointError, f"{name}: a file, not a folder; expected a folder .*; name its folder, [^ ]*/[^ ]*$",
       lambda tmp, name=name: minibert.load(write(tmp) / name)) for name in ("model.safetensors", "config.json")),
    *((CheckpointError, r"^model.safetensors: a file, not a folder; expected .*; name its folder, \.$",
       lambda tmp, load=load: (write(tmp), load("model.safetensors"))) for load in LOADS),
    *((CheckpointError, f"^gpt2: a file, not a folder; expected .*{ELSEWHERE} file$",
       lambda tmp, load=load: ((tmp / "gpt2").touch(), load("gpt2"))) for load in LOADS),
    *((CheckpointError, f"^org/bert has no config.json, which says what the tensors mean; .*{ELSEWHERE} folder$",
       lambda tmp, load=load: (without_config(tmp / "org" / "bert"), load("org/bert"))) for load in LOADS),
    (CheckpointError, f"^bert-base-uncased has no config.json, .*{ELSEWHERE} folder$",
     lambda tmp: ((tmp / "bert-base-uncased").mkdir(), minibert.load("bert-base-uncased"))),
    (CheckpointError, "is a module of the model in .*/model; name that folder$",
     lambda tmp: minibert.load_encoder(shutil.copytree(REFERENCE / "sentences-dense", tmp / "model") / "1_Pooling")),
    (CheckpointError, "an address, not a folder; a model on the Hub is named OWNER/NAME",
     lambda _: minibert.load("https://huggingface.co/google/bert")),
    (ValueError, "the model's name is empty; give a folder or a Hub name", lambda _: minibert.load("")),
    *((TypeError, "str", lambda _, odd=odd: minibert.load(odd)) for odd in (3, b"bert", ["bert"], np.ones(2))),
    (CheckpointError, "has no config.json, which says what the tensors mean; fetch it into that folder$",
     lambda tmp: minibert.load(without_config(tmp).parent)),
    (CheckpointError, "config.json is a folder, but a file is expected under this name",
     lambda tmp: (without_config(tmp).mkdir(), minibert.load(tmp))),
]  # fmt: skip
OPTIONS: list[Row] = [
    *((ValueError, DTYPE, made(load=load, dtype=odd))
      for load in LOADS for odd in ("float16", "int32", "", "f", None, 3, np.int64, "nonsense")),
    (ValueError, "side must be 'encoder' for bert, found 'decoder'", made(side="decoder")),
    (ValueError, "side must be 'encoder' or 'decoder' for t5, found 'left'", made(T5, side="left")),
    (TypeError, "family must be a minibert.Family, found str 'bert'; ", made(family="bert")),
    (ValueError, "revision is for a name on the Hub; .* is a folder$", made(revision="main")),
    (ValueError, f"revision is for a name on the Hub; bert is a folder{ELSEWHERE} folder",
     lambda tmp: (write(tmp / "bert"), minibert.load("bert", revision="main"))),
    (CheckpointError, "'n_embd'|'hidden_size'|no tensor for 'wte.weight'", made(family=FAMILIES["gpt2"])),
    (ValueError, "lazy=True is only for a static model, whose rows can be fetched one by one",
     lambda _: minibert.load_encoder(REFERENCE / "sentences-dense", lazy=True)),
    (ValueError, "block 0 is not there: this model has no blocks",
     lambda _: minibert.knock_out(opened("static-plain"), heads=[(0, 0)])),
]  # fmt: skip
TENSORS: list[Row] = [
    # without this a config that only claims to be DistilBERT would lose its segments in silence
    (CheckpointError, "does not use: embeddings.token_type_embeddings.weight",
     made({**BERT, "model_type": "distilbert", "dim": 8}, tensors(BERT))),
    # MLX packs weights into integers, nanoGPT stores maps of a GPT-2 transposed
    (CheckpointError, "config.json has 'quantization': the weights are packed integers", made(BERT | MLX, PACKED)),
    (CheckpointError, "'quantization_config'", made({**BERT, "quantization_config": {"bits": 4}}, PACKED)),
    (CheckpointError, "config and tensors are of different models", made({**BERT, "hidden_size": 4}, tensors(BERT))),
    (CheckpointError, r"the tensor is transposed, as nanoGPT .*; store tensor\.T", made(GPT2, TURNED)),
    (CheckpointError, f"two tensors could be '{WORD}': {WORD} and bert.{WORD}; keep the one", made(named=TWICE)),
    (CheckpointError, f"tried {WORD}, bert.{WORD}, cls.predictions.decoder.weight, .*; the nearest name .* 'emb",
     made(named=MISSPELT)),
    *((CheckpointError, f"has tensors of the input layer that the recipe of this family does not use: {name}",
       made(named=tensors(BERT) | {name: numbers(8)}))
      for name in ("embeddings.extra.weight", "bert.embeddings.LayerNorm.gamma", "embeddings.word_embeddings.bias")),
    *((CheckpointError, rf"tensor '{WORD}' has shape \({', '.join(map(str, shape))},?\), but config.json says ",
       made(named=tensors(BERT) | {WORD: np.zeros(shape, np.float32)}))
      for shape in ((VOCAB - 1, 8), (VOCAB + 1, 8), (8, VOCAB), (VOCAB, 7), (VOCAB * 8,), (1, VOCAB, 8), ())),
]  # fmt: skip
WHOLE: list[Row] = [
    *((UnknownFamilyError, f"model_type '{name}' is a .*{what}.*, which minibert does not compute$",
       made(BERT | {"model_type": name}))
      for name, what in (("lfm2", "convolutions"), ("jina_embeddings_v5", "LoRA adapter for each task"))),
    (CheckpointError, "'num_experts' is 8, and experts are not computed here", whole("nomic_bert", num_experts=8)),
    (UnknownFamilyError, "'xlnet' has an input layer here, but no blocks; .* are .*mpnet.*; minibert.load loads",
     lambda _: minibert.load_encoder(REFERENCE / "xlnet")),
    *((CheckpointError, "no tensor of the blocks, only the input layer", lambda tmp, name=name: minibert.load_encoder(
        extract(CASE[name].folder, tmp / "extracted").folder)) for name in ("bert", "gpt2", "t5")),
    # an error that lists all of them has thousands of letters
    (CheckpointError, r"use: layers\.1\.\S+(, layers\.1\.\S+){2} and \d+ more; the bl", too_few_blocks),
    *((UserWarning, f"has tensors that minibert does not read: {said}; if the folder's own code", made(
        DEEP, encoders.tensors(DEEP) | {f"{name}.weight": numbers(8) for name in names}, minibert.load_encoder))
      for names, said in (("cba", "a.weight, b.weight, c.weight"), ("dcba", "a.weight, .*, c.weight and 1 more"))),
    # the reference's eager attention follows it, its faster one for texts without padding does not
    *((CheckpointError, "'is_causal' must be", whole("clip_text_model", is_causal=value)) for value in (False, None)),
    (CheckpointError, "'eos_token_id' must be", of_another_clip({}, eos_token_id=[1, 2])),
    (CheckpointError, "'hidden_act' must be one of", of_another_clip({}, hidden_act="gelu_11")),
    (CheckpointError, "has shape .4, 5., but 'hidden_size' is 16",
     of_another_clip({"text_projection.weight": np.ones((4, 5), np.float32)})),
    (TokenizerError, "this tokenizer names no mask token; set mask_token in tokenizer_config", fill_without_a_mask),
]  # fmt: skip


FILES: list[Row] = [
    (CheckpointError, "is damaged, incomplete or of another format: fetch it again", damaged("model.safetensors", b"")),
    (CheckpointError, "is a Git LFS pointer, .*; run git lfs pull", damaged("model.safetensors", POINTER)),
    (CheckpointError, "has no one.safetensors, which .* lists; fetch the missing shard", without_a_shard),
    (CheckpointError, "not readable as JSON .*; fetch it again", damaged("config.json", b"{")),
    (CheckpointError, "Pooling has no config.json, .*; fetch the folder", damaged("1_Pooling/config.json", None)),
    (TokenizerError, "unreadable tokenizer file .*fetch it again", damaged("tokenizer.json", b"{}")),
    (TokenizerError, "has no tokenizer: expected tokenizer.json", damaged("tokenizer.json", None)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "call"), NAMES + OPTIONS + TENSORS + WHOLE + FILES)
def test_what_loading_says(
    kind: type[Exception], message: str, call: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        call(tmp_path)
