import minibert
from sklearn import linear_model, pipeline, preprocessing

encoder = minibert.load_encoder("sentence-transformers/all-MiniLM-L6-v2")
vectors = preprocessing.FunctionTransformer(encoder.encode)
classifier = pipeline.make_pipeline(vectors, linear_model.LogisticRegression()).fit(texts, labels)
print(classifier.predict(["Why was I charged two times?"]))
