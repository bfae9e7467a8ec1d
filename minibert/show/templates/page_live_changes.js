"use strict";
// The prediction as typed and now; a token replaced by another; values of the second text put into this one.
{
  const WHERE = { stream: "stream", attention: "what attention adds", "feed-forward": "what the feed-forward adds" };
  const summary = make("output", { id: "nownow" });
  summary.setAttribute("aria-live", "polite");
  one("fieldset").append(summary);
  const shown = (x) => (live.given.change.chance ? `${(100 * x).toFixed(2)}\u00a0%` : x.toFixed(4));
  const best = (rows, at) => rows.reduce((a, row) => (row[at] > a[at] ? row : a));
  const tellPrediction = () => {
    const change = live.given.change ?? {}, rows = change.rows?.[change.each ? token : 0];
    byId("nohead").hidden = Boolean(rows);
    one("#liveprediction .wide").hidden = !rows;
    if (!rows) {
      const moved = "cosine" in change ? ` The mean of its tokens' last vectors has the cosine ${change.cosine.toFixed(6)} to the mean of the text as typed.` : "";
      byId("nohead").textContent = (live.given.blocks ? (live.given.half ? "The encoder alone predicts nothing: minibert does not compute the decoder." : "This model's file has no head, so it predicts nothing.") : `The blocks of ${live.given.family} are not here or not computed: there are no attention weights and no prediction, only the input layer.`) + moved;
      summary.textContent = moved && `no head; cosine of the text's mean vector to the mean vector as typed: ${change.cosine.toFixed(6)}`;
      return;
    }
    const top = Math.max(...rows.map(([, before, now]) => Math.abs(now - before)), 1e-9);
    one("#changes tbody").replaceChildren(...rows.map(([name, before, now]) => {
      const drawn = bar(Math.abs(now - before) / top);
      drawn.classList.toggle("less", now < before);
      return make("tr", {}, named(name), cell(shown(before)), cell(shown(now)), cell(`${now < before ? "−" : "+"}${shown(Math.abs(now - before))}`, drawn));
    }));
    const [was, is] = [best(rows, 1), best(rows, 2)];
    summary.textContent = `likeliest at “${data.tokens[token]}”: ${is[0]} ${shown(is[2])}; as typed: ${was[0]} ${shown(was[1])}`;
  };

  const without = (list, i) => live.change({ [list]: live.wanted[list].filter((_, other_) => other_ !== i) });
  const nameAt = (names, i) => (i === null ? "every token" : `token ${i}, ${names?.[i] ?? "?"}`);
  const saysOf = {
    replaced: ([place, word]) => `token ${place} is now ${word}`,
    heads: ([b, h]) => `head ${h} of block ${b} is off`,
    feed_forwards: (b) => `the feed-forward of block ${b} is off`,
    blocks: (b) => `block ${b} is off`,
    terms: ([query, key]) => `block 0's scores are without the query's ${live.given.terms.parts[query]} with the key's ${live.given.terms.parts[key]}`,
    patches: ({ what, block, place, source }) => `${what === "stream" ? `stream ${block < live.given.blocks ? `before block ${block}` : "after the last block"}` : `${WHERE[what]} in block ${block}`}: ${nameAt(data.tokens, place)} has the value of ${place === null ? "the second text" : `${nameAt(beside?.tokens, source)} of the second text`}`,
  };
  const listChanges = () => {
    const items = Object.entries(saysOf).flatMap(([list, says]) => live.wanted[list].map((part, i) => {
      const button = make("button", { type: "button", textContent: "take back", disabled: Boolean(live.saved) }), text = says(part);
      button.setAttribute("aria-label", `take back: ${text}`);
      button.addEventListener("click", () => without(list, i));
      return make("li", {}, make("bdi", { textContent: text }), " ", button);
    }));
    byId("changed").replaceChildren(...(items.length ? items : [make("li", { textContent: "nothing" })]));
  };
  const drawForms = () => {
    one("#beside b").textContent = live.state.beside;
    one("#replace label").textContent = `Put in the place of token ${token}, “${data.tokens[token]}”:`;
    one("#patch button").textContent = `into token ${token}, “${data.tokens[token]}”`;
    byId("patch").hidden = !beside;
    byId("nosecond").hidden = Boolean(beside);
    const names = beside ? beside.tokens.map((name, i) => `${i}: ${name}`) : [], from = byId("patchfrom"), chosen = from.value;
    if (from.options.length !== names.length + 1 || names.some((name, i) => from.options[i + 1].text !== name)) {
      from.replaceChildren(make("option", { value: "all", textContent: "each at its place" }), ...names.map((name, i) => make("option", { value: i, textContent: name })));
      from.value = String(Math.min(token, names.length - 1));
    } else from.value = chosen;
  };
  const redraw = () => {
    tellPrediction();
    listChanges();
    if (live.given.blocks) drawForms();
  };
  live.parts.push(redraw);
  one("fieldset").addEventListener("change", redraw);
  if (live.given.blocks) {
    byId("patchwhat").append(...Object.entries(WHERE).map(([value, textContent]) => make("option", { value, textContent })));
    for (let i = 0; i <= live.given.blocks; i++) byId("patchblock").append(make("option", { value: i, textContent: i < live.given.blocks ? i : `${i}: after the last` }));
    one("fieldset").addEventListener("change", () => { byId("patchfrom").value = beside ? String(Math.min(token, beside.tokens.length - 1)) : "all"; });
    byId("replace").addEventListener("submit", (event) => {
      event.preventDefault();
      const word = byId("replacement").value;
      if (word) live.change({ replaced: [...live.wanted.replaced.filter(([place]) => place !== token), [token, word]] });
    });
    byId("patch").addEventListener("submit", (event) => {
      event.preventDefault();
      const from = byId("patchfrom").value, all = from === "all";
      const patch = { what: byId("patchwhat").value, block: Number(byId("patchblock").value), place: all ? null : token, source: all ? null : Number(from) };
      live.change({ patches: [...live.wanted.patches, patch] });
    });
  } else {
    byId("livechanges").hidden = byId("second").hidden = true;
  }
}
