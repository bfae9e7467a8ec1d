"""Every family with blocks, opened once: the page's numbers, a cell's numbers, each step of a block."""

from __future__ import annotations

import encoders
import numpy as np
import pytest
from checkpoints import same_bits
from drawn import cosine
from strict_html import data_of_script, unpacked

import minibert
from minibert import equations
from minibert.families.parts.plan import PIECES, REAL, value
from minibert.models.encoder import Encoder
from minibert.show.attention import opened_cell, terms_of
from minibert.show.explain import block_steps
from minibert.show.page import page

TEXT, TWICE = "we lived above", "we lived above we"
# error of a score written as log(weight) + log(sum of the row): weights are float32; measured 5e-7 at most
SCORES = 3e-6
# error of a cell's scores and sums in float32 beside float64; measured 6e-6 at scores of 9
CLOSE = 3e-5
BY_HAND = 1e-5  # packed against padded, of numbers up to 20 in size; measured 1.7e-6, with some kernels of BLAS 0


@pytest.fixture(scope="module", params=encoders.CONFIGS)
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = encoders.write_with_words(tmp_path_factory.mktemp(request.param), request.param)
    return encoders.computed_once(minibert.load_encoder(folder))


def test_the_page_has_the_numbers_of_the_trace(encoder: Encoder) -> None:
    name, html = encoder.embeddings.family.model_type, page(encoder, TEXT)
    trace, behind = encoder.trace(**encoder.tokenize(TEXT)), data_of_script(html, "blockdata")
    seq = trace["hidden_states.0"].shape[1]
    assert (behind["blocks"], behind["heads"]) == (encoders.DEPTH, encoders.HEADS)
    attention = unpacked(behind["attention"], encoders.DEPTH, encoders.HEADS, seq, seq)
    for i, of_block in enumerate(attention):
        assert same_bits(of_block, np.ascontiguousarray(trace[f"attentions.{i}"][0]))
    kept = behind["scores"]
    sums = unpacked(kept["logs"], *attention.shape[:3], kind="f8")
    for i, block in enumerate(encoder.stack.blocks):
        scores, seen = trace[block.attention.scores][0].astype(np.float64), attention[i] > 0
        again = np.log(attention[i], out=np.zeros(scores.shape), where=seen) + sums[i][..., None]
        assert np.abs(again - scores)[seen].max() < SCORES * max(1.0, np.abs(scores).max())
        assert (kept["scales"][i], kept["windows"][i]) == (block.attention.scale, block.attention.window)
    if kept["bias"] is not None:
        found = unpacked(kept["bias"], -1, encoders.HEADS, 2 * seq - 1)
        assert len(found) == (encoders.DEPTH if name == "umt5" else 1)
        for bias, block in zip(found, encoder.stack.blocks, strict=False):
            (term,) = block.attention.terms
            for i, j in np.ndindex(seq, seq):
                assert np.array_equal(bias[:, j - i + seq - 1], term.shared(seq)[:, i, j])
    assert (kept["bias"] is None) == (name not in ("mpnet", *encoders.T5_LIKE))
    assert kept["terms"] == ["content to position", "position to content"] * (name == "deberta-v2")
    assert np.any(np.triu(attention, 1)) == (not encoder.stack.causal), "GPT-2 does not look ahead"
    assert ("no token sees those after it" in html) == encoder.stack.causal
    for i, block in enumerate(encoder.stack.blocks):
        before, after = trace[f"hidden_states.{i}"][0], trace[f"hidden_states.{i + 1}"][0]
        if after.shape != before.shape:  # the last map changes the width
            after = trace[encoder.stack.last_norm][0]
        for place, at in enumerate(behind["moves"][i + 1]):
            assert at["turn"] == pytest.approx(cosine(before[place], after[place]), abs=1e-12)
            assert at["size"] == pytest.approx(np.linalg.norm(after[place].astype(float)), rel=1e-12)
            for name_of, part in zip(("attention", "feed_forward"), block.parts, strict=False):
                added = trace[part.output_norm or part.work.output][0, place]
                assert at[name_of] == pytest.approx(np.linalg.norm(added.astype(float)))
            others = sorted((-cosine(after[place], after[other]), other) for other in range(seq) if other != place)
            assert at["nearest"] == [other for _, other in others][:5]
            assert at["cosines"] == pytest.approx([-c for c, _ in others][:5], abs=1e-12)


# families with nine terms in block 0; the rest have no positions in the input layer, or more than one LayerNorm between
# the sum and the queries, or more in the scores
NINE = (
    *("bert", "roberta", "xlm-roberta", "camembert", "ernie", "distilbert"),
    *("gpt2", "bart", "pegasus", "clip_text_model"),
)


def test_nine_terms_are_the_scores_of_block_0(encoder: Encoder) -> None:
    name, batch = encoder.embeddings.family.model_type, encoder.tokenize(TWICE)
    if name not in NINE:
        with pytest.raises(ValueError):
            terms_of(encoder, batch)
        return
    trace, terms = encoder.trace(**batch), terms_of(encoder, batch)
    scores, seen = trace[encoder.stack.blocks[0].attention.scores][0], trace["attentions.0"][0] > 0
    assert np.abs(terms.sum(axis=(0, 1)) - scores)[seen].max() < CLOSE
    # a word asks the same at each place, but for the size; a place asks the same whatever word is there
    (ids,) = batch["input_ids"]
    first, second = np.flatnonzero(ids == ids[1])[:2]
    of_word, of_place = ([terms[a, :, :, i].ravel() for i in (first, second)] for a in (0, 1))
    assert cosine(*of_word) > 1 - CLOSE and abs(cosine(*of_place)) < 0.99
    others = terms_of(encoder, encoder.tokenize("above we"))
    of_word, of_place = ([each[a, a, :, 1, 1] for each in (terms, others)] for a in (0, 1))
    assert abs(cosine(*of_word)) < 0.999 and cosine(*of_place) > 1 - CLOSE


def test_a_cell_adds_up(encoder: Encoder) -> None:
    """If a term, a rotation, a norm or the key's head is forgotten, the sum is not the run's score."""
    trace = encoder.trace(**encoder.tokenize(TEXT))
    seq, heads = trace["hidden_states.0"].shape[1], encoder.stack.heads
    for block, bound in enumerate(encoder.stack.blocks):
        own = bound.attention
        for head, query in ((0, seq - 1), (heads - 1, 1)):
            cells = [opened_cell(encoder, trace, block, head, query, key) for key in range(seq)]
            scores = trace[own.scores][0, head, query]
            for key, found in enumerate(cells):
                products = np.array(found["q"]) * found["k"]
                assert np.abs(products - found["products"]).max() < CLOSE
                total = own.scale * products.sum() + sum(term["number"] for term in found["terms"])
                assert abs(total - scores[key]) < CLOSE and abs(found["sum"] - total) < CLOSE
                assert found["score"] == scores[key] and found["seen"] == (found["weights"][key] > 0)
                assert len(found["terms"]) == len(own.terms) and ("turned_q" in found) == own.rotated
            weights = trace[f"attentions.{block}"][0, head, query]
            assert np.abs(np.array(cells[0]["softmax"]) - weights).max() < CLOSE
            gathered = sum(np.array(found["weighted"]) for found in cells)
            context = trace[own.context][0, query].reshape(heads, -1)[head]
            assert np.abs(gathered - context).max() < CLOSE and np.array_equal(cells[1]["context"], context)


def test_every_step_of_a_block_is_told(encoder: Encoder) -> None:
    trace = encoder.trace(**encoder.tokenize(TEXT))
    for i in range(encoders.DEPTH):
        made = list(block_steps(encoder, trace, i, head=3))
        own = list(trace)[list(trace).index(f"hidden_states.{i}") : list(trace).index(f"hidden_states.{i + 1}")]
        assert [key for _, key, _ in made] == own  # none left out, none twice
        for _, key, step in made:
            assert step.formula, key
            if step.function:  # a reader can import it
                assert getattr(equations, step.function.__name__) is step.function
            alone = key.endswith(("sum", "ple_block")) or key.startswith("hidden_states")  # only added up
            assert bool(step.function) != alone, key
        entering, last = (trace[f"hidden_states.{n}"] for n in (i, i + 1))
        values = {f"hidden_states.{i}": entering, REAL: np.ones(entering.shape[:2], bool)}
        if encoder.stack.pieces:
            values[PIECES] = trace[encoder.stack.pieces.norm]
        made = value(f"hidden_states.{i + 1}", encoder.stack.blocks[i].plan(i, encoder.stack), values)
        assert np.abs(made - last).max() <= BY_HAND
