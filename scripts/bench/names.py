"""The names of contenders. Another option of ours is "minibert, OPTION=VALUE"; each name is a contender of its own."""

OURS, BEFORE = "minibert", "the state before"
TORCH, PEER, ONNX, STATIC = "transformers", "sentence-transformers", "ONNX Runtime", "model2vec"
NUMPY = "import numpy"
ALONE, INSIDE, ROWS = "minibert, one caller", "encode in one process", "np.take of the rows"
PRODUCTS = "its 36 products, x @ weight.T"
# a peer that runs in two ways: the faster one of a run is the peer
WAYS = {
    TORCH: (f"{TORCH}, sdpa", f"{TORCH}, eager"),
    STATIC: (f"{STATIC}, batches in threads", f"{STATIC}, one batch after another"),
}
