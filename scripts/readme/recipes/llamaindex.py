import minibert
from llama_index.core import Document, VectorStoreIndex, embeddings

encoder = minibert.load_encoder("sentence-transformers/all-MiniLM-L6-v2")
class Minibert(embeddings.BaseEmbedding):
    def _get_text_embedding(self, text): return encoder.encode_document(text).tolist()
    def _get_text_embeddings(self, texts): return encoder.encode_document(texts).tolist()
    def _get_query_embedding(self, query): return encoder.encode_query(query).tolist()
    async def _aget_query_embedding(self, query): return self._get_query_embedding(query)

index = VectorStoreIndex.from_documents([Document(text=text) for text in texts], embed_model=Minibert())
print(index.as_retriever(similarity_top_k=1).retrieve("Why was I charged two times?")[0].text)
