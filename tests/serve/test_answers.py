"""Answers over real HTTP, in the form that was asked for: the numbers are those of `encode`, `rank` and `classify`. And
/metrics: what was done is counted, by one process or by several that share a folder.
"""

from __future__ import annotations

import base64
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needed import need
from reference_files import REFERENCE
from served import SECONDS, Address, Answer, needs_server, opened, served, straight

import minibert
from minibert.equations.input_layer import Array
from minibert.serve.app import Server
from minibert.serve.options import DEFAULTS
from minibert.serve.worker import names_of

installed = pytest.fixture(scope="module", autouse=True)(needs_server)

NORMED, PROMPTS, LENGTHS, RERANKER = "sentences-last-token", "sentences-prompts", "sentences-residual", "uses-reranker"
SPARSE, PAIRS, TOPICS, LATE = "uses-sparse", "uses-inference", "uses-topics", "late-fixed"
TEXTS = ["we lived above the clouds", "dog", "", "the clouds we lived above, we above the clouds"]
LONG = "the clouds " * 40
MANY = [f"we lived {'above ' * (i % 7)}the clouds" for i in range(1500)]  # several steps of the worker
# a text's numbers move by its neighbours, which here are other requests'; measured 1.2e-7
NEIGHBOURS = 1e-6
OF_SPARSE = 1e-5  # of the sparse folder's weights, which are larger; measured 2.9e-6

Fields = dict[str, Any]
encoder_of = functools.cache(lambda name, **options: minibert.load_encoder(REFERENCE / name, **options))


@pytest.fixture(scope="module")
def address() -> Iterator[Address]:
    models = [opened(REFERENCE / each) for each in (NORMED, PROMPTS, LENGTHS, RERANKER, SPARSE, PAIRS, TOPICS)]
    with served(Server(models)) as found:
        yield found


def near(found: Any, want: Any, tolerance: float = NEIGHBOURS) -> bool:
    found, want = np.asarray(found), np.asarray(want)
    return found.shape == want.shape and bool(np.abs(found - want).max() <= tolerance)


def vectors(answer: Answer) -> Array:
    """The vectors of an answer in either form."""
    assert answer.status == 200, answer.body
    if isinstance(answer.json, list):
        return np.array(answer.json)
    data = answer.json["data"]
    assert [(each["index"], each["object"]) for each in data] == [(i, "embedding") for i in range(len(data))]
    rows = [each["embedding"] for each in data]
    return np.array([np.frombuffer(base64.b64decode(row), "<f4") if isinstance(row, str) else row for row in rows])


# -- vectors -----------------------------------------------------------------------------------------------------

V, UNIT, QUERY, DOCUMENT = "/v1/embeddings", {"normalize_embeddings": True}, "encode_query", "encode_document"
ROWS: list[tuple[str, str, Fields, Fields]] = [  # the fields, and what `encode` is told
    (V, NORMED, {}, {}), (V, NORMED, {"encoding_format": "base64"}, {}), (V, NORMED, {"dimensions": 8}, {}),
    ("/embeddings", NORMED, {"input": MANY[: 3 * DEFAULTS.inline], "encoding_format": "float"}, {}),
    (V, NORMED, {"input": "dog", "encoding_format": "base64"}, {}),
    (V, NORMED, {"dimensions": 3}, {"truncate_dim": 3, **UNIT}),  # normalized, since the model does
    (V, NORMED, {"truncate_prompt_tokens": 4}, {"max_seq_length": 4}),  # with the special ones
    (V, NORMED, {"truncate_prompt_tokens": 4, "input": MANY[6]}, {"max_seq_length": 4}),
    (V, NORMED, {"truncate_prompt_tokens": 99}, {}), (V, LENGTHS, {"dimensions": 2}, {"truncate_dim": 2}),
    (V, LENGTHS, {"dimensions": 2, "normalized": True}, {"truncate_dim": 2, **UNIT}),
    (V, LENGTHS, {"normalized": True, "late_chunking": False}, UNIT),
    (V, LENGTHS, {"task": "query"}, {"by": QUERY}),  # cut at 4 tokens
    *((V, PROMPTS, {field: name}, {"by": by}) for field, name, by in (
        ("task", "query", QUERY), ("prompt_name", "query", QUERY), ("input_type", "search_query", QUERY),
        ("task", "retrieval.query", QUERY), ("task", "document", DOCUMENT), ("input_type", "search_document", DOCUMENT),
        ("task", "retrieval.passage", DOCUMENT))),
    (V, PROMPTS, {"input_type": "passage"}, {"prompt_name": "passage"}),  # which is its default too
    (V, NORMED, {"task": "passage"}, {}),  # its document, which has no words before it
    ("/embed", PROMPTS, {"prompt_name": "passage"}, {"prompt_name": "passage", **UNIT}),
    ("/embed", LENGTHS, {}, UNIT), ("/embed", LENGTHS, {"normalize": False, "truncate": True}, {}),
    ("/embed", LENGTHS, {"inputs": TEXTS[0], "truncation_direction": "Right"}, UNIT),
    ("/embed", LENGTHS, {"dimensions": 2}, {"truncate_dim": 2, **UNIT}), ("/", LENGTHS, {}, UNIT),  # its own route
    *((V, LENGTHS, {name: form, "embedding_type": form}, {"precision": form})
      for name in ("encoding_format", "embedding_type", "encoding_type") for form in ("binary", "ubinary")),
]  # fmt: skip


@pytest.mark.parametrize(("path", "name", "fields", "told"), ROWS, ids=lambda each: f"{each!r:.40}")
def test_vectors_are_those_of_encode(path: str, name: str, fields: Fields, told: Fields, address: Address) -> None:
    """And others than those of `encode` without what it is told: a server that forgets it would show."""
    field = "inputs" if path in ("/", "/embed") else "input"
    body = {field: TEXTS, "model": name} | fields
    texts = np.ravel(body[field]).tolist()
    options = {each: value for each, value in told.items() if each not in ("by", "max_seq_length")}
    encoder = encoder_of(name, **{each: told[each] for each in told if each == "max_seq_length"})
    want = getattr(encoder, told.get("by", "encode"))(texts, **options)
    assert near(vectors(address.ask(path, body)), want, 0 if "precision" in told else NEIGHBOURS)
    assert near(encoder_of(name).encode(texts), want) == (set(told) <= {"prompt_name"})


def test_an_answer_has_openais_form(address: Address) -> None:
    answer = address.embed(TEXTS[:2], model=NORMED)
    tokens = int(encoder_of(NORMED).tokenize(TEXTS[:2])["attention_mask"].sum())
    assert answer.headers["content-type"] == "application/json"
    assert {name: value for name, value in answer.json.items() if name != "data"} == {
        "object": "list", "model": NORMED, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}, "truncated": 0,
        "truncated_texts": [],
    }  # fmt: skip


def test_sparse_vectors_are_those_of_encode_sparse(address: Address) -> None:
    for texts in (TEXTS, MANY):
        found = address.ask("/embed_sparse", {"inputs": texts}).json
        for row, want in zip(found, encoder_of(SPARSE).encode_sparse(texts), strict=True):
            assert [each["index"] for each in row] == want.ids.tolist()
            assert near([each["value"] for each in row], want.weights, OF_SPARSE)
    assert len(address.ask("/embed_sparse", {"inputs": "dog"}).json) == 1


def test_many_clients_at_once_get_their_own(address: Address) -> None:
    """Eight clients send different texts; one request in four is refused, and the rest are not disturbed."""
    texts = [f"we lived above {'the clouds ' * (i % 9)}dog {i}" for i in range(160)]
    want = encoder_of(NORMED).encode(texts)

    def client(number: int) -> None:
        for i in range(number, len(texts), 8):
            if i % 4 == 3:
                assert address.embed([texts[i], 7]).status == 400
            assert near(vectors(address.embed([texts[i], "dog"]))[:1], want[i : i + 1])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))


def test_fields_that_clients_add_and_that_change_nothing(address: Address) -> None:
    more = {"user": {"id": 7}, "return_len": True, "add_special_tokens": True, "truncate_prompt_tokens": -1}
    nulls = dict.fromkeys(["model", "encoding_format", "dimensions", "task", "truncate", "any_other", "query_prefix"])
    assert address.embed("dog", **more, **nulls).json == address.embed("dog").json
    asked = {"query": "clouds", "documents": TEXTS}
    best = address.ask("/rerank", asked | {"top_n": 2}).json
    nulls = dict.fromkeys(["model", "texts", "return_documents", "raw_scores", "max_tokens_per_doc", "rank_fields"])
    assert address.ask("/rerank", asked | more | nulls | {"top_k": 2, "priority": 3}).json == best
    assert len(best["results"]) == 2
    asked = {"inputs": "dog", "model": TOPICS}  # huggingface_hub sends parameters, though it has none
    assert address.ask("/predict", asked | {"parameters": {"top_k": None}}).json == address.ask("/predict", asked).json


# -- scores and labels -------------------------------------------------------------------------------------------

ASKED, DOCUMENTS = "the dog we lived above", [LONG, "we lived above the clouds", "above"]
THREE = ["the clouds the", "we lived above", "above"]  # the first three tokens of each
SCORED: list[tuple[Fields, list[str], int]] = [  # the fields, the texts that are scored, how many are cut
    ({"documents": DOCUMENTS, "return_documents": True, "max_tokens_per_doc": 4096}, DOCUMENTS, 2),
    ({"documents": DOCUMENTS, "max_tokens_per_doc": 3, "priority": 9}, THREE, 0),
    ({"documents": DOCUMENTS, "return_documents": True, "max_chunks_per_doc": 10, "model": RERANKER}, DOCUMENTS, 2),
    ({"texts": DOCUMENTS, "return_text": True}, DOCUMENTS, 2),
    ({"texts": DOCUMENTS, "raw_scores": True, "top_n": 3}, DOCUMENTS, 2),
]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize(("fields", "texts", "cut"), SCORED, ids=lambda each: f"{each!r:.40}")
def test_scores_are_those_of_predict(path: str, fields: Fields, texts: list[str], cut: int, address: Address) -> None:
    """In Cohere's form or in that of text-embeddings-inference, the best first."""
    encoder, plain = encoder_of(RERANKER), "texts" in fields
    raw = {"activation_fn": lambda logits: logits} if "raw_scores" in fields else {}
    want = encoder.predict([(ASKED, text) for text in texts], **raw)
    answer = address.ask(path, {"query": ASKED} | fields).json
    results = answer if plain else answer["results"]
    assert [each["index"] for each in results] == np.argsort(-want, kind="stable").tolist()
    assert near([each["score" if plain else "relevance_score"] for each in results], np.sort(want)[::-1])
    for each in results:
        sent = {"text": (fields.get("documents") or fields["texts"])[each["index"]]}
        told = {name: value for name, value in each.items() if name not in ("index", "score", "relevance_score")}
        back = "return_text" in fields or "return_documents" in fields
        assert told == ((sent if plain else {"document": sent}) if back else {})
    if not plain:
        assert (answer["model"], answer["truncated"], len(answer["truncated_texts"])) == (RERANKER, cut, cut)
        if LONG not in texts:  # else the folder's own longest length cuts too
            tokens = encoder.tokenize([ASKED] * 3, texts)["attention_mask"].sum()
            assert answer["usage"]["total_tokens"] == tokens, "the tokens of what was cut"


@pytest.mark.parametrize("beside", [False, True])
def test_late_interaction_answers_rerank(beside: bool) -> None:
    """As the model itself, or as the reranker of another; three requests at once, each with its own query."""
    late = encoder_of(LATE)
    folders = [NORMED, LATE] if beside else [LATE]
    with served(Server([opened(REFERENCE / name) for name in folders])) as address, ThreadPoolExecutor(2) as pool:
        queries = ["the clouds", "we lived", "dog"]
        bodies = [{"query": query, "documents": TEXTS, "raw_scores": i == 1} for i, query in enumerate(queries)]
        answers = list(pool.map(lambda body: address.ask("/rerank", body).json["results"], bodies))
        for query, answer in zip(queries, answers, strict=True):
            want = late.rank(query, TEXTS)
            assert [each["index"] for each in answer] == [each["corpus_id"] for each in want]
            found = np.array([each["relevance_score"] for each in answer])
            assert near(found / 12, np.array([each["score"] for each in want]) / 12)  # a sum over 12 tokens
        if beside:
            assert address.embed("dog").status == 200
        else:
            refused = address.embed("dog")
            assert refused.status == 404 and f"computes vectors; it was started with {LATE!r}" in refused.error
            info = address.ask("/info").json
            assert (info["gives"], info["similarity"], info["dimension"]) == (["scores of documents"], "maxsim", 6)
            cut = {"query": "the clouds", "documents": TEXTS, "max_tokens_per_doc": 1}
            (first,) = [each for each in address.ask("/rerank", cut).json["results"] if each["index"] == 0]
            assert near(first["relevance_score"] / 12, late.rank("the clouds", ["we"])[0]["score"] / 12)
            long = {"query": "a", "texts": ["the clouds", "the clouds " * 99]}
            assert address.ask("/rerank", long).status == 200
            assert "texts[1] has more tokens" in address.ask("/rerank", long | {"truncate": False}).error
            both = address.ask("/rerank", {"query": LONG, "documents": ["dog", LONG]}).json["truncated_texts"]
            asked, document = (late.tokens_cut(LONG, task, task=task) for task in ("query", "document"))
            lost = [(each["index"], each["tokens_left_out"]) for each in both]
            assert lost == [(0, asked), (1, asked + document)], "a query's in each pair"


@pytest.mark.parametrize("first", [LATE, NORMED])
def test_a_request_without_model_goes_to_the_reranker(first: str) -> None:
    """Also if another model can score too: its scores would lead to another order."""
    models = [opened(REFERENCE / first), opened(REFERENCE / RERANKER)]
    body = json.dumps({"query": "clouds", "documents": TEXTS}).encode()
    answer = straight(Server(models, reranker=models[1]), "/rerank", body).json
    assert answer["model"] == RERANKER
    want = encoder_of(RERANKER).rank("clouds", TEXTS)
    assert [each["index"] for each in answer["results"]] == [each["corpus_id"] for each in want]
    if first == LATE:
        assert straight(Server(models), "/rerank", body).json["model"] == LATE, "without one the first that can"


def test_predict_gives_labels_and_their_probabilities(address: Address) -> None:
    """For texts the result of `classify`; for pairs a softmax of the logits, or the logits."""
    for name, inputs in ((TOPICS, TEXTS[0]), (TOPICS, [TEXTS[0]]), (RERANKER, TEXTS[0])):
        found = address.ask("/predict", {"inputs": inputs, "model": name}).json
        want = encoder_of(name).classify(TEXTS[0])
        assert [each["label"] for each in found] == [each.label for each in want]
        assert near([each["score"] for each in found], [each.probability for each in want])
    both = [["dog", "we lived"], ["we lived", "dog"]]
    logits = encoder_of(PAIRS).predict(both, activation_fn=lambda x: x)
    raw = address.ask("/predict", {"inputs": both, "model": PAIRS, "raw_scores": True}).json
    assert near([[each["score"] for each in row] for row in raw], -np.sort(-logits))
    found = address.ask("/predict", {"inputs": both, "model": PAIRS}).json
    assert near([sum(each["score"] for each in row) for row in found], [1, 1])
    single = address.ask("/predict", {"inputs": both[0], "model": PAIRS}).json
    assert single[0].keys() == {"score", "label"} and single[0]["label"] == found[0][0]["label"]
    mixed = address.ask("/predict", {"inputs": [["dog"], both[0]], "model": PAIRS}).json
    assert near([each["score"] for each in mixed[1]], [each["score"] for each in found[0]])


# -- truncated texts ---------------------------------------------------------------------------------------------


def lost(name: str, *texts: list[str]) -> dict[int, int]:
    """The tokens of each text, or pair, beyond the model's longest."""
    encoder = encoder_of(name)
    tokens = [len(each.input_ids) - encoder.max_seq_length for each in encoder.sentence_tokenizer.encode(*texts)]
    return {i: count for i, count in enumerate(tokens) if count > 0}


@pytest.mark.parametrize(("path", "name", "fields", "texts"), [
    (V, NORMED, {}, "input"), ("/rerank", RERANKER, {"query": ASKED}, "documents"),
    ("/embed", NORMED, {}, "inputs"), ("/rerank", RERANKER, {"query": ASKED}, "texts"),
    ("/embed_sparse", SPARSE, {}, "inputs"), ("/predict", TOPICS, {}, "inputs"),
])  # fmt: skip
def test_each_truncated_text_is_told(path: str, name: str, fields: Fields, texts: str, address: Address) -> None:
    """In fields of the answer; beside a bare list, which has none, in headers."""
    sent = ["dog", LONG, "we", LONG + "dog"]
    want = lost(name, *([[ASKED] * 4, sent] if fields else [sent]))
    assert want.keys() == {1, 3} and want[1] < want[3]
    inputs: Any = [[text] for text in sent] if path == "/predict" else sent
    answer = address.ask(path, {texts: inputs, "model": name, **fields})
    if isinstance(answer.json, dict):
        assert answer.json["truncated"] == 2 and "x-truncated" not in answer.headers
        assert {each["index"]: each["tokens_left_out"] for each in answer.json["truncated_texts"]} == want
    else:
        assert answer.headers["x-truncated"] == "2"
        assert answer.headers["x-truncated-tokens"] == ",".join(f"{i}={count}" for i, count in want.items())
    headers = address.ask(path, {texts: inputs[:1], "model": name, **fields}).headers
    assert not {"x-truncated", "x-truncated-tokens"} & headers.keys()


def test_headers_for_many_truncated_texts_stay_short(address: Address) -> None:
    texts, (each,) = [*MANY, LONG], lost(NORMED, [LONG]).values()  # several steps of the worker
    many, want = address.embed(texts, model=NORMED).json, lost(NORMED, texts)
    assert {each["index"]: each["tokens_left_out"] for each in many["truncated_texts"]} == want
    tokens = encoder_of(NORMED).tokenize(texts)["attention_mask"].sum()
    assert many["usage"]["total_tokens"] == tokens - sum(want.values())
    headers = address.ask("/embed", {"inputs": [LONG] * 1500, "model": NORMED}).headers
    assert headers["x-truncated"] == "1500" and 3900 < len(headers["x-truncated-tokens"]) <= 4000
    assert {told.partition("=")[2] for told in headers["x-truncated-tokens"].split(",")} == {str(each)}


def test_the_names_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_of("org/name") == ("name", "org/name")
    assert names_of("name", ["a", "b"]) == ("a", "b", "name", "sentence-transformers/name")
    (tmp_path / "current").mkdir()
    assert names_of(str(tmp_path / "current")) == ("current", str(tmp_path / "current"))
    monkeypatch.chdir(tmp_path)
    assert names_of("current/") == ("current", "current/", str(tmp_path / "current"))
    assert names_of(".")[0] == tmp_path.name
    assert names_of("..")[0] == tmp_path.parent.name


def test_what_the_server_tells_of_itself(address: Address) -> None:
    answer = address.ask("/v1/models").json
    assert [each["id"] for each in answer["data"]] == [NORMED, PROMPTS, LENGTHS, RERANKER, SPARSE, PAIRS, TOPICS]
    assert answer["object"] == "list" and {each["object"] for each in answer["data"]} == {"model"}
    for name in (RERANKER, str(REFERENCE / SPARSE)):
        assert address.ask(f"/v1/models/{name}").json["id"] == name
        identity = address.ask(f"/v1/models/{name}").json["identity"]
        assert identity == encoder_of(Path(name).name).identity
        assert identity in {each["identity"] for each in answer["data"]}
    assert address.ask("/health").json == {"status": "ok"}
    found = address.ask("/info").json
    assert (found["model"], found["dimension"], found["max_seq_length"], found["gives"]) == (NORMED, 8, 30, ["vectors"])
    assert [each["model"] for each in found["models"]][:2] == [NORMED, PROMPTS]
    assert found["tasks"] == {"query": "Instruct: find\nQuery:", "document": ""}
    assert found["version"] == minibert.__version__
    assert [each["identity"] for each in found["models"]] == [each["identity"] for each in answer["data"]]
    assert found["limits"] == DEFAULTS._asdict()
    assert address.ask("/rerank", {"query": "a" * DEFAULTS.query, "documents": ["b"]}).status == 200, "no longer one"
    assert (DEFAULTS.waiting, DEFAULTS.texts, DEFAULTS.grace) == (256, 2048, 60)
    assert (DEFAULTS.body, DEFAULTS.characters, DEFAULTS.query) == (16777216, 200_000, 10_000)


counted = pytest.fixture(lambda: need("prometheus_client", "metrics"))


def numbers(answer: Answer) -> dict[str, float]:
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


@pytest.mark.usefixtures("counted")
def test_metrics_count_what_was_done() -> None:
    server = Server([opened(REFERENCE / LENGTHS, 'org/a"b'), opened(REFERENCE / RERANKER)])
    server.record.open()
    answer = straight(server, V, b'{"input": ["%s", "dog"]}' % LONG.encode())
    tokens = answer.json["usage"]["total_tokens"]
    assert straight(server, V, b'{"input": []}').status == 400
    assert straight(server, "/rerank", b'{"query": "a", "texts": ["b", "c", "d"]}').status == 200
    for path in ("/other", "/another"):
        assert straight(server, path, b"").status == 404
    found = numbers(straight(server, "/metrics", b"", method="GET"))
    want = {
        f'requests_total{{path="{V}",status="200"}}': 1, f'requests_total{{path="{V}",status="400"}}': 1,
        'requests_total{path="other",status="404"}': 2,  # no path of a client's own
        'texts_total{model="a\\"b"}': 2, 'tokens_total{model="a\\"b"}': tokens, 'truncated_total{model="a\\"b"}': 1,
        f'texts_total{{model="{RERANKER}"}}': 3, f'request_seconds_count{{path="{V}"}}': 2,
    }  # fmt: skip
    assert {name: found[f"minibert_{name}"] for name in want} == want
    assert found['minibert_request_seconds_sum{path="/rerank"}'] > 0


def test_without_prometheus_client_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    find = util.find_spec
    monkeypatch.setattr("minibert.serve.app.find_spec", lambda name: None if "prometheus" in name else find(name))
    server = Server([opened(REFERENCE / LENGTHS)])
    server.record.open()
    assert straight(server, "/embed", b'{"inputs": "dog"}').status == 200
    answer = straight(server, "/metrics", b"", method="GET")
    assert (answer.status, "pip install 'prometheus-client>=" in answer.error) == (501, True)


ONE = """
import sys
from minibert.serve.app import Record
record = Record(["/embed"])
record.open()
record.counts["requests"].labels("/embed", "200").inc()
print("counted", flush=True)
sys.stdin.readline()
sys.stdout.write(record.text().decode())
record.close()
"""


@pytest.mark.usefixtures("counted")
@pytest.mark.skipif(sys.platform == "win32", reason="several processes share a folder by its lock")
def test_processes_of_one_folder_give_their_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts of a killed process stay; the last one removes the files, and the first those of a run that was
    killed.
    """
    folder = tmp_path / "shared"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    folder.mkdir()
    (folder / "counter_1.db").write_bytes(b"of another run")

    def start(pipe: int = subprocess.PIPE) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", ONE], stdin=pipe, stdout=pipe, text=True)
        assert process.stdout.readline() == "counted\n"
        return process

    killed, first, last = start(), start(), start()
    (folder / "counter_0.db").touch()  # as a worker's is between its making and its first number
    killed.kill()
    killed.communicate(timeout=SECONDS)
    for process, others in ((first, 1), (last, 0)):
        said, _ = process.communicate("\n", timeout=SECONDS)
        assert 'minibert_requests_total{path="/embed",status="200"} 3.0' in said
        assert bool([*folder.iterdir()]) == bool(others)
