"""Files of tensors: what is true of them is read where it lies, what is not is refused, whatever the bytes are."""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import (
    BERT,
    DISTILBERT,
    ELECTRA,
    GPT2,
    ROBERTA,
    T5,
    VOCAB,
    Array,
    assemble,
    bfloat16,
    entries,
    numbers,
    pack,
    same_bits,
    stored,
    tensors,
    wordpiece_json,
    write,
    write_index,
    write_shards,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import minibert
from minibert import CheckpointError
from minibert.files.checkpoint import BITS, SafetensorsFile, open_folder, parse_header
from minibert.files.tables import NUMPY_DTYPE, StoredTable, as_table, widen

IDS = np.array([[1, 5, 6, 0], [63, 2, 2, 9]])
WORD = "embeddings.word_embeddings.weight"
POSITION = "embeddings.position_embeddings.weight"
# resident memory that loading a file of bert-base's size and a call on one sentence may add: measured 0.1 MiB
MEMORY_LIMIT = 2**20

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at the process in /proc")


def result(folder: Path, **keywords: Any) -> Array:
    with minibert.load(folder, **keywords) as layer:
        return layer(IDS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Array:
    """What the tiny BERT gives when its file is as simple as can be."""
    return result(write(tmp_path_factory.mktemp("plain")))


# -- where the numbers lie -----------------------------------------------------------------------------------------


def test_tables_are_the_file_s_bytes_mapped_and_read_only(tmp_path: Path) -> None:
    folder = write(tmp_path)
    layer = minibert.load(folder)
    weight = layer.word_embeddings.weight
    assert same_bits(np.array(weight), tensors(BERT)[WORD])
    assert layer.word_embeddings.weight is weight or np.shares_memory(layer.word_embeddings.weight, weight)
    assert not weight.flags.owndata and not weight.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        weight[0, 0] = 1
    # a map shows what the file holds now: a copy would not
    path = folder / "model.safetensors"
    place = next(tensor for tensor in SafetensorsFile(path).tensors.values() if tensor.name == WORD)
    with open(path, "r+b") as file:
        file.seek(place.start)
        file.write(struct.pack("<f", 42.0))
    assert weight[0, 0] == 42.0 and layer.word_embeddings([0])[0, 0] == 42.0


@linux
def test_a_file_is_mapped_once_and_its_handle_closed(tmp_path: Path) -> None:
    folder = write(tmp_path)
    layer = minibert.load(folder)
    layer(IDS)
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    assert len(lines) == 1 and " r--" in lines[0]
    open_files = {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}  # noqa: PTH208
    handles = [name for name in open_files if str(folder) in name]
    assert len(handles) <= 1  # Python's map keeps one of its own


@pytest.mark.parametrize("shift", range(1, 8))
def test_data_may_begin_at_any_byte(tmp_path: Path, plain: Array, shift: int) -> None:
    folder = write(tmp_path, shift=shift)
    layer = minibert.load(folder)
    assert layer.word_embeddings.weight.flags.aligned == (shift % 4 == 0)
    assert same_bits(layer(IDS), plain)
    assert same_bits(layer.trace(IDS)["embeddings.LayerNorm"], plain)
    assert same_bits(result(folder, mmap=False), plain)
    assert same_bits(result(folder, dtype="float64"), result(write(tmp_path / "even"), dtype="float64"))
    assert same_bits(layer.embed([]), np.empty((0, 8), np.float32))


@linux
def test_without_a_map_the_file_may_go(tmp_path: Path, plain: Array) -> None:
    folder = write(tmp_path)
    layer = minibert.load(folder, mmap=False)
    assert str(folder) not in Path("/proc/self/maps").read_text()
    (folder / "model.safetensors").write_bytes(b"")
    assert same_bits(layer(IDS), plain)
    assert not layer.word_embeddings.weight.flags.writeable


@linux
def test_loading_a_file_of_bert_base_costs_little(tmp_path: Path) -> None:
    shapes = {
        "bert.embeddings.word_embeddings.weight": (30522, 768),
        "bert.embeddings.position_embeddings.weight": (512, 768),
        "bert.embeddings.token_type_embeddings.weight": (2, 768),
        "bert.embeddings.LayerNorm.gamma": (768,),
        "bert.embeddings.LayerNorm.beta": (768,),
        "bert.encoder.everything": (86_000_000,),
    }
    header, offset = {}, 0
    for name, shape in shapes.items():
        stop = offset + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    head = assemble(header, b"")
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)  # a hole in the file system: 440 MB that take no place
    config = {**BERT, "hidden_size": 768, "vocab_size": 30522, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    code = (
        "import sys, numpy, minibert, safetensors\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "minibert.load(sys.argv[2])([[1, 2]])\n"  # the package's own modules, 2 to 3 MiB, are no cost of a file
        "before = resident()\n"
        "layer = minibert.load(sys.argv[1])\n"
        "assert layer([[101, 2057, 2973, 2682, 1996, 8044, 102]]).shape == (1, 7, 768)\n"
        "print(resident() - before)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(write(tmp_path / "tiny"))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert output.returncode == 0, output.stderr
    assert int(output.stdout) <= MEMORY_LIMIT


# -- number formats ------------------------------------------------------------------------------------------------


def float_of(bits: int, exponent_bits: int, mantissa_bits: int) -> float:
    """The number that bits mean, by IEEE 754 in plain Python; the largest exponent is infinity and NaN."""
    sign = -1.0 if bits >> (exponent_bits + mantissa_bits) else 1.0
    exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = bits & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    if exponent == (1 << exponent_bits) - 1:
        return sign * (math.nan if mantissa else math.inf)
    if exponent:
        return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
    return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)


def float8_e4m3(bits: int) -> float:
    """Without infinities: the largest exponent holds numbers too, but for the last, which is NaN."""
    if bits & 0x7F == 0x7F:
        return math.nan
    if bits & 0x78 == 0x78:
        return (-1.0 if bits & 0x80 else 1.0) * math.ldexp(8 + (bits & 7), 8 - 3)
    return float_of(bits, 4, 3)


NARROW: dict[str, tuple[int, Callable[[int], float]]] = {
    "F16": (16, lambda bits: float_of(bits, 5, 10)),
    "BF16": (16, lambda bits: float_of(bits, 8, 7)),
    "F8_E5M2": (8, lambda bits: float_of(bits, 5, 2)),
    "F8_E4M3": (8, float8_e4m3),
}


def every_pattern(kind: str, path: Path, shift: int = 0) -> tuple[Path, Array]:
    """A file with a table of all bit patterns, 16 a row, and the numbers that they mean."""
    bits, meaning = NARROW[kind]
    patterns = np.arange(1 << bits, dtype="<u2" if bits == 16 else "u1")
    table = (kind, ((1 << bits) // 16, 16), patterns.tobytes())
    path.write_bytes(pack({"before": numbers(3), "table": table}, shift=shift))
    return path.parent, np.array([meaning(int(p)) for p in patterns]).reshape(-1, 16)


def same_numbers(a: Array, b: Array) -> bool:
    """Equal with the sign of zero, and NaN where NaN is."""
    return bool(np.array_equal(a, b, equal_nan=True) and (np.signbit(a) == np.signbit(b))[~np.isnan(b)].all())


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("kind", NARROW)
def test_every_narrow_number_is_widened_exactly(tmp_path: Path, kind: str, dtype: str, shift: int, mmap: bool) -> None:
    folder, truth = every_pattern(kind, tmp_path / "model.safetensors", shift)
    checkpoint = open_folder(folder, mmap)
    table = checkpoint.table("table", dtype)
    assert table.stored == kind and table.dtype == dtype and table.shape == truth.shape
    whole = table.array()
    assert whole.dtype == dtype and not whole.flags.writeable
    assert same_numbers(whole, truth)
    ids = np.arange(len(truth))[::-1]
    assert same_numbers(table.rows(ids), truth[::-1])
    assert same_numbers(table.rows(slice(1, 9)), truth[1:9])
    out = np.empty((2, 2, 16), dtype)
    assert same_numbers(table.rows(np.array([[0, 3], [7, 7]]), out), truth[[[0, 3], [7, 7]]])
    assert same_numbers(out, truth[[[0, 3], [7, 7]]])


@pytest.mark.reference
@pytest.mark.parametrize("kind", NARROW)
def test_every_narrow_number_is_what_torch_reads(tmp_path: Path, kind: str) -> None:
    from safetensors.torch import load_file

    folder, truth = every_pattern(kind, tmp_path / "model.safetensors")
    assert same_numbers(load_file(folder / "model.safetensors")["table"].double().numpy(), truth)


def narrowed(array: Array, kind: str) -> tuple[str, tuple[int, ...], bytes]:
    if kind == "BF16":
        return bfloat16(array)
    if kind.startswith("F8"):
        patterns = np.random.default_rng(0).integers(0x20, 0x50, array.shape).astype("u1")  # neither huge nor NaN
        return kind, array.shape, patterns.tobytes()
    return stored(array.astype({"F16": "<f2", "F64": "<f8", "F32": "<f4"}[kind]))


@pytest.mark.parametrize("kind", ["F16", "BF16", "F8_E4M3", "F8_E5M2", "F64"])
def test_a_layer_of_another_format_gives_the_rows_its_file_holds(tmp_path: Path, kind: str) -> None:
    named = {name: narrowed(array, kind) for name, array in tensors(BERT).items()}
    folder = write(tmp_path / "narrow", BERT, named)
    layer = minibert.load(folder)
    held = {name: layer[name.removesuffix(".weight")].weight for name in named if name.endswith("_embeddings.weight")}
    assert {str(weight.dtype) for weight in held.values()} == {"float32"}
    norm = {f"embeddings.LayerNorm.{part}": getattr(layer.LayerNorm, part) for part in ("weight", "bias")}
    wide = write(tmp_path / "wide", BERT, {name: np.array(array) for name, array in (held | norm).items()})
    assert same_bits(layer(IDS), result(wide))
    for shift in (1, 2):
        assert same_bits(result(write(tmp_path / f"shifted{shift}", BERT, named, shift=shift)), result(wide))
    assert same_bits(result(folder, mmap=False), result(wide))


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_a_table_hands_out_nothing_that_would_change_it(dtype: str) -> None:
    """Also one over an array of a caller's own, such as the sinusoids that a family computes."""
    own = np.ones((4, 3), dtype)
    table = as_table(own)
    for handed_out in (table.array(), table.stored_numbers, table.rows(slice(0, 2))):
        with pytest.raises(ValueError, match="read-only"):
            handed_out[0, 0] = 7
    table.rows(np.array([0, 1]))[...] = 7  # rows by ids are a copy
    assert (table.array() == 1).all() and own.flags.writeable


def test_float64_tables_are_rounded_to_nearest(tmp_path: Path) -> None:
    hard = [
        0.1,
        1 + 2**-24,
        1 + 3 * 2**-24,
        2**-150,
        1e-40,
        -1e-300,
        1e300,
        -1e300,
        math.inf,
        -math.inf,
        math.nan,
        -0.0,
    ]
    with np.errstate(all="ignore"):
        expected = np.array(hard).astype(np.float32)
    named = tensors(BERT)
    word = named[WORD].astype(np.float64)
    word[1] = hard[:8]
    named[WORD] = word
    (tmp_path / "model.safetensors").write_bytes(pack(named | {"hard": np.array([hard])}))
    checkpoint = open_folder(tmp_path)
    assert same_numbers(checkpoint.table("hard").rows(np.array([0])), expected[None])  # warnings are errors here
    assert same_numbers(checkpoint.table("hard").array(), expected[None])
    assert same_numbers(checkpoint.table("hard", "float64").array(), np.array([hard]))
    assert same_numbers(checkpoint.table(WORD).rows(np.array([1])), expected[None, :8])


def test_float32_in_a_float64_layer_is_exact(tmp_path: Path) -> None:
    layer = minibert.load(write(tmp_path), dtype="float64")
    assert same_bits(layer.word_embeddings.weight, tensors(BERT)[WORD].astype(np.float64))
    assert same_bits(layer.word_embeddings([[3]]), tensors(BERT)[WORD][[[3]]].astype(np.float64))


@given(st.sampled_from(["F16", "BF16", "F8_E4M3", "F8_E5M2"]), st.binary(min_size=2, max_size=64))
def test_widening_does_not_depend_on_where_it_writes(kind: str, content: bytes) -> None:
    held = NUMPY_DTYPE[kind]
    raw = np.frombuffer(content[: len(content) // held.itemsize * held.itemsize], held)
    whole = widen(raw, kind, np.dtype("float32"))
    strided = np.empty((len(raw), 2), np.float32)
    assert same_numbers(widen(raw, kind, np.dtype("float32"), strided[:, 1]), whole)
    with np.errstate(invalid="ignore"):  # NumPy's word on signalling NaNs, in this comparison's own cast
        assert same_numbers(widen(raw, kind, np.dtype("float64")), whole.astype(np.float64))
    for i in range(len(raw)):
        assert same_numbers(StoredTable(raw[:, None], kind).rows(np.array([i])), whole[i : i + 1, None])


@pytest.mark.parametrize("kind", sorted(set(BITS) - set(NUMPY_DTYPE)))
def test_other_formats_are_refused_where_they_are_needed(tmp_path: Path, kind: str) -> None:
    from safetensors import SafetensorError, safe_open

    named: dict[str, Any] = tensors(BERT)
    named[POSITION] = (kind, (16, 8), bytes(16 * 8 * BITS[kind] // 8))
    folder = write(tmp_path, BERT, named)
    try:
        with safe_open(str(folder / "model.safetensors"), framework="np"):
            says = f"tensor '{POSITION}' is stored as {kind}; this layer reads F64, F32, F16, BF16, F8_E4M3, F8_E5M2"
    except SafetensorError:  # a release that is older than the format
        says = "not a whole safetensors file"
    with pytest.raises(CheckpointError, match=says):
        minibert.load(folder)
    # elsewhere in the file it is nobody's business
    header, data = entries({**tensors(BERT), "extra": (kind, (2,), bytes(2 * BITS[kind] // 8 or 1))})
    if BITS[kind] % 8 == 0:
        assert "extra" in parse_header(json.dumps(header).encode(), 0, len(data), "file")[0]


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "prefix"), [(BERT, "bert."), (ROBERTA, "roberta."), (DISTILBERT, "distilbert."), (GPT2, "transformer.")]
)
def test_head_models_put_a_prefix_before_the_names(tmp_path: Path, config: dict[str, Any], prefix: str) -> None:
    named = {prefix + name: array for name, array in tensors(config).items()}
    named["cls.predictions.bias"] = numbers(5)  # a head's own tensors are not the input layer's
    base = result(write(tmp_path / "base", config))
    assert same_bits(result(write(tmp_path / "head", config, named)), base)


def test_gamma_and_beta_are_older_names(tmp_path: Path, plain: Array) -> None:
    older = {"weight": "gamma", "bias": "beta"}
    named = {
        f"bert.embeddings.LayerNorm.{older[name.rpartition('.')[2]]}" if "LayerNorm" in name else f"bert.{name}": array
        for name, array in tensors(BERT).items()
    }
    layer = minibert.load(write(tmp_path, BERT, named))
    assert same_bits(layer(IDS), plain)
    assert same_bits(np.array(layer.LayerNorm.bias), tensors(BERT)["embeddings.LayerNorm.bias"])


def test_gamma_and_weight_together_are_refused(tmp_path: Path) -> None:
    named = tensors(BERT) | {"embeddings.LayerNorm.gamma": numbers(8)}
    with pytest.raises(
        CheckpointError, match=r"does not use: embeddings.LayerNorm.gamma; the input layer without them would"
    ):
        minibert.load(write(tmp_path, BERT, named))


def test_position_ids_are_a_buffer_that_old_files_hold(tmp_path: Path, plain: Array) -> None:
    buffer = {"embeddings.position_ids": np.arange(16)[None]}
    assert same_bits(result(write(tmp_path, BERT, tensors(BERT) | buffer)), plain)


def test_mask_buffers_of_gpt2_are_no_parameters(tmp_path: Path) -> None:
    named = tensors(GPT2)
    buffers = {"h.0.attn.bias": np.tril(np.ones((1, 1, 4, 4), np.float32)), "h.0.attn.masked_bias": np.float32([-1e4])}
    assert same_bits(result(write(tmp_path / "a", GPT2, named | buffers)), result(write(tmp_path / "b", GPT2, named)))


@pytest.mark.parametrize(
    "name", ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"]
)
def test_any_one_of_tied_tensors_is_enough(tmp_path: Path, name: str) -> None:
    named = tensors(T5)
    renamed = {name: named.pop("shared.weight")} | named
    assert same_bits(result(write(tmp_path / "a", T5, renamed)), result(write(tmp_path / "b", T5)))
    with pytest.raises(CheckpointError, match=r"no tensor for 'encoder.embed_tokens.weight'; tried .*shared.weight"):
        minibert.load(write(tmp_path / "none", T5, named))


def test_the_head_of_bert_stands_in_for_its_words(tmp_path: Path, plain: Array) -> None:
    named = {f"bert.{name}": array for name, array in tensors(BERT).items()}
    named["cls.predictions.decoder.weight"] = named.pop(f"bert.{WORD}")
    assert same_bits(result(write(tmp_path / "tied", BERT, named)), plain)
    with pytest.raises(CheckpointError, match=f"no tensor for '{WORD}'"):
        minibert.load(write(tmp_path / "untied", {**BERT, "tie_word_embeddings": False}, named))


def test_metadata_may_name_the_twin_that_was_dropped(tmp_path: Path, plain: Array) -> None:
    named = tensors(BERT)
    named["some.other.name"] = named.pop(WORD)
    metadata = {"format": "pt", WORD: "some.other.name", "unrelated": "nonsense"}
    folder = write(tmp_path, BERT, named, metadata)
    assert same_bits(result(folder), plain)
    for metadata in ({WORD: "absent"}, {"format": "pt"}):
        with pytest.raises(CheckpointError, match=f"no tensor for '{WORD}'"):
            minibert.load(write(tmp_path, BERT, named, metadata))


def test_metadata_renames_no_tensor_that_is_stored(tmp_path: Path, plain: Array) -> None:
    """A name that stands in the file is that tensor, whatever the metadata says it is another name of."""
    tables = tensors(BERT)
    folder = write(tmp_path, BERT, tables, metadata={WORD: "embeddings.position_embeddings.weight", "twin": WORD})
    assert open_folder(str(folder)).aliases() == {"twin": WORD}
    assert same_bits(result(folder), plain)


def test_a_file_cut_short_between_its_header_and_its_numbers(tmp_path: Path) -> None:
    path = write(tmp_path) / "model.safetensors"
    file = SafetensorsFile(path, mmap=False)
    tensor = file.tensors[WORD]
    assert same_bits(file.raw(tensor), tensors(BERT)[WORD])
    for size in (tensor.stop - 1, tensor.start + 4, tensor.start, 0):
        os.truncate(path, size)
        with pytest.raises(CheckpointError, match=f"ends inside tensor '{WORD}'; it changed while it was read"):
            file.raw(tensor)


@pytest.mark.parametrize("pad_id", [VOCAB, VOCAB + 1, -1, None])
def test_a_padding_id_that_no_row_has_pads_with_0(tmp_path: Path, pad_id: int | None) -> None:
    folder = write(tmp_path, {**BERT, "pad_token_id": pad_id})
    (folder / "tokenizer.json").write_text(wordpiece_json(), encoding="utf-8")
    layer = minibert.load(folder)
    batch = layer.tokenize(["we lived", "a"])
    assert batch["input_ids"][1].tolist()[3:] == [0] and layer(**batch).shape == (2, 4, 8)


def test_two_candidates_are_one_too_many(tmp_path: Path) -> None:
    named = tensors(BERT) | {f"bert.{WORD}": numbers(VOCAB, 8, seed=9)}
    with pytest.raises(CheckpointError, match=f"two tensors could be '{WORD}': {WORD} and bert.{WORD}; keep the one"):
        minibert.load(write(tmp_path, BERT, named))


# -- tensors that do not fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [BERT, ROBERTA, DISTILBERT, GPT2, ELECTRA])
def test_each_missing_tensor_is_named(tmp_path: Path, config: dict[str, Any]) -> None:
    for i, name in enumerate(tensors(config)):
        named = tensors(config)
        del named[name]
        with pytest.raises(CheckpointError) as caught:
            minibert.load(write(tmp_path / str(i), config, named))
        message = str(caught.value)
        assert f"no tensor for '{name}'; tried {name}" in message
        assert str(tmp_path) in message and "does config.json belong to this file?" in message


def test_a_missing_tensor_s_nearest_name_is_shown(tmp_path: Path) -> None:
    named = tensors(BERT)
    named["embeddings.word_embedings.weigth"] = named.pop(WORD)
    says = (
        f"tried {WORD}, bert.{WORD}, cls.predictions.decoder.weight, .*; the nearest name there is 'embeddings.word_emb"
    )
    with pytest.raises(CheckpointError, match=says):
        minibert.load(write(tmp_path, BERT, named))


@pytest.mark.parametrize(
    "name", ["embeddings.extra.weight", "bert.embeddings.LayerNorm.gamma", "embeddings.word_embeddings.bias"]
)
def test_a_tensor_left_over_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        CheckpointError, match=f"has tensors of the input layer that the recipe of this family does not use: {name}"
    ):
        minibert.load(write(tmp_path, BERT, tensors(BERT) | {name: numbers(8)}))


@pytest.mark.parametrize(
    "shape", [(VOCAB - 1, 8), (VOCAB + 1, 8), (8, VOCAB), (VOCAB, 7), (VOCAB * 8,), (1, VOCAB, 8), ()]
)
def test_a_tensor_of_the_wrong_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    named = tensors(BERT) | {WORD: np.zeros(shape, np.float32)}
    with pytest.raises(CheckpointError) as caught:
        minibert.load(write(tmp_path, BERT, named))
    says = f"tensor '{WORD}' has shape {shape}, but config.json says {(VOCAB, 8)}; config and tensors are of different"
    assert says in str(caught.value)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "max_position_embeddings", "type_vocab_size"])
@pytest.mark.parametrize("value", [-1, 8.0, "8", True, None, [8], 0, 10**30, 2**63 - 1])
def test_a_config_whose_sizes_are_none(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(CheckpointError) as caught:
        minibert.load(write(tmp_path, {**BERT, key: value}, tensors(BERT)))
    assert key in str(caught.value) or "config.json says" in str(caught.value)


def test_a_size_of_0_in_both_config_and_file(tmp_path: Path) -> None:
    named = tensors(BERT) | {WORD: np.zeros((0, 8), np.float32)}
    with pytest.raises(CheckpointError, match="a size of 0 leaves nothing to look up"):
        minibert.load(write(tmp_path / "rows", {**BERT, "vocab_size": 0}, named))
    header, _ = entries(tensors(GPT2))
    for name in header:  # sizes that NumPy cannot even write down, for no bytes at all
        header[name] |= {"shape": [0, 2**62], "data_offsets": [0, 0]}
    config = {**GPT2, "vocab_size": 0, "n_positions": 0, "n_embd": 2**62}
    folder = write(tmp_path / "wide", config, {})
    (folder / "model.safetensors").write_bytes(assemble(header, b""))
    with pytest.raises(CheckpointError, match="a size of 0 leaves nothing to look up"):
        minibert.load(folder)


# -- shards --------------------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=25)
def test_any_cut_into_shards_equals_the_single_file(
    tmp_path_factory: pytest.TempPathFactory, plain: Array, data: st.DataObject
) -> None:
    shards: list[dict[str, Array]] = [{} for _ in range(3)]
    for name, array in (tensors(BERT) | {"encoder.rest": numbers(3)}).items():
        shards[data.draw(st.integers(0, 2))][name] = array
    folder = write_shards(tmp_path_factory.mktemp("shards"), BERT, shards)
    assert same_bits(result(folder), plain)
    assert same_bits(result(folder, mmap=False), plain)


def two_shards(folder: Path) -> Path:
    named = tensors(BERT)
    return write_shards(folder, BERT, [{WORD: named.pop(WORD)}, named, {"encoder.rest": numbers(3)}])


def test_a_shard_is_opened_when_it_is_needed(tmp_path: Path, plain: Array) -> None:
    folder = two_shards(tmp_path)
    (folder / "model-00003-of-00003.safetensors").unlink()
    assert same_bits(result(folder), plain)
    (folder / "model-00002-of-00003.safetensors").unlink()
    says = "has no model-00002-of-00003.safetensors, which model.safetensors.index.json lists; fetch the missing shard"
    with pytest.raises(CheckpointError, match=says):
        minibert.load(folder)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    path = two_shards(tmp_path) / "model-00001-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"model-00001-of-00003.safetensors: not a whole safetensors file"):
        minibert.load(tmp_path)


def test_an_index_of_another_save(tmp_path: Path) -> None:
    folder = two_shards(tmp_path)
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    write_index(folder, weight_map | {WORD: "model-00002-of-00003.safetensors"})
    with pytest.raises(
        CheckpointError, match=f"says that '{WORD}' is in model-00002-of-00003.safetensors, which holds 4"
    ):
        minibert.load(folder)
    write_index(folder, {name: file for name, file in weight_map.items() if name != WORD})
    with pytest.raises(CheckpointError, match=f"no tensor for '{WORD}'"):
        minibert.load(folder)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"3",
        b"{}",
        b'{"weight_map": null}',
        b'{"weight_map": []}',
        b'{"weight_map": "model.safetensors"}',
        b'{"weight_map": {"a": 3}}',
        b'{"weight_map": {"a": null}}',
        b'{"weight_map": {"a": ["b"]}}',
        b'{"weight_map": {"a": "../b.safetensors"}}',
        b'{"weight_map": {"a": "/etc/passwd"}}',
        b'{"weight_map": {"a": "sub/b.safetensors"}}',
        b'{"weight_map": {"a": ".."}}',
        b'{"weight_map": {"a": "."}}',
        b'{"weight_map": {"a": ""}}',
        b'{"weight_map": {"a": "..\\\\b.safetensors"}}',
        b'{"weight_map": {"a": "sub\\\\b.safetensors"}}',
        b'{"weight_map": {"a": "\\\\\\\\server\\\\share\\\\b.safetensors"}}',
        b'{"weight_map": {"a": "C:b.safetensors"}}',
        b'{"weight_map": {"a": "C:/b.safetensors"}}',
        b'{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}',
        b'{"weight_map": {"a": "b"}} trailing',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_damaged_index(tmp_path: Path, text: bytes) -> None:
    (write(tmp_path) / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"model.safetensors.index.json: not an index of shards"):
        minibert.load(tmp_path)


def test_shards_that_are_no_files(tmp_path: Path) -> None:
    folder = two_shards(tmp_path)
    for name in ("folder", "nul\x00", "\udcff", "\ud800", "x" * 5000):
        (folder / "folder").mkdir(exist_ok=True)
        write_index(folder, dict.fromkeys(tensors(BERT), name))
        with pytest.raises(CheckpointError, match="fetch the missing shard"):
            minibert.load(folder)


def test_the_single_file_goes_before_an_index(tmp_path: Path, plain: Array) -> None:
    write_index(write(tmp_path), {WORD: "absent.safetensors"})
    assert same_bits(result(tmp_path), plain)


# -- headers that lie ----------------------------------------------------------------------------------------------

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}
LIES: dict[str, tuple[Any, int]] = {
    "a hole before the first": ({"a": {**A, "data_offsets": [4, 12]}}, 12),
    "a hole between two": ({"a": A, "b": {**B, "data_offsets": [12, 16]}}, 16),
    "an overlap": ({"a": A, "b": {**B, "data_offsets": [4, 8]}}, 8),
    "the same place twice": ({"a": A, "b": A}, 8),
    "more bytes than described": ({"a": A}, 12),
    "fewer bytes than described": ({"a": A}, 4),
    "no bytes at all": ({"a": A}, 0),
    "a shape too large for its bytes": ({"a": {**A, "shape": [3]}}, 8),
    "a shape too small for its bytes": ({"a": {**A, "shape": [1]}}, 8),
    "a negative size": ({"a": {**A, "shape": [-1, -2]}}, 8),
    "a size that overflows": ({"a": {**A, "shape": [2**62, 2**3]}}, 8),
    "sizes that wrap around to the right one": ({"a": {**A, "shape": [2**33, 2**31 + 1]}}, 8),
    "a size beyond 64 bits": ({"a": {**A, "shape": [2**64 + 2]}}, 8),
    "a size that is a float": ({"a": {**A, "shape": [2.0]}}, 8),
    "a size that is true": ({"a": {**B, "shape": [True], "data_offsets": [0, 4]}}, 4),
    "a size that is a text": ({"a": {**A, "shape": ["2"]}}, 8),
    "a shape that is a number": ({"a": {**A, "shape": 2}}, 8),
    "a shape that is a text": ({"a": {**A, "shape": "2"}}, 8),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, 8),
    "no format": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, 8),
    "no offsets": ({"a": {"dtype": "F32", "shape": [2]}}, 8),
    "an unknown format": ({"a": {**A, "dtype": "F99"}}, 8),
    "a format that is a list": ({"a": {**A, "dtype": ["F32"]}}, 8),
    "another format of another size": ({"a": {**A, "dtype": "F64"}}, 8),
    "offsets the wrong way round": ({"a": {**A, "data_offsets": [8, 0]}}, 8),
    "one offset": ({"a": {**A, "data_offsets": [0]}}, 8),
    "three offsets": ({"a": {**A, "data_offsets": [0, 8, 8]}}, 8),
    "negative offsets": ({"a": {**A, "data_offsets": [-8, 0]}}, 8),
    "offsets that are floats": ({"a": {**A, "data_offsets": [0.0, 8.0]}}, 8),
    "offsets beyond 64 bits": ({"a": {**A, "data_offsets": [2**64, 2**64 + 8]}}, 8),
    "a tensor that is a number": ({"a": 3}, 0),
    "a tensor that is null": ({"a": None}, 0),
    "a list": ([], 0),
    "a number": (b"3", 0),
    "nothing": (b"", 0),
    "no JSON": (b"{'a': 1}", 0),
    "no UTF-8": (b'{"\xff": 1}', 0),
    "a name twice": (b'{"a": %b, "a": %b}' % ((json.dumps(A).encode(),) * 2), 8),
    "a field twice": (b'{"a": {"dtype": "F32", "shape": [2], "shape": [2], "data_offsets": [0, 8]}}', 8),
    "depth without end": (b"[" * 100_000, 0),
    "depth inside": (b'{"a": ' + b'{"a": ' * 100_000, 0),
    "metadata that is a list": ({"__metadata__": ["x"], "a": A}, 8),
    "metadata that is a text": ({"__metadata__": "x", "a": A}, 8),
    "metadata that holds numbers": ({"__metadata__": {"x": 3}, "a": A}, 8),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies(tmp_path: Path, lie: str) -> None:
    header, size = LIES[lie]
    folder = write(tmp_path)
    (folder / "model.safetensors").write_bytes(assemble(header, bytes(size)))
    with pytest.raises(CheckpointError, match=r"model.safetensors"):
        minibert.load(folder)
    # our own reading of the header holds without safetensors' judgement too: lazily fetched files have none
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with pytest.raises(CheckpointError, match=r"file: the safetensors header is wrong: .* fetch it again"):
        parse_header(text, 8 + len(text), 8 + len(text) + size, "file")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"\x00" * 7,
        b"\x00" * 8,
        b"\x00" * 64,
        b"\xff" * 64,
        b"{}",
        b"PK\x03\x04" + bytes(100),
        b"\x80\x02}q\x00." + bytes(100),
        (2**63).to_bytes(8, "little") + b"{}",
        (100_000_001).to_bytes(8, "little") + b"{}",
        (3).to_bytes(8, "little") + b"{}",
        b"<!doctype html><html>not found</html>",
    ],
)
def test_a_foreign_or_truncated_file(tmp_path: Path, content: bytes) -> None:
    (write(tmp_path) / "model.safetensors").write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"model.safetensors: not a whole safetensors file \(.*\); .* fetch it again"
    ):
        minibert.load(tmp_path)


def test_a_pointer_that_git_left_behind(tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 440449768\n"
    (write(tmp_path) / "model.safetensors").write_bytes(pointer)
    with pytest.raises(CheckpointError, match="is a Git LFS pointer, not the tensors; run git lfs pull"):
        minibert.load(tmp_path)


@given(st.integers(0, 10_000))
def test_a_file_cut_anywhere(tmp_path_factory: pytest.TempPathFactory, place: int) -> None:
    folder = write(tmp_path_factory.mktemp("cut"))
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: place % len(content)])
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        minibert.load(folder)
    path.write_bytes(content + b"\0" * (1 + place % 9))
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        minibert.load(folder)


def agrees_with_safetensors(path: Path) -> None:
    """Either refuse a file, or read in it what the format's own library reads."""
    from safetensors import safe_open

    try:
        ours = SafetensorsFile(path)
    except CheckpointError:
        return
    with safe_open(str(path), framework="np") as theirs:
        assert sorted(ours.tensors) == sorted(theirs.keys())
        assert (ours.metadata or None) == (theirs.metadata() or None)
        for name, tensor in ours.tensors.items():
            place = theirs.get_slice(name)
            assert (tensor.dtype, list(tensor.shape)) == (place.get_dtype(), place.get_shape())
            if tensor.dtype in ("F32", "F64", "F16") and math.prod(tensor.shape):
                assert ours.raw(tensor).tobytes() == theirs.get_tensor(name).tobytes()


@given(st.binary(max_size=200))
def test_arbitrary_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "model.safetensors"
    path.write_bytes(content)
    agrees_with_safetensors(path)
    path.write_bytes(len(content).to_bytes(8, "little") + content)
    agrees_with_safetensors(path)


@given(data=st.data())
@settings(max_examples=200)
def test_mutated_bytes_are_refused_or_read_right(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, plain: Array
) -> None:
    folder = write(tmp_path_factory.mktemp("mutated"), BERT, metadata={"format": "pt"})
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    stop = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, stop - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([b"0", b"1", b"9", b'"', b",", b"]", b"}", b"-", b"."]))
        )
    path.write_bytes(content)
    agrees_with_safetensors(path)
    with contextlib.suppress(CheckpointError):
        assert result(folder).shape == plain.shape


VALUES = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([2**31, 2**62, 2**63, 2**64]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
)
SOME_ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.one_of(st.sampled_from(["F32", "F16", "BF16", "U8", "F8_E4M3", "F4", "BOOL"]), VALUES),
        "shape": st.one_of(st.lists(st.integers(0, 4), max_size=3), st.lists(VALUES, max_size=3), VALUES),
        "data_offsets": st.one_of(st.lists(st.integers(0, 24), max_size=3), st.lists(VALUES, max_size=3), VALUES),
        "more": VALUES,
    },
)
NAMES = st.one_of(st.sampled_from(["a", "b", "__metadata__"]), st.text(max_size=3))


@given(
    st.dictionaries(NAMES, st.one_of(SOME_ENTRY, VALUES, st.dictionaries(st.text(), VALUES, max_size=2)), max_size=3),
    st.integers(0, 24),
)
@settings(max_examples=300)
def test_arbitrary_headers(tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], size: int) -> None:
    path = tmp_path_factory.mktemp("header") / "model.safetensors"
    content = assemble(header, bytes(range(size)))
    path.write_bytes(content)
    agrees_with_safetensors(path)
    length = int.from_bytes(content[:8], "little")
    try:
        found, metadata = parse_header(content[8 : 8 + length], 8 + length, len(content), "file")
    except CheckpointError:
        return
    assert all(isinstance(value, str) for value in metadata.values())
    assert sum(tensor.stop - tensor.start for tensor in found.values()) == size


# -- folders -------------------------------------------------------------------------------------------------------


def test_only_a_pickle(tmp_path: Path) -> None:
    (write(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError) as caught:
        minibert.load(tmp_path)
    message = str(caught.value)
    assert (
        f"{tmp_path} has no model.safetensors and no model.safetensors.index.json; found only pytorch_model.bin"
        in message
    )
    assert "AutoModel.from_pretrained(folder).save_pretrained(folder, safe_serialization=True)" in message


def test_no_tensors_at_all(tmp_path: Path) -> None:
    (write(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model.safetensors and no .*; found only config.json"):
        minibert.load(tmp_path)


@linux
def test_a_failed_load_leaves_nothing_open(tmp_path: Path) -> None:
    named = tensors(BERT)
    del named["embeddings.LayerNorm.bias"]
    folder = write(tmp_path, BERT, named)
    with pytest.raises(CheckpointError):
        minibert.load(folder)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["config.json", "model.safetensors"]
    assert str(folder) not in Path("/proc/self/maps").read_text()
    assert not [fd for fd in os.listdir("/proc/self/fd") if str(folder) in os.path.realpath(f"/proc/self/fd/{fd}")]  # noqa: PTH208
