"""`minibert verify --encoder` without torch: what it saves and accepts, what it finds, and where, also at a head."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from command_line import Patch, Printed, failure, ran
from encoder_files import CASE, EncoderCase, copied
from head_files import HEAD_CASE, HEAD_CASES, HeadCase
from ports import arrays, few, first_difference, planted, ported, saved_of, verify_encoder
from reference_files import REFERENCE
from safetensors.numpy import load_file

from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.families.bert import BERT_BLOCKS
from minibert.families.parts.config import replace
from minibert.models.open.load_encoder import load_encoder
from minibert.verify import shipped, subjects
from minibert.verify.counterparts import Port
from minibert.verify.mistakes import MISTAKES
from minibert.verify.reference import Reference
from minibert.verify.report import ERROR_SHARE, PORT_SHARE, Difference, rms
from minibert.verify.subjects import AFTER_NORM, ATTENTION, IN_BLOCKS, LONG, EncoderSubject, encoder_batches, trace
from minibert.verify.traces import read_traces

SQUARE = ("scores", *(f"attentions.{i}" for i in range(encoders.DEPTH)))  # as large as the square of a text's length

WITH_DECODER = ("t5", "mt5", "umt5", "bart", "mbart", "marian", "pegasus")


@pytest.fixture(scope="module")
def saved(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    """BERT's own file."""
    return saved_of(folder, tmp_path_factory.mktemp("saved") / "trace.safetensors")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own.safetensors"


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_what_save_writes_against_accepts(name: str, folders: dict[str, Path], tmp_path: Path, capsys: Printed) -> None:
    target = tmp_path / "trace.safetensors"
    command = ["verify", "--encoder", "--model", folders[name]]
    said, _ = ran(capsys, *command, "--save", target)
    assert said.startswith(f"{folders[name]} ({name}, 2 blocks)\n")
    assert "compared with nothing: torch and transformers are not installed" in said
    assert ("every intermediate of the encoder of" in said) == (name in WITH_DECODER), said
    with load_encoder(folders[name]) as encoder:
        inputs, traces = read_traces(target)
        assert set(inputs) == set(traces) == set(encoder_batches(encoder))
        for kind, batch in inputs.items():
            left = {key for key in traces["plain"] if kind == "long" and key.endswith(SQUARE)}
            assert set(traces[kind]) == set(trace(encoder, batch)) - left
    lines = ran(capsys, *command, "--against", target)[0].splitlines()
    assert f"compared with the file {target}; the reference was not run" in lines
    assert ("only the encoder is compared, without a decoder and its logits" in lines) == (name in WITH_DECODER)
    (_, blocks) = [line for line in lines if line.startswith("block ")]
    assert re.search(r"^block 1 +(1[2-9]|25) +0 ", blocks) and blocks.endswith("within rounding")
    assert lines[-1] == "no difference beyond what rounding allows"


def test_batches_are_of_every_kind(folder: Path) -> None:
    with load_encoder(folder) as encoder:
        assert set(encoder_batches(encoder)) == {
            "plain", "right_pad", "left_pad", "pads_inside", "pads_inside_mask", "right_pad_no_mask", "inputs_embeds",
            "types", "explicit_positions", "long", "one_token", "mask_unlike_ids",
        }  # fmt: skip


SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4}
AFTER, REST = "only the first {} tokens were compared; untested: ", "later positions"


@pytest.mark.parametrize(
    ("name", "changes", "length", "beyond"),
    [
        ("bert", {}, encoders.LONGEST, ""),  # the whole table
        ("bert", {"max_position_embeddings": LONG + 40}, LONG + 40, ""),
        ("nomic_bert", {}, LONG, REST),
        ("llama", {}, LONG, REST),
        ("mistral", {"sliding_window": 512}, 520, REST),
        ("mistral", {"sliding_window": 1024}, 1032, REST),
        ("mistral", {"sliding_window": 4096}, LONG, f"{REST}, a window that reaches 4095 tokens"),
        ("gemma3_text", {"sliding_window": 400}, 408, REST),
        ("llama", {"rope_parameters": {**SCALED, "original_max_position_embeddings": 600}}, 608, REST),
        ("llama", {"rope_parameters": {**SCALED, "original_max_position_embeddings": 2048}}, LONG,
         f"{REST}, an original length of 2048 tokens"),
    ],
)  # fmt: skip
def test_the_long_batch_goes_beyond_what_changes_with_length(
    name: str, changes: dict[str, object], length: int, beyond: str, tmp_path: Path
) -> None:
    """A window of 8, positions that end at 127 and a window that is forgotten show there alone."""
    with load_encoder(encoders.write(tmp_path, name, **changes)) as encoder:
        inputs, subject = encoder_batches(encoder), EncoderSubject(encoder, load_encoder)
        said, few = subject.beyond(inputs), subject.beyond({"plain": inputs["plain"]})
    assert inputs["long"]["input_ids"].shape == (1, length)
    assert said == (AFTER.format(length) + beyond if beyond else "")
    assert few.startswith(AFTER.format(7) + REST)  # the other batches are short


def test_a_port_that_scales_no_frequency_is_named(tmp_path: Path) -> None:
    """As GTE is read by who does not know "ntk", which transformers does not."""
    right, of_port = (
        encoders.write(tmp_path / name, "gte", rope_theta=20000, rope_scaling=scaling)
        for name, scaling in (("right", {"type": "ntk", "factor": 8.0}), ("port", None))
    )
    with load_encoder(of_port) as port:
        inputs = few(port)
        traces = {kind: dict(port.trace(**batch)) for kind, batch in inputs.items()}
    report = verify_encoder(right, arrays(inputs, traces))
    assert not report.passed and report.matches == ["rotary frequencies not scaled"], report.lines


def test_scores_of_the_long_batch_are_compared_where_they_are(folders: dict[str, Path]) -> None:
    """A file need not have them; what it has must be right."""
    with load_encoder(folders["llama"]) as encoder:
        batch = encoder_batches(encoder)["long"]
        found = arrays({"long": batch}, {"long": dict(encoder.trace(**batch))})
    assert verify_encoder(folders["llama"], found).passed
    (wrong := found["long|attentions.1"].copy())[0, 0, -1, 0] += 1e-3
    report = verify_encoder(folders["llama"], found | {"long|attentions.1": wrong})
    assert not report.passed and report.local[0].key == "attentions.1"


EXACT = ("position_ids", "embeddings.word_embeddings", "sum")


@pytest.mark.parametrize(
    ("key", "place"),
    [
        *((key, "input layer") for key in (*EXACT, "embeddings.LayerNorm", "hidden_states.0")),
        ("encoder.layer.0.attention.self.query", "block 0"),
        *((key, "block 1") for key in ("encoder.layer.1.attention.self.scores", "attentions.1",
                                       "encoder.layer.1.intermediate.intermediate_act_fn", "hidden_states.2")),
    ],
)  # fmt: skip
def test_the_place_of_a_difference_is_named(
    key: str, place: str, folder: Path, saved: dict[str, Array], tmp_path: Path, capsys: Printed
) -> None:
    """One bit of one number is enough in `EXACT`: it has no share of rounding."""
    value = saved[f"plain|{key}"].copy()
    if value.dtype.kind == "i":
        value.flat[-1] += 1
    else:
        value.flat[-1] = np.nextafter(value.flat[-1], np.float32(9)) if key in EXACT else value.flat[-1] + 1e-3
    path = ported(saved | {f"plain|{key}": value}, tmp_path)
    assert main(["verify", "--encoder", "--model", str(folder), "--against", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"first difference: {place}, {key}, in plain; all of {place}:" in lines
    assert [line for line in lines if line.startswith(key + " ") and line.endswith("DIFFERENT")]
    assert [line for line in lines if line.startswith(place) and line.endswith("DIFFERENT")]
    assert any(re.fullmatch("none of the [0-9]+ classic mistakes that this model allows fits", line) for line in lines)


def test_the_first_of_several_differences_is_named(folder: Path, saved: dict[str, Array]) -> None:
    """Numbers of the blocks that follow are off too, as in every real port."""
    wrong = {key: value + np.float32(1) for key, value in saved.items()
             if "layer.1." in key or key.endswith("hidden_states.2")}  # fmt: skip
    place, key, kinds = first_difference(verify_encoder(folder, saved | wrong)).split(", ", 2)
    assert (place, key) == ("block 1", "encoder.layer.1.attention.self.query")
    assert set(re.findall(r"\w+", kinds.removeprefix("in ").split(";")[0])) == {key.split("|")[0] for key in saved}


def test_the_first_difference_is_the_first_to_be_computed(folders: dict[str, Path], own: Path) -> None:
    """GPT-2's rows of types come before its blocks, though most batches have none."""
    arrays = saved_of(folders["gpt2"], own)
    wrong = {key: value + 1 for key, value in arrays.items() if key.endswith(("|h.0.ln_1", "|wte (types)"))}
    report = verify_encoder(folders["gpt2"], arrays | wrong)
    assert first_difference(report) == "input layer, wte (types), in types; all of input layer:"


@pytest.mark.parametrize("times", [0.9, 1.1])
@pytest.mark.parametrize(
    ("key", "tolerance"),
    [("hidden_states.2", IN_BLOCKS), ("encoder.layer.1.attention.self.scores", IN_BLOCKS), ("attentions.0", ATTENTION),
     ("attentions.1", ATTENTION), ("embeddings.LayerNorm", AFTER_NORM), ("hidden_states.0", AFTER_NORM)],
)  # fmt: skip
def test_rounding_is_allowed_and_no_more(
    key: str, tolerance: float, times: float, folder: Path, saved: dict[str, Array]
) -> None:
    """Just below each tolerance, and just above it."""
    wrong = {k: v + times * tolerance * np.maximum(1, abs(v)) if k.endswith(f"|{key}") else v for k, v in saved.items()}
    report = verify_encoder(folder, wrong)
    assert report.passed == (times < 1), report.lines
    assert {d.key for d in report.compared if d.largest} == {key}


@pytest.mark.parametrize("key", ["encoder.layer.1.attention.self.context", "attentions.0"])
@pytest.mark.parametrize("times", [0.9, 1.1])
def test_beyond_the_tolerance_a_port_s_error_is_weighed(
    times: float, key: str, folder: Path, saved: dict[str, Array]
) -> None:
    """One number far off, and the rms error over all just below `PORT_SHARE` times ours, and just above it."""
    part = {name: value for name, value in saved.items() if name.startswith("plain|")}
    with load_encoder(folder, dtype="float64") as exact:
        truth = trace(exact, {"input_ids": part["plain|inputs|input_ids"]})[key]
    theirs = truth.copy()
    theirs.flat[0] += times * PORT_SHARE * rms(part[f"plain|{key}"] - truth) * np.sqrt(theirs.size)
    report = verify_encoder(folder, part | {f"plain|{key}": theirs})
    (d,) = [d for d in report.compared if d.key == key]
    assert not d.passes and d.error_theirs == pytest.approx(times * PORT_SHARE * d.error_ours)
    assert report.passed == (times < 1)


@pytest.mark.parametrize(
    ("whose", "ours", "theirs", "accepted"),
    [
        ("reference", 0.99 * ERROR_SHARE, 1.0, True),
        ("reference", 1.01 * ERROR_SHARE, 1.0, False),
        ("reference", 1e-9, 1.0, True),  # both are held to the reference's own float64: it cannot be too far from it
        ("reference", 1e-9, 0.0, False),
        *(("file", 1.0, better, True) for better in (1e-9, 0.0)),  # a port may be better than we are
        ("file", 0.0, 1e-9, False),
        ("stored", 0.99 * ERROR_SHARE, 1.0, True),
        ("stored", 1.01 * ERROR_SHARE, 1.0, False),
        ("stored", 1.0, 0.99 * PORT_SHARE, True),
        ("stored", 1.0, 1.01 * PORT_SHARE, False),
        *((whose, 1.0, np.nan, False) for whose in ("file", "reference")),
    ],
)
def test_shares_of_rounding(whose: str, ours: float, theirs: float, accepted: bool) -> None:
    shares = {"reference": Reference.shares, "file": Port.shares, "stored": shipped.Shipped.shares}[whose]
    beyond = Difference("hidden_states.1", ("plain",), 2 * IN_BLOCKS, 0.0, ours, theirs, IN_BLOCKS, weighed=True)
    assert beyond.accepted(shares) == accepted
    assert beyond._replace(largest=IN_BLOCKS).accepted(shares)
    assert not beyond._replace(weighed=False, error_ours=1.0, error_theirs=1.0).accepted(shares)


@pytest.mark.parametrize("key", ["hidden_states.1", "attentions.1", "encoder.layer.0.attention.self.scores", "sum"])
def test_a_reference_of_another_shape_differs(key: str, folder: Path) -> None:
    """Of a reference it is a finding and no slip: all of it counts as different, padding too."""
    with load_encoder(folder) as encoder:
        inputs = few(encoder, "left_pad")
        ours = {"left_pad": trace(encoder, inputs["left_pad"])}
        theirs = {"left_pad": {key: ours["left_pad"][key][..., 1:]}}
        (difference,) = EncoderSubject(encoder, load_encoder).compare(inputs, ours, theirs, ours)
    assert difference.largest == np.inf and difference.equal == 0 and not difference.accepted(Reference.shares)


def test_numbers_at_padding_are_not_compared(folder: Path, saved: dict[str, Array]) -> None:
    """References compute something for padding; here it is zeros. Scores of padding keys are hidden by the mask."""
    spoilt = dict(saved)
    for kind in ("right_pad", "left_pad", "pads_inside_mask"):
        padding = saved[f"{kind}|inputs|attention_mask"] == 0
        for key, value in saved.items():
            if key.startswith(f"{kind}|") and "inputs" not in key and value.ndim > 2:
                changed = spoilt[key] = np.broadcast_to(value, (*padding.shape[:1], *value.shape[1:])).copy()
                rows = changed if value.ndim == 3 else changed.swapaxes(1, 2)
                rows[padding] = 7
                if key.endswith("scores"):
                    np.moveaxis(changed, 3, 1)[padding] = -1e4
    assert verify_encoder(folder, spoilt).passed
    (seen := saved["right_pad|attentions.0"].copy())[1, 0, 0, -1] = 1e-3  # but what a token makes of padding is
    assert not verify_encoder(folder, spoilt | {"right_pad|attentions.0": seen}).passed


def test_scores_of_a_causal_model_are_compared_where_they_are_seen(folders: dict[str, Path], own: Path) -> None:
    """Before the mask or after it: what it hides is another program's own."""
    arrays, name = saved_of(folders["gpt2"], own), "plain|h.0.attn.scores"
    ahead = ~np.tri(arrays[name].shape[-1], dtype=bool)
    masked = np.where(ahead, np.finfo(np.float32).min, arrays[name])
    assert verify_encoder(folders["gpt2"], arrays | {name: masked}).passed
    seen = np.where(ahead, arrays[name], arrays[name] + np.float32(1))
    assert not verify_encoder(folders["gpt2"], arrays | {name: seen}).passed


def test_another_shape_is_refused(folder: Path, saved: dict[str, Array]) -> None:
    right = saved["plain|attentions.0"]
    for wrong in (right[:, 1:], right[None], right[:1]):  # a head less, one axis more, the first text alone
        with pytest.raises(ValueError, match=r"plain\|attentions.0"):
            verify_encoder(folder, saved | {"plain|attentions.0": wrong.copy()})


def test_a_published_model_is_compared_with_what_ships(minilm: Path) -> None:
    """Every output of a block, without torch; they are held to float64, and so is a formula that is wrong."""
    report = verify_encoder(str(minilm))
    assert report.passed, str(report)
    assert {d.key for d in report.compared} >= {f"hidden_states.{i}" for i in range(1, 7)}
    assert report.lines[1].endswith("all-MiniLM-L6-v2") and "the reference was not run" in report.lines[2]
    assert "ids of 3 texts: the reference's" in report.lines


@pytest.mark.slow
def test_a_wrong_encoder_does_not_pass_what_ships(minilm: Path, monkeypatch: Patch) -> None:
    """The float64 that is compared with has the same mistake, and yet it is found."""
    attend, feed = BERT_BLOCKS.parts
    row = replace(BERT_BLOCKS, parts=(replace(attend, work=replace(attend.work, scale=lambda *_: 0.17)), feed))
    monkeypatch.setattr("minibert.models.open.load_encoder.BLOCKS", {"bert": row})
    report = verify_encoder(str(minilm))
    assert not report.passed and first_difference(report).startswith("block 0, hidden_states.1, in text ")


def test_what_cannot_be_done_is_said(folder: Path, tmp_path: Path, capsys: Printed) -> None:
    command, target = ["verify", "--encoder", "--model"], tmp_path / "t.safetensors"
    said = failure(capsys, *command, REFERENCE / "xlnet", "--save", target)
    assert "'xlnet' has an input layer here, but no blocks" in said
    said = failure(capsys, *command, folder, "--side", "decoder", "--save", target)
    assert "--encoder compares a whole model" in said
    weights = folder / "model.safetensors"
    before = weights.read_bytes()
    failure(capsys, *command, folder, "--save", weights)
    assert weights.read_bytes() == before and not target.exists()


# -- heads -------------------------------------------------------------------------------------------------------

MASKED, CLASSES = HEAD_CASE["bert-masked_word"], HEAD_CASE["bert-classes"]


@pytest.mark.parametrize("case", {case.head: case for case in HEAD_CASES}.values(), ids=str)  # one of each head
def test_of_a_head_what_save_writes_against_accepts(case: HeadCase, own: Path) -> None:
    arrays = saved_of(case.folder, own)
    assert "plain|logits" in arrays
    assert verify_encoder(case.folder, arrays).passed


@pytest.mark.parametrize(
    ("name", "key"),
    [("bert-masked_word", "logits"), ("bert-masked_word", "cls.predictions.transform.LayerNorm"),
     ("bert-classes", "logits"), ("bert-classes", "pooler.activation"), ("gpt2-classes", "logits"),
     ("electra-replaced_token", "logits")],
)  # fmt: skip
def test_the_place_of_a_difference_is_the_head(name: str, key: str, own: Path) -> None:
    case = HEAD_CASE[name]
    arrays = saved_of(case.folder, own)
    arrays[f"types|{key}" if f"types|{key}" in arrays else f"plain|{key}"][0, 0] += 1e-3
    report = verify_encoder(case.folder, arrays)
    assert not report.passed and report.matches == []
    assert first_difference(report).startswith(f"head {case.head}, {key}, in ")


def test_logits_at_padding_are_not_compared(own: Path) -> None:
    arrays = saved_of(MASKED.folder, own)
    padding = arrays["right_pad|inputs|attention_mask"] == 0
    for changed, passes in ((padding, True), (~padding, False)):
        (x := arrays["right_pad|logits"].copy())[changed] = 7
        assert verify_encoder(MASKED.folder, arrays | {"right_pad|logits": x}).passed == passes


def test_logits_alone_are_compared_and_named() -> None:
    """A head's mistake fits, though nothing else is compared; with another one beside it none does."""
    (mistake,) = [each for each in MISTAKES if each.name == "norm not applied"]
    found = planted(MASKED.folder, mistake, "plain", parts=(subjects.HEAD,))
    for further, names in ((0, ["norm not applied"]), (1, [])):
        found["plain|logits"] = found["plain|logits"] + np.float32(further)
        report = verify_encoder(MASKED.folder, found, only=["logits"])
        assert not report.passed and report.matches == names


def test_batches_whose_token_is_padding_have_no_logits(own: Path) -> None:
    pairs = [name.split("|", 1) for name in saved_of(CLASSES.folder, own)]
    kinds = {kind for kind, _ in pairs} - {kind for kind, key in pairs if key == "logits"}
    assert kinds == {"left_pad", "pads_inside_mask"}
    assert "pooler" not in {key for _, key in pairs}  # the head has it


@pytest.mark.parametrize(
    ("case", "config", "said"),
    [
        (MASKED, {"architectures": ["BertForMultipleChoice"]}, "logits not compared: .* multiple choice is not"),
        (HEAD_CASE["bert-masked_word-pretraining"], {"architectures": None}, "logits not compared: .* several heads"),
        # a port of GPT-2's blocks has no logits, though the table for them is there
        (HEAD_CASE["gpt2-next_word-unprefixed"], {"architectures": ["GPT2Model"]}, "compared with nothing"),
        (CASE["bert-base"], {}, "compared with nothing"),  # has no head
    ],
    ids=str,
)
def test_where_and_why_logits_are_not_compared(
    case: EncoderCase, config: dict[str, Any], said: str, own: Path, tmp_path: Path
) -> None:
    report = verify_encoder(copied(case, tmp_path / "model", **config), save=own)
    assert report.passed and re.match(said, report.lines[1])
    assert not [name for name in load_file(own) if name.endswith("logits")]
