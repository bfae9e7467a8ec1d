"""The page that computes, without a browser: each number is the trace's; and its server: its access and its answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import encoders
import numpy as np
import pytest
from checkpoints import write_byte_level
from command_line import SMALL_GPT2, STUDY, Patch, Printed
from drawn import cosine
from limits import CHILD_SECONDS
from served import Address, Answer, live_served
from strict_html import data_of_script, unpacked

import minibert
from minibert.equations.blocks import softmax
from minibert.equations.heads import next_word_probabilities
from minibert.equations.input_layer import Array
from minibert.http_guard import REST
from minibert.models.encoder import Encoder
from minibert.models.patching import patching_map
from minibert.show import live as live_module
from minibert.show.attention import PARTS, named_kinds, shares_of, terms_of
from minibert.show.live import MOST_CONNECTIONS, MOST_TOKENS, Live, LiveServer
from minibert.show.live_state import read_state

TEXT, OTHER = "we lived above", "the clouds above"
PAIR = ("wonderfu", "wonderou")
CLOSE = 3e-5  # error of cosines and probabilities in float32 beside float64


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return minibert.load_encoder(SMALL_GPT2)


@pytest.fixture(scope="module")
def gpt2(encoder: Encoder) -> Live:
    return Live(encoder)


def weights_of(answer: dict[str, Any]) -> Array:
    """The attention weights that the page draws: (blocks, heads, query, key)."""
    behind, seq = answer["numbers"]["blockdata"], len(answer["numbers"]["data"]["tokens"])
    return unpacked(behind["attention"], behind["blocks"], behind["heads"], seq, seq)


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "deberta-v2", "albert"])
def test_what_is_switched_off_is_off_in_the_page(name: str, tmp_path: Path) -> None:
    encoder = minibert.load_encoder(encoders.write_with_words(tmp_path, name))
    live, ids = Live(encoder), encoder.tokenize(TEXT)
    state = {"text": TEXT, "heads": [[1, 2]], "blocks": [0], "feed_forwards": [1]}
    answer = live.state(state)
    json.dumps(answer, allow_nan=False)
    feed = encoder.stack.blocks[1].parts[-1]
    change = minibert.knock_out(encoder, heads=[(1, 2)], blocks=[0])
    trace = encoder.trace(**ids, change=change | {feed.output_norm or feed.work.output: np.zeros_like})
    expected = np.stack([trace[f"attentions.{i}"][0] for i in range(encoders.DEPTH)])
    assert np.array_equal(weights_of(answer), expected) and not expected[1, 2].any()
    last = f"hidden_states.{encoders.DEPTH}"
    one, two = (values[last][0].mean(axis=0) for values in (trace, encoder.trace(**ids)))
    found = answer["numbers"]["livedata"]
    assert found["half"] == (name == "t5"), "its page says that the decoder predicts"
    assert found["change"]["cosine"] == pytest.approx(cosine(one, two), abs=CLOSE) and cosine(one, two) < 0.99


def test_a_term_is_taken_out_of_block_0(tmp_path: Path) -> None:
    encoder = minibert.load_encoder(encoders.write_with_words(tmp_path / "bert", "bert"))
    live, terms = Live(encoder), terms_of(encoder, encoder.tokenize(TEXT))
    state = {"text": TEXT, "terms": [[1, 1], [0, 1]]}
    answer, left = live.state(state), terms.sum(axis=(0, 1)) - terms[1, 1] - terms[0, 1]
    assert np.abs(weights_of(answer)[0] - softmax(left)).max() < CLOSE
    assert np.abs(weights_of(live.state({"text": TEXT}))[0] - softmax(left)).max() > 1000 * CLOSE
    named = live.state({"text": TEXT, "replaced": [[1, "##s"]]})  # as the vocabulary writes it
    assert named["numbers"]["data"]["tokens"][1] == "##s"
    told = answer["numbers"]["livedata"]["terms"]
    assert np.array_equal(told["shares"], shares_of(encoder, terms)) and told["parts"] == PARTS
    for block in (0, 1):
        cell = live.cell({"state": state, "block": block, "head": 2, "query": 1, "key": 3})
        assert cell["sum"] == pytest.approx(cell["score"], abs=CLOSE)
        assert sorted(each["name"] for each in cell["terms"]) == [
            f"{name} with position, taken out" for name in ("position", "word") if block == 0
        ]
    rotary = Live(minibert.load_encoder(encoders.write_with_words(tmp_path / "llama", "llama")))
    assert rotary.state({"text": TEXT})["numbers"]["livedata"]["terms"] is None
    with pytest.raises(ValueError):
        rotary.state(state)


def test_values_of_another_text_are_put_in(tmp_path: Path) -> None:
    encoder = minibert.load_encoder(encoders.write_with_words(tmp_path, "bert"))
    live, ids, other = Live(encoder), encoder.tokenize(TEXT), encoder.trace(**encoder.tokenize(OTHER))
    names = {"stream": "hidden_states.1", "attention": "encoder.layer.1.attention.output.dense",
             "feed-forward": "encoder.layer.1.output.dense"}  # fmt: skip

    def answered(**patch: Any) -> float:
        numbers = live.state({"text": TEXT, "beside": OTHER, "patches": [patch]})["numbers"]
        assert numbers["besidedata"]["tokens"][1:4] == OTHER.split()
        return float(numbers["livedata"]["change"]["cosine"])

    usual, theirs = (encoder(**encoder.tokenize(text))[0].mean(axis=0) for text in (TEXT, OTHER))
    for what, name in names.items():

        def put(values: Array, name: str = name) -> Array:
            values[0, 2] = other[name][0, 3]
            return values

        expected = cosine(encoder(**ids, change={name: put})[0].mean(axis=0), usual)
        assert answered(what=what, block=1, place=2, source=3) == pytest.approx(expected, abs=CLOSE)
        assert expected < 1 - 5 * CLOSE
    everything = answered(what="stream", block=1, place=None, source=None)
    assert everything == pytest.approx(cosine(theirs, usual), abs=CLOSE), "the stream is all that there is of a text"


def test_the_prediction_as_typed_and_now(gpt2: Live, encoder: Encoder) -> None:
    answer = gpt2.state({"text": "wonderfu", "heads": [[0, 0]], "replaced": [[1, "t"]]})
    batch = encoder.tokenize("wonderfu")
    before = softmax(encoder.logits(**batch)[0, -1].astype(np.float64))
    batch["input_ids"][0, 1] = encoder.embeddings.tokenizer.id_of("t")
    now = softmax(encoder.logits(**batch, change=minibert.knock_out(encoder, heads=[(0, 0)]))[0, -1].astype(np.float64))
    rows = answer["numbers"]["livedata"]["change"]["rows"]
    assert len(rows) == 9 and answer["numbers"]["data"]["tokens"][1] == "t"
    assert rows[-1][0][0] == encoder.tokens([int(now.argmax())])[0]
    for name, was, is_now in rows[-1]:
        i = encoder.embeddings.tokenizer.id_of(name)
        assert (was, is_now) == (pytest.approx(before[i], abs=CLOSE), pytest.approx(now[i], abs=CLOSE))
    assert {int(i) for i in np.argsort(-before)[:5]} <= {encoder.embeddings.tokenizer.id_of(row[0]) for row in rows[-1]}
    assert answer["numbers"]["predictdata"]["shares"], "without a head the parts still add up"
    assert gpt2.state({"text": "wonderfu", "blocks": [0]})["numbers"]["predictdata"]["shares"] is None


def test_a_word_is_chosen_by_temperature_top_k_and_top_p(gpt2: Live, encoder: Encoder) -> None:
    question = {"state": {"text": "wonderfu"}, "token": 8, "temperature": 2.0, "k": 4, "p": 0.9}
    logits = encoder.logits(**encoder.tokenize("wonderfu"))[0, -1].astype(np.float64)
    chances = next_word_probabilities(logits, 2.0, 4, 0.9)
    stay = np.flatnonzero(chances)
    expected = dict(zip(encoder.tokens(stay), chances[stay], strict=True))
    found = gpt2.sample(question | {"seed": 0})
    assert found["kept"] == len(stay)
    for name, _, after in found["words"]:
        assert after == pytest.approx(expected.get(name, 0.0), abs=CLOSE)
    chosen = [gpt2.sample(question | {"seed": seed})["sampled"][0] for seed in range(40)]
    assert set(chosen) <= set(expected) and len(set(chosen)) > 1
    assert gpt2.sample(question | {"seed": 7}) == gpt2.sample(question | {"seed": 7})
    assert gpt2.sample(question | {"temperature": 0.0, "seed": 3})["sampled"] == ["l", 1.0]
    assert found["appended"] == found["sampled"][0]


def test_the_map_is_of_the_texts_as_typed(gpt2: Live, encoder: Encoder, monkeypatch: Patch) -> None:
    state = {"text": "wonderfu", "beside": "wonderou", "heads": [[0, 0]]}
    for token in (8, 7):
        answer, found = gpt2.map({"state": state, "token": token}), patching_map(encoder, *PAIR, token)
        assert np.array_equal(answer["shares"], found.shares) and answer["token"] == token
        assert answer["chances"] == pytest.approx(np.exp([found.clean, found.corrupted]).tolist())
        assert answer["word"] == encoder.tokens([found.label])[0]
        assert answer["tokens"][1:] == [*"wonder", "f | o", "u"]
    assert np.ptp(answer["shares"]) > 0.9
    html = gpt2.saved({"state": state, "token": 7, "map": answer})["html"]
    assert data_of_script(html, "livedata")["saved"]["map"] == json.loads(json.dumps(answer))
    monkeypatch.setattr(live_module, "MAPPED", 9)
    with pytest.raises(ValueError, match="up to 9"):
        gpt2.map({"state": {"text": "a" * 12, "beside": "b"}, "token": 3})


@pytest.mark.parametrize(("name", "text", "few", "separator"), [
    ("gpt2-words", "banana", "a", None), ("bert-words", "banan[MASK]", "", "[SEP]"),
])  # fmt: skip
def test_kinds_are_of_the_weights(name: str, text: str, few: str, separator: str | None) -> None:
    live = Live(minibert.load_encoder(STUDY / name))
    assert live.encoder is not None
    assert live.usual_text() == ("questi[MASK]n" if separator else "wonderfu"), "with a mask to find"
    answer, ids = live.state({"text": text}), live.encoder.tokenize(text)["input_ids"][0]
    found = named_kinds(weights_of(answer), ids, ids[-1] if separator else None, separator)
    assert answer["numbers"]["livedata"]["kinds"] == found
    assert separator or {shares[4] for block in found["shares"] for shares in block} == {None}
    found = live.state({"text": few})["numbers"]["livedata"]["kinds"]
    assert found["shares"][0][0] == [None] * 5 and found["names"][0][0] == "none"


SEP, IDS = 3, np.array([2, 7, 8, 9, 8, 3])  # a word twice, the separator at the end
PLANTED = {
    "previous token": np.eye(6, k=-1), "next token": np.eye(6, k=1), "first token": np.eye(6)[[0] * 6],
    "same word": np.eye(6)[[0, 1, 4, 0, 2, 1]], "[SEP]": np.eye(6)[[5] * 6], "none": np.full((6, 6), 1 / 6),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("most", [1.0, 0.55])
def test_a_head_gets_the_name_of_the_attention_that_is_planted(name: str, most: float) -> None:
    weights = most * PLANTED[name] + (1 - most) / 6
    found = named_kinds(weights[None, None], IDS, SEP, "[SEP]")
    assert found["names"] == [[name]]
    assert len(found["kinds"]) == len(found["shares"][0][0]) == 5
    twice = np.array([2, 7, SEP, 8, 9, SEP])  # a separator is no word
    assert named_kinds(weights[None, None], twice, SEP, "[SEP]")["shares"][0][0][3] is None


def test_shares_of_kinds_are_means_over_the_queries() -> None:
    w = np.random.default_rng(0).dirichlet(np.ones(6), 6)
    means = [np.diag(w, -1)[1:].mean(), np.diag(w, 1)[2:].mean(), w[2:, 0].mean(), (w[2, 4] + w[4, 2]) / 2,
             w[2:, 5].mean()]  # fmt: skip
    found = named_kinds(w[None, None], IDS, SEP, "[SEP]")
    assert np.allclose(found["shares"][0][0], means, atol=1e-12)


def test_the_page_opens_at_its_state_and_is_saved_with_one(gpt2: Live) -> None:
    html = gpt2.page("wonderfu")
    assert "connect-src 'self'" in html and data_of_script(html, "livedata")["state"]["text"] == "wonderfu"
    state = {"text": "wonderfu", "heads": [[1, 2]], "beside": "beautifu"}
    saved = gpt2.saved({"state": state, "token": 3, "sample": None, "cell": None})["html"]
    assert "connect-src" not in saved and "http" not in saved.replace("http-equiv", "").replace(
        "http://www.w3.org/2000/svg", ""
    )
    data = data_of_script(saved, "livedata")
    assert data["saved"]["token"] == 3 and data["state"]["heads"] == [[1, 2]]
    assert data_of_script(saved, "blockdata") == json.loads(json.dumps(gpt2.state(state)["numbers"]["blockdata"]))


def test_an_input_layer_alone_has_a_page_too(tmp_path: Path) -> None:
    live = Live(minibert.load(encoders.write_with_words(tmp_path, "bert")))
    assert data_of_script(live.page("we lived"), "livedata")["blocks"] == 0
    assert len(live.state({"text": "we lived above"})["numbers"]["data"]["tokens"]) == 5


def test_a_text_that_is_too_long(tmp_path: Path) -> None:
    encoder = minibert.load_encoder(write_byte_level(encoders.write(tmp_path, "gpt2", n_positions=8 * MOST_TOKENS)))
    with pytest.raises(ValueError):
        Live(encoder).state({"text": "he was " * MOST_TOKENS})
    assert read_state({"text": "a"}).typed == read_state({"text": "a", "heads": [[0, 0]]}).typed


STATE = {"text": "wonderfu"}


class Running(NamedTuple):
    address: Address
    server: LiveServer
    live: Live

    def asked(self, name: str, body: Any, **headers: str) -> Answer:
        return self.address.ask(f"/{name}", body, **{"Authorization": f"Bearer {self.server.token}", **headers})

    def page(self, **headers: str) -> Answer:
        return self.address.ask(f"/?token={self.server.token}", **headers)


@pytest.fixture(scope="module")
def running(gpt2: Live) -> Iterator[Running]:
    with live_served(gpt2, lambda: gpt2.page("wonderfu")) as (address, server):
        yield Running(address, server, gpt2)


def test_the_page_and_a_state(running: Running) -> None:
    page = running.page()
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    assert running.server.token not in page.body.decode(), "only the address has it"
    assert page.headers["referrer-policy"] == "no-referrer"
    found = running.asked("state", STATE)
    assert found.status == 200 and found.json == json.loads(json.dumps(running.live.state(STATE)))
    assert running.asked("cell", {"state": STATE, "block": 0, "head": 1, "query": 3, "key": 2}).json["seen"]


def test_every_answer_has_the_headers_of_the_page(running: Running, monkeypatch: Patch) -> None:
    """An answer without the token, an unknown address and a fault of the server too."""
    monkeypatch.setattr(running.server, "page", lambda: 1 / 0)
    asked, ask = running.asked, running.address.ask
    found = [
        asked("state", STATE), asked("state", b"{"), ask("/"), ask("/?token=wrong"), ask("/state", STATE),
        asked("state", STATE, Authorization="Bearer x"), asked("nothing", {}), ask("/state"), running.page(),
    ]  # fmt: skip
    assert [each.status for each in found] == [200, 400, 401, 401, 401, 401, 404, 404, 500]
    assert "whole address" in found[2].json["error"]["message"]
    for each in found:
        assert each.headers["x-frame-options"] == "DENY" and each.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("error", "printed"), [(ConnectionResetError(), False), (KeyError("lost"), True)])
def test_a_client_that_left_prints_no_traceback(
    error: Exception, printed: bool, running: Running, capsys: Printed
) -> None:
    try:
        raise error
    except type(error):
        running.server.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) is printed


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.168.0.3", ""])
def test_another_name_than_this_machine_s_is_refused(host: str, running: Running) -> None:
    assert {running.page(Host=host).status, running.asked("state", STATE, Host=host).status} <= {400, 403}
    for path in ("/state/", "//evil.example", "/other"):  # a redirect would repeat the name
        found = running.address.ask(path, Host=host)
        assert found.status == 403 and "location" not in found.headers


def test_a_page_of_another_origin_is_refused(running: Running) -> None:
    address = running.address
    own = f"http://127.0.0.1:{address.port}"
    assert running.asked("state", STATE, Origin=own).status == 200
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        found = running.asked("state", STATE, Origin=origin)
        assert found.status == 403 and "access-control-allow-origin" not in found.headers
    preflight = address.ask("/state", method="OPTIONS", Origin="http://evil.example")
    assert preflight.status == 501 and "access-control-allow-origin" not in preflight.headers
    assert running.page(Host=f"localhost:{address.port}").status == 200


def test_what_cannot_be_is_refused(running: Running) -> None:
    for body in (b"{", b'{"text": "a", "text": "b"}', b'{"text": "a", "heads": [[9, 9]]}'):
        assert running.asked("state", body).status == 400, body
    for size in (300_000, REST):  # the client has sent all of it before it reads
        assert running.asked("state", b" " * size).status == 413


@pytest.mark.parametrize("body", ["%s", '{"text": %s}', '{"text": "a", "heads": %s}'])
def test_json_that_is_nested_deeply_is_misuse(body: str, running: Running) -> None:
    """The nesting is too deep for the parser, for the check of the state, or for the message."""
    for depth in range(900, 1000, 4):
        assert running.asked("state", (body % ("[" * depth + "]" * depth)).encode()).status == 400


def test_the_token_is_looked_at_before_the_body(running: Running) -> None:
    """This client sends no byte of a body."""
    with closing(HTTPConnection("127.0.0.1", running.address.port, timeout=CHILD_SECONDS)) as connection:
        connection.putrequest("POST", "/state")
        connection.putheader("Content-Length", str(REST))
        connection.endheaders()
        assert connection.getresponse().status == 401


def test_connections_have_a_bound(running: Running, monkeypatch: Patch) -> None:
    monkeypatch.setattr(live_module._Handler, "timeout", CHILD_SECONDS)  # none is closed meanwhile

    def opened() -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", running.address.port, timeout=CHILD_SECONDS)
        connection.request("GET", f"/?token={running.server.token}")
        return connection

    with ExitStack() as stack:
        held = [stack.enter_context(closing(opened())) for _ in range(MOST_CONNECTIONS)]
        assert {connection.getresponse().read()[:9] for connection in held} == {b"<!doctype"}
        assert not running.server.free.acquire(blocking=False)
        waiting = stack.enter_context(closing(opened()))
        held[0].close()
        assert waiting.getresponse().status == 200
