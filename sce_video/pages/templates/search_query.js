// The query (examples, counter-examples, text and label), and conditions on columns.

import { byId, clip, element, printable } from "./search_cards.js";

/** Of Rocchio's method, as in find/query.py. */
const WEIGHTS = { like: 0.75, unlike: 0.15, text: 1 };
const KINDS = ["like", "unlike"];
const SIGNS = { like: "", unlike: "not-" };
const NAMES = { like: "like", unlike: "not like", text: "text" };

const emptyQuery = () => ({ like: [], unlike: [], text: "", label: "", weights: { ...WEIGHTS } });
const isEmpty = (query) => !query.like.length && !query.text && !query.label;
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** The panel of the query. page: videos, search(query), uploadFile(file), title(row), thumb(row), clip(row). */
export class QueryPanel {
  constructor(page) {
    this.page = page;
    this.query = null; // null shows all videos
    byId("words-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.change({ text: byId("words").value.trim() });
    });
    byId("words").addEventListener("search", () => {
      if (!byId("words").value && this.query?.text) this.change({ text: "" });
    });
    byId("query-file").addEventListener("change", async (event) => {
      const example = event.target.files[0] && (await page.uploadFile(event.target.files[0]));
      event.target.value = "";
      if (example) this.add("like", [example]);
    });
    for (const name of Object.keys(WEIGHTS))
      byId(`weight-${name}`).addEventListener("change", (event) => {
        const value = Math.min(1e6, Math.max(0, Number(event.target.value) || 0));
        this.change({ weights: { ...this.query.weights, [name]: value } });
      });
    byId("weights-reset").addEventListener("click", () => this.change({ weights: { ...WEIGHTS } }));
    byId("like-selected").addEventListener("click", () => this.addRows("like", [...page.grid.selection]));
    byId("unlike-selected").addEventListener("click", () => this.addRows("unlike", [...page.grid.selection]));
  }

  /** An example of a row, or of a moment of its video in seconds. */
  example(row, start, end) {
    const moment = start === undefined ? "" : `@${start}-${end}`;
    return { row, start, end, name: this.page.title(row) + moment };
  }

  /** Search for one example alone. */
  only(example) {
    this.page.search({ ...emptyQuery(), like: [example] });
  }

  /** Search with some parts changed. */
  change(parts) {
    const next = { ...(this.query ?? emptyQuery()), ...parts };
    if (isEmpty(next) && next.unlike.length) this.page.tell("No example is left, so all videos are shown.");
    this.page.search(isEmpty(next) ? null : next);
  }

  add(kind, examples) {
    const query = this.query ?? emptyQuery();
    const same = (a) => examples.some((b) => a.row === b.row && a.upload === b.upload && a.start === b.start);
    const parts = Object.fromEntries(KINDS.map((each) => [each, query[each].filter((a) => !same(a))]));
    parts[kind] = [...parts[kind], ...examples];
    if (kind === "unlike" && isEmpty({ ...query, ...parts })) {
      this.page.tell("First choose an example that results should be like. “Not like” is subtracted from it.", true);
      return;
    }
    this.change(parts);
  }

  addRows(kind, rows) {
    this.page.grid.select([]);
    if (rows.length) this.add(kind, rows.map((row) => this.example(row)));
  }

  moreLikeLabel(name) {
    this.page.search({ ...emptyQuery(), label: name });
  }

  /** The body of a request. */
  request() {
    const { like, unlike, text, label, weights } = this.query;
    const given = ({ row, upload, start, end }) => ({ row, upload, start, end });
    return { like: like.map(given), unlike: unlike.map(given), text: text || null, more_like: label || null, weights };
  }

  /** Rows of the map that are marked. */
  rows() {
    return (this.query?.like ?? []).map(({ row }) => row).filter((row) => row !== undefined);
  }

  // -- the address ---------------------------------------------------------------------------

  write(parts) {
    if (!this.query) return;
    for (const kind of KINDS)
      for (const { row, upload, image, name } of this.query[kind]) {
        if (row !== undefined) parts.append(`${SIGNS[kind]}video`, name);
        else parts.append(SIGNS[kind] + (image ? "image" : "upload"), `${upload}:${name}`);
      }
    if (this.query.text) parts.set("text", this.query.text);
    if (this.query.label) parts.set("more", this.query.label);
    const { weights } = this.query;
    if (Object.keys(WEIGHTS).some((name) => weights[name] !== WEIGHTS[name]))
      parts.set("weights", Object.keys(WEIGHTS).map((name) => weights[name]).join(","));
  }

  /** The query of an address; null for all videos. */
  read(parts) {
    const query = { ...emptyQuery(), text: parts.get("text") ?? "", label: parts.get("more") ?? "" };
    const row = new Map(this.page.videos.names.map((_, i) => [this.page.title(i), i]));
    for (const kind of KINDS) {
      for (const name of parts.getAll(`${SIGNS[kind]}video`)) {
        const found = row.has(name) ? null : name.match(/^(.*)@([\d.]+)-([\d.]+)$/s);
        if (row.has(name)) query[kind].push(this.example(row.get(name)));
        else if (found && row.has(found[1])) query[kind].push(this.example(row.get(found[1]), Number(found[2]), Number(found[3])));
        else this.page.tell(`${printable(name)} is not in this index`, true);
      }
      for (const type of ["upload", "image"])
        for (const text of parts.getAll(SIGNS[kind] + type)) {
          const [, upload, name] = text.match(/^([0-9a-f]+):(.*)$/s) ?? [];
          if (upload) query[kind].push(uploaded(upload, printable(name), type === "image"));
        }
    }
    const given = (parts.get("weights") ?? "").split(",").map(Number);
    if (given.length === 3 && given.every((value) => value >= 0 && value <= 1e6))
      Object.keys(WEIGHTS).forEach((name, i) => (query.weights[name] = given[i]));
    return isEmpty(query) ? null : query;
  }

  // -- what is shown -------------------------------------------------------------------------

  show(query) {
    this.query = query;
    byId("query").hidden = query === null;
    byId("words").value = query?.text ?? "";
    if (query === null) return;
    byId("query-name").textContent = this.heading();
    const several = query.like.length + query.unlike.length > 1 || query.label || query.text;
    byId("query").classList.toggle("several", Boolean(several));
    byId("query-examples").replaceChildren(
      ...query.like.map((example) => this.tile("like", example)),
      ...query.unlike.map((example) => this.tile("unlike", example)),
    );
    const used = { like: query.like.length || query.label, unlike: query.unlike.length || query.label, text: query.text };
    byId("weights").hidden = Object.values(used).filter(Boolean).length < 2;
    byId("weights-reset").hidden = Object.keys(WEIGHTS).every((name) => query.weights[name] === WEIGHTS[name]);
    for (const name of Object.keys(WEIGHTS)) {
      byId(`weight-${name}`).value = query.weights[name];
      byId(`weight-${name}`).closest("label").hidden = !used[name];
    }
  }

  heading() {
    const { like, unlike, text, label } = this.query;
    if (like.length === 1 && !unlike.length && !text && !label) return like[0].name;
    return [
      ...(label ? [`more like the label ${label}, not like the others`] : []),
      ...(like.length ? [`like ${like.length === 1 ? like[0].name : plural(like.length, "example")}`] : []),
      ...(text ? [`“${text}”`] : []),
      ...(unlike.length ? [`not like ${unlike.length === 1 ? unlike[0].name : plural(unlike.length, "example")}`] : []),
    ].join(", ");
  }

  tile(kind, example) {
    const picture = element("div", { class: "picture" });
    const url = example.row === undefined ? example.url : this.page.clip(example.row);
    const still = example.image ? example.url : example.row === undefined ? null : this.page.thumb(example.row);
    if (still) picture.append(element("img", { src: still, alt: "" }));
    if (url && !example.image) picture.append(clip(url));
    for (const node of picture.children) node.addEventListener("error", () => node.remove());
    const other = kind === "like" ? "unlike" : "like";
    const flip = element("button", { title: `Make it “${NAMES[other]}”` }, NAMES[kind]);
    flip.addEventListener("click", () => this.add(other, [example]));
    const remove = element("button", { "aria-label": `Remove ${example.name}`, title: "Remove" }, "✕");
    remove.addEventListener("click", () => this.change({ [kind]: this.query[kind].filter((each) => each !== example) }));
    const name = element("p", { title: example.name }, example.name);
    return element("div", { class: `example ${kind}` }, picture, name, element("div", { class: "row spread" }, flip, remove));
  }
}

/** An example of a file that was dropped, pasted or chosen. */
export const uploaded = (upload, name, image, shown = true) => ({
  upload,
  name,
  image,
  url: shown ? `/api/v1/upload/${upload}` : null,
});

// -- conditions on columns -----------------------------------------------------------------

const COMPARISONS = ["=", "!=", "<", "<=", ">", ">=", "contains"];

/** The fields that write a condition in SQL, which is shown and may be typed. page: videos, ask, changed(). */
export class Conditions {
  constructor(page) {
    this.page = page;
    this.rows = null; // a set, or null where there is no condition
    this.asked = "";
    byId("where").addEventListener("change", () => page.changed());
    byId("condition-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.addCondition();
    });
    byId("column").addEventListener("change", () => this.fillValues());
    byId("where-clear").addEventListener("click", () => {
      byId("where").value = "";
      page.changed();
    });
  }

  get where() {
    return byId("where").value.trim();
  }

  /** Fields for the columns of the index. */
  fill() {
    const { columns, without_columns: without } = this.page.videos;
    byId("conditions").hidden = !columns.length;
    byId("column").replaceChildren(...["path", ...columns.map(({ name }) => name)].map((name) => element("option", { value: name }, name)));
    byId("comparison").replaceChildren(...COMPARISONS.map((name) => element("option", { value: name }, name)));
    if (columns.length) byId("column").value = columns[0].name;
    const have = without === 1 ? "has" : "have";
    byId("columns-note").textContent = without ? `${plural(without, "video")} ${have} no line in the CSV file, so every column is NULL.` : "";
    this.fillValues();
  }

  fillValues() {
    const found = this.page.videos.columns.find(({ name }) => name === byId("column").value);
    byId("values").replaceChildren(...(found?.values ?? []).map((value) => element("option", { value })));
    byId("comparison").value = found && (found.number || !found.values.length) ? ">=" : found ? "=" : "contains";
    byId("value").value = "";
  }

  addCondition() {
    const name = byId("column").value;
    const value = byId("value").value;
    const found = this.page.videos.columns.find((column) => column.name === name);
    const quoted = (text) => `'${text.replaceAll("'", "''")}'`;
    const column = /^[A-Za-z_]\w*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
    const comparison = byId("comparison").value;
    const number = found?.number && value.trim() !== "" && !Number.isNaN(Number(value));
    const text = comparison === "contains" ? `instr(lower(${column}), lower(${quoted(value)}))` : `${column} ${comparison} ${number ? value.trim() : quoted(value)}`;
    byId("where").value = this.where ? `${this.where} AND ${text}` : text;
    byId("value").value = "";
    this.page.changed();
  }

  /** Ask for the rows of the condition; false where it cannot be read, as a message says. */
  async update() {
    const { where } = this;
    byId("conditions").classList.toggle("active", where !== "");
    byId("where-clear").hidden = where === "";
    if (where) byId("conditions").open = true;
    if (byId("where").ariaInvalid) byId("message").hidden = true; // about the previous condition
    byId("where").removeAttribute("aria-invalid");
    if (where === this.asked) return true;
    const answer = where ? await this.page.ask("/api/v1/rows", { where }) : { rows: null };
    if (!answer) byId("where").setAttribute("aria-invalid", "true");
    if (!answer) return false;
    if (where !== this.where) return this.update(); // The condition has changed meanwhile.
    this.asked = where;
    this.rows = answer.rows && new Set(answer.rows);
    return true;
  }
}
