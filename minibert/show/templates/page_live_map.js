"use strict";
// The map of block and token: which hidden states of the text restore its prediction in the second text's run.
if (live.given.words) {
  let turns = 0, drawn = null;
  const question = () => JSON.stringify([live.state.text, live.state.beside, token]);
  const clear = () => {
    turns += 1;
    drawn = live.mapped = null;
    byId("mapit").disabled = Boolean(live.saved);
    byId("mapsaid").textContent = "";
    byId("map").tHead.replaceChildren();
    byId("map").tBodies[0].replaceChildren();
    byId("maplegend").hidden = true;
  };
  const draw_ = ({ shares, tokens, token: at, word, chances }) => {
    const reach = Math.max(1, ...shares.flat().map(Math.abs)), last = shares.length - 1;
    const share = (x) => {
      const rgb = colour((x / reach + 1) / 2, SIGNED), light = [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => sum + part * (rgb[i] / 255) ** 2.2, 0);
      const drawn_ = cell(x.toFixed(2).replace(/^-(0\.00)$/, "$1"));
      Object.assign(drawn_.style, { background: `rgb(${rgb.map(Math.round)})`, color: light > 0.18 ? "#000" : "#fff" });
      return drawn_;
    };
    headed(byId("map").tHead, ["hidden state", ...tokens]);
    byId("map").tBodies[0].replaceChildren(...shares.map((row, i) => make("tr", {}, named("", i < last ? `before block ${i}` : "after the last"), ...row.map(share))));
    byId("mapsaid").textContent = `${word} at token ${at}: probability ${chances[0].toPrecision(3)}, in the second text ${chances[1].toPrecision(3)}. Where the two texts differ, a column names both tokens.`;
    byId("maplegend").hidden = false;
    legend(byId("maplegend"), -reach, reach, SIGNED);
  };
  byId("mapit").addEventListener("click", async () => {
    clear();
    const turn = turns;
    drawn = question();
    byId("mapit").disabled = true;
    byId("mapsaid").textContent = "computing …";
    try {
      const found = await live.ask("map", { state: live.state, token });
      if (turn !== turns) return;
      live.mapped = found;
      draw_(found);
    } catch (error) {
      if (turn === turns) byId("mapsaid").textContent = error.message;
    }
    if (turn === turns) byId("mapit").disabled = false;
  });
  const redraw = () => {
    byId("mapping").hidden = !live.state.beside;
    if (live.saved) {
      if (live.saved.map) draw_(live.saved.map);
    } else if (drawn !== null && drawn !== question()) clear();
  };
  live.parts.push(redraw);
  one("fieldset").addEventListener("change", redraw);
  if (live.saved) clear();
}
