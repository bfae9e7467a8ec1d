"""The study files run as plain scripts on the real checkpoint, keep what they claim, and write their pictures."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from checkpoints import BERT, GPT2, T5, VOCAB, numbers, write, write_byte_level, write_wordpiece
from command_line import STUDY, Patch, Printed
from limits import CHILD_SECONDS
from needed import module_of
from notebooks import LIVE, SHARED, STUDIES, TITLES, is_new
from printed_models import write_bert_tokenizer

from minibert.equations.input_layer import Array, sinusoidal_positions
from minibert.verify.mistakes.wrong_rows import ROWS

PRINTED_DATA = STUDY.parents[1] / "minibert" / "verify" / "data"
# each file that draws, and its pictures
DRAWN = {
    "000_bert_positions": {"rows", "similarity"}, "001_gpt2_positions": {"similarity"},
    "002_sinusoids_t5": {"rows", "table", "similarity", "similarity-by-distance"}, "003_bert_step_by_step": {"sum"},
    "005_attention": {"head"}, "006_blocks": {"tokens"}, "007_training": {"loss"},
    "008_what_does_a_head_do": {"lost"}, "009_static_models": {"cosines"}, "010_induction": {"heads"},
    "011_nine_terms": {"shares"}, "012_why_two_texts_are_alike": {"pairs"}, "common_mistakes": {"errors"},
    "five_minutes": {"arrows", "steps"}, "learning": {"loss", "found"}, "t5_relative_bias": {"t5-bias"},
    "terms_removed": {"without"}, "what_it_learned": {"positions"}, "where_heads_look": {"heads"},
}  # fmt: skip
PLUMBING = {"study", "notebooks", "novels", *(Path(name).stem for name in SHARED)}
FILES = {name: DRAWN.get(name, set()) for name in sorted({path.stem for path in STUDY.glob("*.py")} - PLUMBING)}
# matplotlib 3.9 calls pyparsing by names that version 3.3 deprecates, which is theirs to settle
PYPARSING = ("matplotlib._fontconfig_pattern", "matplotlib._mathtext", "pyparsing.core", "pyparsing.util")
WARNINGS = ",".join(["error", *(f"ignore::DeprecationWarning:{module}" for module in PYPARSING)])


def run(name: str, folder: Path, **environment: str) -> str:
    """Run a study file and its answers in a process of its own, from another folder, where no network is asked."""
    import matplotlib.font_manager  # noqa: F401  lists the fonts; where that takes 5 seconds, the first process says so

    variables = {key: value for key, value in os.environ.items() if not key.startswith(("MINIBERT_", "MPLBACKEND"))}
    variables |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(STUDY.parents[1]), "PYTHONWARNINGS": WARNINGS}
    # on a busy machine the threads of small matrix products wait for each other: 300 seconds instead of 4
    variables |= {"OPENBLAS_NUM_THREADS": "1", **environment}
    result = subprocess.run(
        [sys.executable, str(STUDY / "answers" / "run.py"), name, "--output", str(folder / "pictures")],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=CHILD_SECONDS,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    check_pictures(name, folder / "pictures", result.stdout)
    return result.stdout


def check_pictures(name: str, output: Path, printed: str) -> None:
    import matplotlib.image as mpimg

    pictures = {path.stem.removeprefix(f"{name}-"): path for path in output.glob(f"{name}-*")}
    assert set(pictures) == FILES[name]
    assert set(re.findall(r"^picture: (.+)$", printed, re.MULTILINE)) == {str(path) for path in pictures.values()}
    for path in pictures.values():
        drawn = mpimg.imread(path)
        assert min(drawn.shape[:2]) > 200
        assert len(np.unique(drawn.reshape(-1, drawn.shape[-1]), axis=0)) > 20, f"{path.name} shows next to nothing"


def test_every_file_that_draws_is_a_study() -> None:
    assert DRAWN.keys() <= FILES.keys() and set(LIVE) < set(STUDIES)


def test_a_study_is_new_until_one_of_its_files_changes(tmp_path: Path) -> None:
    assert not is_new("heads", tmp_path)
    made = tmp_path / "answers" / "heads.ipynb"
    made.parent.mkdir()
    made.touch()
    assert is_new("heads", tmp_path) and not is_new("learning", tmp_path)
    for file in ("heads.py", "answers/heads.py", "texts.py"):
        changed = (STUDY / file).stat().st_mtime
        os.utime(made, (changed - 1, changed - 1))
        assert not is_new("heads", tmp_path)


# what a text says of all-MiniLM-L6-v2, as its file prints it: of the numbers that a file asserts itself where it knows
# that model, one line, which shows that it has known it
SAID = {
    "000_bert_positions": ("a neighbour is the most similar row for 511 of 512 positions\n",),
    "position_probes": ("without a penalty 536\n",),
    "003_bert_step_by_step": ("not compared: ", "11,918,592 numbers, 98.3% of them in the word table\n"),
    "where_heads_look": ("one weight is over 0.99 in 44% of the rows; with the division in 0%\n",),
    "006_blocks": ("and after each block: [1.    0.94  0.899 0.849 0.878 0.909 0.828]\n",),
    "gpt2_blocks": ("GPT-2: gpt2-words, a small GPT-2 trained on words;",),
    "001_gpt2_positions": ("model: gpt2-words, a small GPT-2 trained on words;",),
    "007_training": (
        "21,705 words, 19,534 to learn and 2,171 to test: ", ", 2.022 of gpt2-words\n",
        "uniform           3.296\nletters           2.932\npairs of letters  2.514\n",
        "the loss falls by 0.200 to 0.237, mean 0.213\n",
    ),
    "what_it_learned": (
        "35 of 200 are words of the vocabulary; of each 20 0 to 7, mean 4\n", "72 of 200 at temperature 0.5: ",
        "of each 20 4 to 9, mean 7; more than at temperature 1 in 9 of 10\n",
        "test words: right in 34.9%, by pairs 11.4%\n",
    ),
    "008_what_does_a_head_do": ("9 of 10 fall, and of 6 of 10 questions it is missed most\n",),
    "009_static_models": ("centred: 'the' 5.14 long, the median word 6.91; 99% of words are longer\n",),
    "011_nine_terms": ("sentences: position with position is most in head 2: 91 to 98, mean 94 %\n",),
    "012_why_two_texts_are_alike": ("56 words taken out: the cosine rises without 18; ",),
    "sentence_vectors": ("who does what: 0.985; of ten pairs 0.970 to 0.996, mean 0.986\n",),
    "terms_removed": ("head 2 moves 0.83 of its weight; cosine 0.978 to 0.995, mean 0.991\n",),
    "common_mistakes": ("\n8 of 19 pass: ",),
    "patching_and_lens": ("above 0.4 after block 0: letter 8, mask 7 of 9\n",),  # all the rest is asserted there
    "five_minutes": ("man [-1.4  0.2 -0.2  1.4]  bites [ 0.2  1.4 -1.4 -0.2]  dog [ 1.4 -0.2  0.2 -1.4]\n",),
}  # fmt: skip


# a row of the glossary: a word and its other forms, the study that explains it and that section's anchor
WORDS = (STUDY.parent / "site/pages/glossary.md").read_text("utf-8")
GLOSSARY = re.findall(r"(?m)^\| \*\*([\w -]+)\*\*(.*?) \|.*\(course/(\w+)\.md(?:#([\w-]+))?\) \|$", WORDS)


def sections() -> Iterator[tuple[str, str, str]]:
    """Each section in the order of reading: its study, its anchor, "" for the first, and its text without links."""
    for name in TITLES:
        cells = re.split(r"(?m)^# %%", (STUDY / f"{name}.py").read_text("utf-8"))[1:]
        texts = [re.sub("(?m)^# ?", "", cell) for cell in cells if cell.startswith(" [markdown]")]
        for text in re.split(r"(?m)^##+ ", "\n".join(texts)):
            heading = "" if text.lstrip().startswith("[markdown]") else text.partition("\n")[0]
            anchor = re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-")
            yield name, anchor, re.sub(r"\[[^\]]+\]\([^)]*\)|`[^`]+`", "", text)


@pytest.mark.parametrize(("word", "forms", "name", "anchor"), GLOSSARY, ids=[row[0] for row in GLOSSARY])
def test_no_word_stands_before_the_section_that_explains_it(word: str, forms: str, name: str, anchor: str) -> None:
    others = "|".join(form for form in forms.split(", ") if form)
    pattern = re.compile(rf"\b(?:{word}|{others or word})\b", re.IGNORECASE)
    first = next((study, section) for study, section, text in sections() if pattern.search(text))
    assert first == (name, anchor)


def test_each_row_of_the_glossary_is_tried() -> None:
    assert len(GLOSSARY) == WORDS.count("\n| **") > 20


def test_the_folded_digits_of_two_notebooks_are_those_that_verify_has() -> None:
    """`minibert verify --seeds` compares these with the model itself, wherever that is at hand."""
    number = r"-?\d+\.\d+(?:e[+-]\d+)?"
    shipped = set(re.findall(number, (PRINTED_DATA / "bert-base-uncased.json").read_text("utf-8")))
    folded = (STUDY / "003_bert_step_by_step.py").read_text("utf-8").partition("CLOUDS = {")[2].partition("# %%")[0]
    digits = re.findall(number, folded)
    assert len(digits) == 426 and set(digits) <= shipped


UNTRAINED = ("002_sinusoids_t5", "t5_relative_bias")  # what they look at


@pytest.mark.slow
def test_what_is_said_of_bert_base_holds_for_its_positions(bert_positions: Array, minilm: Path, tmp_path: Path) -> None:
    """Its own position rows and vocabulary, word rows made up: all that 000 checks for this model alone."""
    config = {**BERT, "vocab_size": 30522, "hidden_size": 768, "max_position_embeddings": 512}
    normal, one = np.random.default_rng(0).standard_normal, np.ones(768, np.float32)
    rows = {
        "word_embeddings.weight": np.float32(0.04) * normal((30522, 768), np.float32),
        "position_embeddings.weight": bert_positions, "token_type_embeddings.weight": normal((2, 768), np.float32),
        "LayerNorm.weight": one, "LayerNorm.bias": 0 * one,
    }  # fmt: skip
    named = {f"embeddings.{name}": array for name, array in rows.items()}
    folder = write_bert_tokenizer(write(tmp_path / "bert-base-uncased", config, named), minilm)
    printed = run("000_bert_positions", tmp_path, MINIBERT_BERT=str(folder))
    assert "a neighbour is the most similar row for 473 of 512 positions\n" in printed
    probed = run("position_probes", tmp_path, MINIBERT_BERT=str(folder))
    assert "penalty 0.01: 10 off on the rows it has seen, 26 on others\n" in probed


def gpt2_of_sinusoids(folder: Path) -> Path:
    """They stand for positions that text has taught: neighbours are similar."""
    config = {**GPT2, "n_embd": 64, "n_positions": 128}
    named = {"wte.weight": numbers(config["vocab_size"], 64), "wpe.weight": sinusoidal_positions(128, 64)}
    return write_byte_level(write(folder, config, named))


def gpt2_with_blocks(folder: Path) -> Path:
    import encoders  # here, since all other studies stand without the blocks

    return write_byte_level(encoders.write(folder, "gpt2", vocab_size=261))


def gpt2_of_letters(folder: Path) -> Path:
    """As trained again: wherever it stands, its tokens are letters, and it has no room for a sentence."""
    return shutil.copytree(STUDY / "gpt2-words", folder)


def write_t5(folder: Path) -> Path:
    name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    named = {"shared.weight": numbers(VOCAB, 512), name: numbers(32, 2)}
    write(folder, {**T5, "d_model": 512}, named)
    return write_wordpiece(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variable", "make", "said"),
    [
        ("001_gpt2_positions", "MODEL", gpt2_of_sinusoids, ("model: my-own\n", "(128, 64)")),
        ("gpt2_blocks", "GPT2", gpt2_with_blocks, ("GPT-2: ", "c_attn holds (16, 48)")),
        ("001_gpt2_positions", "GPT2", gpt2_of_letters, ()),
        ("gpt2_blocks", "GPT2", gpt2_of_letters, ()),
        ("002_sinusoids_t5", "T5", write_t5, ("model: my-own\n", "('the', ")),
        ("t5_relative_bias", "T5", write_t5, ("(32, 2) (buckets, heads)\n", "relative bias (2, 160, 160)")),
    ],
)
def test_a_given_model_is_looked_at(
    name: str, variable: str, make: Callable[[Path], Path], said: tuple[str, ...], minilm: Path, tmp_path: Path
) -> None:
    """As scripts, with warnings as errors; all files run as notebooks, at which test_study_notebooks.py looks."""
    named = {"MINIBERT_BERT": str(minilm), f"MINIBERT_{variable}": str(make(tmp_path / "my-own"))}
    printed = run(name, tmp_path, **named)
    assert "UNTRAINED" not in printed and [each for each in said if each not in printed] == []


# -- what the files are made of ----------------------------------------------------------------------------------


def taken(path: Path) -> set[tuple[str, str]]:
    """Modules and names: of `from minibert.module import name`, and of `minibert.name`."""
    found = set[tuple[str, str]]()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minibert"):
            found |= {(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "minibert":
            found.add(("minibert", node.attr))
    return found


USING = [path for path in sorted(STUDY.parent.rglob("*.py")) if "minibert" in path.read_text("utf-8")]


@pytest.mark.parametrize("path", USING, ids=lambda path: path.stem)
def test_what_a_script_takes_from_the_package_is_there(path: Path) -> None:
    """Many scripts are run by slow tests alone, or by hand; a name that has moved is seen here."""
    for module, name in taken(path):
        there = hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}")
        assert there, f"{module} has no {name}"


def test_every_mistake_of_the_list_is_made() -> None:
    source = (STUDY / "common_mistakes.py").read_text("utf-8")
    assert [each.name for each in ROWS if each.where != "local" and f'"{each.name}"' not in source] == []


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The plumbing as a module, as a notebook has it: with no command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["study"])
        return module_of(STUDY / "study.py")


PRINTED = """
[[ 1.7505e-02, -2.5631e-02,  3.3437e-05],
 [ 0.0077,      0.0023,     -5.3247e-03]]
"""


def test_printed_numbers_are_held_to_their_last_digit(study: ModuleType) -> None:
    rows = np.array([[1.7505e-2, -2.5631e-2, 3.3437e-5], [0.0077, 0.0023, -5.3247e-3]])
    study.assert_printed(rows, PRINTED)
    study.assert_printed(rows + 1e-6, PRINTED)  # what LayerNorm may differ by
    study.assert_printed(np.arange(100.0), "[0.0000, 1.0000, 2.0000, ..., 97.0000, 98.0000, 99.0000]")
    for place in np.ndindex(rows.shape):
        wrong = rows.copy()
        wrong[place] += 1e-4
        with pytest.raises(AssertionError, match="is printed as"):
            study.assert_printed(wrong, PRINTED)
    with pytest.raises(AssertionError, match="3 numbers are shown"):
        study.assert_printed(rows[:1], PRINTED)


def bert(positions: Array) -> SimpleNamespace:
    return SimpleNamespace(position_embeddings=SimpleNamespace(weight=positions))


def test_a_model_is_known_by_its_numbers_and_not_by_its_name(
    study: ModuleType, minilm: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """The demo's folder of all-MiniLM-L6-v2 is called `model`; a folder of its name may hold another model."""
    monkeypatch.setenv("MINIBERT_MODEL", str(minilm))
    found = study.load("bert")
    assert minilm.name == "model" and found.is_minilm and not found.is_bert_base
    moved = np.array(found.layer.position_embeddings.weight)
    moved[3, 4] = np.nextafter(moved[3, 4], np.float32(1))
    for name in ("all-MiniLM-L6-v2", "bert-base-uncased"):
        other = study.Model(bert(moved), str(tmp_path / name), True)
        assert not other.is_minilm and not other.is_bert_base


def test_bert_base_is_known_by_its_numbers(study: ModuleType, bert_positions: Array) -> None:
    found = study.Model(bert(bert_positions), "any name", True)
    assert found.is_bert_base and not found.is_minilm


def test_prints_and_pictures_have_a_name_that_tells_models_apart(study: ModuleType, tmp_path: Path) -> None:
    for folder in ("my-bert", "package/model"):
        (tmp_path / folder).mkdir(parents=True)
    hub = "google-bert/bert-base-uncased"
    names = {
        hub: hub, "/cache/models--google-bert--bert-base-uncased/snapshots/86b5": hub,
        str(tmp_path / "my-bert"): "my-bert", str(tmp_path / "package" / "model"): "package/model",
        str(study.GPT2): "gpt2-words, a small GPT-2 trained on words",
    }  # fmt: skip
    assert {source: study.Model(None, source, True).name for source in names} == names
    assert study.Model(None, "GPT-2", False).name == "an UNTRAINED GPT-2, random numbers"


# -- which model a file looks at ---------------------------------------------------------------------------------


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: Patch) -> dict[str, str]:
    for variable in ("MINIBERT_BERT", "MINIBERT_GPT2", "MINIBERT_T5", "MINIBERT_MODEL"):
        monkeypatch.delenv(variable, raising=False)
    made = {"bert": BERT, "gpt2": GPT2}
    named = {name: str(write(tmp_path / name, config)) for name, config in made.items()}
    return named | {"other gpt2": str(write(tmp_path / "other", GPT2)), "t5": str(write_t5(tmp_path / "t5"))}


@pytest.mark.parametrize(
    ("variables", "family", "expected"),
    [
        *(({"BERT": "bert", "GPT2": "gpt2", "T5": "t5"}, family, family) for family in ("bert", "gpt2", "t5")),
        ({"MODEL": "gpt2"}, "gpt2", "gpt2"),
        ({"MODEL": "gpt2", "GPT2": "other gpt2"}, "gpt2", "other gpt2"),
        ({"MODEL": "bert"}, "gpt2", "own"),  # a BERT is none of its family
        ({"GPT2": "bert"}, "gpt2", "about gpt2, but MINIBERT_GPT2 names .* which is bert"),
        ({"MODEL": "gpt2"}, "bert", "about bert, but MINIBERT_MODEL names .* which is gpt2; .* MINIBERT_BERT"),
        ({"--model": "gpt2", "BERT": "bert"}, "bert", "about bert, but --model names .*; name a bert with --model or "),
    ],
)
def test_which_model_a_file_looks_at(
    variables: dict[str, str], family: str, expected: str,
    folders: dict[str, str], study: ModuleType, monkeypatch: Patch,
) -> None:  # fmt: skip
    for variable, folder in variables.items():
        if variable == "--model":
            monkeypatch.setattr(study.arguments, "model", folders[folder])
        else:
            monkeypatch.setenv(f"MINIBERT_{variable}", folders[folder])
    if expected.startswith("about"):
        with pytest.raises(SystemExit, match=expected):
            study.load(family)
        return
    model = study.load(family)
    source = str(study.GPT2) if expected == "own" else folders[expected]
    assert (model.source, model.trained, model.layer.family.model_type) == (source, True, family)


def test_where_no_model_is_named_it_is_said_which_is_looked_at(
    folders: dict[str, str], study: ModuleType, monkeypatch: Patch, capsys: Printed
) -> None:
    model = study.load("gpt2")
    assert (model.source, model.trained) == (str(study.GPT2), True)
    encoder, ids = study.gpt2_encoder()
    assert encoder.tokens(ids) == ["<|endoftext|>", *"muddy"]
    monkeypatch.setattr(study, "untrained_t5", lambda: "t5 made")
    model = study.load("t5")
    assert (model.layer, model.trained) == ("t5 made", False)
    assert [line for line in capsys.readouterr().out.splitlines() if line] == [
        f"model: {study.WORDS}; name another with --model or MINIBERT_GPT2",
        f"GPT-2: {study.WORDS}; name another with MINIBERT_GPT2",
        "model: an UNTRAINED T5, random numbers; name a trained one with --model or MINIBERT_T5",
    ]
