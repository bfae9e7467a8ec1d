import pathlib
import minibert

encoder = minibert.load_encoder(pathlib.Path(__file__).parent / "model")

def handler(event, context):
    return {"vectors": encoder.encode(event["texts"]).tolist()}
