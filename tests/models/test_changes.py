"""Runs with changed values: what is changed is what goes on, nothing before it moves, and what cannot be is said.

The map of activation patching: each cell is one such run.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import encoders
import numpy as np
import pytest
from checkpoints import write_byte_level
from command_line import STUDY
from encoder_files import off

import minibert
from minibert.equations.blocks import softmax
from minibert.equations.heads import log_softmax
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.models import patching
from minibert.models.patching import patching_map

# two runs of one batch, cut into other tiles: a product's bits depend on its rows; measured 2e-6
CUT = 1e-5  # of a share of log probabilities too: measured 1e-6
FEW = ("bert", "gpt2", "albert", "deberta-v2", "gemma3_text", "t5")  # where each row takes the same path
IDS = np.array([[5, 9, 3, 12, 7, 20], [8, 4, 6, 11, 21, 3], [9, 9, 14, 2, 5, 17]])
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 1, 1, 0, 1, 1]])


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("models")
    return cache(lambda name: minibert.load_encoder(encoders.write(folder / name, name)))


def moved(a: Array, b: Array) -> bool:
    return off(a, b) > 100 * CUT


def each(x: Array) -> Array:
    """Position rows are one for all sequences in a plain trace, and one for each where they may be changed."""
    return np.broadcast_to(x, (len(IDS), *x.shape[1:]))


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_a_change_that_changes_nothing(name: str, loaded: Any) -> None:
    """Of a batch with padding at the end and in the middle; as functions, and as arrays from the trace."""
    encoder = loaded(name)
    given = {"input_ids": IDS, "attention_mask": MASK}
    plain, keep = encoder.trace(**given), MASK != 0
    names = [key for key in plain if key != "position_ids"]
    handed = {key: set[tuple[int, ...]]() for key in names}

    def same(values: Array, key: str) -> Array:
        handed[key].add(values.shape)
        return values

    changed = encoder.trace(**given, change={key: partial(same, key=key) for key in names})
    assert list(changed) == list(plain)
    for key in names:
        pairs = key.startswith("attentions.") or key.endswith(".scores")
        a, b = each(plain[key]), changed[key]
        where = keep[:, None, :, None] & keep[:, None, None] & np.ones((1, a.shape[1], 1, 1), bool) if pairs else keep
        assert off(b[where], a[where]) <= CUT, key
        assert not b[~where].any(), key
        assert len({shape[2:] if pairs else shape[1] for shape in handed[key]}) >= 2, "each length by itself"
    arrays = {key: plain[key] if len(plain[key]) == 1 else changed[key] for key in names}  # one for all sequences too
    assert off(encoder(**given, change=arrays), encoder(**given)) <= CUT


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_every_name_can_be_changed(name: str, loaded: Any) -> None:
    encoder = loaded(name)
    plain, random = encoder.trace(IDS), np.random.default_rng(0)
    names = [key for key in plain if key != "position_ids"]
    for place, key in enumerate(names):
        kept: list[Array] = []

        def noisy(values: Array, kept: list[Array] = kept) -> Array:
            kept.append(values + random.standard_normal(values.shape))
            return kept[-1]

        changed = encoder.trace(IDS, change={key: noisy})
        assert off(changed[key], kept[0].astype(np.float32)) == 0
        assert len(kept) == 1, "three texts of one length, together"
        before = {earlier for earlier in names[:place] if plain[earlier] is not plain[key]}
        assert all(off(changed[earlier], each(plain[earlier])) <= CUT for earlier in before), key
        assert moved(changed[names[-1]], plain[names[-1]]), key
        assert off(encoder(IDS, change={key: kept[0]}), changed[names[-1]]) <= CUT


@pytest.mark.parametrize("name", FEW)
def test_heads_and_blocks_knocked_out(name: str, loaded: Any) -> None:
    encoder = loaded(name)
    change = minibert.knock_out(encoder, heads=[(0, 1), (0, 3), (1, 2)])
    trace, plain = encoder.trace(IDS, change=change), encoder.trace(IDS)
    for i, gone in ((0, [1, 3]), (1, [2])):
        weights, own = trace[f"attentions.{i}"], encoder.stack.blocks[i].attention
        assert not weights[:, gone].any()
        context = trace[own.context].reshape(3, 6, own.heads, own.head_dim)
        assert not context[:, :, gone].any()
        assert context.any(axis=(0, 1, 3)).tolist() == [head not in gone for head in range(own.heads)]
    assert off(trace["attentions.0"][:, [0, 2]], plain["attentions.0"][:, [0, 2]]) <= CUT
    first = encoder.trace(IDS, change=minibert.knock_out(encoder, blocks=[0]))
    assert np.array_equal(first["hidden_states.1"], first["hidden_states.0"])
    assert moved(first["hidden_states.1"], plain["hidden_states.1"])
    last = encoder(IDS, change=minibert.knock_out(encoder, blocks=[1]))
    entered = plain["hidden_states.1"].copy()
    if encoder.stack.last_norm:  # it is the model's, and none of the block
        encoder[encoder.stack.last_norm].in_place(entered)
    assert off(last, entered) <= CUT


@pytest.mark.parametrize("name", encoders.CONFIGS)
def test_without_positions_the_order_of_the_words_is_lost(name: str, loaded: Any) -> None:
    """Nothing else knows it but a mask, which is taken away too."""
    encoder = loaded(name)
    masked = encoder.stack.causal or any(block.attention.window is not None for block in encoder.stack.blocks)
    order = np.array([3, 0, 5, 1, 4, 2])
    assert moved(encoder(IDS)[:, order], encoder(IDS[:, order]))
    change = minibert.knock_out(encoder, positions=True, mask=masked)
    assert off(encoder(IDS, change=change)[:, order], encoder(IDS[:, order], change=change)) <= CUT


@pytest.mark.parametrize("name", ["llama", "modernbert", "qwen3"])
def test_without_positions_each_query_head_has_its_own_key_head(name: str, loaded: Any) -> None:
    """Of a map each, of one map for all, and after norms: what another order or part would not show in the words."""
    encoder = loaded(name)
    own = encoder.stack.blocks[0].attention
    trace = encoder.trace(IDS, change=minibert.knock_out(encoder, positions=True))
    if name == "modernbert":
        q, k = np.split(trace[own.maps[0]], 3, axis=-1)[:2]
    else:
        q, k = (trace[path] for path in (own.norms[:2] if name == "qwen3" else own.maps[:2]))
    q, k = (x.reshape(*IDS.shape, -1, own.head_dim) for x in (q, k))
    assert (q.shape[2], k.shape[2]) == (4, own.key_heads)
    for head in range(4):
        want = own.scale * q[:, :, head] @ k[:, :, head * own.key_heads // 4].swapaxes(1, 2)
        assert off(trace[own.scores][:, head], want) <= CUT


def test_a_change_of_texts_with_other_holes(loaded: Any) -> None:
    """Of one length, but with padding at other places between: where distance counts, each is as it is alone."""
    mask = np.array([[1, 0, 1, 1, 0, 1], [1, 1, 1, 0, 0, 1], [1, 0, 1, 1, 0, 1]])
    for name in ("mpnet", "mistral", "modernbert"):
        encoder = loaded(name)
        change = minibert.knock_out(encoder, positions=True, blocks=[1])
        found = encoder(IDS, attention_mask=mask, change=change)
        for i in range(len(IDS)):
            alone = encoder(IDS[i : i + 1], attention_mask=mask[i : i + 1], change=change)
            assert off(found[i], alone[0]) <= CUT, name


@pytest.mark.parametrize("name", ["gpt2", "mistral", "modernbert"])
def test_without_the_mask_every_token_is_seen(name: str, loaded: Any) -> None:
    encoder = loaded(name)
    trace = encoder.trace(IDS, change=minibert.knock_out(encoder, mask=True))
    for i, block in enumerate(encoder.stack.blocks):
        assert off(trace[f"attentions.{i}"], softmax(trace[block.attention.scores].copy())) <= CUT
        assert np.all(trace[f"attentions.{i}"] > 0)
    assert not all(np.all(encoder.trace(IDS)[f"attentions.{i}"] > 0) for i in range(encoders.DEPTH))


def test_logits_and_the_head_s_trace_follow_the_change(tmp_path: Path) -> None:
    import word_models

    encoder = minibert.load_encoder(word_models.write(tmp_path / "words", "gpt2"))
    ids = encoder.tokenize(word_models.TEXTS[0])["input_ids"]
    change = minibert.knock_out(encoder, heads=[(0, 0)], mask=True)
    logits = encoder.logits(ids, change=change)
    assert moved(logits, encoder.logits(ids))
    trace = encoder.trace(ids, head="next_word", change=change)
    assert off(trace["logits"], logits) <= CUT
    assert off(encoder(ids, change=change), trace[f"hidden_states.{len(encoder.stack.blocks)}"]) <= CUT
    assert encoder.logits(ids[0], change=change).shape == logits.shape[1:]


def test_what_a_function_keeps_or_writes_into_is_its_own(loaded: Any) -> None:
    """Memory is written anew by the next block; position and type rows come straight from the file's memory."""
    encoder, kept = loaded("bert"), list[Array]()
    names = [f"encoder.layer.{i}.attention.self.query" for i in range(2)]

    def emptied(values: Array) -> Array:
        kept.append(values)
        values[:] = 0
        return values

    trace = encoder.trace(IDS, change=dict.fromkeys(names, emptied))
    kept[0][:] = 1
    assert not any(trace[name].any() for name in names) and not kept[1].any()
    for name in ("bert", "gpt2", "mpnet"):
        encoder = loaded(name)
        before, tables = encoder(IDS), [key for key in encoder.trace(IDS) if "embeddings" in key or key == "wpe"]
        for key in tables:
            encoder(IDS, change={key: emptied})
            encoder(IDS[0], change={key: emptied})
        assert np.array_equal(encoder(IDS), before)


def test_one_change_in_many_threads_at_once_and_of_no_token(loaded: Any) -> None:
    encoder = loaded("gpt2")
    change = minibert.knock_out(encoder, heads=[(1, 0)], mask=True, positions=True, blocks=[0])
    for shape in ((0, 5), (2, 0)):
        assert encoder(np.empty(shape, np.int64), change=change).shape == (*shape, encoders.DIM)
    texts = [np.random.default_rng(seed).integers(2, 29, (1, 8)) for seed in range(4)]
    alone = [encoder(ids, change=change) for ids in texts]

    def wrong(i: int) -> bool:
        return any(off(encoder(texts[i], change=change), alone[i]) > CUT for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(wrong, range(4)))


NAN = np.full((3, 6, encoders.DIM), np.nan)
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "a name": ({"encoder.layer.0.output": np.zeros_like}, ValueError, "did you mean 'encoder.layer.0.output.sum'"),
    "positions": ({"position_ids": np.zeros_like}, ValueError, "pass position_ids="),
    "a block": ({"hidden_states.3": np.zeros_like}, ValueError, "did you mean 'hidden_states.[012]'"),
    "no dict": ([("hidden_states.0", np.zeros_like)], TypeError, "must be a dict, .* found list"),
    "nothing": ({"hidden_states.1": lambda values: None}, TypeError, "returns one; found None"),
    "integers": ({"hidden_states.1": np.zeros((3, 6, 16), int)}, TypeError, "found ndarray of int64"),
    "a shape": ({"hidden_states.1": np.zeros((6, 16))}, ValueError, r"shape \(3, 6, 16\), .* found \(6, 16\)"),
    "a returned shape": ({"attentions.0": lambda values: values[:, 0]}, ValueError, r"must return .* \(3, 6, 6\)"),
    "rows of different lengths": ({"hidden_states.1": [[1.0], [2.0, 3.0]]}, ValueError, "rows of different lengths"),
    "a number alone": ({"hidden_states.1": lambda values: 0.0}, ValueError, r"return that shape, found \(\)"),
    "nan": ({"hidden_states.1": NAN}, ValueError, "has NaN"),
    "infinity": ({"attentions.1": lambda values: values - np.inf}, ValueError, "or the scores to -1e9"),
    "too large": ({"hidden_states.1": np.full((3, 6, 16), 1e300)}, ValueError, "beyond float32"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_run_can_go_on_with_is_refused(what: str, loaded: Any) -> None:
    change, kind, message = REFUSED[what]
    for call in (loaded("bert"), loaded("bert").trace):
        with pytest.raises(kind, match=message):
            call(IDS, change=change)


def test_a_wrong_part_to_knock_out_is_said(loaded: Any) -> None:
    bert, words = loaded("bert"), "embeddings.word_embeddings"
    with pytest.raises(ValueError, match=f"{words!r}"):
        bert(inputs_embeds=bert.trace(IDS)[words], change={words: np.zeros_like})
    for options, message in (
        ({"heads": [(0, 4)]}, r"head 4 .*0\.\.3"), ({"heads": [(2, 0)]}, r"block 2 .*0\.\.1"),
        ({"heads": ["13"]}, "block '1'"), ({"blocks": [-1]}, "block -1"), ({"blocks": [True]}, "block True"),
        ({"mask": True}, "sees all others; leave it out"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            minibert.knock_out(bert, **options)
    assert minibert.knock_out(bert) == {}
    wrong: tuple[dict[str, Any], ...] = (*({"heads": heads} for heads in ([3], (1, 3), 3, [(1, 2, 3)])), {"blocks": 1})
    for options in wrong:
        with pytest.raises(TypeError):
            minibert.knock_out(bert, **options)


def test_what_a_change_lacks_is_not_taken_from_the_run_before(loaded: Any) -> None:
    """`knock_out` takes values from one name to a later one; a function that replaces the first leaves it none."""
    for name, options in (("bert", {"blocks": [0]}), ("gpt2", {"mask": True}), ("qwen3", {"positions": True})):
        encoder = loaded(name)
        change = minibert.knock_out(encoder, **options)
        encoder(IDS, change=change)
        own = encoder.stack.blocks[0].attention
        kept = {"bert": encoder.stack.blocks[0].parts[0].sum, "gpt2": own.scores, "qwen3": own.norms[1]}[name]
        with pytest.raises(ValueError, match="knock_out"):
            encoder(IDS[:, ::-1], change={**change, kept: lambda values: values})


# -- the map of activation patching ------------------------------------------------------------------------------------

TEXTS = {
    "bert-words": ("masked_word", "questi[MASK]n", "questa[MASK]n"),
    "gpt2-words": ("next_word", "wonderfu", "wonderou"),
}


@cache
def studied(name: str) -> minibert.Encoder:
    return minibert.load_encoder(STUDY / name)


def cell_by_cell(encoder: minibert.Encoder, head: str, text: str, other: str, token: int) -> Array:
    """Compute one run for each cell, without `patching_map`."""

    def run(of: str, change: Any = None) -> Array:
        logits = encoder.logits(**encoder.tokenize(of), head=head, change=change)
        return log_softmax(logits[0, token].astype(np.float64))

    clean, given = (encoder.trace(**encoder.tokenize(each)) for each in (text, other))
    label = run(text).argmax()
    high, low = run(text)[label], run(other)[label]
    states = [key for key in clean if key.startswith("hidden_states.")]
    shares = np.empty((len(states), given[states[0]].shape[1]))
    for i, t in np.ndindex(shares.shape):
        patched = given[states[i]].copy()
        patched[0, t] = clean[states[i]][0, t]
        shares[i, t] = (run(other, {states[i]: patched})[label] - low) / (high - low)
    return shares


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("turned", [False, True])
def test_each_cell_is_a_run_of_its_own(name: str, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, (head, *texts) = studied(name), TEXTS[name]
    text, other = texts[::-1] if turned else texts
    found = patching_map(encoder, text, other)
    token = text.index("[") + 1 if "[" in text else len(text)
    expected = cell_by_cell(encoder, head, text, other, token)
    assert found.token == token and np.abs(found.shares - expected).max() < CUT
    # before block 0 only the exchanged letter differs; after the last block only the predicting token counts
    (letter,) = np.flatnonzero(found.ids[0] != found.ids[1])
    for row, at in ((0, letter), (-1, token)):
        assert found.shares[row] == pytest.approx(np.eye(expected.shape[1])[at], abs=CUT)
    assert found.clean > found.corrupted + 0.3
    assert turned or encoder.tokens([found.label]) == [{"bert-words": "o", "gpt2-words": "l"}[name]]
    monkeypatch.setattr(patching, "AT_ONCE", 3 * expected.shape[1])  # three texts a call, and one or two in the last
    assert np.abs(patching_map(encoder, text, other).shares - expected).max() < CUT
    # the map says something: shifted by a block, by a token or with the texts exchanged it is another one
    for wrong in (np.roll(expected, 1, axis=0), np.roll(expected, 1, axis=1)):
        assert np.abs(wrong - expected).max() > 0.1
    assert np.abs(cell_by_cell(encoder, head, other, text, token) - expected).max() > 0.01


def test_twelve_blocks_and_twelve_tokens_take_fifteen_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_byte_level(encoders.write(tmp_path, "gpt2", vocab_size=261, n_layer=12))
    encoder = minibert.load_encoder(folder)
    kinds = {kind: getattr(minibert.Encoder, kind) for kind in ("__call__", "trace")}
    for kind, right in kinds.items():
        monkeypatch.setattr(minibert.Encoder, kind, mock.create_autospec(right, side_effect=right))
    found = patching_map(encoder, "zyxwvutsrqpo", "zyxwvvtsrqpo")
    made = [call for kind in kinds for call in getattr(minibert.Encoder, kind).call_args_list]
    calls = [named["input_ids"].size for _, named in made]
    assert found.shares.shape == (13, 12) and len(calls) == 13 + 2
    assert sum(calls) == (13 * 12 + 2) * 12, "each cell is one text of twelve tokens"


NO_MAP: list[tuple[str, str, str, int | None, str]] = [
    ("bert-words", "questi[MASK]n", "quest[MASK]n", None, "10 .*9"),
    ("bert-words", "questi[MASK]n", "questi[MASK]n", None, "the same tokens; change a word"),
    ("bert-words", "question", "questian", None, r"\[MASK\]"),
    ("bert-words", "quest[MASK][MASK]n", "quast[MASK][MASK]n", None, r"\[MASK\].*\[6, 7\]"),
    ("bert-words", "questi[MASK]n", "quest[MASK]on", None, r"'\[MASK\]' .*'o' .*7"),
    ("bert-words", "questi[MASK]n", "questa[MASK]n", 10, r"10.*0\.\.9"),
    ("gpt2-words", "wonderfu", "wonderou", 3, r"3 .*0\.\d+ and 0\.\d+"),
    ("gpt2-words", "wonderfu", "wonderou", -1, "-1"), ("gpt2-words", "", "w", None, "as many tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "other", "token", "says"), NO_MAP)
def test_texts_without_a_map_are_refused(name: str, text: str, other: str, token: int | None, says: str) -> None:
    with pytest.raises((ValueError, IndexError), match=says):
        patching_map(studied(name), text, other, token)


def test_a_model_without_a_head_for_words_is_refused(minilm: Path) -> None:
    with minibert.load_encoder(minilm) as encoder, pytest.raises(CheckpointError):
        patching_map(encoder, "a dog", "a cat")
