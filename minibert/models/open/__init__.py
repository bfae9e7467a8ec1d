"""Open a model: a name -> files -> config -> tensors -> an input layer or an encoder; and models made from another."""
