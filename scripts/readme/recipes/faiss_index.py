import faiss
import minibert

encoder = minibert.load_encoder("sentence-transformers/all-MiniLM-L6-v2")
index = faiss.IndexFlatIP(encoder.get_embedding_dimension())  # vectors of length 1: the inner product is the cosine
index.add(encoder.encode_document(texts))
scores, numbers = index.search(encoder.encode_query(["Why was I charged two times?"]), 1)
print(texts[numbers[0, 0]])
