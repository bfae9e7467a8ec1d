import duckdb
import minibert
import pyarrow

encoder = minibert.load_encoder("sentence-transformers/all-MiniLM-L6-v2")
rows = pyarrow.table({"text": texts, "vector": list(encoder.encode_document(texts))})
duckdb.sql("CREATE TABLE texts AS SELECT text, vector::FLOAT[384] AS vector FROM rows")
query = encoder.encode_query("Why was I charged two times?").tolist()
nearest = "SELECT text FROM texts ORDER BY array_cosine_distance(vector, ?::FLOAT[384]) LIMIT 1"
print(duckdb.execute(nearest, [query]).fetchone()[0])
