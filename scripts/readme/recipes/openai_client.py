import openai

client = openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")  # where `minibert serve` listens
found = client.embeddings.create(model="all-MiniLM-L6-v2", input=texts, dimensions=128, extra_body={"task": "document"})
print(len(found.data), len(found.data[0].embedding), found.usage.total_tokens)
