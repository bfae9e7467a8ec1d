"""The names of contenders. "minibert, OPTION=VALUE" is minibert with an option; each name is one contender."""

OURS, BEFORE = "minibert", "the state before"
TORCH, PEER, ONNX, STATIC = "transformers", "sentence-transformers", "ONNX Runtime", "model2vec"
NUMPY = "import numpy"
ALONE, INSIDE, ROWS = "minibert, one caller", "encode in one process", "np.take of the rows"
PRODUCTS = "its 36 products, x @ weight.T"
# a peer with two ways to run: the faster way counts
WAYS = {
    TORCH: (f"{TORCH}, sdpa", f"{TORCH}, eager"),
    STATIC: (f"{STATIC}, batches in threads", f"{STATIC}, one batch after another"),
}
