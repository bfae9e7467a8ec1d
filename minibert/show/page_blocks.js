"use strict";
// The second part. `data`, `token`, `count` and the functions that are not here come from the first part.
const behind = JSON.parse(document.getElementById("blockdata").textContent);
const attention = unpack(behind.attention);
const pairs = count * count, FEW = 40; // tokens whose names have room beside the grid
const chosenBlock = document.getElementById("block"), chosenHead = document.getElementById("head");
const grid = document.getElementById("weights"), said = document.getElementById("lookwork"), linesHost = one(".lines");
let weights = new Float64Array(pairs);

// one head's weights, or the mean of all heads
const read = () => {
  const first = Number(chosenBlock.value) * behind.heads, mean = chosenHead.value === "mean";
  const heads = mean ? [...Array(behind.heads).keys()] : [Number(chosenHead.value)];
  weights = new Float64Array(pairs);
  for (const head of heads) for (let i = 0; i < pairs; i++) weights[i] += attention[(first + head) * pairs + i];
  if (mean) for (let i = 0; i < pairs; i++) weights[i] /= behind.heads;
};
const who = () => `block ${chosenBlock.value}, ${chosenHead.value === "mean" ? "mean of heads" : `head ${chosenHead.value}`}`;
const tell = (i, j) => {
  said.textContent = `${who()}: ${data.tokens[i]} gives ${data.tokens[j]} the weight ${written(weights[i * count + j])}`;
};
const most = () => {
  const own = weights.subarray(token * count, (token + 1) * count);
  return own.indexOf(Math.max(...own));
};

const drawGrid = () => {
  const top = weights.reduce((a, x) => Math.max(a, x), 0) || 1;
  drawSquare(grid, 440, (i) => (weights[i] === 0 ? null : weights[i] / top));
  grid.setAttribute("aria-label", `${who()}: weights of ${count} by ${count} tokens, up to ${written(top)}; the table has the chosen token's`);
  legend(document.getElementById("weightslegend"), 0, top);
  for (const side of ["above", "beside"]) {
    one(`.square .${side}`).replaceChildren(...(count > FEW ? [] : data.tokens.map((name, i) =>
      make("bdi", { textContent: name, className: side === "beside" && i === token ? "chosen" : "" }))));
  }
};

const short = (name) => ([...name].length > 14 ? `${[...name].slice(0, 13).join("")}…` : name);
const svg = (tag, attributes, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
};
const drawLines = () => {
  const step = 24, picture = svg("svg", { viewBox: `0 0 400 ${count * step}`, "aria-hidden": "true" });
  const y = (i) => (i + 0.5) * step;
  for (let j = 0; j < count; j++) {
    const weight = weights[token * count + j];
    if (weight > 0) picture.append(svg("line", { x1: 136, y1: y(token), x2: 264, y2: y(j), "stroke-width": Math.max(0.3, 14 * weight).toFixed(2), opacity: Math.max(0.15, Math.sqrt(weight)).toFixed(2) }));
  }
  data.tokens.forEach((name, i) => {
    picture.append(
      svg("text", { x: 128, y: y(i) + 5, "text-anchor": "end", class: i === token ? "chosen" : "" }, short(name)),
      svg("text", { x: 272, y: y(i) + 5 }, short(name)),
      svg("rect", { x: 0, y: i * step, width: 136, height: step, "data-taker": i }),
      svg("rect", { x: 136, y: i * step, width: 264, height: step, "data-from": i }));
  });
  linesHost.replaceChildren(picture);
};

const bar = (weight) => {
  const element = make("i", { className: "bar" });
  element.style.width = `${(100 * weight).toFixed(2)}%`;
  return element;
};
const cell = (text, ...more) => make("td", {}, text, ...more);
const named = (name, text) => make("th", { scope: "row" }, make("bdi", { textContent: text ?? name }));
const drawTakes = () => {
  one("#takes tbody").replaceChildren(...data.tokens.map((name, j) => {
    const weight = weights[token * count + j], line = make("tr", {}, named(name), cell(weight.toFixed(4)), cell(bar(weight)));
    line.classList.toggle("chosen", j === most());
    return line;
  }));
};

const drawMoves = () => {
  const own = behind.moves.map((states) => states[token]);
  const top = Math.max(...own.flatMap((at) => [at.size, at.attention ?? 0, at.feed_forward ?? 0])) || 1;
  const sized = (x) => (x === undefined ? cell("") : cell(x.toPrecision(4), bar(x / top)));
  one("#moves tbody").replaceChildren(...own.map((at, i) => {
    const nearest = at.nearest.slice(0, 3).map((other, n) =>
      make("span", {}, n ? ", " : "", make("bdi", { textContent: data.tokens[other] }), " ", make("small", { textContent: at.cosines[n].toFixed(3) })));
    const line = make("tr", {}, named("", i ? `block ${i - 1}` : "the input layer"), sized(at.size), sized(at.attention),
      sized(at.feed_forward), cell(at.turn === undefined ? "" : at.turn.toFixed(4)), cell("", ...nearest));
    line.classList.toggle("chosen", i - 1 === Number(chosenBlock.value));
    return line;
  }));
};

const drawBehind = () => {
  read();
  drawGrid();
  drawLines();
  drawTakes();
  drawMoves();
  tell(token, most());
};
const take = (i) => one(`fieldset input[value="${i}"]`).click();
if (count && behind.blocks) {
  for (let i = 0; i < behind.blocks; i++) chosenBlock.append(make("option", { value: i, textContent: i }));
  chosenHead.append(make("option", { value: "mean", textContent: "mean of heads" }));
  for (let i = 0; i < behind.heads; i++) chosenHead.append(make("option", { value: i, textContent: i }));
  for (const choice of [chosenBlock, chosenHead]) choice.addEventListener("change", drawBehind);
  one("fieldset").addEventListener("change", drawBehind); // after the first part's own listener, which sets the token
  grid.addEventListener("pointermove", (event) => tell(...pointed(event)));
  grid.addEventListener("click", (event) => take(pointed(event)[0]));
  linesHost.addEventListener("pointermove", ({ target }) => target.dataset.from && tell(token, Number(target.dataset.from)));
  linesHost.addEventListener("click", ({ target }) => target.dataset.taker && take(target.dataset.taker));
  document.getElementById("attended").hidden = document.getElementById("moved").hidden = false;
  drawBehind();
}
