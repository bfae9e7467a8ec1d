import minibert

encoder = minibert.load_encoder("sentence-transformers/all-MiniLM-L6-v2")
vectors = encoder.encode_document(texts)
scores = encoder.similarity(encoder.encode_query("Why was I charged two times?"), vectors)[0]
for i in scores.argsort()[::-1][:3]:
    print(f"{scores[i]:.3f}  {texts[i]}")
