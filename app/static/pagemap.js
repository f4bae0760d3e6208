// The page pool as a map: one cell a page, or a few pages where there are many.

import { $, canvasContext, colour, legend } from "./dom.js";

const STATES = [
  { letter: "p", count: "private", name: "private to a sequence", colour: "private" },
  { letter: "s", count: "protected", name: "cached and in use", colour: "shared" },
  { letter: "c", count: "evictable", name: "cached", colour: "cached" },
  { letter: ".", count: "free", name: "free", colour: "free" },
];
const LARGEST = 16;
const MOST_HEIGHT = 190;

export class PageMap {
  draw({ picture: { pages, page_map: map, page_size: size } }) {
    const canvas = $("page-map");
    const cells = map.cells.length;
    let cell = LARGEST;
    const columns = () => Math.max(1, Math.floor(canvas.clientWidth / cell));
    while (cell > 3 && Math.ceil(cells / columns()) * cell > MOST_HEIGHT) cell -= 1;
    const height = Math.ceil(cells / columns()) * cell;
    canvas.style.height = `${height}px`;
    const { context } = canvasContext(canvas, height);
    const gap = cell > 5 ? 1.5 : 0.75;
    for (const state of STATES) {
      context.fillStyle = colour(state.colour);
      for (let at = map.cells.indexOf(state.letter); at >= 0; at = map.cells.indexOf(state.letter, at + 1)) {
        context.fillRect((at % columns()) * cell, Math.floor(at / columns()) * cell, cell - gap, cell - gap);
      }
    }
    legend($("pages-legend"), STATES.map((state) => ({ ...state, value: pages[state.count], id: `pages-${state.count}` })));
    const each = map.pages_per_cell > 1 ? `, ${map.pages_per_cell} pages a cell` : "";
    $("pages-note").textContent = `${pages.total.toLocaleString("en")} pages of ${size} tokens${each}`;
    canvas.setAttribute("aria-label", `${pages.total} pages: `
      + STATES.map((state) => `${pages[state.count]} ${state.name}`).join(", "));
  }
}
