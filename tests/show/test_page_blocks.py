"""The page's second part: its numbers are the trace's, of every family with blocks; what is too large is refused."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from checkpoints import same_bits, write_wordpiece
from drawn import cosine
from fake_hub import FakeHub, use
from strict_html import data_of_script, read

import minibert
from minibert.cli import main
from minibert.show.page import page_parts
from minibert.show.page.page import page

SENTENCE = "The bank raised its rates again today"
# of a score written as log(weight) + log(sum of the row): weights are float32; measured 5e-7 at most
SCORES = 3e-6
# bytes of a page that the promise "under 2 MB for twelve tokens of MiniLM" allows
TWELVE_TOKENS = 2_000_000


def behind_of(html: str) -> dict[str, Any]:
    """The numbers of the second part, unpacked."""
    data = data_of_script(html, "blockdata")
    (kind,) = re.findall(r'"float": "(f\d)"', html)
    data["attention"] = np.frombuffer(base64.b64decode(data["attention"]), f"<{kind}")
    return data


def without_numbers(html: str) -> str:
    """The page without the second part's numbers, whose last bits may differ from run to run."""
    return re.sub(r'(id="blockdata">).*?(</script>)', r"\1\2", html, flags=re.DOTALL)


def folder_of(name: str, folder: Path) -> Path:
    if name == "gpt2":
        return encoders.write_gpt2(folder)
    encoders.write(folder, name)
    write_wordpiece(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_every_family_with_blocks_has_the_numbers_of_its_trace(name: str, tmp_path: Path) -> None:
    encoder = encoders.computed_once(minibert.load_encoder(folder_of(name, tmp_path)))
    html = page(encoder, "we lived above")
    read(html)
    assert not re.search(r"<!--\w+-->", html), "a mark of the frame was left"
    trace = encoder.trace(**encoder.tokenize("we lived above"))
    behind, seq = behind_of(html), trace["hidden_states.0"].shape[1]
    assert (behind["blocks"], behind["heads"]) == (encoders.DEPTH, encoders.HEADS)
    attention = behind["attention"].reshape(encoders.DEPTH, encoders.HEADS, seq, seq)
    for i, of_block in enumerate(attention):
        assert same_bits(of_block, np.ascontiguousarray(trace[f"attentions.{i}"][0]))
    kept = behind["scores"]
    sums = np.frombuffer(base64.b64decode(kept["logs"]), "<f8").reshape(attention.shape[:3])
    for i, block in enumerate(encoder.stack.blocks):
        scores, seen = trace[block.attention.scores][0].astype(np.float64), attention[i] > 0
        again = np.log(attention[i], out=np.zeros(scores.shape), where=seen) + sums[i][..., None]
        assert np.abs(again - scores)[seen].max() < SCORES * max(1.0, np.abs(scores).max())
        assert (kept["scales"][i], kept["windows"][i]) == (block.attention.scale, block.attention.window)
    if kept["bias"] is not None:
        found = np.frombuffer(base64.b64decode(kept["bias"]), "<f4").reshape(-1, encoders.HEADS, 2 * seq - 1)
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
        for place, at in enumerate(behind["moves"][i + 1]):
            assert at["turn"] == pytest.approx(cosine(before[place], after[place]), abs=1e-12)
            assert at["size"] == pytest.approx(np.linalg.norm(after[place].astype(float)), rel=1e-12)
            for name_of, part in zip(("attention", "feed_forward"), block.parts, strict=False):
                added = trace[part.within or part.work.output][0, place]
                assert at[name_of] == pytest.approx(np.linalg.norm(added.astype(float)))
            others = sorted((-cosine(after[place], after[other]), other) for other in range(seq) if other != place)
            assert at["nearest"] == [other for _, other in others][:5]
            assert at["cosines"] == pytest.approx([-c for c, _ in others][:5], abs=1e-12)


def test_the_page_of_a_whole_real_model(minilm: Path) -> None:
    encoder = minibert.load_encoder(minilm)
    html = page(encoder, "The bank of the river was muddy after rain")
    assert "11 tokens of bert" in html and len(html.encode()) < TWELVE_TOKENS
    reader = read(html)
    assert {tag for tag, attributes in reader.elements if "src" in attributes} == set()
    assert not re.search(r"https?:(?!//www\.w3\.org/2000/svg)|@import|url\(", html)
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
        ("gemma3_text", "RMSNorm is applied", {"rms_norm", "gelu_tanh"}, {"layer_norm", "feed_forward"}),
        (
            "modernbert", "LayerNorm is applied", {"layer_norm", "rotate", "gated_feed_forward", "visible", "gelu"},
            {"rms_norm", "share_heads", "feed_forward"},
        ),
    ],
)  # fmt: skip
def test_the_formulas_are_those_of_the_blocks(
    name: str, norm: str, there: set[str], not_there: set[str], tmp_path: Path
) -> None:
    html = page(minibert.load_encoder(folder_of(name, tmp_path)), "we lived")
    listed = re.findall(r"<li><h3><code>(\w+)</code></h3>", html)
    assert len(listed) == len(set(listed)) and norm in html
    assert there | {"attention_scores", "softmax"} <= set(listed) and not not_there & set(listed)


def test_a_text_that_makes_too_large_a_page_is_refused_before_it_is_computed(
    minilm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = minibert.load_encoder(minilm)
    with monkeypatch.context() as patch:
        patch.setitem(vars(encoder), "trace", None)
        error = r"would have 6[0-9] MB, and 10 MB is .*; the text has 402 tokens; give"
        with pytest.raises(ValueError, match=error) as e:
            page(encoder, "rates " * 400)
    advised = int(str(e.value).split()[-2])
    html = page(encoder, "rates " * (advised - 2))
    assert f"{advised} tokens of bert" in html
    assert 0.8 * page_parts.LARGEST < len(html.encode()) <= page_parts.LARGEST, "the advice is no far cry"
    with pytest.raises(ValueError, match="has 185 tokens"):
        page(encoder, "rates " * 183)


def test_the_limit_holds_for_the_first_part_too(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_parts, "LARGEST", 150_000)
    layer = minibert.load(minilm)
    with pytest.raises(ValueError, match=r"has 22 tokens; give one of at most [1-9] tokens"):
        page(layer, " ".join("abcdefghijklmnopqrst"))


def test_a_text_without_tokens_has_the_first_part_alone(tmp_path: Path) -> None:
    encoder = minibert.load_encoder(folder_of("gpt2", tmp_path))
    assert "blockdata" not in page(encoder, "") and "0 tokens of gpt2" in page(encoder, "")


# -- the command -------------------------------------------------------------------------------------------------


def test_explain_writes_both_parts_of_a_whole_model(tmp_path: Path) -> None:
    folder, target = folder_of("bert", tmp_path / "bert"), tmp_path / "page.html"
    assert main(["explain", "we lived", "--pair", "above", "--model", str(folder), "--html", str(target)]) == 0
    assert without_numbers(target.read_text("utf-8")) == without_numbers(
        page(minibert.load_encoder(folder), "we lived", "above", name=f"{tmp_path.name}/bert")
    )
    assert main(["extract", str(folder), "-o", str(tmp_path / "layer")]) == 0
    assert main(["explain", "we lived", "--model", str(tmp_path / "layer"), "--html", str(target)]) == 0
    alone = page(minibert.load(folder), "we lived", name=f"{tmp_path.name}/layer")
    assert target.read_text("utf-8") == alone, "no blocks are stored there"


def test_blocks_on_the_hub_are_fetched_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, target = folder_of("bert", tmp_path / "bert"), tmp_path / "page.html"
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
