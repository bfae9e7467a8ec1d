"use strict";
// Thumbnails of all heads, with the kind that each looks like, and the switches of heads, feed-forwards and blocks.
if (live.given.blocks) {
  const grid_ = byId("headgrid"), cells = [], switches = [];
  const off = (list, part) => live.wanted[list].some((each) => String(each) === String(part));
  const toggle = (list, part) => live.change({ [list]: off(list, part) ? live.wanted[list].filter((each) => String(each) !== String(part)) : [...live.wanted[list], part] });
  const turning = (list, part, name, text) => {
    const button = make("button", { type: "button", className: "switch", textContent: text });
    button.setAttribute("role", "switch");
    button.setAttribute("aria-label", name);
    button.addEventListener("click", () => toggle(list, part));
    switches.push({ button, list, part });
    return button;
  };
  const look = (b, h) => {
    chosenBlock.value = b;
    chosenHead.value = h;
    chosenHead.dispatchEvent(new Event("change"));
  };
  grid_.style.gridTemplateColumns = `auto repeat(${behind.heads}, auto) auto`;
  for (let b = 0; b < behind.blocks; b++) {
    grid_.append(make("div", { className: "block" }, turning("blocks", b, `block ${b}`, `block ${b}`)));
    for (let h = 0; h < behind.heads; h++) {
      const canvas = make("canvas"), says = make("small"), button = make("button", { type: "button", className: "look" }, canvas);
      canvas.setAttribute("aria-hidden", "true");
      button.addEventListener("click", () => look(b, h));
      const box = make("div", { className: "head" }, button, says, turning("heads", [b, h], `head ${h} of block ${b}`, `head ${h}`));
      cells.push({ b, h, box, canvas, says, button });
      grid_.append(box);
    }
    grid_.append(make("div", { className: "block" }, turning("feed_forwards", b, `feed-forward of block ${b}`, "feed-fwd")));
  }
  // arrow keys move inside the grid: one stop of the tab key for the squares, and one for the switches
  const wander = (buttons, across) => {
    buttons.forEach((button, i) => {
      button.tabIndex = i ? -1 : 0;
      button.addEventListener("keydown", (event) => {
        const [down, right] = MOVES[event.key] ?? [];
        const next = buttons[i + (down ?? NaN) * across + (right ?? NaN)];
        if (!next) return;
        event.preventDefault();
        for (const each of buttons) each.tabIndex = each === next ? 0 : -1;
        next.focus();
      });
    });
  };
  wander(cells.map(({ button }) => button), behind.heads);
  wander(switches.map(({ button }) => button), behind.heads + 2);
  const nine = live.given.terms ? live.given.terms.parts.flatMap((query, a) => live.given.terms.parts.map((key, b) => turning("terms", [a, b], `query's ${query} with key's ${key}`, ""))) : [];
  byId("nine").hidden = !nine.length;
  if (nine.length) {
    const { parts } = live.given.terms;
    one("#terms thead").append(make("tr", {}, make("td"), ...parts.map((key) => make("th", { scope: "col", textContent: `key's ${key}` }))));
    one("#terms tbody").append(...parts.map((query, a) => make("tr", {}, make("th", { scope: "row", textContent: `query's ${query}` }), ...parts.map((_, b) => make("td", {}, nine[3 * a + b])))));
    wander(nine, 3);
  }
  const tellTerms = () => {
    const head_ = chosenBlock.value === "0" && chosenHead.value !== "mean" ? Number(chosenHead.value) : null;
    byId("ninesaid").textContent = head_ === null ? "The shares are the mean of all heads of block 0; press a square of block 0 for one head's." : `The shares are those of head ${head_} of block 0.`;
    nine.forEach((button, i) => {
      const all = live.given.terms.shares[Math.floor(i / 3)][i % 3], of = head_ === null ? all : [all[head_]];
      button.textContent = of.includes(null) ? "–" : `${Math.round(100 * of.reduce((sum, x) => sum + x, 0) / of.length)}\u00a0%`;
      button.setAttribute("aria-label", `query's ${live.given.terms.parts[Math.floor(i / 3)]} with key's ${live.given.terms.parts[i % 3]}: share ${button.textContent}`);
    });
  };
  const measured = (b, h) => {
    const { kinds, shares, names } = live.given.kinds;
    const told = kinds.map((kind, i) => `${kind} ${shares[b][h][i] === null ? "–" : shares[b][h][i].toFixed(2)}`);
    return [names[b][h], told.join(", ")];
  };
  live.parts.push(() => {
    const { kinds, least, shares, names } = live.given.kinds, own = Number(chosenBlock.value), chosen = chosenHead.value;
    for (const { b, h, box, canvas, says, button } of cells) {
      const first = (b * behind.heads + h) * pairs, numbers = attention.subarray(first, first + pairs), top = numbers.reduce((a, x) => Math.max(a, x), 0) || 1;
      paint(canvas, count, count, (i) => (numbers[i] === 0 ? null : numbers[i] / top));
      const [name, told] = measured(b, h), i = kinds.indexOf(names[b][h]);
      says.textContent = i < 0 ? "none" : `${name.split(" ")[0]} ${shares[b][h][i].toFixed(2)}`;
      button.setAttribute("aria-label", `look at head ${h} of block ${b}: ${off("heads", [b, h]) ? "off" : `looks like ${name}; ${told}`}`);
      button.classList.toggle("chosen", b === own && String(h) === chosen);
      box.classList.toggle("off", off("heads", [b, h]) || off("blocks", b));
    }
    for (const { button, list, part } of switches) button.setAttribute("aria-checked", String(!off(list, part)));
    if (nine.length) tellTerms();
    byId("kindsay").textContent = `Below a square: the kind that the head looks like in this text, and the measure: the mean share of a query's weight on the token before it, on the token after it, on the first token, on the same word elsewhere, or on the separator between texts (queries from token 2 on). The largest measure names the kind if it is ${least} or more, else it is “none”.`;
    byId("kindwork").textContent = chosen === "mean" ? "Press a square to read its measures." : `head ${chosen} of block ${own}: ${measured(own, Number(chosen))[1]}; looks like: ${measured(own, Number(chosen))[0]}`;
  });
  for (const choice of [chosenBlock, chosenHead]) choice.addEventListener("change", () => live.parts.forEach((drawn) => drawn()));
} else {
  byId("liveheads").hidden = true;
}
