"use strict";
// The page that computes: its state, and the questions that its server answers. A saved page has a state and no server.
// Names that are not declared here come from the earlier scripts.
const live = { state: null, wanted: null, saved: null, given: null, parts: [], texts: {} };
const byId = (id) => document.getElementById(id);
{
  const secret = new URLSearchParams(location.search).get("token");
  let turns = 0, typing;
  live.ask = async (name, question) => {
    let answer;
    try {
      answer = await fetch(`/${name}`, { method: "POST", headers: { Authorization: `Bearer ${secret}` }, body: JSON.stringify(question) });
    } catch {
      throw new Error("The server does not answer: was minibert explain --live ended? Start it again, and open its new address.");
    }
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error.message);
    return found;
  };
  live.complain = (error) => { byId("trouble").textContent = error ? error.message : ""; };
  const takeAnswer = (found) => {
    const frame = one("fieldset"), before = count, kept = token, focused = frame.contains(document.activeElement);
    for (const label of frame.querySelectorAll("label")) label.remove();
    one("legend").insertAdjacentHTML("afterend", found.tokens);
    one("#normed tbody").innerHTML = found.norm;
    one("h1").textContent = found.text;
    byId("about").textContent = found.about;
    if (found.numbers.data.tokens.length === before) one(`fieldset input[value="${kept}"]`).checked = true;
    token = Number(one("fieldset input:checked").value);
    if (focused) one("fieldset input:checked").focus();
    for (const [id, { take: taken }] of Object.entries(pieces)) if (id in found.numbers) taken(found.numbers[id]);
    for (const { draw: drawn } of Object.values(pieces)) drawn();
  };
  // ask for another state; quick changes add up, and only the last answer is drawn
  live.change = async (more) => {
    if (live.saved) return;
    const turn = ++turns;
    live.wanted = { ...live.wanted, ...more };
    document.body.classList.add("busy");
    try {
      const found = await live.ask("state", live.wanted);
      if (turn !== turns) return;
      takeAnswer(found);
      live.complain();
    } catch (error) {
      if (turn !== turns) return;
      live.complain(error);
      live.wanted = live.state;
      for (const drawn of live.parts) drawn();
    }
    document.body.classList.remove("busy");
  };
  live.unchanged = { replaced: [], heads: [], feed_forwards: [], blocks: [], terms: [], patches: [] };
  // a new text has other tokens: replacements and patches of the old tokens are undone
  const asTyped = () => {
    const text = byId("typed").value, beside = byId("typedbeside").value;
    if (text === live.wanted.text && beside === live.wanted.beside) return;
    const { heads, feed_forwards, blocks, terms } = live.wanted, same = text === live.wanted.text;
    live.change({ ...live.unchanged, text, beside, heads, feed_forwards, blocks, terms, replaced: same ? live.wanted.replaced : [] });
  };
  const save = async () => {
    try {
      const { html } = await live.ask("saved", { state: live.state, token, sample: live.sample ?? null, cell: live.opened ?? null, map: live.mapped ?? null });
      const link = make("a", { href: URL.createObjectURL(new Blob([html], { type: "text/html" })), download: "minibert.html" });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    } catch (error) {
      live.complain(error);
    }
  };
  const takeLive = (given) => {
    live.given = given;
    live.state = live.wanted = given.state;
    live.saved = given.saved ?? live.saved;
    if (document.activeElement !== byId("typed")) byId("typed").value = given.state.text;
    if (document.activeElement !== byId("typedbeside")) byId("typedbeside").value = given.state.beside;
  };
  live.start = () => {
    if (live.saved) {
      for (const element of document.querySelectorAll("#ask textarea, #ask button, #replace *, #patch *, #sampling input, #sampling button, .switch")) element.disabled = true;
      byId("second").open = Boolean(live.state.beside);
      if (Number.isInteger(live.saved.token)) take(live.saved.token);
      return;
    }
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      asTyped();
    });
    byId("ask").addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(asTyped, 250);
    });
    byId("undo").addEventListener("click", () => live.change(live.unchanged));
    byId("save").addEventListener("click", save);
  };
  piece("livedata", takeLive, () => live.parts.forEach((drawn) => drawn()));
}
