// The radix tree as a picture: a bar for each stretch of cached tokens, to its right what continues it.
// Keyboard: WAI-ARIA tree pattern; one bar is in the tab order, arrow keys go to parent, child and siblings.

import { $, plural, requestColour, shortName, svg } from "./dom.js";

const ROW = 27;
const HEIGHT = 21;
const GAP = 28;
const MOST_ROWS = 60;
const NARROWEST = 104;
const WIDEST_MORE = 150;
const MOST_STRETCH = 4;

export class TreePicture {
  #focused = 0;
  #drawn = "";

  constructor() {
    $("tree").addEventListener("keydown", (event) => this.#move(event));
    for (const type of ["focusin", "pointerover"]) {
      $("tree").addEventListener(type, (event) => {
        const item = event.target.closest("[role=treeitem]");
        if (item) $("tree-detail").textContent = item.getAttribute("aria-label");
      });
    }
  }

  draw({ picture: { nodes, num_nodes: total } }) {
    const shared = nodes.filter((node) => node.users > 1).length;
    $("tree-note").textContent = nodes.length
      ? `${plural(total, "node")}, ${nodes.filter((node) => node.users).length} in use, ${shared} by several`
      : "empty";
    const state = `${$("tree-scroll").clientWidth} ${JSON.stringify(nodes)}`;
    if (state === this.#drawn) return;
    this.#drawn = state;
    this.#draw(layOut(nodes, $("tree-scroll").clientWidth));
  }

  #draw({ placed, rows, width, left }) {
    const tree = $("tree");
    const had = tree.contains(document.activeElement);
    const height = Math.max(1, rows) * ROW + (left ? ROW : 0);
    tree.setAttribute("width", width);
    tree.setAttribute("height", height);
    if (!placed.some(({ node }) => node.id === this.#focused)) this.#focused = placed[0]?.node.id ?? 0;
    const more = left ? [svg("text", { class: "faint", x: 4, y: rows * ROW + ROW / 2 }, `and ${left} more`)] : [];
    tree.replaceChildren(...placed.map(edge), ...placed.map((place) => this.#bar(place)), ...more);
    if (had) tree.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
  }

  #bar({ node, x, y, width, depth, children }) {
    const kinds = [node.users ? "used" : "", children.length + node.hidden > 1 ? "branching" : ""].join(" ").trim();
    const users = node.requests.slice(0, 6).map((id, index) => svg("circle", {
      cx: x + width - 9 - index * 9, cy: y + HEIGHT / 2, r: 3.5, fill: requestColour(id),
    }));
    const size = plural(node.pages, "page");
    const room = Math.floor((width - 14 - users.length * 9) / 6.5);
    const text = node.text === null ? size : clip(visible(node.text), room);
    return svg("g", {
      class: kinds, role: "treeitem", "aria-level": depth + 1, tabindex: node.id === this.#focused ? 0 : -1,
      "data-node": node.id, "data-parent": node.parent, "data-users": node.users, "data-pages": node.pages,
      "aria-label": describe(node, children),
    },
      svg("rect", { x, y, width, height: HEIGHT, rx: 5 }),
      svg("text", { x: x + 7, y: y + HEIGHT / 2 + 0.5, class: node.text === null ? "" : "preview" }, text),
      ...users);
  }

  #move(event) {
    const item = event.target.closest("[role=treeitem]");
    if (!item) return;
    const items = [...$("tree").querySelectorAll("[role=treeitem]")];
    const siblings = items.filter((other) => other.dataset.parent === item.dataset.parent);
    const at = siblings.indexOf(item);
    const target = {
      ArrowRight: () => items.find((other) => other.dataset.parent === item.dataset.node),
      ArrowLeft: () => items.find((other) => other.dataset.node === item.dataset.parent),
      ArrowDown: () => siblings[at + 1],
      ArrowUp: () => siblings[at - 1],
      Home: () => items[0],
      End: () => items.at(-1),
    }[event.key]?.();
    if (!target) return;
    event.preventDefault();
    item.setAttribute("tabindex", -1);
    target.setAttribute("tabindex", 0);
    this.#focused = Number(target.dataset.node);
    target.focus();
  }
}

/** Places for as many nodes as fit: leaves one below the other, parents beside their first child. */
function layOut(nodes, room) {
  const children = Map.groupBy(nodes, (node) => node.parent);
  const most = Math.max(1, ...nodes.map((node) => node.pages));
  const more = (node) => WIDEST_MORE * Math.sqrt(node.pages / most);
  const stretch = stretchThatFits(children, more, room);
  const placed = [];
  let rows = 0;
  let width = 0;
  const place = (node, x, depth, parent) => {
    const size = NARROWEST + stretch * more(node);
    const mine = { node, x, y: rows * ROW + (ROW - HEIGHT) / 2, width: size, depth, parent, children: [] };
    placed.push(mine);
    width = Math.max(width, x + size + 2);
    for (const child of children.get(node.id) ?? []) {
      if (mine.children.length) rows += 1;
      if (rows >= MOST_ROWS) break;
      mine.children.push(place(child, x + size + GAP, depth + 1, mine));
    }
    return mine;
  };
  for (const top of children.get(0) ?? []) {
    if (rows >= MOST_ROWS) break;
    place(top, 1, 0, null);
    rows += 1;
  }
  return { placed, rows, width, left: nodes.length - placed.length };
}

/** By how much bars may be longer so that the longest path still fits in `room` pixels; 1 where not even the shortest do. */
function stretchThatFits(children, more, room) {
  let stretch = MOST_STRETCH;
  const follow = (id, fixed, scaled) => {
    for (const node of children.get(id) ?? []) {
      const [before, with_] = [fixed + NARROWEST, scaled + more(node)];
      stretch = Math.min(stretch, (room - before - 4) / with_);
      follow(node.id, before + GAP, with_);
    }
  };
  follow(0, 0, 0);
  return stretch >= 0 ? stretch : 1;
}

function edge({ node, x, y, parent }) {
  if (!parent) return "";
  const from = { x: parent.x + parent.width, y: parent.y + HEIGHT / 2 };
  const to = { x, y: y + HEIGHT / 2 };
  const middle = from.x + GAP / 2;
  return svg("path", {
    class: node.users ? "edge used" : "edge",
    d: `M${from.x} ${from.y} C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`,
  });
}

function describe(node, children) {
  const parts = [`${plural(node.tokens, "token")} in ${plural(node.pages, "page")}`];
  if (node.text !== null) parts.push(`“${visible(node.text)}”`);
  const continued = children.length + node.hidden;
  if (continued > 1) parts.push(`shared by ${plural(continued, "continuation")}`);
  if (node.users) parts.push(`used by ${node.requests.map(shortName).join(", ")}${node.users > node.requests.length ? ` and ${node.users - node.requests.length} more` : ""}`);
  else parts.push("used by nobody now");
  return parts.join(" · ");
}

const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", " ");
const clip = (text, room) => (text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text);
