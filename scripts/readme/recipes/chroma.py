import chromadb
import minibert

class Minibert(chromadb.EmbeddingFunction):
    def __init__(self): self.encoder = minibert.load_encoder("sentence-transformers/all-MiniLM-L6-v2")
    def __call__(self, input): return list(self.encoder.encode_document(input))
    def embed_query(self, input): return list(self.encoder.encode_query(input))

collection = chromadb.EphemeralClient().create_collection("texts", embedding_function=Minibert())
collection.add(ids=list(map(str, range(len(texts)))), documents=texts)
print(collection.query(query_texts=["Why was I charged two times?"], n_results=1)["documents"][0][0])
