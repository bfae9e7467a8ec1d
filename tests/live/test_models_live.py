"""Each model beside the reference, opened once for it: every intermediate, two formats, calls, heads, defaults.

No case needs what another one has opened: xdist may give them to any worker (`--dist worksteal`).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import encoders
import masked as study_masked
import novels as study_novels
import numpy as np
import pytest
import seeded
import training as study_training
from checkpoints import change_json
from command_line import Patch
from encoder_files import CASE, copied, off
from head_files import HEAD_CASE, HEAD_CASES, HeadCase
from needed import module_of
from reference_files import BY_NAME, CASES, REFERENCE, Case, with_mistake

import minibert
from minibert.equations.input_layer import Array
from minibert.threads.computing import on_one_thread
from minibert.verify.reference import Reference
from minibert.verify.report import Comparison, rms
from minibert.verify.subjects import EncoderSubject, encoder_batches, trace
from minibert.verify.traces import read_traces
from minibert.verify.verify import verify

pytestmark = pytest.mark.reference

SCRIPTS = REFERENCE.parent.parent / "scripts" / "reference"
GOLDEN = module_of(SCRIPTS / "golden.py")
FORMULA = 1e-12  # both sides in float64; measured 8.4e-15
ROTARY_FORMULA = 4e-5  # the same where cos and sin are float32 here; measured 1.9e-5 at 300 tokens
ROWS = 2e-5  # relative to max(1, |reference|), a call's hidden states; measured 2.2e-6, with AVX-512 1.02e-5
LOGITS = 1e-5  # relative to max(1, |reference|); measured 2.5e-6
SHOWN = 1000 * ROWS  # from here on two answers differ
ERROR_SHARE = 1.5  # of the reference's own root mean square error on MiniLM; measured 0.87 to 1.26, by BLAS's kernel
# what the reference's encoder does not take as an argument, and verify leaves out
NOT_TAKEN = {"clip_text_model": "inputs_embeds", **dict.fromkeys(encoders.BART_LIKE, "explicit_positions")}
NOT_TAKEN["clip"] = NOT_TAKEN["clip_text_model"]
TEXTS = ["We lived above the clouds", "naïve café, 東京 🙂", "", "What time does the store open? " * 30]


class Opened(Reference):
    """The reference as `verify` opens it; it stays open, with what it has computed, in float32 first."""

    last: Opened

    def __init__(self, *given: Any, **hub: Any) -> None:
        super().__init__(*given, **hub)
        self.traced: list[dict[str, Array]] = []
        Opened.last = self

    def trace(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.traced.append(super().trace(inputs))
        return self.traced[-1]

    def continue_in_float64(self, encoder: minibert.Encoder) -> None:
        """Go on in float64, beside this encoder: the one of `verify` is closed."""
        self._subject = EncoderSubject(encoder, minibert.load_encoder)
        self._layer = encoder.embeddings
        self.double()


@pytest.fixture(autouse=True)
def _kept_open(monkeypatch: Patch) -> Iterator[None]:
    monkeypatch.setattr("minibert.verify.verify.Reference", Opened)
    yield
    if "last" in vars(Opened):
        del Opened.last  # one model is open at a time


def compared(folder: Path, **options: Any) -> Comparison:
    report = verify(str(folder), **options)
    assert report.passed, "\n".join(report.lines)
    return report


def tokens(batch: Mapping[str, Array]) -> Array:
    """Which tokens are no padding."""
    shape = next(batch[key] for key in ("input_ids", "inputs_embeds") if key in batch).shape[:2]
    return np.broadcast_to(batch.get("attention_mask", 1), shape) != 0


@on_one_thread
def ask_all(folder: Path, head: str | None = None, only: Sequence[str] | None = None) -> Comparison:
    """Compare all that a folder's model computes with the reference, opened once on each side and format.

    By `verify` every intermediate of every kind of batch; in float64 the hidden states; then what a call and `logits`
    give, which come by another way than a trace.
    """
    report, opened = compared(folder, encoder=True, batches=only), Opened.last
    with minibert.load_encoder(folder) as encoder, minibert.load_encoder(folder, dtype="float64") as exact:
        kinds = {kind: batch for kind, batch in encoder_batches(encoder).items() if only is None or kind in only}
        left = NOT_TAKEN.get(encoder.config.model_type) if only is None else None
        said = [line for line in report.lines if "not compared" in line or "left out" in line]
        scaled = encoder.config.model_type in ("marian", "pegasus") and encoder.config.get("scale_embedding")
        hidden = "scaled" if scaled else None  # the reference multiplies where no module shows it
        assert {line.rpartition(": ")[2] for line in said} == {left, hidden} - {None}
        asked = {kind: batch for kind, batch in kinds.items() if kind != left}
        singles = opened.traced[: len(asked)]
        opened.continue_in_float64(encoder)
        found = {(kind, d.key) for d in report.compared for kind in d.kinds}
        states = [f"hidden_states.{i}" for i in range(len(encoder.stack.blocks) + 1)]
        for (kind, batch), theirs in zip(asked.items(), singles, strict=True):
            keep, ours, truth = tokens(batch), trace(exact, batch), opened.trace(batch)
            assert found >= {(kind, key) for key in ours if key != hidden}
            for key in states:
                bound = FORMULA if exact.stack.rotary is None else ROTARY_FORMULA
                assert np.abs(ours[key] - truth[key])[keep].max() <= bound, key
            assert off(encoder(**batch)[keep], theirs[states[-1]][keep]) <= ROWS
            if "logits" in theirs:
                both = encoder.logits(**batch, head=head), theirs["logits"]
                assert off(*(x[keep] if x.shape[:2] == keep.shape else x for x in both)) <= LOGITS
        if head is not None:  # the last token that is no padding, where config.json says what padding is
            reached = {kind for kind, theirs in zip(asked, singles, strict=True) if "logits" in theirs}
            nameless = encoder.head(head).pooling == "last" and encoder.config.get("pad_token_id") is None
            assert reached >= ({"one_token"} if nameless else {"plain", "right_pad"})
    return report


# -- input layers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_input_layer(case: Case) -> None:
    """By `verify`, on generated batches; the committed values of each are compared in tests/families."""
    report = compared(case.folder, side=case.side)
    kinds = {kind for d in report.compared for kind in d.kinds}
    assert kinds >= {"plain", "right_pad", "left_pad", "pads_inside", "pads_inside_mask", *case.facts["kinds"]}


def test_a_file_without_the_config_s_blocks_has_no_reference(tmp_path: Path) -> None:
    """The layer's own numbers at full size are stored: tests/families."""
    with pytest.raises(ValueError):
        verify(str(seeded.write_model(tmp_path / "bert", "bert")))


# -- whole encoders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_every_row(name: str, tmp_path: Path) -> None:
    ask_all(encoders.write(tmp_path / name, name))


def test_gte_s_older_model_type(tmp_path: Path) -> None:
    """transformers knows the model, but not by this name; and of the rule "ntk" it knows nothing."""
    settings = encoders.config("gte", rope_theta=20000)
    named = encoders.tensors(settings)
    folder = encoders.checkpoints.write(tmp_path / "new", {**settings, "model_type": "new"}, named)
    compared(folder)
    ask_all(folder)
    scaled = {**settings, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    with pytest.raises(ValueError, match="'ntk'"):
        verify(str(encoders.checkpoints.write(tmp_path / "ntk", scaled, named)), encoder=True)


def test_ids_of_images_in_embedding_gemma_2(tmp_path: Path) -> None:
    """The whole model gives them the padding row; verify asks its text tower alone."""
    import torch
    from transformers import EmbeddingGemma2Model

    folder = copied(CASE["embedding_gemma2"], tmp_path)
    change_json(folder / "config.json", image_token_id=4, audio_token_id=7)
    ids = np.array([[3, 4, 5, 7, 6, 2]])
    model = EmbeddingGemma2Model.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad(), minibert.load_encoder(folder) as encoder:
        assert off(encoder(ids), model(torch.from_numpy(ids)).last_hidden_state.numpy()) <= 1e-5


def test_a_reranker_for_flash_attention_has_no_reference_here(tmp_path: Path) -> None:
    folder = copied(HEAD_CASE["xlm-roberta-classes"], tmp_path, lambda tensors: {
        name.replace("embeddings.LayerNorm", "emb_ln"): x for name, x in tensors.items()
    })  # fmt: skip
    with pytest.raises(ValueError, match="a port for flash attention, which transformers does not read; name a file"):
        verify(str(folder), encoder=True)


# -- who sees whom -----------------------------------------------------------------------------------------------

OPEN, LISTED = {"is_causal": False}, {"layer_types": ["full_attention", "sliding_attention"]}
SAID: list[tuple[str, dict[str, Any]]] = [
    *((name, OPEN) for name in ("bert-causal", "gpt2", "llama", "mistral", "qwen2", "qwen3-window", "gemma3_text")),
    ("ministral3", OPEN),
    ("gemma3_text-both-ways", OPEN), ("mistral", LISTED), ("mistral", OPEN | LISTED),
    ("modernbert", {"sliding_window": 3}), ("modernbert", {"sliding_window": 1, "local_attention": 9}),
    ("ultrabert", {"layer_types": None, "attention_windows": [0, 1, 3]}),
    ("ultrabert", {"layer_types": ["full_attention"] * 3}),
    ("ultrabert", {"rope_parameters": None, "rope_theta": [50.0, 20.0, 9.0]}),
    ("nomic_bert", {"rope_parameters": None, "rope_theta": 50.0, "rotary_emb_base": 1000.0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), SAID, ids=str)
def test_what_a_config_says_of_who_sees_whom(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Padded and not, of short texts and of those longer than a window; without the changes it is another model."""
    folder = copied(CASE[name], tmp_path, **changes)
    ask_all(folder)
    with minibert.load_encoder(folder) as encoder, CASE[name].load() as unchanged:
        ids = np.random.default_rng(0).integers(2, 29, (4, encoder.max_length or 40))
        assert off(encoder(ids), unchanged(ids)) > SHOWN


# -- heads -------------------------------------------------------------------------------------------------------


# one case of each family's head; of the others, the stored values show the logits
OF_EACH = {(case.facts["family"], case.head): case for case in HEAD_CASES}.values()


@pytest.mark.parametrize("case", OF_EACH, ids=str)
def test_every_head(case: HeadCase) -> None:
    report = ask_all(case.folder, case.head, ("plain", "right_pad", "left_pad", "pads_inside_mask", "one_token"))
    with case.load() as encoder:
        head = encoder.head()
    assert {*(path for path, _ in head.works), head.path, "logits"} <= {d.key for d in report.compared}


# -- trained models ----------------------------------------------------------------------------------------------


def test_minilm(minilm: Path) -> None:
    report = compared(minilm, texts=TEXTS, encoder=True)
    assert {d.kinds for d in report.compared if d.key == "input_ids"} == {(f"text {i}",) for i in range(1, 5)}
    assert {d.largest for d in report.compared if d.key == "sum"} == {0.0}
    assert all(report.accepted[f"hidden_states.{i}"] for i in range(7))


@pytest.mark.parametrize("shape", [(8, 13), (4, 128), (2, 512)])
def test_minilm_s_rounding_is_the_reference_s(shape: tuple[int, int], minilm: Path) -> None:
    ids = np.random.default_rng(1).integers(1000, 30_000, shape)
    with minibert.load_encoder(minilm) as encoder:
        reference = Opened(EncoderSubject(encoder, minibert.load_encoder), str(minilm))
        states = [f"hidden_states.{i}" for i in range(1, 7)]
        ours, theirs = encoder.trace(ids), reference.trace({"input_ids": ids})
        reference.double()
        truth = reference.trace({"input_ids": ids})
    errors = [rms(np.array([rms(x[key] - truth[key]) for key in states])) for x in (ours, theirs)]
    assert errors[0] <= ERROR_SHARE * errors[1], errors


@pytest.mark.parametrize("study", [study_training, study_masked, study_novels], ids=lambda study: study.__name__)
def test_transformers_opens_the_study_s_models(study: Any) -> None:
    """Their tensors by the same names, their tokenizers with the same ids of texts, cut and in capitals."""
    texts = ["", "q", "The cat 9", "unbelievably", "über 9", " q een\n", "questi[MASK]n"]
    report = ask_all(study.SHIPPED, "masked_word" if study is study_masked else "next_word")
    assert not any("not compared" in line for line in compared(study.SHIPPED, texts=texts).lines) and report.passed


# -- a reference that is wrong -----------------------------------------------------------------------------------


def test_an_input_layer_that_makes_a_mistake_is_found_out(monkeypatch: Patch) -> None:
    case, mistake = BY_NAME["bert"], "variance divided by dim - 1"
    with case.layer() as layer:
        monkeypatch.setattr(Reference, "trace", lambda self, inputs: with_mistake(layer, mistake, inputs))
        report = verify(str(case.folder))
    assert not report.passed and mistake in report.matches


# -- tokenizers and the committed files --------------------------------------------------------------------------


def test_ids_of_the_reference_s_tokenizer_are_compared(minilm: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Reference, "tokenize", lambda self, text: np.array([[101, 7592, 102]]))
    report = verify(str(minilm), ["We lived"])
    assert not report.passed and any("input_ids" in line for line in report.lines)


def test_a_tokenizer_that_cannot_be_opened_there_is_no_difference_and_is_told(minilm: Path, monkeypatch: Patch) -> None:
    import transformers

    def cannot(*_: object, **__: object) -> None:
        raise ImportError("it needs sentencepiece\nand more words")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", cannot)
    assert any("it needs sentencepiece" in line for line in compared(minilm, texts=["We lived"]).lines)


@pytest.mark.parametrize("row", GOLDEN.ROWS, ids=lambda row: row.case)
def test_a_golden_file_s_input_layer_is_the_reference_s_to_the_bit(row: Any, tmp_path: Path) -> None:
    """minibert computes these for the file; the last bit of a norm depends on the processor."""
    GOLDEN.write_model(row, tmp_path / row.case)
    inputs, stored = read_traces(tmp_path / row.case / GOLDEN.NAME)
    with minibert.load_encoder(tmp_path / row.case) as encoder:
        reference = Reference(EncoderSubject(encoder, minibert.load_encoder), str(tmp_path / row.case))
        for kind, batch in inputs.items():
            theirs, state = reference.trace(batch), stored[kind]["hidden_states.0"]
            assert theirs.keys() == stored[kind].keys()
            recorded = CASE[row.case].read[1][kind.removeprefix("golden_")]
            for key in theirs.keys() - recorded.keys():
                if stored[kind][key].tobytes() == state.tobytes():
                    assert off(state, theirs[key]) <= ROWS, key
                else:
                    assert stored[kind][key].tobytes() == theirs[key].tobytes(), key


@pytest.mark.parametrize("script", ["make", "encoder", "heads"])
def test_committed_references_are_made_again(script: str, minilm: Path) -> None:
    """With --check: the files under tests/reference are what the reference computes."""
    given = [SCRIPTS / f"{script}.py", "--check", *(() if script == "heads" else ("--minilm", minilm))]
    result = subprocess.run([sys.executable, *map(str, given)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    said = "all files made again: no difference" if script == "make" else "no difference"
    assert result.stdout.count(said) >= 1 + (script == "make")  # the package's own file too
