import minibert
from minibert.bulk.stored import StoredVectors

folder = StoredVectors("vectors")
encoder = minibert.load_encoder("sentence-transformers/all-MiniLM-L6-v2")
rows, scores = folder.search(encoder.encode_query("Why was I charged two times?"), k=3)
print(scores[0], folder.texts(rows[0].tolist()))
