"""The study files run as plain scripts on the real checkpoint, keep what they claim, and write their pictures."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from checkpoints import GPT2, T5, VOCAB, numbers, write, write_byte_level

from minibert.equations.input_layer import sinusoidal_positions

STUDY = Path(__file__).resolve().parents[2] / "scripts" / "study"
# each file and its pictures
FILES = {
    "000_bert_positions": {"rows", "similarity"},
    "001_gpt2_positions": {"similarity"},
    "002_sinusoids_t5": {"t5-bias", "rows", "table", "similarity", "similarity-by-distance"},
    "003_bert_step_by_step": {"sum"},
    "004_bert_embedding_layer": {"sum"},
    "common_mistakes": {"errors"},
    "learning": {"loss", "found"},
}
# matplotlib 3.9 calls pyparsing by names that version 3.3 deprecates, which is theirs to settle
PYPARSING = ("matplotlib._fontconfig_pattern", "matplotlib._mathtext", "pyparsing.core", "pyparsing.util")
WARNINGS = ",".join(["error", *(f"ignore::DeprecationWarning:{module}" for module in PYPARSING)])
SECONDS = 300  # alone they need 2 to 20; a busy machine is no fault of theirs


def run(name: str, output: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a study file in a process of its own, from another folder, where no network is asked."""
    variables = {key: value for key, value in os.environ.items() if key not in ("MINIBERT_MODEL", "MPLBACKEND")}
    variables |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(STUDY.parents[1]), "PYTHONWARNINGS": WARNINGS, **environment}
    return subprocess.run(
        [sys.executable, str(STUDY / f"{name}.py"), "--output", str(output), *arguments],
        cwd=output.parent, env=variables, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip


def check_pictures(name: str, output: Path, printed: str) -> None:
    import matplotlib.image as mpimg

    pictures = {path.stem.removeprefix(f"{name}-"): path for path in output.iterdir()}
    assert set(pictures) == FILES[name]
    assert set(re.findall(r"^picture: (.+)$", printed, re.MULTILINE)) == {str(path) for path in pictures.values()}
    for path in pictures.values():
        drawn = mpimg.imread(path)
        assert min(drawn.shape[:2]) > 200
        assert len(np.unique(drawn.reshape(-1, drawn.shape[-1]), axis=0)) > 20, f"{path.name} shows next to nothing"


def test_every_file_is_run() -> None:
    plumbing = {"study", "notebooks", "probes"}
    assert {path.stem for path in STUDY.glob("*.py")} - plumbing == set(FILES)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_study_file_runs_on_the_real_checkpoint(name: str, minilm: Path, tmp_path: Path) -> None:
    result = run(name, tmp_path / "pictures", "--model", str(minilm))
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    check_pictures(name, tmp_path / "pictures", result.stdout)
    untrained = name in ("001_gpt2_positions", "002_sinusoids_t5")
    assert ("UNTRAINED" in result.stdout) == untrained


@pytest.mark.slow
def test_a_given_gpt2_is_looked_at(tmp_path: Path) -> None:
    """Sinusoids stand for positions that text has taught: neighbours are alike."""
    config = {**GPT2, "n_embd": 64, "n_positions": 128}
    named = {"wte.weight": numbers(config["vocab_size"], 64), "wpe.weight": sinusoidal_positions(128, 64)}
    folder = write_byte_level(write(tmp_path / "gpt2", config, named))
    result = run("001_gpt2_positions", tmp_path / "pictures", MINIBERT_MODEL=str(folder))
    assert result.returncode == 0, result.stderr
    assert f"model: {folder}\n" in result.stdout and "UNTRAINED" not in result.stdout
    assert "(128, 64)" in result.stdout
    check_pictures("001_gpt2_positions", tmp_path / "pictures", result.stdout)


@pytest.mark.slow
def test_a_given_t5_is_looked_at(tmp_path: Path) -> None:
    name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    named = {"shared.weight": numbers(VOCAB, 512), name: numbers(32, 2)}
    folder = write(tmp_path / "t5", {**T5, "d_model": 512}, named)
    result = run("002_sinusoids_t5", tmp_path / "pictures", "--model", str(folder))
    assert result.returncode == 0, result.stderr
    assert f"model: {folder}\n" in result.stdout and "UNTRAINED" not in result.stdout
    assert "relative bias (2, 160, 160)" in result.stdout


def test_another_family_where_a_bert_is_needed_is_said(tmp_path: Path) -> None:
    folder = write(tmp_path / "gpt2", GPT2)
    result = run("000_bert_positions", tmp_path / "pictures", "--model", str(folder))
    assert result.returncode == 1
    assert result.stderr == f"this file is about bert, and {folder} is gpt2; name a bert with --model\n"


# -- what the files are made of ----------------------------------------------------------------------------------


def cells(name: str) -> list[tuple[bool, str]]:
    """Part a percent-format file into its cells: whether it is text, and its lines."""
    source = (STUDY / f"{name}.py").read_text("utf-8")
    parts = re.split(r"^# %%(.*)\n", source, flags=re.MULTILINE)
    assert parts[0] == "", "a notebook begins with a cell"
    return [(mark.strip() == "[markdown]", text) for mark, text in zip(parts[1::2], parts[2::2], strict=True)]


@pytest.mark.parametrize("name", FILES)
def test_every_step_claims_something(name: str) -> None:
    found = cells(name)
    assert found[0][0] and found[0][1].startswith("# # ")
    for is_text, text in found:
        if is_text:
            assert all(line.startswith("#") for line in text.strip().splitlines()), "text cells hold comments alone"
    titles = [(i, text.splitlines()[0]) for i, (is_text, text) in enumerate(found) if is_text]
    steps = [(i, title) for i, title in titles if title.startswith("# ## ")]
    assert len(steps) >= 5
    ends = [i for i, _ in steps[1:]] + [len(found)]
    for (begin, title), end in zip(steps, ends, strict=True):
        code = "".join(text for is_text, text in found[begin:end] if not is_text)
        # measure() asserts that a mistake is rejected
        assert "assert " in code or "measure(" in code or title.endswith(": what is needed"), title
    numbered = [int(title.split()[3].rstrip(":")) for _, title in steps if title.startswith("# ## Step ")]
    assert numbered == list(range(1, len(numbered) + 1))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The plumbing as a module, as a notebook has it: with no command line."""
    spec = importlib.util.spec_from_file_location("study", STUDY / "study.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["study"])
        spec.loader.exec_module(module)
    return module


PRINTED = """
[[ 1.7505e-02, -2.5631e-02,  3.3437e-05],
 [ 0.0077,      0.0023,     -5.3247e-03]]
"""


def test_printed_numbers_are_held_to_their_last_digit(study: ModuleType) -> None:
    rows = np.array([[1.7505e-2, -2.5631e-2, 3.3437e-5], [0.0077, 0.0023, -5.3247e-3]])
    study.assert_printed(rows, PRINTED)
    study.assert_printed(rows + 1e-6, PRINTED)  # what LayerNorm may differ by
    for place in np.ndindex(rows.shape):
        wrong = rows.copy()
        wrong[place] += 1e-4
        with pytest.raises(AssertionError, match="is printed as"):
            study.assert_printed(wrong, PRINTED)
    with pytest.raises(AssertionError, match="3 numbers are shown"):
        study.assert_printed(rows[:1], PRINTED)


def test_long_axes_are_shortened_as_in_print(study: ModuleType) -> None:
    study.assert_printed(np.arange(100.0), "[0.0000, 1.0000, 2.0000, ..., 97.0000, 98.0000, 99.0000]")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, True),
        ("bert-base-uncased", True),
        ("google-bert/bert-base-uncased", True),
        ("/models/bert-base-uncased/", True),
        ("/cache/models--google-bert--bert-base-uncased/snapshots/86b5e0934494bd15", True),
        ("someone/bert-base-uncased-finetuned", False),
        ("/models/all-MiniLM-L6-v2", False),
    ],
)
def test_numbers_are_expected_of_bert_base_alone(name: str | None, expected: bool, study: ModuleType) -> None:
    class Words:
        weight = np.zeros((30522, 768), np.uint8)

    class Layer:
        word_embeddings = Words

    study.arguments.model = name
    assert study.is_bert_base(Layer) is expected
    Words.weight = np.zeros((30522, 384), np.uint8)
    assert study.is_bert_base(Layer) is False
