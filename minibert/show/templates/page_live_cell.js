"use strict";
// The selected cell of the attention grid, number by number: query times key, scale, added terms, softmax, value.
if (live.given.blocks) {
  const frame = byId("livecell");
  let turns = 0;
  byId("attended").append(frame);
  const heading = (host_, names) => one("thead", host_).replaceChildren(make("tr", {}, ...names.map((textContent) => make("th", { scope: "col", textContent }))));
  const lines = (host_, columns, chosen = -1) => one("tbody", host_).replaceChildren(...columns[0].map((_, i) => {
    const [first, ...rest] = columns.map((column) => column[i]);
    const line = make("tr", {}, make("th", { scope: "row" }, make("bdi", { textContent: first })), ...rest.map((x) => cell(typeof x === "number" ? written(x) : x)));
    line.classList.toggle("chosen", i === chosen);
    return line;
  }));
  const sum = (numbers) => numbers.reduce((a, x) => a + x, 0);
  const draw_ = (found) => {
    const { block, head, query, key: at, q, k: k_, products, scale, terms, scores, keep, weights: own } = found;
    const [asks, gives] = [query, at].map((i) => `“${data.tokens[i]}”`), dims = q.map((_, i) => String(i));
    byId("cellsaid").textContent = `Block ${block}, head ${head}: the query of ${asks} (token ${query}) and the key of ${gives} (token ${at}).${found.turned_q ? " Both are rotated by their token's position; the first two columns are before that." : ""}`;
    heading(byId("celldot"), ["number", ...(found.turned_q ? ["q before", "k before"] : []), "q", "k", "q × k"]);
    lines(byId("celldot"), [dims, ...(found.turned_q ? [found.turned_q, found.turned_k] : []), q, k_, products]);
    const more = terms.map(({ name, number }) => ` + ${inside(number)} (${name})`).join("");
    byId("cellsum").textContent = `q · k = ${written(found.dot)}; score = ${written(scale)} × ${inside(found.dot)}${more} = ${written(found.sum)}. The run's own number, in float32: ${written(found.score)}.${found.seen ? "" : " A mask hides this key from this query, so its weight is 0."}`;
    const top = Math.max(...scores.filter((_, j) => keep[j])), exps = scores.map((x, j) => (keep[j] ? Math.exp(x - top) : 0));
    heading(byId("cellrow"), ["key", "score", "exp(score − largest)", "softmax", "weight"]);
    lines(byId("cellrow"), [data.tokens, scores.map((x, j) => (keep[j] ? x : "hidden")), exps, found.softmax, own], at);
    byId("cellweight").textContent = `weight = ${written(exps[at])} / ${written(sum(exps))} = ${written(found.softmax[at])}${own[at] === 0 && found.softmax[at] > 0 ? ", and 0 here, because it is switched off or changed" : ""}. This share of the value of ${gives} goes into this head's output for ${asks}:`;
    heading(byId("cellvalue"), ["number", "value", "weight × value", "sum over all keys"]);
    lines(byId("cellvalue"), [found.value.map((_, i) => String(i)), found.value, found.weighted, found.context]);
  };
  const open_ = async () => {
    if (!frame.open) return;
    if (live.saved) {
      if (live.saved.cell) draw_(live.saved.cell);
      else byId("cellsaid").textContent = "No cell was open when this page was saved.";
      return;
    }
    if (chosenHead.value === "mean") {
      byId("cellsaid").textContent = "Choose one head: a mean of heads has no query and key.";
      return;
    }
    const turn = ++turns, [query, at] = here();
    try {
      const found = await live.ask("cell", { state: live.state, block: Number(chosenBlock.value), head: Number(chosenHead.value), query, key: at });
      if (turn !== turns) return;
      draw_(found);
      live.opened = found;
    } catch (error) {
      if (turn === turns) byId("cellsaid").textContent = error.message;
    }
  };
  frame.addEventListener("toggle", open_);
  byId("weights").addEventListener("click", open_);
  byId("weights").addEventListener("keyup", open_);
  for (const choice of [chosenBlock, chosenHead, one("fieldset")]) choice.addEventListener("change", open_);
  live.parts.push(open_);
  if (live.saved?.cell) frame.open = true;
} else {
  byId("livecell").hidden = true;
}
