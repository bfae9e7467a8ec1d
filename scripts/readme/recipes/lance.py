import lancedb
import minibert

encoder = minibert.load_encoder("sentence-transformers/all-MiniLM-L6-v2")
rows = [{"text": text, "vector": vector} for text, vector in zip(texts, encoder.encode_document(texts))]
table = lancedb.connect("./texts.lance").create_table("texts", rows)
print(table.search(encoder.encode_query("Why was I charged two times?")).limit(1).to_list()[0]["text"])
