"""The classic mistakes of an input layer: each is rejected by the very comparison that passes the right layer.

It proves that the tolerances bite, and lists what goes wrong when BERT and similar models are ported.
"""

from __future__ import annotations

import numpy as np
import pytest
from ports import arrays, verify_part
from reference_files import BY_NAME, CASES, Case, with_mistake

from minibert.families.parts.plan import run
from minibert.verify.mistakes import MISTAKES
from minibert.verify.mistakes.mistake import all_places, begin
from minibert.verify.mistakes.mistake import with_mistake as steps_with
from minibert.verify.mistakes.wrong_rows import ROWS
from minibert.verify.report import compare
from minibert.verify.subjects import batches, tolerances, trace
from minibert.verify.verify import verify

ONE_PASS = "variance in one pass"  # needs rows far from zero, as in test_local

# a case -> mistakes that show in it, each with its smallest difference there (measured, rounded down)
SHOWN: dict[str, dict[str, float]] = {
    "bert": {"variance divided by dim - 1": 3e-2, "variance divided by dim - 1, eps outside the root": 3e-2,
        "eps 1e-05": 1e-3, "weight and bias ignored": 0.5, "RMSNorm for LayerNorm": 0.3,
        "rows added in the other order": 1e-8, "type rows left out": 0.1, "position rows left out": 0.1,
        "positions from 1": 1.0, "positions from 2": 1.0, "rows of ids -1": 0.1, "word rows times sqrt(dim)": 0.1,
        "padding row zeroed": 0.05, "type 0 for all tokens": 0.1, "type 1 for all tokens": 0.1,
        "token types exchanged": 0.1, "gamma and beta exchanged": 0.1},
    "roberta": {"eps outside the root": 1e-3, "eps 1e-12": 1e-3, "positions from 0": 1.0,
        "padding counted as tokens": 1.0, "positions by the mask instead of the ids": 1.0},
    "gpt2": {"type row 0 added": 0.08, "rows of ids +1": 0.1, "positions counted by the mask": 1.0,
        "cached tokens not counted": 1.0},
    "mpnet-pad5": {"padding id of positions from the config": 1.0},
    "opt": {"positions by the ids instead of the mask": 1.0, "mask ignored in positions": 1.0},
    "bart-encoder": {"offset of the position table missing": 0.1},
    "marian-encoder": {"sinusoids in the other layout": 0.5, "sinusoids from float32 angles": 1e-8,
        "factor of the word rows left out": 0.1},
    "distilbert": {"sinusoids in the place of learned positions": 0.5},
    "t5-encoder": {"sinusoids added": 0.5},
    "mbart-encoder": {"inputs_embeds scaled": 0.1},
    "albert": {"bias missing": 0.05},
    "xlm": {"mask not applied to the rows": 1.0},
}  # fmt: skip
WHERE = {name: (case, least) for case, mistakes in SHOWN.items() for name, least in mistakes.items()}


def test_every_mistake_is_shown() -> None:
    assert {mistake.name for mistake in ROWS if mistake.where != "local"} <= set(WHERE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_steps_give_the_layer_s_numbers(case: Case) -> None:
    """Every intermediate of every kind of batch, to the bit before a norm or a projection."""
    with case.layer() as layer:
        (at,) = all_places(layer)
        every = [*batches(layer).values()]
        every += [{"inputs_embeds": each["inputs_embeds"][0]} for each in every if "inputs_embeds" in each]  # one text
        for batch in every:
            found = dict(run(at.plan, begin(batch)))
            right = trace(layer, batch)
            assert list(found) == list(right)
            assert all(d.passes for d in compare({"": found}, {"": right}, {}, tolerances(layer)))


@pytest.mark.parametrize("name", WHERE)
def test_each_mistake_is_rejected_and_named(name: str) -> None:
    """The port's file has the numbers of the mistake, for the batches that the reference has computed."""
    case, least = BY_NAME[WHERE[name][0]], WHERE[name][1]
    inputs = {f"own {kind}": batch for kind, batch in case.read[0].items()}
    with case.layer() as layer:
        traces = {kind: with_mistake(layer, name, batch) for kind, batch in inputs.items()}
    report = verify(str(case.folder), side=case.side, against=arrays(inputs, traces))
    assert not report.passed and max(d.largest for d in report.compared if not d.passes) >= least
    assert name in report.matches, report.lines
    assert any(line.startswith(f"matches: {name}. ") for line in report.lines)
    assert "port's own inputs" not in str(report)  # a layer is no list of modules that are wrong or right by themselves


NORMED = {ONE_PASS, "eps outside the root"}  # an eps of 1e-12 is too small to show
# case -> mistakes that generated batches do not show: no cache shifts the positions of an encoder-decoder, DeBERTa
# projects the sum before a trace has it, Ernie's rows have a large variance
SMALL_EPS = NORMED | {"eps outside the root, with eps 1e-08"}  # below the rounding of a config's eps of 1e-12
UNSEEN: dict[str, set[str]] = {
    **dict.fromkeys(("bert", "convbert", "albert", "xlm"), SMALL_EPS), "ernie": SMALL_EPS | {"eps 1e-08"},
    **{name: {ONE_PASS} for name in ("roberta", "mpnet-pad5", "mbart-decoder")},
    **{name: set() for name in ("gpt2", "opt", "t5-encoder")},
    "deberta-v2": {ONE_PASS, "rows added in the other order"}, "marian-encoder": {"cached tokens not counted"},
    "bart-untied-encoder": {ONE_PASS, "cached tokens not counted"},
}  # fmt: skip


@pytest.mark.parametrize("name", UNSEEN)
def test_generated_batches_show_every_mistake_that_can_be_seen(name: str) -> None:
    case = BY_NAME[name]
    with case.layer() as layer:
        inputs, allowed = batches(layer), tolerances(layer)
        right = {kind: trace(layer, batch) for kind, batch in inputs.items()}
        unseen = set()
        (at,) = all_places(layer)
        for mistake in MISTAKES:
            if mistake.where != "local" and (plan := steps_with(mistake, at)):
                wrong = {kind: dict(run(plan, begin(batch))) for kind, batch in inputs.items()}
                if all(d.passes for d in compare(wrong, right, {}, allowed)):
                    unseen.add(mistake.name)
    assert unseen == UNSEEN[name]


def test_a_mistake_that_cannot_be_computed_is_passed_over() -> None:
    """With the config's pad id in MPNet's positions, the longest batch is too long for the table."""
    case = BY_NAME["mpnet-pad5"]
    with case.layer() as layer:
        inputs = {"full_length": batches(layer)["full_length"]}
        traces = {"full_length": trace(layer, inputs["full_length"])}
    traces["full_length"]["sum"] = traces["full_length"]["sum"] + np.float32(1)
    report = verify_part(case.folder, arrays(inputs, traces))
    assert not report.passed and report.lines[-1].startswith("none of the ")
