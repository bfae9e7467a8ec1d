// BERT in JavaScript, from token ids to sentence vectors, for Node without a package:
//
//     node bert.mjs FOLDER INPUTS OUT
//
// FOLDER has config.json and model.safetensors, INPUTS is a safetensors file with "<batch>|inputs|input_ids" and other
// inputs of one or several batches. OUT.safetensors gets the inputs and every intermediate for `minibert verify
// --against`, OUT.jsonl the vector of each text. The formulas are those of minibert/equations, with their names and in
// their order. A tensor is a shape and its numbers, row after row, stored in float32 and added in float64.
import { readFileSync, writeFileSync } from "node:fs"

const tensor = (shape, data) => ({ shape, data })
const size = (shape) => shape.reduce((a, b) => a * b, 1)
const zeros = (...shape) => tensor(shape, new Float32Array(size(shape)))

// -- files
const TYPES = { F32: Float32Array, I64: BigInt64Array }
function read_safetensors(path) { // the header's length in 8 bytes, the header in JSON, the numbers
  const file = readFileSync(path)
  const start = 8 + Number(file.readBigUInt64LE(0))
  const header = JSON.parse(file.toString("utf8", 8, start))
  const tensors = {}
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(header)) {
    if (name === "__metadata__") continue
    if (!TYPES[dtype]) throw new Error(`${path}: ${name} is stored as ${dtype}; store it as F32, integers as I64`)
    const bytes = file.subarray(...data_offsets.map((offset) => start + offset))
    const data = new TYPES[dtype](new Uint8Array(bytes).buffer) // a copy, since TYPES need whole offsets
    tensors[name] = tensor(shape, dtype === "I64" ? Int32Array.from(data, Number) : data)
  }
  return tensors
}

function write_safetensors(path, tensors) {
  const [header, parts] = [{}, []]
  let end = 0
  for (const [name, { shape, data }] of tensors) {
    const whole = data instanceof Int32Array
    const bytes = Buffer.from((whole ? BigInt64Array.from(data, BigInt) : data.slice()).buffer)
    header[name] = { dtype: whole ? "I64" : "F32", shape, data_offsets: [end, (end += bytes.length)] }
    parts.push(bytes)
  }
  const text = JSON.stringify(header)
  const padded = Buffer.from(text + " ".repeat((8 - (Buffer.byteLength(text) % 8)) % 8))
  const length = Buffer.from(new BigUint64Array([BigInt(padded.length)]).buffer)
  writeFileSync(path, Buffer.concat([length, padded, ...parts]))
}

// -- operators of NumPy, and the trace
const trace = new Map()
let batch = ""
function keep(key, x) { // the key is the module's path in transformers
  trace.set(`${batch}|${key}`, x)
  return x
}

function add(x, y) { // y is repeated until it is as long as x: a bias for each row, positions for each text
  return tensor(x.shape, x.data.map((value, i) => value + y.data[i % y.data.length]))
}

function product(x, y) { // x @ y^T; x (..., n, dim), y (..., m, dim) or (m, dim) -> (..., n, m)
  const [n, dim, m] = [x.shape.at(-2), x.shape.at(-1), y.shape.at(-2)]
  const [left, right, found] = [x.data, y.data, zeros(...x.shape.slice(0, -1), m)]
  for (let i = 0; i < found.data.length; i++) {
    const row = Math.floor(i / m)
    const column = (y.shape.length > 2 ? Math.floor(row / n) * m : 0) + (i % m)
    let sum = 0
    for (let d = 0; d < dim; d++) sum += left[row * dim + d] * right[column * dim + d]
    found.data[i] = sum
  }
  return found
}

function swapaxes(x, left) { // the axes `left` and `left + 1`
  const [a, b, ...rest] = x.shape.slice(left)
  const y = zeros(...x.shape.slice(0, left), b, a, ...rest)
  const dim = size(rest)
  for (let row = 0; row < y.data.length / dim; row++) {
    const swapped = Math.floor(row / (a * b)) * a * b + (row % b) * a + (Math.floor(row / b) % a)
    y.data.set(x.data.subarray(row * dim, (row + 1) * dim), swapped * dim)
  }
  return y
}

function map_rows(x, formula) { // formula(row, out) fills a row of the result
  const [y, dim] = [zeros(...x.shape), x.shape.at(-1)]
  for (let i = 0; i < x.data.length; i += dim) formula(x.data.subarray(i, i + dim), y.data.subarray(i, i + dim))
  return y
}

// -- equations/input_layer.py
function lookup(table, ids) {
  const [rows, dim] = table.shape
  const y = zeros(...ids.shape, dim)
  ids.data.forEach((id, i) => {
    if (id < 0 || id >= rows) throw new RangeError(`id ${id} is not in a table of ${rows} rows`)
    y.data.set(table.data.subarray(id * dim, (id + 1) * dim), i * dim)
  })
  return y
}

function default_position_ids(length) {
  return tensor([1, length], Int32Array.from({ length }, (_, i) => i))
}

function layer_norm(x, weight, bias, eps) {
  return map_rows(x, (row, out) => {
    const mean = row.reduce((sum, value) => sum + value, 0) / row.length
    const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / row.length
    row.forEach((value, i) => { out[i] = ((value - mean) / Math.sqrt(variance + eps)) * weight.data[i] + bias.data[i] })
  })
}

function bert_input(inputs, word, token_type, position, norm, eps) {
  const [texts, length] = (inputs.input_ids ?? inputs.inputs_embeds).shape
  const position_ids = keep("position_ids", inputs.position_ids ?? default_position_ids(length))
  const token_type_ids = inputs.token_type_ids ?? tensor([texts, length], new Int32Array(texts * length))
  let x = inputs.inputs_embeds ?? keep("embeddings.word_embeddings", lookup(word, inputs.input_ids))
  x = add(x, keep("embeddings.token_type_embeddings", lookup(token_type, token_type_ids)))
  x = keep("sum", add(x, keep("embeddings.position_embeddings", lookup(position, position_ids))))
  return keep("embeddings.LayerNorm", layer_norm(x, ...norm, eps))
}

// -- equations/activations.py
function erf(x) { // erf(x) = 2 / sqrt(pi) * exp(-x^2) * (x + 2 x^3 / 3 + 4 x^5 / 15 + ...): all terms have one sign
  if (Math.abs(x) > 6) return Math.sign(x)
  let [term, sum] = [x, x]
  for (let n = 3; Math.abs(term) > 1e-17 * Math.abs(sum); n += 2) sum += term *= (2 * x * x) / n
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum
}

function gelu(x) {
  return tensor(x.shape, x.data.map((value) => 0.5 * value * (1 + erf(value / Math.SQRT2))))
}

// -- equations/blocks.py: maps, softmax and heads
function linear(x, weight, bias) {
  return add(product(x, weight), bias)
}

function softmax(x) {
  return map_rows(x, (row, out) => {
    const largest = row.reduce((a, b) => Math.max(a, b))
    const sum = row.reduce((sum, value) => sum + Math.exp(value - largest), 0)
    row.forEach((value, i) => { out[i] = Math.exp(value - largest) / sum })
  })
}

function split_heads(x, heads) { // (batch, seq, dim) -> (batch, heads, seq, head_dim)
  const [texts, seq, dim] = x.shape
  return swapaxes(tensor([texts, seq, heads, dim / heads], x.data), 1)
}

function join_heads(x) {
  const { shape: [texts, seq, heads, head_dim], data } = swapaxes(x, 1)
  return tensor([texts, seq, heads * head_dim], data)
}

// -- equations/blocks.py: attention
function additive_mask(attention_mask) { // the most negative float32: with -Infinity a row of padding would be NaN
  return tensor(attention_mask.shape, Float32Array.from(attention_mask.data, (kept) => (kept ? 0 : -3.4028235e38)))
}

function attention_scores(q, k, scale) {
  return product(tensor(q.shape, q.data.map((value) => scale * value)), k)
}

function attention(q, k, v, mask, i) {
  const [, heads, seq, head_dim] = q.shape
  const scores = keep(`encoder.layer.${i}.attention.self.scores`, attention_scores(q, k, 1 / Math.sqrt(head_dim)))
  const masked = scores.data.map((score, n) => score + mask.data[Math.floor(n / (heads * seq * seq)) * seq + (n % seq)])
  const probabilities = keep(`attentions.${i}`, softmax(tensor(scores.shape, masked)))
  return product(probabilities, swapaxes(v, 2))
}

// -- equations/blocks.py: the block
function self_attention(x, block, heads, mask, i) {
  const path = `encoder.layer.${i}.attention`
  const [q, k, v] = ["query", "key", "value"].map((name) =>
    split_heads(keep(`${path}.self.${name}`, linear(x, ...block[name])), heads))
  const context = keep(`${path}.self.context`, join_heads(attention(q, k, v, mask, i)))
  return keep(`${path}.output.dense`, linear(context, ...block.output))
}

function feed_forward(x, up, down, i) {
  const path = `encoder.layer.${i}`
  const wide = keep(`${path}.intermediate.dense`, linear(x, ...up))
  const bent = keep(`${path}.intermediate.intermediate_act_fn`, gelu(wide))
  return keep(`${path}.output.dense`, linear(bent, ...down))
}

function post_norm_block(x, block, heads, eps, mask, i) {
  const path = `encoder.layer.${i}`
  const sum = keep(`${path}.attention.output.sum`, add(x, self_attention(x, block, heads, mask, i)))
  x = keep(`${path}.attention.output.LayerNorm`, layer_norm(sum, ...block.norm_1, eps))
  const output = keep(`${path}.output.sum`, add(x, feed_forward(x, block.up, block.down, i)))
  return keep(`${path}.output.LayerNorm`, layer_norm(output, ...block.norm_2, eps))
}

function bert_encoder(x, attention_mask, blocks, heads, eps) {
  const mask = additive_mask(attention_mask)
  keep("hidden_states.0", x)
  blocks.forEach((block, i) => { x = keep(`hidden_states.${i + 1}`, post_norm_block(x, block, heads, eps, mask, i)) })
  return x
}

// -- equations/sentences.py
function mean(rows, attention_mask) { // the mean of the tokens that are not padding
  const [texts, seq, dim] = rows.shape
  const mask = tensor([texts, 1, seq], Float32Array.from(attention_mask.data))
  const count = product(mask, tensor([1, seq], new Float32Array(seq).fill(1)))
  const sum = product(mask, swapaxes(rows, 1))
  return tensor([texts, dim], sum.data.map((value, i) => value / Math.max(1, count.data[Math.floor(i / dim)])))
}

function normalized(vectors) {
  return map_rows(vectors, (row, out) => {
    const length = Math.sqrt(row.reduce((sum, value) => sum + value * value, 0))
    row.forEach((value, i) => { out[i] = length ? value / length : 0 })
  })
}

// -- the model of a folder
const [folder, source, target] = process.argv.slice(2)
const config = JSON.parse(readFileSync(`${folder}/config.json`, "utf8"))
const { layer_norm_eps: eps, num_attention_heads: heads, num_hidden_layers: depth, hidden_act } = config
if (hidden_act !== "gelu") throw new Error(`${folder}/config.json: hidden_act is ${hidden_act}, expected gelu`)
const weights = read_safetensors(`${folder}/model.safetensors`)
const affine = (path) => [weights[`${path}.weight`], weights[`${path}.bias`]]
const tables = ["word", "token_type", "position"].map((name) => weights[`embeddings.${name}_embeddings.weight`])
const PATHS = { query: "attention.self.query", key: "attention.self.key", value: "attention.self.value",
  output: "attention.output.dense", norm_1: "attention.output.LayerNorm", up: "intermediate.dense",
  down: "output.dense", norm_2: "output.LayerNorm" }
const blocks = Array.from({ length: depth }, (_, i) =>
  Object.fromEntries(Object.entries(PATHS).map(([name, path]) => [name, affine(`encoder.layer.${i}.${path}`)])))
const batches = {}
for (const [name, x] of Object.entries(read_safetensors(source))) {
  const [kind, inputs, key] = name.split("|")
  if (inputs === "inputs") (batches[kind] ??= {})[key] = x
}
const lines = []
for (const [kind, inputs] of Object.entries(batches)) {
  batch = kind
  for (const [name, x] of Object.entries(inputs)) keep(`inputs|${name}`, x)
  const shape = (inputs.input_ids ?? inputs.inputs_embeds).shape.slice(0, 2)
  const attention_mask = inputs.attention_mask ?? tensor(shape, new Int32Array(size(shape)).fill(1))
  const x = bert_input(inputs, ...tables, affine("embeddings.LayerNorm"), eps)
  const vectors = normalized(mean(bert_encoder(x, attention_mask, blocks, heads, eps), attention_mask))
  map_rows(vectors, (row) => lines.push(JSON.stringify({ vector: [...row] })))
}
if (target.endsWith(".jsonl")) writeFileSync(target, lines.join("\n") + "\n")
else write_safetensors(target, trace)
