"""The reference itself, run beside the layer: every family's tiny checkpoint, BERT's and GPT-2's sizes, a real model.

Slow (two minutes) and needs torch and transformers; what it finds is committed under tests/reference for everyone else.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import seeded
from checkpoints import change_json
from reference_files import BY_NAME, CASES, REFERENCE, Case, with_mistake

import minibert
from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.verify.judge.input_layer import batches
from minibert.verify.report import Report
from minibert.verify.sides.reference import Reference
from minibert.verify.verify import verify

pytestmark = pytest.mark.reference

ERROR_SHARE = 1.05  # of the reference's own root mean square error; measured 0.87


def no_more_rounding_than_the_reference(report: Report, least: int) -> None:
    """Over all batches together; of single small ones the share goes up and down."""
    errors = [(d.error_ours, d.error_theirs) for d in report.differences if d.tolerance and d.error_theirs > 0]
    assert len(errors) >= least
    ours, theirs = np.sqrt(np.mean(np.square(errors), axis=0))
    assert ours <= ERROR_SHARE * theirs


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_family(case: Case) -> None:
    """On generated batches, which are not those of the committed files."""
    report = verify(str(case.folder), side=case.side)
    assert report.passed, "\n".join(report.lines)
    assert report.lines[1].startswith("compared live with transformers ")
    kinds = {kind for d in report.differences for kind in d.kinds}
    assert kinds >= {"plain", "right_pad", "left_pad", "pads_inside", "pads_inside_mask", "right_pad_no_mask"}
    keys = {d.key for d in report.differences}
    # the reference multiplies these families' rows where no module shows it
    hidden = {"scaled"} if case.facts["family"] in ("marian", "pegasus", "granite") else set()
    with case.layer() as layer:
        allowed = {kind for kind, batch in batches(layer).items()}
        assert keys >= set(layer.trace(**batches(layer)["plain"])) - hidden
    left_out = allowed - kinds
    # modules without an argument for it: position_ids of two-sided models' encoders, inputs_embeds of CLIP
    assert left_out <= {"explicit_positions", "inputs_embeds"}
    assert set(case.facts["kinds"]) <= kinds


@pytest.mark.parametrize("dim", [20, 640, 1152, 2304, 3072])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("family", "stem"), [("gemma", "Gemma"), ("gemma2", "Gemma2"), ("gemma3_text", "Gemma3Text")])
def test_gemma_in_float32(tmp_path: Path, family: str, stem: str, dtype: str, dim: int) -> None:
    """Whatever format the file stores, and for which the reference would round its factor."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    sizes = {"vocab_size": 50, "hidden_size": dim, "num_hidden_layers": 1, "intermediate_size": 4, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "layer_types": ["full_attention"]}
    kind = getattr(transformers, f"{stem}Model")
    kind(transformers.AutoConfig.for_model(family, **sizes, **heads)).to(getattr(torch, dtype)).save_pretrained(
        tmp_path
    )
    ids = np.arange(50)[None]
    told = kind.from_pretrained(tmp_path, dtype=torch.float32).embed_tokens
    with minibert.load(tmp_path) as layer:
        assert torch.equal(torch.from_numpy(layer(ids)), told(torch.from_numpy(ids)))
    assert verify(str(tmp_path)).passed


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_full_size(name: str, tmp_path: Path) -> None:
    folder = seeded.write_model(tmp_path / name, name)
    with pytest.raises(ValueError, match="has no block, so that nothing shows what enters one"):
        verify(str(folder))
    blocks = {"bert": "num_hidden_layers", "gpt2": "n_layer"}[name]  # one, with whatever weights it starts with
    change_json(folder / "config.json", **{blocks: 1})
    report = verify(str(folder))
    assert report.passed, "\n".join(report.lines)
    if name == "bert":
        no_more_rounding_than_the_reference(report, least=10)


def test_a_published_model(minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["We lived above the clouds", "I am Sinan", "naïve café, 東京 🙂", ""]
    report = verify(str(minilm), texts)
    assert report.passed, "\n".join(report.lines)
    no_more_rounding_than_the_reference(report, least=15)
    assert {d.kinds for d in report.differences if d.key == "input_ids"} == {(f"text {i}",) for i in range(1, 5)}
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    assert main(["verify", "--model", str(minilm), "--texts", str(tmp_path / "texts.txt")]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^sum +\d+ +0 +100 % .* equal$", said, re.MULTILINE)
    assert re.search(r"^embeddings.LayerNorm .* within rounding$", said, re.MULTILINE)


def test_ids_of_the_reference_s_tokenizer_are_compared(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(self: Reference, text: str) -> Array:
        return np.array([[101, 7592, 102]])

    monkeypatch.setattr(Reference, "tokenize", other)
    report = verify(str(minilm), ["We lived"])
    assert not report.passed and "input_ids differs in text 1" in report.lines


def test_a_tokenizer_that_cannot_be_opened_there_is_no_difference_and_is_told(
    minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    def cannot(*_: object, **__: object) -> None:
        raise ImportError("it needs sentencepiece\nand more words")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", cannot)
    report = verify(str(minilm), ["We lived"])
    line = "ids of text 1 not compared: the reference's tokenizer cannot be opened: it needs sentencepiece"
    assert report.passed and line in report.lines


@pytest.mark.parametrize(
    ("name", "mistake"),
    [("bert", "variance divided by dim - 1"), ("convbert", "rows added in the other order")],
)
def test_a_reference_that_makes_a_mistake_is_found_out(
    name: str, mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live model's trace replaced by one with a mistake: the difference is seen and named."""
    case = BY_NAME[name]
    with case.layer() as layer:
        monkeypatch.setattr(Reference, "trace", lambda self, inputs: with_mistake(layer, mistake, inputs))
        report = verify(str(case.folder))
    assert not report.passed and mistake in report.matches


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("make", "all files made again: no difference"),
        ("encoder", "no difference"),
        ("heads", "no difference"),
    ],
)
def test_committed_references_are_made_again(script: str, said: str, minilm: Path) -> None:
    """With --check: the files under tests/reference are what the reference computes."""
    path = REFERENCE.parent.parent / "scripts" / "reference" / f"{script}.py"
    given = [] if script == "heads" else ["--minilm", str(minilm)]
    result = subprocess.run([sys.executable, str(path), "--check", *given], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(said) >= 1 + (script == "make")  # the package's own file too
