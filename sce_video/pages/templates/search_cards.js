// The grid of videos: cards, thumbnails, clips on hover, selection, keyboard; and the player.

const CHUNK = 60; // cards that are added at a time
const HOVER_MS = 120;

/** A DOM element; text is never read as HTML. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in node && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Control and bidirectional characters as they are written in Python; utils/printable.py. */
export const printable = (text) =>
  text.replace(/(?! )[\p{C}\p{Z}]/gu, (c) => {
    const code = c.codePointAt(0).toString(16);
    return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : code.length <= 4 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`;
  });

export const byId = (id) => document.getElementById(id);
export const baseName = (path) => path.slice(path.lastIndexOf("/") + 1);
const folderName = (path) => path.slice(0, path.lastIndexOf("/") + 1);

/** 62.5 as 1:02.5. */
export function clock(seconds) {
  const tenths = Math.round(seconds * 10);
  const [hours, minutes] = [Math.floor(tenths / 36000), Math.floor(tenths / 600) % 60];
  const rest = ((tenths % 600) / 10).toFixed(1).padStart(4, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/** Start and end of a moment. */
export const moment = (span) => `${clock(span[0])}-${clock(span[1])}`;

/** A clip that plays by itself. */
export function clip(url) {
  const video = element("video", { src: url, autoplay: true, loop: true, playsInline: true });
  video.muted = true;
  return video;
}

/** Cards of the shown videos, added while the user scrolls.
 *  actions: similar(row), like(row), unlike(row), play(row), selected(), missing(rows), thumb(row), clip(row). */
export class Grid {
  constructor(node, end, videos, actions) {
    Object.assign(this, { node, end, videos, actions });
    this.items = []; // {row, similarity?}
    this.cards = new Map();
    this.selection = new Set();
    this.problems = new Map(); // of videos that cannot be shown
    this.last = null; // card of the last click on a checkbox, for a range with shift
    new IntersectionObserver((seen) => seen.some((s) => s.isIntersecting) && this.append(), {
      rootMargin: "600px",
    }).observe(end);
    node.addEventListener("click", (event) => this.click(event));
    node.addEventListener("keydown", (event) => this.key(event));
    node.addEventListener("pointerover", (event) => event.pointerType === "mouse" && this.hover(event));
    node.addEventListener("pointerleave", () => this.stop());
  }

  show(items) {
    this.stop();
    this.items = items;
    this.cards.clear();
    this.node.replaceChildren();
    this.append();
  }

  append() {
    const start = this.cards.size;
    const items = this.items.slice(start, start + CHUNK);
    for (const item of items) {
      const card = this.card(item);
      this.cards.set(item.row, card);
      this.node.append(card);
      if (this.problems.has(item.row)) this.mark(item.row, this.problems.get(item.row));
    }
    if (start === 0 && items.length) this.cards.get(items[0].row).tabIndex = 0;
    if (items.length) this.actions.missing(items.map((item) => item.row));
    const left = this.items.length - this.cards.size;
    this.end.textContent = left > 0 ? `${left.toLocaleString("en")} more` : "";
    // The end may still be in view: an observer reports changes only.
    if (items.length && left > 0)
      requestAnimationFrame(() => {
        if (this.end.getBoundingClientRect().top < innerHeight + 600) this.append();
      });
  }

  card({ row, similarity, span }) {
    const time = span ?? this.videos.spans?.[row];
    const path = this.videos.names[row] + (time ? ` ${moment(time)}` : "");
    const picture = element(
      "button",
      { class: "picture", tabIndex: -1, "aria-label": `Find videos similar to ${path}` },
      element("img", { loading: "lazy", src: this.actions.thumb(row), alt: "" }),
    );
    picture.firstChild.addEventListener("error", () => this.mark(row, "cannot be shown"));
    const box = element("input", { type: "checkbox", tabIndex: -1, "aria-label": `Select ${path}` });
    const card = element(
      "article",
      { class: "card", tabIndex: -1, role: "listitem", "data-row": String(row), "aria-label": path },
      picture,
      element("label", { class: "box" }, box),
      element("button", { class: "play", tabIndex: -1, "aria-label": `Play ${path}`, title: "Play" }, "▶"),
      element("button", { class: "like", tabIndex: -1, "aria-label": `More like ${path}`, title: "More like this  ( + )" }, "+"),
      element("button", { class: "unlike", tabIndex: -1, "aria-label": `Not like ${path}`, title: "Not like this  ( - )" }, "−"),
      element("p", { class: "name", title: path }, baseName(this.videos.names[row])),
      element(
        "p",
        { class: "facts soft" },
        ...(time ? [element("span", { class: "moment" }, moment(time))] : []),
        element("span", { class: "folder" }, folderName(this.videos.names[row])),
      ),
    );
    if (similarity !== undefined)
      card.append(element("span", { class: "similarity", title: "similarity" }, similarity.toFixed(3)));
    this.draw(card, row);
    return card;
  }

  /** Selection and label of a card. */
  draw(card, row) {
    const selected = this.selection.has(row);
    card.classList.toggle("selected", selected);
    card.querySelector("input").checked = selected;
    card.querySelector(".chip")?.remove();
    const label = this.videos.label[row];
    if (label >= 0) card.querySelector(".facts").append(chip(this.videos.classes[label]));
  }

  redraw() {
    for (const [row, card] of this.cards) this.draw(card, row);
  }

  mark(row, text) {
    this.problems.set(row, text);
    const card = this.cards.get(row);
    if (!card || card.classList.contains("gone")) return;
    card.classList.add("gone");
    card.querySelector("img")?.replaceWith(element("span", { class: "soft" }, text));
    card.querySelector(".play").remove();
  }

  rowOf(node) {
    const card = node.closest?.(".card");
    return card ? Number(card.dataset.row) : null;
  }

  click(event) {
    const row = this.rowOf(event.target);
    if (row === null) return;
    this.focus(this.cards.get(row), false);
    if (event.target.closest(".play")) this.actions.play(row);
    else if (event.target.closest(".like")) this.actions.like(row);
    else if (event.target.closest(".unlike")) this.actions.unlike(row);
    else if (event.target.matches("input")) this.toggle(row, event.shiftKey);
    else if (event.target.closest(".picture")) this.actions.similar(row);
  }

  toggle(row, range = false) {
    const on = !this.selection.has(row);
    const order = [...this.cards.keys()];
    const from = range && this.last !== null ? order.indexOf(this.last) : -1;
    const to = order.indexOf(row);
    const rows = from < 0 ? [row] : order.slice(Math.min(from, to), Math.max(from, to) + 1);
    for (const each of rows) {
      if (on) this.selection.add(each);
      else this.selection.delete(each);
    }
    this.last = row;
    this.selectionChanged();
  }

  select(rows) {
    this.selection = new Set(rows);
    this.selectionChanged();
  }

  selectionChanged() {
    this.redraw();
    this.actions.selected();
  }

  // One card takes part in the order of the tab key, the arrows move among the others.
  focus(card, move = true) {
    this.node.querySelector('.card[tabindex="0"]')?.setAttribute("tabindex", "-1");
    card.tabIndex = 0;
    if (move) card.focus();
  }

  /** Move the focus to the card that takes part in the order of the tab key. */
  enter() {
    this.node.querySelector('.card[tabindex="0"]')?.focus();
  }

  key(event) {
    const row = this.rowOf(event.target);
    if (row === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const cards = [...this.node.children];
    const columns = cards.filter((card) => card.offsetTop === cards[0].offsetTop).length;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    if (event.key in steps) {
      const next = cards[cards.indexOf(this.cards.get(row)) + steps[event.key]];
      if (next) this.focus(next);
    } else if (event.key === "Enter" && event.target.matches(".card")) this.actions.similar(row);
    else if (event.key === "x") this.toggle(row, false);
    else if (event.key === "p") this.actions.play(row);
    else if (event.key === "+") this.actions.like(row);
    else if (event.key === "-") this.actions.unlike(row);
    else return;
    event.preventDefault();
  }

  hover(event) {
    const picture = event.target.closest(".picture");
    if (picture === this.hovered) return;
    this.stop();
    const row = this.rowOf(event.target);
    if (!picture || this.cards.get(row).classList.contains("gone")) return;
    this.hovered = picture;
    this.timer = setTimeout(() => {
      const video = clip(this.actions.clip(row));
      video.addEventListener("error", () => video.remove());
      picture.append(video);
    }, HOVER_MS);
  }

  stop() {
    clearTimeout(this.timer);
    this.hovered?.querySelector("video")?.remove();
    this.hovered = null;
  }
}

/** A label. */
export const chip = (name) => element("span", { class: "chip", title: name }, name);

/** Play the file itself where the browser can, from the moment on, else the small clip of its middle. */
export function play(path, url, clipUrl, playable, span) {
  const dialog = byId("player");
  const note = byId("player-note");
  const extension = path.slice(path.lastIndexOf(".")).toLowerCase();
  byId("player-name").textContent = span ? `${path} ${moment(span)}` : path;
  note.hidden = true;
  const small = () => {
    note.textContent = `Browsers cannot play this ${extension} file. This is a small copy of up to 3 s from its middle.`;
    note.hidden = false;
    byId("player-media").replaceChildren(clip(clipUrl));
  };
  if (playable.includes(extension)) {
    const video = element("video", { controls: true, autoplay: true, src: span ? `${url}#t=${span[0]},${span[1]}` : url });
    video.addEventListener("error", small);
    byId("player-media").replaceChildren(video);
  } else small();
  dialog.showModal();
}
