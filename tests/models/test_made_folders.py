"""`extract` and `distill`: the layer or the rows that a made folder holds, for every family, and nothing half-made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoints
import distilled
import encoders
import numpy as np
import pytest
from checkpoints import change_json
from command_line import Patch, Printed, failure, numbers, ran
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from limits import CHILD_SECONDS
from needed import missing
from reference_files import CASES, REFERENCE, Case
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

import minibert
from minibert.errors import CheckpointError, TokenizerError
from minibert.files.tables import convert, narrowed
from minibert.models.open import distill as distilling
from minibert.models.open import extract as extraction
from minibert.models.open.extract import extract

GPT2 = REFERENCE / "gpt2"
IDS = np.arange(12).reshape(2, 6)
# half a unit in the last place of the largest number in a table, as a share of that number
HALF_UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
DIMS = 8
# by float32 in the encoder, and by the rounding to float16 of numbers of this size; measured 5e-4
ROUNDING = 2**-11 + 1e-5


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_extracted_layer_is_the_layer(case: Case, tmp_path: Path) -> None:
    made = extract(case.folder, tmp_path / "made")
    with case.layer() as before, minibert.load(made.folder, side=case.side) as after:
        assert np.array_equal(before(IDS), after(IDS))
        if not case.name.startswith("xlnet"):  # whose scheme of positions is refused
            assert type(before.attention_position) is type(after.attention_position)
    original, own = (load_file(folder / "model.safetensors") for folder in (case.folder, made.folder))
    assert own and all(np.array_equal(own[name], original[name]) for name in own), "as other readers read it"
    assert files(made.folder).keys() == {"config.json", "model.safetensors"}  # these cases have no tokenizer
    assert list(tmp_path.iterdir()) == [made.folder]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_tables_round_to_nearest(minilm: Path, tmp_path: Path, dtype: str) -> None:
    made = extract(minilm, tmp_path / "made", dtype)
    with minibert.load(minilm) as before, minibert.load(made.folder) as after:
        exact, rounded = before.word_embeddings.weight, after.word_embeddings.weight
        assert 0 < np.abs(exact - rounded).max() <= HALF_UNIT[dtype] * 2 * np.abs(exact).max()
        assert np.array_equal(before.LayerNorm.weight, after.LayerNorm.weight)  # vectors keep their format
        assert np.array_equal(after.tokenize("clouds")["input_ids"], before.tokenize("clouds")["input_ids"])
    assert made.bytes_after < 0.51 * (made.folder / "tokenizer.json").stat().st_size + made.bytes_before * 0.27


@pytest.mark.parametrize("there", [Path.mkdir, Path.touch, lambda path: path.symlink_to(path.parent / "nowhere")])
def test_nothing_is_written_over(there: Any, minilm: Path, tmp_path: Path, capsys: Printed) -> None:
    target, command = tmp_path / "made", ("extract", "--model", minilm, "-o", tmp_path / "made")
    there(target)
    before = target.lstat()
    assert f"{target} exists; choose another name, or remove it first" in failure(capsys, *command)
    assert target.lstat() == before
    target.rmdir() if target.is_dir() else target.unlink()
    printed, _ = ran(capsys, *command)
    assert "before" in printed and "after" in printed and list(tmp_path.iterdir()) == [target]


def test_a_folder_that_comes_meanwhile_is_kept(tmp_path: Path, monkeypatch: Patch) -> None:
    target, load = tmp_path / "made", extraction.load
    meanwhile = lambda: (target.mkdir(), (target / "thesis.txt").write_text("mine"))  # noqa: E731
    monkeypatch.setattr(extraction, "load", lambda *args, **more: (meanwhile(), load(*args, **more))[1])
    with pytest.raises(OSError, match="made"):
        extract(GPT2, target)
    assert files(target) == {"thesis.txt": b"mine"} and list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_names_the_folder_and_leaves_nothing(tmp_path: Path, capsys: Printed) -> None:
    made = tmp_path / "made"
    assert failure(capsys, "extract", "--model", GPT2, "-o", made) == f"{made}: No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = shutil.copytree(GPT2, tmp_path / "too-large")
    large, small = np.full((53, 16), 1e6, np.float32), np.ones((16, 16), np.float32)
    save_file({"wte.weight": large, "wpe.weight": small}, folder / "model.safetensors")
    for source, made, dtype, kind, says in (
        (folder, tmp_path / "made", "float16", ValueError, r"wte.weight.*1e\+06"),
        (GPT2, tmp_path / "no" / "made", "float32", FileNotFoundError, "no"),
        (GPT2, tmp_path / "made", "int8", ValueError, "'int8'"),
    ):
        with pytest.raises(kind, match=says):
            extract(source, made, dtype)
        assert list(tmp_path.iterdir()) == [folder]


@given(arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=True)))
def test_bfloat16_is_the_nearest_with_ties_to_even(x: np.ndarray) -> None:
    bits = narrowed(x, "BF16")
    back = convert(bits, "BF16", np.dtype("float32"))
    assert np.array_equal(np.isnan(back), np.isnan(x))
    for value, kept, near in zip(x.tolist(), bits.tolist(), back.tolist(), strict=True):
        if not np.isfinite(value):
            assert np.isnan(value) or near == value
            continue
        beside = np.array([b for b in (kept - 1, kept + 1) if 0 <= b < 65536], np.uint16)
        for other in convert(beside, "BF16", np.dtype("float64")):
            if np.isfinite(other) and np.isfinite(near):
                assert (abs(near - value), kept % 2) < (abs(other - value), 1)


SMALLEST_CONTAINER = """
import os, socket, sys
def refuse(*_, **__):
    raise AssertionError("a socket was opened")
socket.socket = refuse
assert os.getuid() != 0, "runs as root"
assert "HOME" not in os.environ
sys.dont_write_bytecode = True
def refuse_writing(event, arguments):
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        raise AssertionError(f"{arguments[0]} was opened for writing")
sys.addaudithook(refuse_writing)
from minibert.cli import main
assert main(["embed", "--model", ".", "We lived above the clouds"]) == 0
"""


def test_runs_from_an_extracted_folder_without_network_home_disk_or_root(minilm: Path, tmp_path: Path) -> None:
    folder = extract(minilm, tmp_path / "made", "float16").folder
    with minibert.load(folder) as layer:
        expected = layer.embed("We lived above the clouds")
    # a user namespace takes root's powers, a network namespace leaves no interface that is up
    isolated = ["unshare", "--user", "--net"]
    unshare = shutil.which("unshare") and subprocess.run([*isolated, "true"], capture_output=True).returncode == 0
    if not unshare and os.getuid() == 0:
        missing("runs as root, and this system lets nobody make a user namespace to give that up")
    folder.chmod(0o555)
    passed = ("PATH", "LD_LIBRARY_PATH", "OPENBLAS_")  # the last ones choose the kernel
    environment = {name: value for name, value in os.environ.items() if name.startswith(passed)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        run = subprocess.run(
            [*(isolated if unshare else []), sys.executable, "-c", SMALLEST_CONTAINER],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=CHILD_SECONDS,
        )  # fmt: skip
    finally:
        folder.chmod(0o755)
    assert run.returncode == 0, run.stderr
    assert np.array_equal(numbers(run.stdout), expected)


def tokens_of(folder: Path) -> list[str]:
    named = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return sorted(named, key=named.__getitem__)


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_rows_are_those_made_by_hand(kind: str, tmp_path: Path) -> None:
    """Token by token, by the textbook: float64."""
    with minibert.load_encoder(distilled.write(tmp_path / kind, kind)) as encoder:
        made = minibert.distill(encoder, tmp_path / "made", DIMS)
        ids = [encoder.embeddings.tokenizer.id_of(token) for token in tokens_of(made.folder)]
        before, after = ([encoder.tokenize("a")["input_ids"][0].tolist()[i]] for i in (0, -1))
        x = np.array([encoder([[*before, i, *after]])[0].astype(np.float64).mean(axis=0) for i in ids])
    _, _, directions = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    y = (x - x.mean(axis=0)) @ directions[:DIMS].T
    p = 1 / np.arange(2, len(ids) + 2)
    expected = y * np.sign(y[np.abs(y).argmax(axis=0), np.arange(DIMS)]) * (1e-4 / (1e-4 + p / p.sum()))[:, None]
    (rows,) = load_file(made.folder / "model.safetensors").values()
    assert rows.dtype == np.float16 and rows.shape == (made.tokens, made.dims) == expected.shape
    assert np.abs(rows - expected).max() <= ROUNDING * np.abs(expected).max() and 0.5 < made.variance < 1


@pytest.mark.parametrize("kind", distilled.KINDS)
def test_the_tokenizer_splits_as_the_encoder_s_and_puts_nothing_around(kind: str, tmp_path: Path) -> None:
    with minibert.load_encoder(distilled.write(tmp_path / kind, kind)) as encoder:
        old = encoder.embeddings.tokenizer
        made = minibert.distill(encoder, tmp_path / "made", DIMS)
        new = Tokenizer.from_file(str(made.folder / "tokenizer.json"))
        number = {old.id_of(token): i for token, i in new.get_vocab().items()}
        # of Qwen's kin every piece of a word gets a space before it, not the first word alone
        for text in ("x we lived above the clouds", *(("x 12.5 (WE)", "x \u2603we") if kind != "qwen2" else ())):
            ids = old.pieces(" " + text if kind in ("gpt2", "qwen2", "roberta") else text)
            assert new.encode(text).ids == [number[i] for i in ids]
            assert len(new.encode(" ".join([text] * 300)).ids) == 512
        named = set(old.named.values()) - {old.named.get("unk"), old.named.get("pad")}
    assert not named & new.get_vocab().keys() and sorted(new.get_vocab().values()) == list(range(made.tokens))


def test_what_is_dropped_leaves_no_merge_and_what_is_kept_has_its_new_id(tmp_path: Path) -> None:
    """A word of the vocabulary that was added as well; a padding that no vocabulary has, with the smallest score."""
    folder = distilled.write(tmp_path / "roberta", "roberta")
    rules = json.loads((folder / "tokenizer.json").read_text())
    added = {**rules["added_tokens"][0], "content": "he", "id": rules["model"]["vocab"]["he"], "special": False}
    change_json(folder / "tokenizer.json", added_tokens=[*rules["added_tokens"], added])
    new = json.loads(distilling.static_tokenizer(minibert.load_encoder(folder).sentence_tokenizer).content)
    assert "he" not in new["model"]["vocab"] and ["h", "e"] not in new["model"]["merges"] != []
    assert {each["content"]: each["id"] for each in new["added_tokens"]} == {"<pad>": 0, "<unk>": 1}
    folder = distilled.write(tmp_path / "albert", "albert")
    change_json(folder / "tokenizer_config.json", pad_token="[new]")
    new = json.loads(distilling.static_tokenizer(minibert.load_encoder(folder).sentence_tokenizer).content)
    *pieces, last = new["model"]["vocab"]
    assert last == ["[new]", min(score for _, score in pieces)] and last[1] < pieces[5][1] < 0


def test_the_folder_is_loaded_as_a_static_model_and_misuse_is_refused_first(tmp_path: Path) -> None:
    bert, made = minibert.load_encoder(distilled.write(tmp_path / "bert", "bert")), tmp_path / "made"
    for error, message, arguments in (
        (TypeError, "encoder must be an Encoder, as load_encoder returns it, found str", {"encoder": "bert"}),
        (ValueError, "dims must be an integer >= 1, found 0", {"dims": 0}),
        (FileNotFoundError, "make it first", {"folder": tmp_path / "no" / "made"}),
        (FileExistsError, "exists; choose another name, or remove it", {"folder": tmp_path}),
    ):
        with pytest.raises(error, match=message):
            minibert.distill(**{"encoder": bert, "folder": made, **arguments})  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]
    assert minibert.distill(bert, made, DIMS).folder == made
    rows, tokens = load_file(made / "model.safetensors")["embeddings"].astype(np.float32), tokens_of(made)
    expected = rows[[tokens.index("we"), tokens.index("lived")]].mean(axis=0)
    static = minibert.load_encoder(made)
    assert static.max_seq_length == 512
    assert np.abs(static.encode("We lived") - expected / np.linalg.norm(expected)).max() <= 1e-6
    with pytest.raises(ValueError):
        minibert.distill(static, tmp_path / "again")
    assert minibert.distill(bert, tmp_path / "whole").dims == encoders.DIM, "no more components than the width"
    folder = encoders.write(tmp_path / "few", "bert")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##a\n")
    small = minibert.distill(minibert.load_encoder(folder), tmp_path / "small")
    assert (small.tokens, small.dims) == (4, 3) and abs(small.variance - 1) < 1e-9, "nor than the tokens"


def test_every_run_gives_the_same_bytes_on_any_number_of_threads(tmp_path: Path) -> None:
    folder = encoders.write(tmp_path / "bert", "bert", vocab_size=1500)
    checkpoints.write_vocab(folder, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(1496))))
    found = []
    for i, threads in enumerate((1, 1, 2, 3)):
        with minibert.load_encoder(folder, threads=threads) as encoder:
            found.append(files(minibert.distill(encoder, tmp_path / f"made{i}", DIMS).folder))
    assert found == [found[0]] * 4
    assert found[0].keys() == {"config.json", "model.safetensors", "modules.json", "tokenizer.json"}


def test_special_tokens_are_found_by_any_letter_that_the_vocabulary_has(tmp_path: Path) -> None:
    """GPT-2's kin has no unknown token: of a letter that is not there they make nothing."""
    folder = distilled.write(tmp_path / "roberta", "roberta")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    rows = {"\u0251" if token == "a" else token: i for token, i in model["vocab"].items()}
    change_json(folder / "tokenizer.json", model=model | {"vocab": rows})
    old = minibert.load_encoder(folder).sentence_tokenizer
    assert old.pieces("a") == []
    assert distilling.around(old, ["a", "b"]) == ([old.id_of("<s>")], [old.id_of("</s>")])
    with pytest.raises(TokenizerError):
        distilling.around(old, ["a", ""])


def changed(folder: Path, tensor: str, place: Any, number: float) -> minibert.Encoder:
    tensors = load_file(distilled.write(folder, "bert") / "model.safetensors")
    tensors[tensor][place] = number
    save_file(tensors, folder / "model.safetensors")
    return minibert.load_encoder(folder)


def test_what_is_no_number_becomes_0_as_in_model2vec_and_others_are_refused(tmp_path: Path) -> None:
    encoder = changed(tmp_path / "odd", "embeddings.word_embeddings.weight", 9, np.nan)
    assert np.isnan(encoder.embeddings([8, 9])).any(axis=1).tolist() == [False, True]  # as the file has it
    made = distilling.static_tokenizer(encoder.sentence_tokenizer)
    x = distilling.token_rows(encoder, made)
    assert [i for i, row in zip(made.ids, x, strict=True) if not row.any()] == [9]
    rows = load_file(minibert.distill(encoder, tmp_path / "nan").folder / "model.safetensors")["embeddings"]
    assert np.isfinite(rows).all()
    for tensor, number, message in (
        ("bias", np.inf, "an infinite number for the token '.*'; is its file damaged"),
        ("weight", 3e7, "float16 cannot h"),
    ):
        encoder = changed(tmp_path / "odd", f"encoder.layer.1.output.LayerNorm.{tensor}", ..., number)
        with pytest.raises(CheckpointError, match=message):
            minibert.distill(encoder, tmp_path / "made")
        assert not (tmp_path / "made").exists()


def test_a_vocabulary_with_a_token_twice_is_refused(tmp_path: Path) -> None:
    folder = distilled.write(tmp_path / "albert", "albert")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    change_json(folder / "tokenizer.json", model=model | {"vocab": [*model["vocab"][:-1], model["vocab"][-2]]})
    with minibert.load_encoder(folder) as encoder, pytest.raises(TokenizerError):
        minibert.distill(encoder, tmp_path / "made")


def test_the_command_says_what_it_made(tmp_path: Path, capsys: Printed) -> None:
    model, made = distilled.write(tmp_path / "bert", "bert"), tmp_path / "made"
    out, err = ran(capsys, "distill", "-m", model, "-o", made, "--dims", DIMS)
    assert err == "" and f"{made}: 144 tokens, 8 numbers each\n" in out and "by Zipf's law\n" in out
    assert f"components      8 of {encoders.DIM}, with " in out
