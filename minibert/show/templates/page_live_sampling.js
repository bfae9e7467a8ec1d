"use strict";
// Temperature, top-k and top-p: the probabilities at the chosen token with these settings, and a word drawn by them.
if (live.given.words) {
  const sliders = ["temperature", "topk", "topp"].map(byId);
  let turns = 0, seed = 0;
  const shown = (x) => `${(100 * x).toFixed(2)}\u00a0%`;
  const draw_ = ({ words, kept, sampled, appended, settings }) => {
    sliders.forEach((slider, i) => { slider.value = settings[i]; });
    for (const slider of sliders) one(`output[for="${slider.id}"]`).textContent = slider.value;
    one("#words tbody").replaceChildren(...words.map(([name, before, now]) =>
      make("tr", { className: name === sampled[0] ? "chosen" : "" }, named(name), cell(shown(before), bar(before)), cell(shown(now), bar(now)))));
    byId("sampled").textContent = `chosen: ${sampled[0]} (${shown(sampled[1])}); ${kept} of the words can be chosen`;
    byId("append").hidden = appended === null;
  };
  const choose_ = async () => {
    if (live.saved) {
      if (live.saved.sample) draw_(live.saved.sample);
      return;
    }
    const turn = ++turns, settings = sliders.map((slider) => Number(slider.value));
    for (const slider of sliders) one(`output[for="${slider.id}"]`).textContent = slider.value;
    const [temperature, top, p] = settings;
    try {
      const found = await live.ask("sample", { state: live.state, token, temperature, k: top, p, seed });
      if (turn !== turns) return;
      live.sample = { ...found, settings };
      draw_(live.sample);
    } catch (error) {
      if (turn === turns) live.complain(error);
    }
  };
  for (const slider of sliders) slider.addEventListener("input", choose_);
  byId("again").addEventListener("click", () => {
    seed += 1;
    choose_();
  });
  byId("append").addEventListener("click", () => {
    seed += 1;
    live.change({ ...live.unchanged, heads: live.wanted.heads, feed_forwards: live.wanted.feed_forwards, blocks: live.wanted.blocks, terms: live.wanted.terms, text: live.state.text + live.sample.appended });
  });
  one("fieldset").addEventListener("change", choose_);
  live.parts.push(choose_);
} else {
  byId("sampling").hidden = true;
}
live.parts.forEach((drawn) => drawn());
live.start();
