"use strict";
// Two texts side by side. Names that are not declared here come from the first and the second part.
let beside = null, theirs, alike, many;
const others = document.getElementById("others");
const takeBeside = (given) => {
  beside = given;
  document.getElementById("beside").hidden = !beside;
  if (!beside) return;
  [theirs, alike, many] = [unpack(beside.attention), unpack(beside.cosines, "f4"), beside.tokens.length];
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
const taking = (tokens, position, numbers) => {
  const head = make("tr", {}, ...[`${tokens[position]} attends to`, "weight", ""].map((text) => make("th", { scope: "col" }, make("bdi", { textContent: text }))));
  const lines = tokens.map((name, j) => make("tr", {}, named(name), cell(numbers[j].toFixed(4)), cell(bar(numbers[j]))));
  const table = make("table", { className: "taking" }, make("thead", {}, head), make("tbody", {}, ...lines));
  const host = make("div", { className: "list wide", tabIndex: 0 }, table);
  host.setAttribute("role", "region");
  host.setAttribute("aria-label", `attention weights of ${tokens[position]}`);
  return host;
};
const drawTwo = () => {
  const u = Number(others.value);
  one("#beside .two").replaceChildren(taking(data.tokens, token, weightsOf(attention, count, token)), taking(beside.tokens, u, weightsOf(theirs, many, u)));
};
const drawBeside = () => {
  if (!beside) return;
  drawApart();
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
for (const choice of [others, chosenBlock, chosenHead]) choice.addEventListener("change", drawBeside);
drawBeside();
