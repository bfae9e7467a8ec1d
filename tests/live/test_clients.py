"""Other people's clients, each with its default settings, against `minibert serve`: their numbers are `encode`'s.

A client that its user must tell something is in `TOLD`: the server's page says why.
"""

from __future__ import annotations

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
from served import SECONDS

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
TOLD = {"langchain_openai": {"check_embedding_ctx_length": False}}  # it would send OpenAI's token ids
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
    command = [sys.executable, "-m", "minibert", "serve", str(minilm), str(REFERENCE / SPARSE)]
    command += [str(REFERENCE / LATE), "--port", "0"]
    options = ["--reranker", str(REFERENCE / RERANKER), "--name", MODEL]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            port = line.partition("127.0.0.1:")[2].partition("/")[0]
            assert port.isdigit(), line
            yield Service(f"http://127.0.0.1:{port}", vectors, scores)
        finally:
            process.terminate()


# -- vectors -----------------------------------------------------------------------------------------------------


def openai(url: str) -> Any:
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    assert [each.id for each in client.models.list()] == [MODEL, SPARSE, LATE, RERANKER]
    assert client.models.retrieve(RERANKER).id == RERANKER
    return [each.embedding for each in client.embeddings.create(model=MODEL, input=TEXTS).data]


def langchain_openai(url: str) -> Any:
    from langchain_openai import OpenAIEmbeddings

    return OpenAIEmbeddings(base_url=f"{url}/v1", api_key=KEY, model=MODEL, **TOLD["langchain_openai"]).embed_documents(
        TEXTS
    )


def llama_index_tei(url: str) -> Any:
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    return TextEmbeddingsInference(model_name=MODEL, base_url=url).get_text_embedding_batch(TEXTS)


def llama_index_openai_like(url: str) -> Any:
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    return OpenAILikeEmbedding(model_name=MODEL, api_base=f"{url}/v1", api_key=KEY).get_text_embedding_batch(TEXTS)


def litellm_openai(url: str) -> Any:
    import litellm

    found = litellm.embedding(f"openai/{MODEL}", TEXTS, api_base=f"{url}/v1", api_key=KEY)
    return [each["embedding"] for each in found.data]


def chroma_openai(url: str) -> Any:
    from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

    return OpenAIEmbeddingFunction(api_base=f"{url}/v1", api_key=KEY, model_name=MODEL)(TEXTS)


def chroma_tei(url: str) -> Any:
    from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer

    return HuggingFaceEmbeddingServer(url=f"{url}/embed")(TEXTS)


def haystack_openai(url: str) -> Any:
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder

    options = dict(api_key=_secret(), model=MODEL, api_base_url=f"{url}/v1")
    return _of_haystack(OpenAITextEmbedder(**options), OpenAIDocumentEmbedder(**options))


def haystack_tei(url: str) -> Any:
    from haystack_integrations.components.embedders import huggingface_api as of

    options = dict(api_type="text_embeddings_inference", api_params={"url": url}, token=_secret())
    return _of_haystack(of.HuggingFaceAPITextEmbedder(**options), of.HuggingFaceAPIDocumentEmbedder(**options))


def haystack_jina(url: str) -> Any:
    from haystack_integrations.components.embedders import jina

    options = dict(api_key=_secret(), model=MODEL, base_url=f"{url}/v1/embeddings")
    return _of_haystack(jina.JinaTextEmbedder(**options), jina.JinaDocumentEmbedder(**options))


def _secret() -> Any:
    from haystack.utils import Secret

    return Secret.from_token(KEY)


def _documents(texts: list[str]) -> Any:
    from haystack import Document

    return [Document(content=text) for text in texts]


def _of_haystack(alone: Any, many: Any) -> Any:
    rest = many.run(_documents(TEXTS[1:]))["documents"]
    return [alone.run(TEXTS[0])["embedding"], *(each.embedding for each in rest)]


OF_VECTORS: tuple[Callable[[str], Any], ...] = (
    openai, langchain_openai, llama_index_tei, llama_index_openai_like, litellm_openai, chroma_openai, chroma_tei,
    haystack_openai, haystack_tei, haystack_jina,
)  # fmt: skip


@pytest.mark.parametrize("client", OF_VECTORS)
def test_a_client_gets_the_vectors_of_encode(client: Callable[[str], Any], service: Service) -> None:
    found = np.array(client(service.url))
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
    from haystack_integrations.components.embedders import huggingface_api as of

    encoder = minibert.load_encoder(REFERENCE / SPARSE)
    found = [
        of.HuggingFaceTEISparseTextEmbedder(api_base_url=service.url, token=_secret()).run(DOCUMENTS[0])[
            "sparse_embedding"
        ]
    ]
    many = of.HuggingFaceTEISparseDocumentEmbedder(api_base_url=service.url, token=_secret()).run(
        _documents(DOCUMENTS[1:])
    )
    found += [each.sparse_embedding for each in many["documents"]]
    for each, want in zip(found, encoder.encode_sparse(DOCUMENTS), strict=True):
        assert each.indices == want.ids.tolist()
        assert np.abs(np.array(each.values) - want.weights).max() <= OF_SPARSE


def test_langchains_token_ids_are_refused_in_words(service: Service) -> None:
    """Why `TOLD` tells it to send texts: those ids are of OpenAI's vocabulary."""
    import openai
    from langchain_openai import OpenAIEmbeddings

    with pytest.raises((openai.BadRequestError, ValueError, OSError)) as error:
        OpenAIEmbeddings(base_url=f"{service.url}/v1", api_key=KEY, model=MODEL).embed_query("a")
    if isinstance(error.value, openai.BadRequestError):  # else its tokenizer could not be fetched
        assert "check_embedding_ctx_length=False" in str(error.value)


def test_huggingface_hubs_client_gets_the_likeliest_label(service: Service) -> None:
    """It sends `parameters`, though it has none."""
    from huggingface_hub import InferenceClient

    found = InferenceClient(f"{service.url}/predict").text_classification(DOCUMENTS[0])
    (want,) = minibert.load_encoder(REFERENCE / RERANKER).classify(DOCUMENTS[0])
    assert (found.label, abs(found.score - want.probability) <= CLOSE) == (want.label, True)


# -- scores: the number of each document, by its index -------------------------------------------------------------


def cohere_v1(url: str) -> Any:
    import cohere

    found = cohere.Client(KEY, base_url=url).rerank(model=RERANKER, query=QUERY, documents=DOCUMENTS)
    return {each.index: each.relevance_score for each in found.results}


def cohere_v2(url: str) -> Any:
    import cohere

    client = cohere.ClientV2(KEY, base_url=url)
    found = client.rerank(model=RERANKER, query=QUERY, documents=DOCUMENTS, max_tokens_per_doc=4096, priority=1)
    return {each.index: each.relevance_score for each in found.results}


def langchain_cohere(url: str) -> Any:
    from langchain_cohere import CohereRerank

    found = CohereRerank(base_url=url, cohere_api_key=KEY, model=RERANKER).rerank(DOCUMENTS, QUERY)
    return {each["index"]: each["relevance_score"] for each in found}


def llama_index_tei_rerank(url: str) -> Any:
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    return _of_llama_index(TextEmbeddingInference(base_url=url))


def llama_index_jina(url: str) -> Any:
    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    return _of_llama_index(JinaRerank(base_url=f"{url}/v1", api_key=KEY, model=RERANKER, top_n=len(DOCUMENTS)))


def _of_llama_index(reranker: Any) -> Any:
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(i))) for i, text in enumerate(DOCUMENTS)]
    return {int(each.node.node_id): each.score for each in reranker.postprocess_nodes(nodes, QueryBundle(QUERY))}


def _of_litellm(model: str, base: str) -> Any:
    import litellm

    found = litellm.rerank(f"{model}/{RERANKER}", QUERY, DOCUMENTS, api_base=base, api_key=KEY)
    return {each["index"]: each["relevance_score"] for each in found.results}


def litellm_cohere(url: str) -> Any:
    return _of_litellm("cohere", url)


def litellm_jina(url: str) -> Any:
    return _of_litellm("jina_ai", f"{url}/v1/rerank")


def litellm_tei(url: str) -> Any:
    return _of_litellm("huggingface", f"{url}/rerank")


def haystack_cohere(url: str) -> Any:
    from haystack_integrations.components.rankers.cohere import CohereRanker

    return _ranked_by_haystack(CohereRanker(api_key=_secret(), model=RERANKER, api_base_url=url))


def haystack_jina_ranker(url: str) -> Any:
    from haystack_integrations.components.rankers.jina import JinaRanker

    return _ranked_by_haystack(JinaRanker(api_key=_secret(), model=RERANKER, base_url=f"{url}/v1/rerank"))


def haystack_tei_ranker(url: str) -> Any:
    from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

    return _ranked_by_haystack(HuggingFaceTEIRanker(url=url, token=_secret()))


def _ranked_by_haystack(ranker: Any) -> Any:
    found = ranker.run(query=QUERY, documents=_documents(DOCUMENTS))["documents"]
    return {DOCUMENTS.index(each.content): each.score for each in found}


OF_SCORES: tuple[Callable[[str], Any], ...] = (
    cohere_v1, cohere_v2, langchain_cohere, llama_index_tei_rerank, llama_index_jina,
    litellm_cohere, litellm_jina, litellm_tei, haystack_cohere, haystack_jina_ranker, haystack_tei_ranker,
)  # fmt: skip


@pytest.mark.parametrize("client", OF_SCORES)
def test_a_client_gets_the_scores_of_predict(client: Callable[[str], Any], service: Service) -> None:
    found = client(service.url)
    best = {int(i): service.scores[i] for i in np.argsort(-service.scores)}  # some give the best ones alone
    assert list(found) == list(best)[: len(found)] and len(found) >= 2
    assert max(abs(found[i] - best[i]) for i in found) <= CLOSE


def test_clients_read_which_texts_were_truncated(service: Service) -> None:
    """OpenAI's and Cohere's clients keep a field that they do not know; TEI's list stays a list."""
    from cohere import ClientV2
    from huggingface_hub import InferenceClient
    from openai import OpenAI

    long = "clouds " * 300
    with OpenAI(base_url=f"{service.url}/v1", api_key=KEY) as client:
        extra = client.embeddings.create(model=MODEL, input=["we", long]).model_extra
    left_out = 300 + 2 - 256  # of MiniLM
    assert extra is not None and extra["truncated_texts"] == [{"index": 1, "tokens_left_out": left_out}]
    with ClientV2(KEY, base_url=service.url) as cohere:
        ranking: Any = cohere.rerank(model=RERANKER, query="we", documents=["we", long])
    assert [each["index"] for each in ranking.truncated_texts] == [1]
    with InferenceClient(base_url=service.url) as tei:
        assert tei.feature_extraction(long).shape == (1, 384)
