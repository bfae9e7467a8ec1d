import minibert
from langchain_core import embeddings, vectorstores

class Minibert(embeddings.Embeddings):
    encoder = minibert.load_encoder("sentence-transformers/all-MiniLM-L6-v2")
    def embed_documents(self, texts): return self.encoder.encode_document(texts).tolist()
    def embed_query(self, text): return self.encoder.encode_query(text).tolist()

store = vectorstores.InMemoryVectorStore.from_texts(texts, Minibert())
print(store.similarity_search("Why was I charged two times?", k=1)[0].page_content)
