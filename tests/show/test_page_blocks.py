"""The page's second part, of a whole model: its formulas and its size, and two texts on one page, token by token."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path

import encoders
import numpy as np
import pytest
from checkpoints import change_json, same_bits
from drawn import cosine
from fake_hub import FakeHub, use
from reference_files import REFERENCE
from strict_html import data_of_script, read

import minibert
from minibert.cli import main
from minibert.show import page_parts
from minibert.show.page import page

RIVER, MONEY = "The bank of the river was muddy", "The bank raised its rates </b>"
# bytes of a page that the promise "under 2 MB for twelve tokens of MiniLM" allows
TWELVE_TOKENS = 2_000_000


def without_numbers(html: str) -> str:
    """The page without the second part's numbers, whose last bits may differ from run to run."""
    return re.sub(r'(id="blockdata">).*?(</script>)', r"\1\2", html, flags=re.DOTALL)


def test_the_page_of_a_whole_real_model(minilm: Path) -> None:
    encoder = minibert.load_encoder(minilm)
    html = page(encoder, "The bank of the river was muddy after rain")
    assert "11 tokens of bert" in html and len(html.encode()) < TWELVE_TOKENS
    read(html)
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)|@import|url\(|src=", html)
    first = page(encoder.embeddings, "The bank of the river was muddy after rain")
    assert "blockdata" not in first and "Attention weights" not in first
    listed = re.findall(r"<li><h3><code>(\w+)</code></h3>", html)
    for name in ("layer_norm", "softmax", "attention", "feed_forward", "gelu"):
        assert listed.count(name) == 1
    assert "rotate" not in listed and "gelu_tanh" not in listed


@pytest.mark.parametrize(
    ("name", "norm", "there", "not_there"),
    [
        ("bert", "LayerNorm follows", {"self_attention", "additive_mask"}, {"rotate", "rms_norm", "share_heads"}),
        ("gpt2", "LayerNorm is applied", {"layer_norm", "feed_forward", "gelu_tanh"}, {"visible", "gelu"}),
        (
            "qwen3", "RMSNorm is applied",
            {"rms_norm", "rotary_attention", "rotate", "share_heads", "gated_feed_forward", "silu"},
            {"layer_norm", "feed_forward", "visible"},
        ),
        (
            "modernbert", "LayerNorm is applied", {"layer_norm", "rotate", "gated_feed_forward", "visible", "gelu"},
            {"rms_norm", "share_heads", "feed_forward"},
        ),
    ],
)  # fmt: skip
def test_the_formulas_are_those_of_the_blocks(
    name: str, norm: str, there: set[str], not_there: set[str], tmp_path: Path
) -> None:
    html = page(minibert.load_encoder(encoders.write_with_words(tmp_path, name)), "we lived")
    listed = re.findall(r"<li><h3><code>(\w+)</code></h3>", html)
    assert len(listed) == len(set(listed)) and norm in html
    assert there | {"attention_scores", "softmax"} <= set(listed) and not not_there & set(listed)


def test_a_text_that_makes_too_large_a_page_is_refused_before_it_is_computed(
    minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_text_without_tokens_has_the_first_part_alone(tmp_path: Path) -> None:
    encoder = minibert.load_encoder(encoders.write_gpt2(tmp_path))
    assert "blockdata" not in page(encoder, "") and "0 tokens of gpt2" in page(encoder, "")


# -- the command -------------------------------------------------------------------------------------------------


def test_explain_writes_both_parts_of_a_whole_model(tmp_path: Path) -> None:
    folder, target = encoders.write_with_words(tmp_path / "bert", "bert"), tmp_path / "page.html"
    assert main(["explain", "we lived", "--pair", "above", "--model", str(folder), "--html", str(target)]) == 0
    assert without_numbers(target.read_text("utf-8")) == without_numbers(
        page(minibert.load_encoder(folder), "we lived", "above", name=f"{tmp_path.name}/bert")
    )
    assert main(["explain", "we lived", "--beside", "above", "--model", str(folder), "--html", str(target)]) == 0
    assert "besidedata" in target.read_text("utf-8")
    assert main(["extract", str(folder), "-o", str(tmp_path / "layer")]) == 0
    assert main(["explain", "we lived", "--model", str(tmp_path / "layer"), "--html", str(target)]) == 0
    alone = page(minibert.load(folder), "we lived", name=f"{tmp_path.name}/layer")
    assert target.read_text("utf-8") == alone, "no blocks are stored there"


def test_blocks_on_the_hub_are_fetched_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, target = encoders.write_with_words(tmp_path / "bert", "bert"), tmp_path / "page.html"
    with FakeHub() as hub:
        hub.add("someone/tiny", {path.name: path for path in folder.iterdir()})
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        command = ["explain", "we lived", "--model", "someone/tiny", "--html", str(target)]
        assert main(command) == 0
        assert "--whole fetches and shows the blocks too" in capsys.readouterr().err
        assert target.read_text("utf-8") == page(minibert.load(folder), "we lived", name="someone/tiny")
        for asked in ([*command, "--whole"], command):  # and then they lie in the cache
            assert main(asked) == 0
            assert "--whole" not in capsys.readouterr().err
            assert "blockdata" in target.read_text("utf-8")


# -- two texts ---------------------------------------------------------------------------------------------------


def test_the_cosines_are_of_both_traces(minilm: Path) -> None:
    encoder = encoders.computed_once(minibert.load_encoder(minilm))
    html = page(encoder, RIVER, beside=MONEY)
    assert [text for tag, text in read(html).texts if tag == "b"][-1] == MONEY, "a text is never markup"
    first, second = (encoder.trace(**encoder.tokenize(text)) for text in (RIVER, MONEY))
    n, m = (trace["hidden_states.0"].shape[1] for trace in (first, second))
    assert n != m
    data = data_of_script(html, "besidedata")
    for name, shape in {"attention": (6, 12, m, m), "cosines": (7, n, m)}.items():
        data[name] = np.frombuffer(base64.b64decode(data[name]), "<f4").reshape(shape)
    assert data["tokens"] == encoder.tokens(encoder.tokenize(MONEY)["input_ids"][0])
    for i in range(6):
        assert same_bits(np.ascontiguousarray(data["attention"][i]), np.ascontiguousarray(second[f"attentions.{i}"][0]))
    for i in range(7):
        states = first[f"hidden_states.{i}"][0], second[f"hidden_states.{i}"][0]
        expected = [[cosine(x, y) for y in states[1]] for x in states[0]]
        assert np.abs(data["cosines"][i] - expected).max() < 1e-6, "float32"
    assert data["cosines"][0, 2, 2] == pytest.approx(1) and data["cosines"][6, 2, 2] < 0.9, "the two banks part"
    assert re.findall(r'value="(\d)" checked', html) == ["2"], "the longest word that both have"
    assert re.findall(r'value="(\d)" checked', page(encoder, RIVER, beside="no common word")) == ["1"]


def test_what_each_pair_of_tokens_adds(minilm: Path) -> None:
    encoder = minibert.load_encoder(minilm)
    found = data_of_script(page(encoder, RIVER, beside=MONEY), "besidedata")["sum"]
    split = encoder.similarity_pairs(RIVER, MONEY)
    numbers = np.frombuffer(base64.b64decode(found["numbers"]), "<f4").reshape(found["shape"])
    assert np.abs(numbers - split.pairs).max() < 1e-7 and found["measure"] == "cosine", "float32"
    assert found["similarity"] == pytest.approx(split.pairs.sum(), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("sentences-cls", "the vector is that of the first token alone"), ("sentences-prompts", "euclidean"),
        ("late-fixed", "late interaction encodes a query and a document differently"),
        ("uses-reranker", "CrossEncoder"),
    ],
)  # fmt: skip
def test_a_similarity_that_is_no_sum_is_not_shown(name: str, why: str) -> None:
    found = data_of_script(page(minibert.load_encoder(REFERENCE / name), "we lived", beside="we"), "besidedata")["sum"]
    assert found.keys() == {"wrong"} and found["wrong"].startswith("Not shown: ") and why in found["wrong"]


def test_a_bias_is_a_row_after_the_tokens(tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE / "sentences-dense", tmp_path / "model")
    for config in folder.glob("*_Dense/config.json"):
        change_json(config, activation_function="torch.nn.modules.linear.Identity")
    encoder = minibert.load_encoder(folder)
    found = data_of_script(page(encoder, "we lived", beside="the clouds above"), "besidedata")
    split = encoder.similarity_pairs("we lived", "the clouds above")
    assert found["sum"]["shape"] == [*split.pairs.shape] and split.others[-1] == "(bias)"
    assert found["tokens"] == split.others[:-1]


def test_a_text_beside_that_is_too_long_is_cut_where_that_is_asked_for(tmp_path: Path) -> None:
    gpt2 = minibert.load_encoder(encoders.write_gpt2(tmp_path))
    assert "besidedata" in page(gpt2, "he was", truncation=True, beside="he was " * 100)
