"""Other people's clients, each with its default settings, against `minibert serve`: their numbers are `encode`'s.

A client that its user must tell something has a comment: the server's page says why.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from needed import absent, missing
from reference_files import REFERENCE
from served import SECONDS, serving

import minibert

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("default"),  # theirs
]

MODEL, RERANKER, SPARSE = "all-MiniLM-L6-v2", "uses-reranker", "uses-sparse"
LATE = "late-fixed"  # it can score too, in another order: a client that names no model gets the reranker's scores
TEXTS = ["The app closes when I open it.", "The screen stays black.", "My card was billed twice this month."]
QUERY, DOCUMENTS = "clouds", ["we lived", "the clouds above", "above"]  # what the small reranker has words for
CLOSE = 1e-6  # numbers of a client beside those of `encode`; measured 3e-7
OF_SPARSE = 1e-5  # the small sparse folder's weights move by a text's neighbours; measured 2.9e-6
KEY = "none"
PACKAGES = (
    "chromadb", "cohere", "haystack", "haystack_integrations", "huggingface_hub", "langchain_cohere",
    "langchain_openai", "litellm", "llama_index", "openai",
)  # fmt: skip
JAVASCRIPT = """
import OpenAI from "openai"
const [baseURL, model, input] = process.argv.slice(2)
const client = new OpenAI({ baseURL, apiKey: "none" })
const found = await client.embeddings.create({ model, input: JSON.parse(input) })
console.log(JSON.stringify(found.data.map((each) => each.embedding)))
"""


class Service(NamedTuple):
    url: str
    vectors: Any  # of TEXTS, as `encode` gives them
    scores: Any  # of DOCUMENTS, as `predict` gives them


@pytest.fixture(scope="module")
def service(minilm: Path) -> Iterator[Service]:
    if names := absent(*PACKAGES):
        missing(f"{', '.join(names)} not installed; they are in the extra `clients`")
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network for its list of prices
    os.environ["ANONYMIZED_TELEMETRY"] = os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    vectors = minibert.load_encoder(minilm).encode(TEXTS)
    scores = minibert.load_encoder(REFERENCE / RERANKER).predict([(QUERY, text) for text in DOCUMENTS])
    folders = [str(minilm), *(str(REFERENCE / name) for name in (SPARSE, LATE, RERANKER))]
    options, said = ("--reranker", folders[3], "--name", MODEL), f"{MODEL}, {SPARSE}, {LATE}, {RERANKER}"
    silent = "/v1/embeddings; the model has no prompt for queries"
    with serving(*options, models=tuple(folders[:3]), said=said, path=silent) as (_, address):
        yield Service(address.url, vectors, scores)


def of(path: str) -> Any:
    """What somebody's package has by this name; none is loaded before its test."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def secret() -> Any:
    return of("haystack.utils.Secret").from_token(KEY)


def documents(texts: list[str]) -> Any:
    return [of("haystack.Document")(content=text) for text in texts]


# -- vectors -----------------------------------------------------------------------------------------------------


def openai(url: str) -> Any:
    client = of("openai.OpenAI")(base_url=f"{url}/v1", api_key=KEY)
    assert [each.id for each in client.models.list()] == [MODEL, SPARSE, LATE, RERANKER]
    assert client.models.retrieve(RERANKER).id == RERANKER
    return [each.embedding for each in client.embeddings.create(model=MODEL, input=TEXTS).data]


def litellm(url: str) -> Any:
    found = of("litellm.embedding")(f"openai/{MODEL}", TEXTS, api_base=f"{url}/v1", api_key=KEY)
    return [each["embedding"] for each in found.data]


def haystack(kind: str, **options: Any) -> Any:
    """By its two components of a kind: one text alone, and the others."""
    alone, many = (of(f"{kind}{each}Embedder")(**options) for each in ("Text", "Document"))
    rest = many.run(documents(TEXTS[1:]))["documents"]
    return [alone.run(TEXTS[0])["embedding"], *(each.embedding for each in rest)]


HAYSTACK = "haystack_integrations.components"
OF_VECTORS: dict[str, Callable[[str], Any]] = {
    "openai": openai,
    "langchain_openai": lambda url: of("langchain_openai.OpenAIEmbeddings")(
        # else it would send OpenAI's token ids, which are refused: tests/serve
        base_url=f"{url}/v1", api_key=KEY, model=MODEL, check_embedding_ctx_length=False
    ).embed_documents(TEXTS),
    "llama_index_tei": lambda url: of("llama_index.embeddings.text_embeddings_inference.TextEmbeddingsInference")(
        model_name=MODEL, base_url=url
    ).get_text_embedding_batch(TEXTS),
    "llama_index_openai_like": lambda url: of("llama_index.embeddings.openai_like.OpenAILikeEmbedding")(
        model_name=MODEL, api_base=f"{url}/v1", api_key=KEY
    ).get_text_embedding_batch(TEXTS),
    "litellm_openai": litellm,
    "chroma_openai": lambda url: of("chromadb.utils.embedding_functions.OpenAIEmbeddingFunction")(
        api_base=f"{url}/v1", api_key=KEY, model_name=MODEL
    )(TEXTS),
    "chroma_tei": lambda url: of("chromadb.utils.embedding_functions.HuggingFaceEmbeddingServer")(
        url=f"{url}/embed"
    )(TEXTS),
    "haystack_openai": lambda url: haystack(
        "haystack.components.embedders.OpenAI", api_key=secret(), model=MODEL, api_base_url=f"{url}/v1"
    ),
    "haystack_tei": lambda url: haystack(
        f"{HAYSTACK}.embedders.huggingface_api.HuggingFaceAPI",
        api_type="text_embeddings_inference", api_params={"url": url}, token=secret(),
    ),
    "haystack_jina": lambda url: haystack(
        f"{HAYSTACK}.embedders.jina.Jina", api_key=secret(), model=MODEL, base_url=f"{url}/v1/embeddings"
    ),
}  # fmt: skip


@pytest.mark.parametrize("client", OF_VECTORS)
def test_a_client_gets_the_vectors_of_encode(client: str, service: Service) -> None:
    found = np.array(OF_VECTORS[client](service.url))
    assert found.shape == service.vectors.shape
    assert np.abs(found - service.vectors).max() <= CLOSE


def test_openais_client_in_javascript(service: Service, tmp_path: Path) -> None:
    modules = Path(sys.prefix) / "javascript" / "node_modules"
    if not (shutil.which("node") and modules.is_dir()):
        missing(f"node, or openai in {modules}: npm install --prefix {modules.parent} openai")
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "client.mjs").write_text(JAVASCRIPT)
    done = subprocess.run(
        ["node", "client.mjs", f"{service.url}/v1", MODEL, json.dumps(TEXTS)],
        cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert np.abs(np.array(json.loads(done.stdout)) - service.vectors).max() <= CLOSE


def test_haystacks_client_gets_the_sparse_vectors_of_encode_sparse(service: Service) -> None:
    kind, options = f"{HAYSTACK}.embedders.huggingface_api.HuggingFaceTEISparse", {"api_base_url": service.url}
    alone, many = (of(f"{kind}{each}Embedder")(**options, token=secret()) for each in ("Text", "Document"))
    rest = many.run(documents(DOCUMENTS[1:]))["documents"]
    found = [alone.run(DOCUMENTS[0])["sparse_embedding"], *(each.sparse_embedding for each in rest)]
    wanted = minibert.load_encoder(REFERENCE / SPARSE).encode_sparse(DOCUMENTS)
    for each, want in zip(found, wanted, strict=True):
        assert each.indices == want.ids.tolist()
        assert np.abs(np.array(each.values) - want.weights).max() <= OF_SPARSE


def test_huggingface_hubs_client_gets_the_likeliest_label(service: Service) -> None:
    """It sends `parameters`, though it has none."""
    found = of("huggingface_hub.InferenceClient")(f"{service.url}/predict").text_classification(DOCUMENTS[0])
    (want,) = minibert.load_encoder(REFERENCE / RERANKER).classify(DOCUMENTS[0])
    assert (found.label, abs(found.score - want.probability) <= CLOSE) == (want.label, True)


# -- scores: the number of each document, by its index -------------------------------------------------------------


def cohere(url: str, client: str, **options: Any) -> Any:
    made = of(f"cohere.{client}")(KEY, base_url=url)
    found = made.rerank(model=RERANKER, query=QUERY, documents=DOCUMENTS, **options)
    return {each.index: each.relevance_score for each in found.results}


def of_litellm(url: str, model: str) -> Any:
    found = of("litellm.rerank")(f"{model}/{RERANKER}", QUERY, DOCUMENTS, api_base=url, api_key=KEY)
    return {each["index"]: each["relevance_score"] for each in found.results}


def langchain_cohere(url: str) -> Any:
    client = of("langchain_cohere.CohereRerank")(base_url=url, cohere_api_key=KEY, model=RERANKER)
    return {each["index"]: each["relevance_score"] for each in client.rerank(DOCUMENTS, QUERY)}


def llama_index(kind: str, **options: Any) -> Any:
    schema = importlib.import_module("llama_index.core.schema")
    nodes = [schema.TextNode(text=text, id_=str(i)) for i, text in enumerate(DOCUMENTS)]
    nodes = [schema.NodeWithScore(node=node) for node in nodes]
    found = of(f"llama_index.postprocessor.{kind}")(**options).postprocess_nodes(nodes, schema.QueryBundle(QUERY))
    return {int(each.node.node_id): each.score for each in found}


def ranked_by_haystack(kind: str, **options: Any) -> Any:
    found = of(f"{HAYSTACK}.rankers.{kind}")(**options).run(query=QUERY, documents=documents(DOCUMENTS))["documents"]
    return {DOCUMENTS.index(each.content): each.score for each in found}


OF_SCORES: dict[str, Callable[[str], Any]] = {
    "cohere_v1": lambda url: cohere(url, "Client"),
    "cohere_v2": lambda url: cohere(url, "ClientV2", max_tokens_per_doc=4096, priority=1),
    "langchain_cohere": langchain_cohere,
    "llama_index_tei": lambda url: llama_index("tei_rerank.TextEmbeddingInference", base_url=url),
    "llama_index_jina": lambda url: llama_index(
        "jinaai_rerank.JinaRerank", base_url=f"{url}/v1", api_key=KEY, model=RERANKER, top_n=len(DOCUMENTS)
    ),
    "litellm_cohere": lambda url: of_litellm(url, "cohere"),
    "litellm_jina": lambda url: of_litellm(f"{url}/v1/rerank", "jina_ai"),
    "litellm_tei": lambda url: of_litellm(f"{url}/rerank", "huggingface"),
    "haystack_cohere": lambda url: ranked_by_haystack(
        "cohere.CohereRanker", api_key=secret(), model=RERANKER, api_base_url=url
    ),
    "haystack_jina": lambda url: ranked_by_haystack(
        "jina.JinaRanker", api_key=secret(), model=RERANKER, base_url=f"{url}/v1/rerank"
    ),
    "haystack_tei": lambda url: ranked_by_haystack(
        "huggingface_api.HuggingFaceTEIRanker", url=url, token=secret()
    ),
}  # fmt: skip


@pytest.mark.parametrize("client", OF_SCORES)
def test_a_client_gets_the_scores_of_predict(client: str, service: Service) -> None:
    found = OF_SCORES[client](service.url)
    best = {int(i): service.scores[i] for i in np.argsort(-service.scores)}  # some give the best ones alone
    assert list(found) == list(best)[: len(found)] and len(found) >= 2
    assert max(abs(found[i] - best[i]) for i in found) <= CLOSE


def test_clients_read_which_texts_were_truncated(service: Service) -> None:
    """OpenAI's and Cohere's clients keep a field that they do not know; TEI's list stays a list."""
    long = "clouds " * 300
    with of("openai.OpenAI")(base_url=f"{service.url}/v1", api_key=KEY) as client:
        extra = client.embeddings.create(model=MODEL, input=["we", long]).model_extra
    left_out = 300 + 2 - 256  # of MiniLM
    assert extra is not None and extra["truncated_texts"] == [{"index": 1, "tokens_left_out": left_out}]
    with of("cohere.ClientV2")(KEY, base_url=service.url) as client:
        ranking = client.rerank(model=RERANKER, query="we", documents=["we", long])
    assert [each["index"] for each in ranking.truncated_texts] == [1]
    with of("huggingface_hub.InferenceClient")(base_url=service.url) as tei:
        assert tei.feature_extraction(long).shape == (1, 384)
