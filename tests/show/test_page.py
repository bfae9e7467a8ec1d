"""The page of `minibert explain --html`: well-formed, escaped, complete in itself, and its numbers are the trace's. Of
a whole model its second part too: its formulas and its size, and two texts on one page, token by token.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from checkpoints import BERT, same_bits, write, write_wordpiece
from command_line import Patch, Printed, ran
from drawn import cosine
from fake_hub import hub_of
from hypothesis import example, given
from hypothesis import strategies as st
from reference_files import BY_NAME, changed, opened
from strict_html import data_of_script, read, unpacked

import minibert
from minibert.equations import input_layer as equations
from minibert.models.input_layer import EmbeddingLayer
from minibert.show import page_parts
from minibert.show.page import page

SENTENCE = "We lived above the clouds"


def data_of(html: str) -> dict[str, Any]:
    """The numbers that the page's script draws, unpacked."""
    data = data_of_script(html, "data")
    for group in data["groups"]:
        for stage in group["stages"]:
            stage["rows"] = unpacked(stage["rows"], -1, group["dim"], kind=data["float"])[stage["index"]]
    if (norm := data["norm"]) is not None:
        for name, kind in {"mean": "f8", "variance": "f8", "weight": data["float"], "bias": data["float"]}.items():
            norm[name] = norm[name] and unpacked(norm[name], kind=kind)
    return data


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingLayer:
    folder = write(tmp_path_factory.mktemp("page") / "bert", {**BERT, "max_position_embeddings": 64})
    return minibert.load(write_wordpiece(folder))


# -- the frame ---------------------------------------------------------------------------------------------------


@given(text=st.text(max_size=20))
@example(text="</script><script>alert(1)</script> <!--d")
@example(text="a\x00b\ufeff\u2028c\r\nd")
@example(text="\u200f\u0645\u06cc\u200c\u062e")
def test_any_text_gives_a_well_formed_page(small: EmbeddingLayer, text: str) -> None:
    html = page(small, text)
    reader = read(html)
    assert [attributes.get("type") for attributes in reader.all("script")] == ["application/json", None]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html), "they are written out"
    if "\\" not in text:
        shown = reader.text("h1").encode("latin1", "backslashreplace").decode("unicode_escape")
        assert shown == text
    assert data_of(html)["tokens"][0] == "[CLS]"


def test_tokens_are_never_markup(tmp_path: Path) -> None:
    words = ["w0", "</script>", "<!--norm-->", "<b>&amp;", "\x1b[31m", "\u202egnp"]
    html = page(BY_NAME["gpt2"].with_words(tmp_path, *words), " ".join(words[1:]))
    reader, shown = read(html), [*words[1:4], r"\x1b[31m", r"\u202egnp"]
    assert reader.all("b") == [{}], "the one of the frame's own, in noscript"
    assert [text for tag, text in reader.texts if tag == "bdi"] == data_of(html)["tokens"] == shown
    assert reader.text("h1") == " ".join(shown)


# -- its numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
def test_every_family_has_a_page_with_the_numbers_of_its_trace(name: str, tmp_path: Path) -> None:
    layer = BY_NAME[name].with_words(tmp_path)
    text = "w5 w9 w7 w5 w11"
    data, trace = data_of(page(layer, text)), layer.trace(**layer.tokenize(text))
    stages = [stage for group in data["groups"] for stage in group["stages"]]
    shown = {stage["name"]: stage["rows"] for stage in stages}
    numbers = {path: rows for path, rows in trace.items() if rows.dtype.kind == "f"}
    for path in numbers.keys() - {"sum"}:
        assert same_bits(np.ascontiguousarray(trace[path][0]), shown[path.rpartition(".")[2]]), path
    norm = data["norm"]
    last = stages[-1] if norm is None else data["groups"][norm["group"]]["stages"][norm["stage"] - 1]
    assert same_bits(trace["sum"][0], last["rows"]), "a sum of one is the rows just shown"
    assert same_bits(stages[-1]["rows"], layer(**layer.tokenize(text))[0])
    assert [group["dim"] for group in data["groups"]] == [*dict.fromkeys(rows.shape[-1] for rows in numbers.values())]
    positions = trace.get("position_ids")
    assert (data["similarity"] is None) == (positions is None)
    if positions is not None:
        assert data["similarity"]["positions"] == positions[0].tolist()
        assert unpacked(data["similarity"]["cosines"]).size == positions.size**2


def test_the_lookups_say_which_rows_they_took(minilm: Path) -> None:
    layer = minibert.load(minilm)
    data = data_of(page(layer, "the dog, the cat", "the end"))
    batch = layer.tokenize("the dog, the cat", "the end")
    ((words, types, positions, total, normed),) = (group["stages"] for group in data["groups"])
    assert words["taken"] == batch["input_ids"][0].tolist()
    assert types["taken"] == batch["token_type_ids"][0].tolist() and {0, 1} == set(types["taken"])
    assert positions["taken"] == list(range(len(words["taken"])))
    assert [stage["sign"] for stage in (words, types, positions, total, normed)] == ["", "+", "+", "=", "→"]
    assert same_bits((words["rows"] + types["rows"]) + positions["rows"], total["rows"])
    assert max(words["index"]) < len(words["index"]) - 1, "a word that occurs twice is packed once"
    assert words["reach"] == types["reach"] == positions["reach"] == total["reach"] != normed["reach"]


def test_the_page_of_a_real_model_needs_nothing_else_and_has_layer_norm_s_numbers(minilm: Path) -> None:
    layer = minibert.load(minilm)
    html = page(layer, SENTENCE)
    reader = read(html)
    assert html.startswith("<!doctype html>")
    assert "Attention weights" not in html, "it has no blocks"
    assert {tag for tag, attributes in reader.elements if "src" in attributes} == set()
    assert [attributes["href"] for _, attributes in reader.elements if "href" in attributes] == ["data:,"]
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", html)
    (policy,) = (a["content"] for a in reader.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none';"), "what slips in is not fetched"
    assert "<p>Read one row of the table for each id: <code>y[i] = table[ids[i]]</code>.</p>" in html
    assert "<pre>y = (x - mean) / sqrt(variance + eps) * weight + bias</pre>" in html and "&gt;&gt;&gt;" not in html
    assert "7 tokens of bert → (1, 7, 384), float32" in reader.text("p")
    assert [attributes["value"] for attributes in reader.all("input")] == list("0123456")
    tokens = ["[CLS]", "we", "lived", "above", "the", "clouds", "[SEP]"]
    assert [text for tag, text in reader.texts if tag == "bdi"] == tokens * 2  # the choice, LayerNorm's table
    assert len(html.encode()) < 1_000_000 / 8  # the promise is "under 1 MB for a sentence"
    norm, trace = data_of(html)["norm"], layer.trace(**layer.tokenize(SENTENCE))
    before = trace["sum"][0].astype(np.float64)
    assert (norm["group"], norm["stage"], norm["eps"]) == (0, 4, layer.LayerNorm.eps)
    assert np.array_equal(norm["mean"], before.mean(axis=-1))
    assert np.array_equal(norm["variance"], before.var(axis=-1))
    assert same_bits(norm["weight"], np.asarray(layer.LayerNorm.weight))
    assert same_bits(norm["bias"], np.asarray(layer.LayerNorm.bias))
    table = np.array([float(text) for tag, text in reader.texts if tag == "td"]).reshape(7, 6)
    after = trace["embeddings.LayerNorm"][0].astype(np.float64)
    expected = np.stack([f(rows, axis=-1) for rows in (before, after) for f in (np.mean, np.var)], axis=-1)
    assert np.abs(table[:, [0, 1, 4, 5]] - expected).max() <= 0.5e-4 + 1e-12, "four decimals"
    assert table[:, 2].tolist() == [0.0] * 7 and table[:, 3].tolist() == [1.0] * 7


# -- its formulas ------------------------------------------------------------------------------------------------


def formulas_of(html: str) -> list[str]:
    return re.findall(r"<li><h3><code>(\w+)</code></h3>", html)


@pytest.mark.parametrize(("name", "formulas"), [
    ("bert", "lookup default_position_ids layer_norm bert_input"),
    ("t5-encoder", "lookup"),
    ("roberta", "lookup layer_norm padding_position_ids"),
    ("opt", "lookup mask_position_ids"),
    ("marian-encoder", "lookup default_position_ids sinusoidal_positions scale"),
])  # fmt: skip
def test_formulas_of_the_layer_stand_in_the_order_of_equations(name: str, formulas: str, tmp_path: Path) -> None:
    found = formulas_of(page(BY_NAME[name].with_words(tmp_path), "w5 w9"))
    assert found == formulas.split() == [other for other in vars(equations) if other in found]


RIVER, MONEY = "The bank of the river was muddy", "The bank raised its rates </b>"


def without_numbers(html: str) -> str:
    """The page without the second part's numbers, whose last bits may differ from run to run."""
    return re.sub(r'(id="blockdata">).*?(</script>)', r"\1\2", html, flags=re.DOTALL)


def test_the_page_of_a_whole_real_model(minilm: Path) -> None:
    html = page(minibert.load_encoder(minilm), "The bank of the river was muddy after rain")
    assert "11 tokens of bert" in html and "Attention weights" in html
    assert len(html.encode()) < 2_000_000  # as is promised for twelve tokens
    read(html)
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)|@import|url\(|src=", html)


@pytest.mark.parametrize(("name", "norm", "there", "not_there"), [
    ("bert", "LayerNorm follows", "layer_norm self_attention attention additive_mask feed_forward gelu",
     "rotate rms_norm share_heads gelu_tanh"),
    ("gpt2", "LayerNorm is applied", "layer_norm feed_forward gelu_tanh", "visible gelu"),
    ("qwen3", "RMSNorm is applied", "rms_norm rotary_attention rotate share_heads gated_feed_forward silu",
     "layer_norm feed_forward visible"),
    ("modernbert", "LayerNorm is applied", "layer_norm rotate gated_feed_forward visible gelu",
     "rms_norm share_heads feed_forward"),
])  # fmt: skip
def test_the_formulas_are_those_of_the_blocks(name: str, norm: str, there: str, not_there: str, tmp_path: Path) -> None:
    html = page(minibert.load_encoder(encoders.write_with_words(tmp_path, name)), "we lived")
    listed = formulas_of(html)
    assert len(listed) == len(set(listed)) and norm in html
    assert {*there.split(), "attention_scores", "softmax"} <= {*listed} and not {*not_there.split()} & {*listed}


def test_a_text_that_makes_too_large_a_page_is_refused_before_it_is_computed(minilm: Path, monkeypatch: Patch) -> None:
    encoder = minibert.load_encoder(minilm)
    with monkeypatch.context() as patch:
        patch.setitem(vars(encoder), "trace", None)
        long = "rates " * 400
        for text, beside in ((long, None), (RIVER, long)):
            with pytest.raises(ValueError, match="10 MB"):
                page(encoder, text, beside=beside)
    monkeypatch.setattr(page_parts, "LARGEST", 150_000)  # once it is written, of an input layer too
    with pytest.raises(ValueError, match="22 tokens"):
        page(encoder.embeddings, " ".join("abcdefghijklmnopqrst"))


def test_a_text_without_tokens_has_the_first_part_alone_and_a_text_beside_may_be_cut(tmp_path: Path) -> None:
    gpt2 = minibert.load_encoder(encoders.write_gpt2(tmp_path))
    assert "blockdata" not in page(gpt2, "") and "0 tokens of gpt2" in page(gpt2, "")
    assert "besidedata" in page(gpt2, "he was", truncation=True, beside="he was " * 100)


# -- the command -------------------------------------------------------------------------------------------------


def test_explain_writes_both_parts_of_a_whole_model(tmp_path: Path, capsys: Printed) -> None:
    folder, target = encoders.write_with_words(tmp_path / "bert", "bert"), tmp_path / "page.html"
    explain = "explain", "we lived", "--html", target, "-m"
    ran(capsys, *explain, folder, "--pair", "above")
    assert without_numbers(target.read_text("utf-8")) == without_numbers(
        page(minibert.load_encoder(folder), "we lived", "above", name=f"{tmp_path.name}/bert")
    )
    ran(capsys, *explain, folder, "--beside", "above")
    assert "besidedata" in target.read_text("utf-8")
    ran(capsys, "extract", folder, "-o", tmp_path / "layer")
    ran(capsys, *explain, tmp_path / "layer")
    alone = page(minibert.load(folder), "we lived", name=f"{tmp_path.name}/layer")
    assert target.read_text("utf-8") == alone, "no blocks are stored there"


def test_blocks_on_the_hub_are_fetched_when_asked_for(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    folder, target = encoders.write_with_words(tmp_path / "bert", "bert"), tmp_path / "page.html"
    with hub_of(monkeypatch, tmp_path / "home", "someone/tiny", folder):
        command = "explain", "we lived", "--model", "someone/tiny", "--html", target
        assert "--whole fetches and shows the blocks too" in ran(capsys, *command)[1]
        assert target.read_text("utf-8") == page(minibert.load(folder), "we lived", name="someone/tiny")
        for more in (["--whole"], []):  # and then they lie in the cache
            assert ran(capsys, *command, *more)[1] == f"minibert: wrote {target}\n"
            assert "blockdata" in target.read_text("utf-8")


# -- two texts ---------------------------------------------------------------------------------------------------


def test_the_cosines_are_of_both_traces_and_each_pair_of_tokens_adds_to_the_similarity(minilm: Path) -> None:
    encoder = encoders.computed_once(minibert.load_encoder(minilm))
    html = page(encoder, RIVER, beside=MONEY)
    assert [text for tag, text in read(html).texts if tag == "b"][-1] == MONEY, "a text is never markup"
    first, second = (encoder.trace(**encoder.tokenize(text)) for text in (RIVER, MONEY))
    n, m = (trace["hidden_states.0"].shape[1] for trace in (first, second))
    assert n != m
    data = data_of_script(html, "besidedata")
    attention, cosines = unpacked(data["attention"], 6, 12, m, m), unpacked(data["cosines"], 7, n, m)
    assert data["tokens"] == encoder.tokens(encoder.tokenize(MONEY)["input_ids"][0])
    for i in range(6):
        assert same_bits(np.ascontiguousarray(attention[i]), np.ascontiguousarray(second[f"attentions.{i}"][0]))
    for i in range(7):
        states = first[f"hidden_states.{i}"][0], second[f"hidden_states.{i}"][0]
        expected = [[cosine(x, y) for y in states[1]] for x in states[0]]
        assert np.abs(cosines[i] - expected).max() < 1e-6, "float32"
    assert cosines[0, 2, 2] == pytest.approx(1) and cosines[6, 2, 2] < 0.9, "the two banks part"
    assert re.findall(r'value="(\d)" checked', html) == ["2"], "the longest word that both have"
    assert re.findall(r'value="(\d)" checked', page(encoder, RIVER, beside="no common word")) == ["1"]
    split = encoder.similarity_pairs(RIVER, MONEY)
    numbers = unpacked(data["sum"]["numbers"], *data["sum"]["shape"])
    assert np.abs(numbers - split.pairs).max() < 1e-7 and data["sum"]["measure"] == "cosine", "float32"
    assert data["sum"]["similarity"] == pytest.approx(split.pairs.sum(), abs=1e-6)


@pytest.mark.parametrize(("name", "why"), [
    ("late-fixed", "a query and a document differently"), ("uses-reranker", "CrossEncoder"),
])  # fmt: skip
def test_a_similarity_that_is_no_sum_is_not_shown(name: str, why: str) -> None:
    """All others: tests/models/test_search.py."""
    found = data_of_script(page(opened(name), "we lived", beside="we"), "besidedata")["sum"]
    assert found.keys() == {"wrong"} and found["wrong"].startswith("Not shown: ") and why in found["wrong"]


def test_a_bias_is_a_row_after_the_tokens(tmp_path: Path) -> None:
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    encoder = changed(tmp_path, "sentences-dense", "2_Dense/config.json", identity)
    found = data_of_script(page(encoder, "we lived", beside="the clouds above"), "besidedata")
    split = encoder.similarity_pairs("we lived", "the clouds above")
    assert found["sum"]["shape"] == [*split.pairs.shape] and split.others[-1] == "(bias)"
    assert found["tokens"] == split.others[:-1]
