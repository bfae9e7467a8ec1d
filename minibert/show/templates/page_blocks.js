"use strict";
// The second part. `data`, `token`, `count` and the functions that are not here come from the first part.
let behind, attention, sums, biases, biased, distances, pairs;
const takeBlocks = (given) => {
  behind = given;
  [pairs, distances] = [count * count, 2 * count - 1];
  attention = unpack(behind.attention);
  sums = unpack(behind.scores.logs, "f8");
  biases = behind.scores.bias && unpack(behind.scores.bias);
  biased = biases ? biases.length / (behind.heads * distances) : 1; // blocks that have their own: all or one for all
  key = null;
};
const chosenBlock = document.getElementById("block"), chosenHead = document.getElementById("head");
const grid = document.getElementById("weights"), said = document.getElementById("lookwork"), linesHost = one(".lines");
let weights;
let key = null; // the key token that was selected; without one it is the one of the largest weight

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
  drawCell(i, j);
};
// how one weight comes about: from the query and the key to the score, by softmax to the weight, and whose value it takes
const drawCell = (i, j) => {
  const { scales, windows, rotated, normed, terms, widths, key_heads: keyHeads, causal } = behind.scores;
  const b = Number(chosenBlock.value), width = widths[b], [query, name] = [i, j].map((position) => `“${data.tokens[position]}”`);
  const weight = weights[i * count + j], lines = [];
  if (chosenHead.value === "mean") lines.push(["mean", `This is the mean of ${behind.heads} heads. Choose one head to see its query, key and score.`]);
  else if (weight === 0) {
    const masked = (causal && j > i) || (windows[b] !== null && Math.abs(i - j) > windows[b]);
    lines.push(["weight", masked ? "0, because of the mask" : "0: beside the other scores this score is too small for a float32"]);
  } else {
    const h = Number(chosenHead.value), log = sums[(b * behind.heads + h) * count + i], score = Math.log(weight) + log;
    const added = biases ? biases[(b % biased * behind.heads + h) * distances + j - i + count - 1] : 0, places = (x) => x.toFixed(4);
    const how = [normed[b] && "normalised", rotated[b] && "rotated by their positions"].filter(Boolean).join(" and ");
    lines.push(
      ["q · k", `${terms.length ? "" : `${places((score - added) / scales[b])}, `}the query of ${query} times the key of ${name}, ${width} products added${how && `; both are ${how}`}`],
      ["scale", `${written(scales[b])}${Math.abs(scales[b] * Math.sqrt(width) - 1) < 1e-6 ? ` = 1 / sqrt(${width})` : ""}`],
      ...(biases ? [["bias", `${places(added)}, learned for the distance ${j - i}`]] : []),
      ["score", `${[`${places(score)} = scale * q · k`, ...(biases ? ["bias"] : []), ...terms].join(" + ")}`],
      ["weight", `${written(weight)} = exp(${places(score)}) / exp(${places(log)}), where exp(${places(log)}) is the sum of exp(score) over the row`],
      ["value", `this share of the value of ${name} goes into this head's output for ${query}${keyHeads[b] < behind.heads ? `; key and value are those of key head ${Math.floor(h / (behind.heads / keyHeads[b]))}` : ""}`]);
  }
  document.getElementById("celled").replaceChildren(...lines.map(([what, text]) =>
    make("div", {}, make("dt", { textContent: what }), make("dd", { textContent: text }))));
};
const most = () => {
  const own = weights.subarray(token * count, (token + 1) * count);
  return own.indexOf(Math.max(...own));
};

const drawGrid = () => {
  const top = weights.reduce((a, x) => Math.max(a, x), 0) || 1;
  drawSquare(grid, 440, (i) => (weights[i] === 0 ? null : weights[i] / top), key);
  grid.setAttribute("aria-label", `${who()}: weights of ${count} by ${count} tokens, up to ${written(top)}; the table has the chosen token's`);
  legend(document.getElementById("weightslegend"), 0, top);
  nameSides(grid, data.tokens, token, key);
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
      svg("text", { x: 272, y: y(i) + 5, class: i === key ? "chosen" : "" }, short(name)),
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
    line.classList.toggle("chosen", j === (key ?? most()));
    return line;
  }));
};

const drawMoves = () => {
  const own = behind.moves.map((states) => states[token]);
  const sizes = own.flatMap((at) => [at.size, at.attention, at.feed_forward]).filter((x) => x !== undefined).sort((a, b) => a - b);
  // one vector can be a hundred times the others, as the first token's in GPT-2: its bar is cut, and says so
  const top = Math.min(sizes.at(-1), 4 * sizes[sizes.length >> 1]) || sizes.at(-1) || 1;
  const sized = (x) => {
    if (x === undefined) return cell("");
    const drawn = bar(Math.min(1, x / top));
    drawn.classList.toggle("cut", x > top);
    return cell(x.toPrecision(4), drawn);
  };
  document.getElementById("movescale").textContent = `A full bar is ${top.toPrecision(3)}.${sizes.at(-1) > top ? " A dashed one is cut: its number is larger." : ""}`;
  one("#moves tbody").replaceChildren(...own.map((at, i) => {
    const nearest = at.nearest.slice(0, 3).map((other, n) =>
      make("span", {}, n ? ", " : "", make("bdi", { textContent: data.tokens[other] }), " ", make("small", { textContent: at.cosines[n].toFixed(3) })));
    const line = make("tr", {}, named("", i ? `block ${i - 1}` : "the input layer"), sized(at.size), sized(at.attention),
      sized(at.feed_forward), cell(at.turn === undefined ? "" : at.turn.toFixed(4)),
      cell(`${at.largest[0]}: ${at.largest[1].toPrecision(3)}, ${(100 * at.largest[2]).toFixed(0)} %`), cell("", ...nearest));
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
  tell(...here());
};
const here = () => [token, key ?? most()];
const select = (i, j) => {
  if (i !== token) take(i);
  key = j;
  drawBehind();
};
piece("blockdata", takeBlocks, drawBehind);
if (count && behind.blocks) {
  for (let i = 0; i < behind.blocks; i++) chosenBlock.append(make("option", { value: i, textContent: i }));
  chosenHead.append(make("option", { value: "mean", textContent: "mean of heads" }));
  for (let i = 0; i < behind.heads; i++) chosenHead.append(make("option", { value: i, textContent: i }));
  for (const choice of [chosenBlock, chosenHead]) choice.addEventListener("change", drawBehind);
  one("fieldset").addEventListener("change", () => { // after the first part's own listener, which sets the token
    key = null;
    drawBehind();
  });
  answering(grid, tell, select, here);
  linesHost.addEventListener("pointermove", ({ target }) => target.dataset.from && tell(token, Number(target.dataset.from)));
  linesHost.addEventListener("pointerleave", () => tell(...here()));
  linesHost.addEventListener("click", ({ target }) => {
    if (target.dataset.taker) take(target.dataset.taker);
    if (target.dataset.from) select(token, Number(target.dataset.from));
  });
  linesHost.addEventListener("keydown", (event) => {
    const [down] = MOVES[event.key] ?? [0];
    if (!down) return;
    event.preventDefault();
    select(token, within(here()[1] + down));
    linesHost.scrollTop = (linesHost.scrollHeight * key) / count - linesHost.clientHeight / 2;
  });
  document.getElementById("attended").hidden = document.getElementById("moved").hidden = false;
  drawBehind();
}
