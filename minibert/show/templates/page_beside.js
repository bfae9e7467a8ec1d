"use strict";
// Two texts side by side. Names that are not declared here come from the first and the second part.
let beside = null, theirs, alike, many, adds;
const others = document.getElementById("others"), parted = document.getElementById("parts");
const takeBeside = (given) => {
  beside = given;
  document.getElementById("beside").hidden = !beside;
  if (!beside) return;
  [theirs, alike, many] = [unpack(beside.attention), unpack(beside.cosines, "f4"), beside.tokens.length];
  adds = beside.sum.numbers && unpack(beside.sum.numbers, "f4");
  document.getElementById("nosum").textContent = beside.sum.wrong ?? "";
  document.getElementById("summed").hidden = !adds;
  others.replaceChildren(...beside.tokens.map((name, i) => make("option", { value: i, textContent: `${i}: ${name}` })));
  others.value = beside.first;
  sameWord();
};

const drawApart = () => {
  const u = Number(others.value);
  one("#apart tbody").replaceChildren(...Array.from({ length: behind.blocks + 1 }, (_, state) => {
    const at = (state * count + token) * many, row = alike.subarray(at, at + many), nearest = row.indexOf(Math.max(...row));
    const line = make("tr", {}, named("", state ? `block ${state - 1}` : "the input layer"), cell(row[u].toFixed(4), bar(Math.max(0, row[u]))),
      cell("", make("bdi", { dir: "ltr", textContent: beside.tokens[nearest] }), " ", make("small", { textContent: row[nearest].toFixed(4) })));
    line.classList.toggle("chosen", state - 1 === Number(chosenBlock.value));
    return line;
  }));
};
// one token's weights in its text; `all`: the weights of every block and head
const weightsOf = (all, length, position) => {
  const first = Number(chosenBlock.value) * behind.heads, mean = chosenHead.value === "mean";
  const heads = mean ? Array.from({ length: behind.heads }, (_, h) => h) : [Number(chosenHead.value)];
  return Array.from({ length }, (_, j) => heads.reduce((sum, h) => sum + all[((first + h) * length + position) * length + j], 0) / heads.length);
};
// a table of names with their numbers, and a bar for each
const listing = (className, about, titles, names, numbers, toBar) => {
  const head = make("tr", {}, ...[...titles, ""].map((text) => make("th", { scope: "col" }, make("bdi", { textContent: text }))));
  const lines = names.map((name, j) => make("tr", {}, named(name), cell(numbers[j].toFixed(4)), cell(toBar(numbers[j]))));
  const table = make("table", { className }, make("thead", {}, head), make("tbody", {}, ...lines));
  const host = make("div", { className: "list wide", tabIndex: 0 }, table);
  host.setAttribute("role", "region");
  host.setAttribute("aria-label", about);
  return host;
};
const taking = (tokens, position, numbers) =>
  listing("taking", `attention weights of ${tokens[position]}`, [`${tokens[position]} attends to`, "weight"], tokens, numbers, bar);
const drawTwo = () => {
  const u = Number(others.value);
  one("#beside .attending").replaceChildren(taking(data.tokens, token, weightsOf(attention, count, token)), taking(beside.tokens, u, weightsOf(theirs, many, u)));
};
// the similarity as a sum over pairs of tokens; a bias has a row and a column after the tokens
const bothSides = () => [data.tokens, beside.tokens].map((names, side) => [...names, ...Array(beside.sum.shape[side] - names.length).fill("(bias)")]);
const tellPart = (i, j) => {
  const [left, above] = bothSides(), { measure, similarity } = beside.sum;
  document.getElementById("partwork").textContent =
    `${left[i]} with ${above[j]} adds ${adds[i * above.length + j].toFixed(4)} to the ${measure} ${similarity.toFixed(4)}`;
};
const signedBar = (most) => (number) => {
  const element = bar(Math.abs(number) / most);
  element.classList.toggle("less", number < 0);
  return element;
};
const partners = (name, names, numbers, most) => {
  const order = [...names.keys()].sort((a, b) => numbers[b] - numbers[a]);
  return listing("partner", `partners of ${name}`, [`${name} with`, "adds"], order.map((i) => names[i]), order.map((i) => numbers[i]), signedBar(most));
};
const drawParts = () => {
  if (!adds) return;
  const [left, above] = bothSides(), [rows, columns] = beside.sum.shape, u = Number(others.value);
  const largest = adds.reduce((a, x) => Math.max(a, Math.abs(x)), 0) || 1;
  drawSquare(parted, 440, (i) => (adds[i] / largest + 1) / 2, u, SIGNED, rows, columns);
  parted.style.aspectRatio = `${columns} / ${rows}`;
  parted.setAttribute("aria-label", `what ${rows} by ${columns} pairs of tokens add to the ${beside.sum.measure}, up to ${written(largest)}; the tables have the chosen tokens' pairs`);
  nameSides(parted, left, token, u, above);
  legend(one("#summed .legend"), -largest, largest, SIGNED);
  tellPart(token, u);
  one("#summed .partners").replaceChildren(
    partners(left[token], above, adds.subarray(token * columns, (token + 1) * columns), largest),
    partners(above[u], left, left.map((_, i) => adds[i * columns + u]), largest));
};
const drawBeside = () => {
  if (!beside) return;
  drawApart();
  drawParts();
  drawTwo();
};
const sameWord = () => {
  if (!beside) return;
  const same = beside.tokens.indexOf(data.tokens[token]);
  if (same >= 0) others.value = same;
};
piece("besidedata", takeBeside, drawBeside);
one("fieldset").addEventListener("change", () => {
  sameWord();
  drawBeside();
});
answering(parted, tellPart, (i, j) => {
  take(i); // chooses the same word of the other text
  if (j < many) others.value = j;
  drawBeside();
}, () => [token, Number(others.value)], () => beside.sum.shape);
for (const choice of [others, chosenBlock, chosenHead]) choice.addEventListener("change", drawBeside);
drawBeside();
