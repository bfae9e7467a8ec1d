"""Whole models: every intermediate as the reference has it, and what a caller can rely on besides."""

from __future__ import annotations

import copy
import json
import mmap
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_files import CASE, TINY, EncoderCase, copied, kept, off
from peaks import with_peak
from safetensors.numpy import load_file

import minibert
from minibert.equations.input_layer import Array
from minibert.families.rows import BLOCKS
from minibert.models.run.blocks import Stack

ROWS = 1e-5  # relative to max(1, |reference|), every intermediate; measured 6.6e-6
SHARES = 2e-6  # attentions; measured 1.1e-6, EmbeddingGemma 2 with the kernels for AVX-512 and AVX
REAL_ROWS = 2e-5  # on MiniLM; measured 7.1e-6
REAL_SHARES = 2e-5  # measured 1.2e-6
CUT = 1e-5  # between two cuts of one batch: a product's bits depend on its rows; measured 2e-6


def at_kept_tokens(key: str, x: Array, keep: Array, stack: Stack) -> Array:
    """Those numbers of one intermediate that padding has no part in; of scores those that no mask of `stack` hides."""
    if not key.startswith("attentions") and not key.endswith("scores"):
        return x[keep]
    pairs = keep[:, None, :, None] & keep[:, None, None, :]
    for block in stack.blocks:
        if key == block.attention.scores:
            query, key_token = np.indices(x.shape[2:])
            window = np.inf if block.attention.window is None else block.attention.window
            pairs = pairs & (abs(query - key_token) <= window) & ((key_token <= query) | (not stack.causal))
    return x[np.broadcast_to(pairs, x.shape)]


def compare(case: EncoderCase, encoder: minibert.Encoder, rows: float, shares: float) -> None:
    inputs, traces = case.read
    assert set(inputs) == set(case.facts["kinds"])
    for kind, given in inputs.items():
        trace = encoder.trace(**given)
        names = list(trace)
        assert names[names.index("hidden_states.0") :] == case.facts["order"]
        keep, theirs = kept(given), traces[kind]
        for key in case.facts["order"]:
            a, b = (at_kept_tokens(key, x, keep, encoder.stack) for x in (trace[key], theirs[key]))
            assert off(a, b) <= (shares if key.startswith("attentions") else rows), (kind, key)
        y = encoder(**given)
        assert y.dtype == np.float32
        assert off(y, trace[names[-1]]) <= CUT
        assert not y[~keep].any()


HEADS = re.compile(
    r"pooler|predictions|vocab_|logit|vision_|visual_|^(cls|head|lm_head|text_projection|(model\.)?decoder)\."
)


@pytest.mark.parametrize("case", TINY, ids=str)
def test_every_row_is_the_reference_s_and_whole(case: EncoderCase, tmp_path: Path) -> None:
    tensors = load_file(case.folder / "model.safetensors")
    with case.load() as encoder:
        compare(case, encoder, ROWS, SHARES)
        printed = [re.sub(r"\.[\d-]+\.", ".N.", line.split()[0], count=1) for line in repr(encoder).splitlines()]
        paths = [re.sub(r"\.\d+\.", ".N.", path, count=1) for path in encoder.modules]
        assert [*dict.fromkeys(printed)] == [*dict.fromkeys(paths)]
        outside = {tensor.name for tensor in encoder.embeddings.tensors}
        inside = [name for name in tensors if name not in outside and not HEADS.search(name)]
        without = {*encoder.embeddings.modules, *(path for path in encoder.modules if path.endswith("v_norm"))}
        modules = [m for path, m in encoder.modules.items() if path not in without]
        numbers = [getattr(m, part, None) for m in modules for part in ("weight", "bias")]
        in_file = sum(tensors[name].size for name in inside if not name.endswith("layer_scalar"))  # which no module has
        assert sum(np.size(each) for each in numbers if each is not None) == in_file
    assert repr(encoder) == f"<closed Encoder of {case.facts['family']}>"
    lost = inside[len(inside) // 2]
    with pytest.raises(minibert.CheckpointError, match=re.escape(lost.split(".", 2)[-1])):
        output(copied(case, tmp_path, lambda tensors: {k: x for k, x in tensors.items() if k != lost}))
    extra = f"{lost.rpartition('.')[0]}.extra"
    with pytest.raises(minibert.CheckpointError, match=f"{re.escape(extra)}"):
        output(copied(case, tmp_path, lambda _: tensors | {extra: np.zeros(1, np.float32)}))


def test_minilm_s_whole_trace(minilm: Path) -> None:
    advice = "each row of blocks has a case of scripts/reference/encoder.py"
    assert {case.facts["family"] for case in TINY} == set(BLOCKS) <= set(minibert.FAMILIES), advice
    case = CASE["minilm"]
    with minibert.load_encoder(minilm) as encoder:
        assert encoder.tokenize(case.facts["text"])["input_ids"].tolist() == case.read[0]["plain"]["input_ids"].tolist()
        compare(case, encoder, REAL_ROWS, REAL_SHARES)


def test_inputs_embeds_and_a_single_sequence() -> None:
    with CASE["bert"].load() as encoder:
        ids = np.array([5, 6, 7])
        rows, y = encoder.embeddings.word_embeddings(ids), encoder(ids)
        assert y.shape == (3, encoder.dim) and off(encoder(inputs_embeds=rows), y) <= CUT
        assert off(encoder.trace(inputs_embeds=rows[None])["hidden_states.2"], encoder(ids[None])) <= CUT


def output(folder: Path) -> Array:
    with minibert.load_encoder(folder) as encoder:
        return encoder(np.array([[3, 4, 5, 6]]))


def test_blocks_that_share_a_module_share_its_array(tmp_path: Path) -> None:
    """A narrow weight is converted once, however many blocks use it."""
    folder = copied(CASE["albert"], tmp_path, lambda tensors: {k: x.astype(np.float16) for k, x in tensors.items()})
    with minibert.load_encoder(folder) as encoder:
        first, second = (next(iter(block.modules.values())) for block in encoder.stack.blocks)
        assert first.weight is second.weight and first.weight.dtype == np.float32
        path = "encoder.albert_layer_groups.0.albert_layers.0.attention.query"
        assert encoder[path].weight is first.weight
        keys = [key for key in encoder.trace([[3, 4]]) if key.endswith("attention.query")]
        assert keys == [path.replace("0.att", f"0[{i}].att") for i in range(2)]


@pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="a system without madvise")
def test_the_blocks_are_read_ahead_and_the_tables_are_not(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a cold disk page by page took 1.1 s in 10,400 faults, ahead 0.15 s in one."""
    asked: list[tuple[int, int]] = []

    class Watched(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            if option == mmap.MADV_WILLNEED:
                asked.append((start, start + length))
            super().madvise(option, start, length)

    monkeypatch.setattr(mmap, "mmap", Watched)
    with minibert.load_encoder(minilm) as encoder:
        (words,) = [t for t in encoder.embeddings.tensors if t.name.endswith("word_embeddings.weight")]
    assert len(asked) == 16 * 6
    assert 4 * 6 * (4 * 384**2 + 2 * 384 * 1536) <= sum(stop - start for start, stop in asked) < 44e6
    assert not [1 for start, stop in asked if start < words.stop - mmap.PAGESIZE and stop > words.start + mmap.PAGESIZE]


TWO = {"input_ids": [[3, 4]]}
WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("bert", {**TWO, "attention_mask": [[0, 0]]}, ValueError, r"mask\[0\]"), ("bert", {}, ValueError, "neither"),
    ("bert", {**TWO, "attention_mask": [[0.0, -1e9]]}, ValueError, "attention_mask"),
    ("bert", {"input_ids": [[3, 99]]}, IndexError, r"input_ids\[0, 1\].* 99"),
    ("bert", {**TWO, "task_type_ids": [[0, 0]]}, TypeError, "task_type_ids"),
    # the reference rotates by them, and reads several texts in one line from them: both would be lost silently
    ("qwen3", {**TWO, "position_ids": [[0, 1]]}, TypeError, "position_ids"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "passed", "error", "said"), WRONG)
def test_inputs_that_are_refused(name: str, passed: dict[str, Any], error: Any, said: str) -> None:
    with CASE[name].load() as encoder:
        for run in (encoder, encoder.trace, encoder.logits)[: 3 if name == "bert" else 2]:
            with pytest.raises(error, match=said):
                run(**passed)
        with pytest.raises(TypeError, match="past_length"):
            encoder.trace([[3]], past_length=2)


def test_ids_of_images_have_the_padding_row_in_the_whole_model_alone(tmp_path: Path) -> None:
    """As in the reference: other towers' rows would stand there. The text tower alone looks them up."""
    ids = np.array([[3, 4, 5, 6]])
    whole = copied(CASE["embedding_gemma2"], tmp_path / "whole")
    data = json.loads((whole / "config.json").read_text(encoding="utf-8"))
    (whole / "config.json").write_text(json.dumps(data | {"image_token_id": 4, "video_token_id": None}))
    with minibert.load_encoder(whole) as encoder:
        np.testing.assert_array_equal(encoder(ids), encoder(np.array([[3, 0, 5, 6]])))
        np.testing.assert_array_equal(encoder.embeddings(ids)[0, 1], encoder.embeddings([[0]])[0, 0])
        right = encoder(ids)
    alone = data["text_config"] | {"image_token_id": 4}
    (whole / "config.json").write_text(json.dumps(alone))
    with minibert.load_encoder(whole) as encoder:
        assert off(encoder(ids), right) > 1e-3


GEMMA, MIXED = "embedding_gemma2_text", {"0": {"head_dim": 6}, "1": {"head_dim": 6}, "2": {"head_dim": 4}}
NOMIC = {  # its published config: none of the words of today
    "n_embd": 12, "n_head": 2, "n_layer": 2, "n_inner": 20, "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000,
    "activation_function": "swiglu", "rotary_emb_fraction": 1.0, "prenorm": False, "use_rms_norm": False,
    "rotary_emb_scale_base": None, "model_type": "nomic_bert", "vocab_size": 29, "type_vocab_size": 2,
}  # fmt: skip
GTE = {  # the live tests have its published files' model_type, prefix and words
    "architectures": ["NewModel"], "model_type": "new", "layer_norm_type": "layer_norm", "pack_qkv": True,
    "logn_attention_clip1": False, "logn_attention_scale": False, "position_embedding_type": "rope",
    "rope_theta": 20000, "rope_scaling": {"factor": 8.0, "type": "ntk"}, "rope_parameters": None,
}  # fmt: skip
T5_WORDS: list[dict[str, Any]] = [  # what save_pretrained made of them goes before; without it they count
    {"feed_forward_proj": "gated-tanh"}, {"feed_forward_proj": "tanh"}, {"dense_act_fn": None, "is_gated_act": None},
]  # fmt: skip
MASKS = {f"transformer.h.{i}.attn.bias": np.ones((1, 1, 12, 12), np.float32) for i in range(2)}
FREQUENCIES = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32) for i in range(2)}
NORMS = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
# settings, or a change of the tensors
SAME: list[tuple[str, Any]] = [
    ("bert", lambda tensors: {re.sub("|".join(NORMS), lambda m: NORMS[m[0]], k): x for k, x in tensors.items()}),
    ("gpt2", lambda tensors: tensors | MASKS | {"transformer.h.0.attn.masked_bias": np.array(-1e4, np.float32)}),
    ("llama", lambda tensors: tensors | FREQUENCIES), ("mistral-whole", {"sliding_window": 10**30}),
    (GEMMA, {"per_layer_config": None, "global_head_dim": 6, "num_global_key_value_heads": 2}),  # older files
    # as saved from 24 blocks: their numbers have two digits
    (GEMMA, {"per_layer_config": {"01": {"head_dim": 6, "num_key_value_heads": 2}}}),
    ("nomic_bert", NOMIC), *((name, words) for name in ("t5", "t5-gated", "umt5") for words in T5_WORDS),
]  # fmt: skip
LORA = {"lora_adaptations": ["retrieval.query", "text-matching"], "position_embedding_type": "rotary"}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((GEMMA, {"layer_types": None, "sliding_window_pattern": 2, **wrong}, said) for wrong, said in (
        ({"per_layer_config": MIXED, "num_hidden_layers": 4}, r"'sliding_attention' must have one width, .* \[4, 6\]"),
        ({"per_layer_config": {"0": {"head_dim": 0}}}, "'head_dim' must be an integer above 0, found 0"),
        ({"per_layer_config": 3}, "'per_layer_config' must be an object or null, found 3"))),
    *(("nomic_bert", NOMIC | {key: value}, key)
      for key, value in {"prenorm": True, "rotary_emb_fraction": 0.5, "activation_function": "gelu"}.items()),
    *(("gte", GTE | {"rope_scaling": {"type": "ntk", **wrong}}, named)
      for wrong, named in (({}, "factor"), ({"factor": 0.5}, "factor"), ({"factor": 8.0, "mixed_b": 0.6}, "mixed_b"))),
    ("gte", GTE | {"type_vocab_size": 0}, "token_type_embeddings"),
    *(("gte", GTE | {key: value}, key) for key, value in (
        ("position_embedding_type", "absolute"), ("pack_qkv", False), ("layer_norm_type", "rms_norm"),
        ("logn_attention_scale", True), ("type_vocab_size", None))),
    *((name, {"is_gated_act": name == "t5"}, "wi") for name in ("t5", "t5-gated", "umt5")),  # a map more, or one less
    *((name, LORA, r"lora_adaptations.*retrieval\.query") for name in ("jina_embeddings_v3", "xlm-roberta")),
]  # fmt: skip


def with_words(name: str, settings: Any, folder: Path) -> Array:
    if callable(settings):
        return output(copied(CASE[name], folder, settings))
    copied(CASE[name], folder, **settings)
    if name == "nomic_bert":
        (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return output(folder)


@pytest.mark.parametrize(("name", "settings"), SAME)
def test_older_and_published_files_that_say_the_same_in_other_words(name: str, settings: Any, tmp_path: Path) -> None:
    np.testing.assert_array_equal(with_words(name, settings, tmp_path), output(CASE[name].folder))


@pytest.mark.parametrize(("name", "settings", "said"), REFUSED)
def test_settings_that_are_refused(name: str, settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(minibert.CheckpointError, match=said):
        with_words(name, settings, tmp_path)


def test_the_rotation_of_published_files(tmp_path: Path) -> None:
    """That of "ntk" by its formula, never the theta near it."""
    other = with_words("nomic_bert", NOMIC | {"rotary_emb_base": 10}, tmp_path / "nomic")
    assert off(other, output(CASE["nomic_bert"].folder)) > 1e-3
    with minibert.load_encoder(copied(CASE["gte"], tmp_path / "gte", **GTE)) as encoder:
        (rotation,) = encoder.stack.rotary.rotations.values()
        want = 1 / 160000.0 ** (np.arange(0, 6, 2) / 6) / 8.0 ** (2 / 6)
        np.testing.assert_allclose(rotation.frequencies, want, rtol=1e-6)
        assert off(encoder(np.array([[3, 4, 5, 6]])), output(CASE["gte"].folder)) > 1e-3


@pytest.mark.parametrize(
    ("weight", "small"),
    [("parametrizations.weight.original", "parametrizations.weight.0.lora_A"), ("weight", "lora_A.weight")],
)
def test_adapters_of_tasks_are_named(weight: str, small: str, tmp_path: Path) -> None:
    """In the first files of jina-embeddings-v3 a map's own weight has another name, for the small ones beside it."""
    more = {f"roberta.encoder.layers.0.mixer.Wqkv.{small}": np.zeros((5, 4, 12), np.float32)}

    def adapted(tensors: dict[str, Array]) -> dict[str, Array]:
        return more | {re.sub(r"(Wqkv|word_embeddings)\.weight", rf"\1.{weight}", k): x for k, x in tensors.items()}

    with pytest.raises(minibert.CheckpointError, match="lora_A"):
        minibert.load_encoder(copied(CASE["jina_embeddings_v3"], tmp_path, adapted))


def test_deberta_s_terms_as_a_list_and_as_one_text(tmp_path: Path) -> None:
    for i, (text, listed) in enumerate((("C2P | p2c", ["p2c", "c2p"]), ("P2C", ["p2c"]), (" c2p|", ["c2p"]))):
        folders = [copied(CASE["deberta-v2"], tmp_path / f"{i}{type(x)}", pos_att_type=x) for x in (text, listed)]
        said, given = map(output, folders)
        np.testing.assert_array_equal(said, given)
        assert (off(said, output(CASE["deberta-v2"].folder)) > 1e-3) == (len(listed) == 1)


def test_closed() -> None:
    encoder = CASE["bert"].load()
    encoder.logits([[3]])  # the head is made on first use
    layer, kept_rows = encoder.embeddings, encoder.embeddings.word_embeddings([3])
    encoder.close()
    encoder.close()
    of_texts = encoder.encode, encoder.encode_query, encoder.classify, encoder.fill
    for use in (
        *(partial(getattr, encoder, name) for name in ("embeddings", "stack", "heads", "prompts", "identity")),
        *(partial(of_ids, [[3]]) for of_ids in (layer, encoder, encoder.trace, encoder.logits)),
        *(partial(method, ["we"]) for method in of_texts), partial(encoder.rank, "we", ["a"]),
        partial(encoder.predict, ("we", "a")), partial(encoder.next_words, "we"), partial(encoder.complete, "we"),
        encoder.get_embedding_dimension, encoder.get_max_seq_length, partial(setattr, encoder, "max_seq_length", 8),
        encoder.head, partial(pickle.dumps, encoder),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="closed"):
            use()
    assert np.isfinite(kept_rows).all()


def test_copies_take_no_weights_along() -> None:
    with CASE["bert"].load(dtype="float64") as encoder:
        taken = pickle.dumps(encoder)
        assert len(taken) < 1000
        for other in (pickle.loads(taken), copy.deepcopy(encoder)):
            assert other(np.array([[3, 4]])).tobytes() == encoder(np.array([[3, 4]])).tobytes()
        rows = copy.deepcopy(encoder.embeddings)(np.array([[3, 4]]))
        assert rows.tobytes() == encoder.trace([[3, 4]])["hidden_states.0"].tobytes()


def test_the_input_layer_never_knows_the_encoder() -> None:
    code = "import sys, minibert; minibert.load(sys.argv[1])([[3, 4]]); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code, CASE["bert"].folder], capture_output=True, text=True, check=True)
    known = {name.removeprefix("minibert.") for name in run.stdout.split()}
    assert "models.input_layer" in known
    blocks = "equations.blocks families.parts.bound_blocks families.llama models.run.blocks models.encoder"
    assert not known & {*blocks.split()}


def test_memory_grows_with_a_tile_not_with_the_batch() -> None:
    with CASE["bert"].load() as encoder:

        def beside_the_result(texts: int) -> int:
            ids = np.full((texts, 12), 5)
            encoder(ids[:2])
            y, most = with_peak(lambda: encoder(ids))
            return most - int(y.nbytes)

        small, large = beside_the_result(400), beside_the_result(8000)
        per_token = (large - small) / (7600 * 12)
        # what grows are the ids, masks and orders of the whole batch, no rows of `dim` numbers: 12 of 4 bytes each here
        assert per_token < 48, per_token


def counted(call: Callable[[], object]) -> tuple[int, int, int, int]:
    """How many calls of the package's functions, of how many functions and files, and changes from file to file."""
    seen: list[tuple[str, int]] = []

    def count(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and "minibert" in Path(code.co_filename).parts and not code.co_name.startswith("<"):
            seen.append((code.co_filename, code.co_firstlineno))

    for _ in range(3):
        call()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    files = [file for file, _ in seen]
    return len(seen), len(set(seen)), len(set(files)), sum(a != b for a, b in pairwise(files))


def test_one_short_text_takes_few_calls(minilm: Path) -> None:
    with minibert.load_encoder(minilm, threads=1) as encoder:
        batch = encoder.tokenize(["a text"])
        for use, most in (
            (lambda: encoder.encode(["a text"]), (252, 74, 14, 168)),
            (lambda: encoder(**batch), (247, 64, 12, 162)),
        ):
            found = counted(use)
            assert all(few <= many for few, many in zip(found, most, strict=True)), (found, most)
