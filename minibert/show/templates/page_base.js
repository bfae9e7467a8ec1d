"use strict";
// The functions that all parts of the page share: elements, numbers, colours, squares.
// each part of the page has numbers in the element of its id: `take` reads them, `draw` shows them
const pieces = {};
const piece = (id, take, draw) => {
  pieces[id] = { take, draw };
  take(JSON.parse(document.getElementById(id).textContent));
};
let data, token = 0, count = 0; // the first part's numbers, the chosen token, the count of tokens
const one = (selector, within = document) => within.querySelector(selector);
const make = (tag, more = {}, ...inside) => {
  const element = Object.assign(document.createElement(tag), more);
  element.append(...inside);
  return element;
};
const unpack = (text, kind = data.float) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new (kind === "f8" ? Float64Array : Float32Array)(bytes.buffer);
};
const written = (x) => (Number.isFinite(x) && x !== 0 ? x.toPrecision(6) : String(x));
const inside = (x) => (x < 0 ? `(${written(x)})` : written(x));

// viridis at ten even steps, for numbers from 0 up: its lightness rises evenly, so it can be read without colour
const VIRIDIS = ["440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725"]
  .map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
// PuOr_r for signed numbers, as in the pictures: 0 is nearly white; the larger, the darker: violet below 0, orange above
const SIGNED = ["2d004b", "542788", "8073ac", "b2abd2", "d8daeb", "f7f7f7", "fee0b6", "fdb863", "e08214", "b35806", "7f3b08"]
  .map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
const colour = (share, map) => {
  const last = map.length - 1, at = Math.min(Math.max(Number.isNaN(share) ? 0 : share, 0), 1) * last;
  const low = Math.min(Math.floor(at), last - 1);
  return map[low].map((from, i) => from + (at - low) * (map[low + 1][i] - from));
};
const paint = (canvas, width, height, share, map = VIRIDIS) => {  // a share of null stays blank
  canvas.width = width;
  canvas.height = height;
  const pen = canvas.getContext("2d"), picture = pen.createImageData(width, height);
  for (let i = 0; i < width * height; i++) picture.data.set([...colour(share(i), map), share(i) === null ? 0 : 255], 4 * i);
  pen.putImageData(picture, 0, 0);
};
const legend = (element, low, high, map = VIRIDIS) => {
  const [from, to] = element.querySelectorAll(".number");
  from.textContent = low.toPrecision(2);
  to.textContent = high.toPrecision(2);
  paint(one("canvas", element), 256, 1, (i) => i / 255, map);
};

// a grid of tokens by tokens, `side` pixels wide or more, with frames outside of the chosen token's row and of one cell in it
const drawSquare = (canvas, side, share, cell = null, map = VIRIDIS, rows = count, columns = count) => {
  const scale = Math.max(4, Math.ceil(side / columns)), small = make("canvas");
  paint(small, columns, rows, share, map);
  [canvas.width, canvas.height] = [columns * scale, rows * scale];
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
  pen.lineWidth = 2;
  [["#000", 1], ["#fff", 3]].forEach(([ink, out]) => {
    pen.strokeStyle = ink;
    pen.strokeRect(1, token * scale - out, canvas.width - 2, scale + 2 * out);
    if (cell !== null) pen.strokeRect(cell * scale - out, token * scale - out, scale + 2 * out, scale + 2 * out);
  });
};
// names above and beside a grid, the chosen row's and column's in bold; more than FEW names need ROOM pixels each
const FEW = 40, ROOM = 14;
const nameSides = (canvas, names, row, column, across = names) => {
  const host = canvas.parentElement;
  if (across.length > FEW) host.style.setProperty("--side", `${across.length * ROOM}px`);
  else host.style.removeProperty("--side");
  for (const [side, chosen, texts] of [["above", column, across], ["beside", row, names]]) {
    one(`.${side}`, host).replaceChildren(...texts.map((name, i) => make("bdi", { textContent: name, className: i === chosen ? "chosen" : "" })));
  }
};
const within = (place, all = count) => Math.min(Math.max(place, 0), all - 1);
const pointed = (event, [rows, columns]) => {  // the row and column of a grid
  const box = event.currentTarget.getBoundingClientRect();
  return [within(Math.floor((event.clientY - box.top) / box.height * rows), rows),
    within(Math.floor((event.clientX - box.left) / box.width * columns), columns)];
};
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const take = (i) => one(`fieldset input[value="${i}"]`)?.click(); // the row of a bias has no token to choose
// a grid of tokens by tokens answers to a pointing mouse, a tap, a click and the arrow keys. `tell` shows the cell under
// the mouse, `select` keeps a cell, `here` returns the cell that was selected last. A name chooses its row or column
const answering = (canvas, tell, select, here, size = () => [count, count]) => {
  canvas.tabIndex = 0;
  canvas.addEventListener("pointermove", (event) => tell(...pointed(event, size())));
  canvas.addEventListener("pointerleave", () => tell(...here()));
  canvas.addEventListener("click", (event) => select(...pointed(event, size())));
  canvas.addEventListener("keydown", (event) => {
    const [down, right] = MOVES[event.key] ?? [];
    if (down === undefined) return;
    event.preventDefault();
    const [i, j] = here(), [rows, columns] = size();
    select(within(i + down, rows), within(j + right, columns));
  });
  for (const [side, choose] of [["above", (j) => select(here()[0], j)], ["beside", take]]) {
    const host = one(`.${side}`, canvas.parentElement);
    host.addEventListener("click", ({ target }) => target.localName === "bdi" && choose([...host.children].indexOf(target)));
  }
};
