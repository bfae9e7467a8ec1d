// The first part: bands of colours, what the norm does, which positions are similar.
let groups = [], norm, cosines;
const row = (group, stage) => {
  const { index, rows } = groups[group].stages[stage], dim = groups[group].dim;
  return rows.subarray(index[token] * dim, (index[token] + 1) * dim);
};

// -- bands

const host = document.getElementById("groups");
const build = (group, g) => {
  group.legends = [];
  group.bands = group.stages.map((stage, s) => {
    const canvas = make("canvas"), cursor = make("i"), name = make("span", { className: "name" });
    canvas.setAttribute("role", "img");
    const band = make("div", { className: "band" }, canvas, cursor);
    const value = make("output");
    value.setAttribute("aria-live", "off");
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      const at = Math.floor(((event.clientX - box.left) / box.width) * group.dim);
      choose(g, Math.min(Math.max(at, 0), group.dim - 1));
    };
    band.addEventListener("pointermove", point);
    band.addEventListener("pointerdown", point);
    host.append(make("div", { className: "strip" }, name, band, value));
    return { canvas, cursor, name, value };
  });
  const id = `dimension${g}`;
  group.slider = make("input", { type: "range", id, min: 0, max: group.dim - 1, value: 0 });
  group.slider.addEventListener("input", () => choose(g, Number(group.slider.value)));
  group.number = make("output", { htmlFor: id });
  const name = make("span", { className: "name" }, make("b"), `dimension, 0 to ${group.dim - 1}`);
  group.slider.setAttribute("aria-label", `dimension, 0 to ${group.dim - 1}`);
  host.append(make("div", { className: "strip" }, name, group.slider, group.number));
  group.work = make("output", { className: "worked" });
  group.work.setAttribute("aria-live", "polite");
  host.append(group.work);
  for (const reach of new Set(group.stages.map((stage) => stage.reach))) {
    const names = group.stages.filter((stage) => stage.reach === reach).map((stage) => stage.name);
    const bar = make("div", { className: "legend" }, make("span", { className: "number" }), make("canvas"), make("span"));
    bar.lastChild.append(make("span", { className: "number" }), `  ${names.join(", ")}`);
    const clipped = make("p", { className: "soft clipped" });
    host.append(bar, clipped);
    legend(bar, -reach, reach, SIGNED);
    group.legends.push({ reach, clipped });
  }
};
// describe the numbers of some rows beyond a reach: their count, and the farthest with their dimensions
const FAR = 3;
const beyond = (rows, reach, where, count) => {
  const far = rows.flatMap(({ name, numbers }) => Array.from(numbers, (x, dimension) => ({ name, dimension, x })))
    .filter(({ x }) => !(Math.abs(x) <= reach)).sort((a, b) => Math.abs(b.x) - Math.abs(a.x));
  if (!far.length) return `None of the ${count} numbers is beyond the ends of ${where}.`;
  const told = far.slice(0, FAR).map(({ name, dimension, x }) => `dimension ${dimension}${name && ` of ${name}`} (${x.toPrecision(3)})`);
  return `${far.length} of the ${count} numbers ${far.length === 1 ? "is" : "are"} beyond the ends of ${where}${far.length > FAR ? ", farthest" : ""}: ${told.join(", ")}.`;
};

const drawGroup = (group, g) => {
  group.stages.forEach((stage, s) => {
    const { canvas, name } = group.bands[s], numbers = row(g, s);
    const full = stage.name + (stage.taken ? `[${stage.taken[token]}]` : "");
    name.replaceChildren(make("b", { textContent: stage.sign }), make("code", { textContent: full }));
    if (stage.tells) name.append(make("small", { textContent: stage.tells }));
    paint(canvas, group.dim, 1, (i) => (numbers[i] / stage.reach + 1) / 2, SIGNED);
    const [low, high] = numbers.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
    canvas.setAttribute("aria-label", `${full} of ${data.tokens[token]}: ${group.dim} numbers from ${written(low)} to ${written(high)}`);
  });
  for (const { reach, clipped } of group.legends) {
    const rows = group.stages.flatMap((stage, s) => (stage.reach === reach ? [{ name: stage.name, numbers: row(g, s) }] : []));
    clipped.textContent = beyond(rows, reach, "this scale", rows.length * group.dim);
  }
};

// `dimension` counts from 0, as the arrays, blocks and heads do
const choose = (g, dimension) => {
  const group = groups[g];
  group.dimension = dimension;
  group.slider.value = group.number.textContent = dimension;
  let sum = "", sums = 0;
  const lines = [];
  group.stages.forEach((stage, s) => {
    const x = row(g, s)[dimension], { cursor, value } = group.bands[s];
    cursor.style.left = `${((dimension + 0.5) / group.dim) * 100}%`;
    value.textContent = written(x);
    if (stage.sign === "+") sum = `${sums++ ? `(${sum})` : sum} + ${inside(x)}`;
    else if (stage.sign === "=") lines.push(`${sum} = ${written(x)}`);
    if (stage.sign !== "+") [sum, sums] = [inside(x), 0];
  });
  group.work.textContent = `dimension ${dimension}: ` + (lines.join("; ") || group.stages.map((stage, s) =>
    `${stage.sign} ${stage.name} ${written(row(g, s)[dimension])}`.trim()).join(" "));
  if (data.norm && data.norm.group === g) worked(dimension);
};

// -- LayerNorm

const worked = (dimension) => {
  const x = row(norm.group, norm.stage - 1)[dimension], y = row(norm.group, norm.stage)[dimension];
  const bias = norm.bias ? ` + ${inside(norm.bias[dimension])}` : "";
  document.getElementById("normwork").textContent = `dimension ${dimension}: (${written(x)} - ${inside(norm.mean[token])}) / ` +
    `sqrt(${written(norm.variance[token])} + ${norm.eps}) * ${inside(norm.weight[dimension])}${bias} = ${written(y)}`;
};
// one histogram for each row, each on its axis: an outlier neither squeezes the other rows nor is silently left out
const drawHills = () => {
  const before = row(norm.group, norm.stage - 1), scale = Math.sqrt(norm.variance[token] + norm.eps);
  const rows = [["before", before], ["normalised", Array.from(before, (x) => (x - norm.mean[token]) / scale)],
    ["after weight and bias", row(norm.group, norm.stage)]];
  const bins = 81;
  one(".hills").replaceChildren(...rows.flatMap(([name, numbers]) => {
    const sizes = Array.from(numbers, Math.abs).sort((a, b) => a - b);
    const reach = 1.2 * sizes[Math.floor(0.99 * (sizes.length - 1))] || 1, counts = new Array(bins).fill(0);
    for (const x of numbers) if (Math.abs(x) <= reach) counts[Math.round(((x + reach) / (2 * reach)) * (bins - 1))]++;
    const top = Math.max(...counts), step = 720 / bins;
    const path = counts.map((n, i) => `M${(8 + i * step).toFixed(1)} 58v${((-50 * n) / top).toFixed(1)}h${(step - 1).toFixed(1)}V58z`);
    const picture = make("div");
    picture.innerHTML = `<svg viewBox="0 0 736 60" aria-hidden="true"><line x1="8" x2="728" y1="58" y2="58"/><path d="${path.join("")}"/></svg>`;
    const ends = [-reach, 0, reach].map((x) => make("span", { className: "number", textContent: x.toPrecision(2) }));
    return [make("h3", { textContent: name }), picture, make("div", { className: "ends" }, ...ends),
      make("p", { className: "soft", textContent: beyond([{ name: "", numbers }], reach, "this axis", numbers.length) })];
  }));
};

// -- positions

const square = document.getElementById("cosines");
const nameOf = (i) => `${data.similarity.positions[i]} (${data.tokens[i]})`;
let other = null;  // a position that was selected in the square, beside the chosen token's
const tellPair = (i, j) => {
  document.getElementById("pairwork").textContent = `positions ${nameOf(i)} and ${nameOf(j)}: ${cosines[i * count + j].toFixed(4)}`;
};
const drawCosines = () => {
  const lowest = cosines.reduce((a, x) => Math.min(a, x), 0);
  drawSquare(square, 352, (i) => (cosines[i] + 1) / 2, other, SIGNED);
  nameSides(square, data.similarity.positions, token, other);
  square.setAttribute("aria-label", `cosine similarity of ${count} positions, from ${lowest.toFixed(2)} to 1; the table beside it has the chosen row`);
  legend(one("#pair .legend"), -1, 1, SIGNED);
  document.getElementById("likes").replaceChildren(...data.tokens.map((name, i) => {
    const head = make("th", { scope: "row", textContent: data.similarity.positions[i] });
    const line = make("tr", {}, head, make("td", {}, make("bdi", { dir: "ltr", textContent: name })), make("td", { textContent: cosines[token * count + i].toFixed(4) }));
    line.classList.toggle("chosen", i === token);
    return line;
  }));
  if (other === null) document.getElementById("pairwork").textContent = `position ${nameOf(token)}: the framed row`;
  else tellPair(token, other);
};

// -- all of it

const draw = () => {
  groups.forEach((group, g) => {
    drawGroup(group, g);
    choose(g, group.dimension);
  });
  if (norm) drawHills();
  if (cosines) drawCosines();
  for (const line of document.querySelectorAll("[data-token]")) line.classList.toggle("chosen", Number(line.dataset.token) === token);
};
const takeRows = (given) => {
  data = given;
  count = data.tokens.length;
  const dimensions = groups.map((group) => group.dimension);
  groups = data.groups.map((group, g) => ({
    ...group,
    dimension: dimensions[g] ?? 0,
    stages: group.stages.map((stage) => ({ ...stage, rows: unpack(stage.rows) })),
  }));
  norm = data.norm && {
    ...data.norm,
    mean: unpack(data.norm.mean, "f8"),
    variance: unpack(data.norm.variance, "f8"),
    weight: unpack(data.norm.weight),
    bias: data.norm.bias && unpack(data.norm.bias),
  };
  cosines = data.similarity && unpack(data.similarity.cosines, "f4");
  other = null;
  host.replaceChildren();
  if (count) groups.forEach(build);
  else host.append("The text has no tokens.");
};
piece("data", takeRows, draw);
for (const element of document.querySelectorAll(".drawn")) element.hidden = false;
document.getElementById("pair").hidden = !cosines;
if (count) {
  one("fieldset").addEventListener("change", (event) => {
    token = Number(event.target.value);
    other = null;
    draw();
  });
  answering(square, tellPair, (i, j) => {
    if (i !== token) take(i);
    other = j;
    drawCosines();
  }, () => [token, other ?? token]);
  token = Number(one("fieldset input:checked").value);  // a reloaded page keeps its choice
  draw();
}
