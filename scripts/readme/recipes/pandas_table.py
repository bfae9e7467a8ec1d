import minibert
import pandas

encoder = minibert.load_encoder("sentence-transformers/all-MiniLM-L6-v2")
table = pandas.DataFrame({"text": texts})
vectors = encoder.encode_document(table["text"])
table["score"] = encoder.similarity(encoder.encode_query("Why was I charged two times?"), vectors)[0]
print(table.nlargest(1, "score")["text"].item())
