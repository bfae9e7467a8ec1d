"use strict";
// The part about a head's prediction. Names that are not declared here come from the first and the second part.
let predicted, chances, added, totals, states, k, parts;
const takePredicted = (given) => {
  predicted = given;
  chances = unpack(predicted.lens, "f4");
  [added, totals] = predicted.shares ? [unpack(predicted.shares, "f4"), unpack(predicted.totals, "f4")] : [null, null];
  [states, k, parts] = [behind.blocks + 1, predicted.k, behind.blocks * (behind.heads + 1) + 2];
  for (const element of document.querySelectorAll(".shares")) element.hidden = !added;
};
const asked = document.getElementById("asked");

const placeOf = () => (predicted.each ? token : 0); // the row of logits
const chanceOf = (state, n) => chances[(placeOf() * states + state) * k + n];
const percent = (x) => (predicted.chance ? `${(100 * x).toFixed(2)} %` : x.toFixed(4));
const chance = (x) => (predicted.chance ? cell(percent(x), bar(x)) : cell(percent(x)));
const headed = (host, names) => host.replaceChildren(make("tr", {}, ...names.map((name) =>
  make("th", { scope: "col" }, make("bdi", { dir: "ltr", textContent: name })))));
const after = (state) => (state ? `block ${state - 1}` : "the input layer");

const drawCandidates = () => {
  one("#candidates tbody").replaceChildren(...predicted.names[placeOf()].map((name, n) =>
    make("tr", {}, named(name), cell(percent(chanceOf(states - 1, n))), cell(...(predicted.chance ? [bar(chanceOf(states - 1, n))] : [""])))));
};
const drawGrowth = () => {
  const names = predicted.names[placeOf()];
  headed(one("#grows thead"), ["after", "likeliest there", ...names]);
  one("#grows tbody").replaceChildren(...Array.from({ length: states }, (_, state) => {
    const [best, its] = predicted.best[placeOf()][state];
    const likeliest = make("td", {}, make("bdi", { dir: "ltr", textContent: best }), " ", make("small", { textContent: percent(its) }));
    return make("tr", {}, named("", after(state)), likeliest, ...names.map((_, n) => chance(chanceOf(state, n))));
  }));
};
const signed = (x, top) => {
  const drawn = bar(Math.min(1, Math.abs(x) / top));
  drawn.classList.toggle("less", x < 0);
  drawn.classList.toggle("cut", Math.abs(x) > top);
  return cell(x.toFixed(3), drawn);
};
const drawAdded = () => {
  const n = Number(asked.value), at = (placeOf() * k + n) * parts, own = added.subarray(at, at + parts);
  const width = behind.heads + 1, rows = Array.from({ length: behind.blocks }, (_, b) => [...own.subarray(b * width, (b + 1) * width)]);
  const sum = (numbers) => numbers.reduce((a, x) => a + x, 0), fed = rows.map((row) => row.at(-1));
  const sizes = rows.flat().map(Math.abs).sort((a, b) => a - b);
  const top = Math.min(sizes.at(-1), 8 * sizes[sizes.length >> 1]) || sizes.at(-1) || 1;
  headed(one("#adds thead"), ["", ...Array.from({ length: behind.heads }, (_, h) => `head ${h}`), "all heads", "feed-forward"]);
  one("#adds tbody").replaceChildren(...rows.map((row, b) =>
    make("tr", {}, named("", `block ${b}`), ...row.slice(0, -1).map((x) => signed(x, top)), cell(sum(row.slice(0, -1)).toFixed(3)), signed(fed[b], top))));
  const [first, biases] = own.subarray(-2);
  document.getElementById("addwork").textContent = `${predicted.names[placeOf()][n]}: input layer ${first.toFixed(3)}, all heads ${sum(rows.flatMap((row) => row.slice(0, -1))).toFixed(3)}, ` +
    `feed-forward ${sum(fed).toFixed(3)}, biases ${biases.toFixed(3)}; the sum is ${totals[placeOf() * k + n].toFixed(3)}`;
  document.getElementById("addscale").textContent = `A full bar is ${top.toPrecision(3)}, orange below 0.${sizes.at(-1) > top ? " A dashed one is cut: its number is larger." : ""}`;
};
const drawPredicted = () => {
  const before = asked.value;
  asked.replaceChildren(...predicted.names[placeOf()].map((name, n) => make("option", { value: n, textContent: name })));
  asked.value = before || "0";
  drawCandidates();
  drawGrowth();
  if (added) drawAdded();
};
piece("predictdata", takePredicted, drawPredicted);
asked.addEventListener("change", drawAdded);
one("fieldset").addEventListener("change", drawPredicted);
document.getElementById("predicted").hidden = false;
drawPredicted();
