// The search page: the shown videos, searches, filters, the map and keys.

import { Grid, baseName, byId, element, moment, play, printable } from "./search_cards.js";
import { Labels } from "./search_labels.js";
import { Conditions, QueryPanel, uploaded } from "./search_query.js";
import { Segments } from "./search_segments.js";

const settings = JSON.parse(byId("settings").textContent);
const FIRST_RESULTS = 24;
const MOST_RESULTS = 500;
const videos = { names: [], folder: [], folders: [], label: [], classes: [], columns: [] };
const page = { videos, ask, tell, labelled, search, uploadFile };
const thumb = (row) => `/api/v1/thumb/${row}?s=${settings.session}`;
const clipOf = (row) => `/api/v1/clip/${row}?s=${settings.session}`;
let results = FIRST_RESULTS;
let searches = 0;
let points = null; // of the map
let map = null;

history.replaceState(null, "", `/${location.hash}`); // The token is in a cookie now, so remove it from the history.

/** The answer to a request; null after an error, which is shown. */
async function ask(path, body) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" } };
  const options = body instanceof Blob ? { method: "POST", body } : { ...post, body: JSON.stringify(body) };
  try {
    const response = await fetch(path, body === undefined ? {} : options);
    const answer = await response.json();
    if (response.ok) return answer;
    tell(answer.error, true);
  } catch {
    tell("The server does not respond. Restart it with sce-video search --serve.", true);
  }
  return null;
}

/** Show a sentence at the bottom of the page; an error stays until it is clicked. */
function tell(text, bad = false) {
  const box = byId("message");
  // An open dialog lies above the page.
  (document.querySelector("dialog[open]") ?? document.body).append(box);
  box.textContent = text;
  box.classList.toggle("bad", bad);
  box.hidden = false;
  clearTimeout(tell.timer);
  if (!bad) tell.timer = setTimeout(() => (box.hidden = true), 4000);
}

// -- the address ---------------------------------------------------------------------------

/** Query and filters, behind the # of the address: the browser does not send that to the server. */
function address() {
  const { path, folder, label, where } = filters();
  const parts = new URLSearchParams();
  panel.write(parts);
  if (path) parts.set("path", path);
  if (folder !== null) parts.set("folder", folder);
  if (label !== null) parts.set("label", videos.classes[label] ?? "");
  if (where) parts.set("where", where);
  for (const name of ["centred", "refined"]) if (byId(name).checked) parts.set(name, "1");
  return parts.toString();
}

/** Write the address: a search is a step of the history, a filter is not. */
function remember(step = false) {
  const text = address();
  if (text === location.hash.slice(1)) return;
  history[step ? "pushState" : "replaceState"](null, "", text ? `/#${text}` : "/");
}

/** Show what the address says: after a reload, and for the browser's Back and Forward. */
function restore() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const group = (kind, number) => (number < 0 ? "" : `${kind}:${number}`);
  byId("path").value = parts.get("path") ?? "";
  byId("group").value = "";
  if (parts.has("folder")) byId("group").value = group("f", videos.folders.indexOf(parts.get("folder")));
  if (parts.has("label"))
    byId("group").value = parts.get("label") ? group("l", videos.classes.indexOf(parts.get("label"))) : "l:-1";
  if (byId("group").selectedIndex < 0) byId("group").value = "";
  for (const name of ["centred", "refined"]) byId(name).checked = parts.has(name);
  byId("where").value = parts.get("where") ?? "";
  return search(panel.read(parts), false);
}

// -- what is shown -------------------------------------------------------------------------

/** Values of the filters; a group is f:FOLDER, l:LABEL, or empty. */
function filters() {
  const group = byId("group").value;
  return {
    path: byId("path").value.trim(),
    folder: group.startsWith("f:") ? videos.folders[Number(group.slice(2))] : null,
    label: group.startsWith("l:") ? Number(group.slice(2)) : null,
    where: conditions.where,
  };
}

function matching() {
  const { path, folder, label } = filters();
  const text = path.toLowerCase();
  const number = folder === null ? null : videos.folders.indexOf(folder);
  const rows = [];
  videos.names.forEach((name, row) => {
    if (text && !name.toLowerCase().includes(text)) return;
    if (number !== null && videos.folder[row] !== number) return;
    if (label !== null && videos.label[row] !== label) return;
    if (conditions.rows && !conditions.rows.has(row)) return;
    rows.push({ row });
  });
  return rows;
}

const amount = (count) => `${count.toLocaleString("en")} ${videos.spans ? "moment" : "video"}${count === 1 ? "" : "s"}`;

/** Name of a row, with its moment. */
const title = (row) => videos.names[row] + (videos.spans ? ` ${moment(videos.spans[row])}` : "");

async function show() {
  const number = (searches += 1);
  byId("gone").hidden = true;
  const read = await conditions.update();
  if (number !== searches) return;
  if (!read) return showNothing("No video is shown, because the condition on the columns cannot be evaluated");
  if (panel.query === null) {
    const items = matching();
    byId("count").textContent = amount(items.length);
    grid.show(items);
    return;
  }
  const centred = byId("centred").checked;
  const refined = byId("refined").checked;
  if (refined) byId("query-note").textContent = "Embedding windows around the best moments …";
  const found = await ask("/api/v1/search", { ...panel.request(), k: results, centred, refined, ...filters() });
  if (number !== searches) return; // a later search has begun
  if (!found) {
    if (!byId("count").textContent) return search(null); // from an address of an earlier start of the server
    return showNothing("No video is shown, because this search failed");
  }
  if (found.failures.length) tell(`Not refined: ${found.failures.join("; ")}`, true);
  grid.show(found.rows.map((each, i) => ({ row: each, similarity: found.similarity[i], span: found.spans[i] })));
  byId("count").textContent = found.rows.length ? `${amount(found.rows.length)}, the most similar first` : "No video passes the filters";
  const close = !centred && found.similarity.length > 1 && found.similarity.at(-1) > 0.95;
  byId("query-note").textContent = centred
    ? "Centred: the mean feature of the index is subtracted first, so similarities compare how videos differ from the average video. They may be negative."
    : close
    ? "All similarities are above 0.95, so compare their order instead of their values. “Centred” spreads them out."
    : "Similarity is the cosine of the features. Compare it only within this list.";
  if (found.more && results < MOST_RESULTS) {
    const more = element("button", {}, "More results");
    more.addEventListener("click", () => {
      results = Math.min(MOST_RESULTS, 2 * results);
      show();
    });
    byId("more").replaceChildren(more);
  }
}

/** After an error, which a message explains: results of an earlier search would look like those of this one. */
function showNothing(reason) {
  grid.show([]);
  byId("count").textContent = reason;
  byId("query-note").textContent = "";
}

function search(next, step = true) {
  if (step && next) byId("message").hidden = true;
  panel.show(next);
  if (step) remember(true);
  results = FIRST_RESULTS;
  scrollTo({ top: 0 });
  if (map) markQuery();
  return show();
}

const similar = (row) => panel.only(panel.example(row));

/** The example of a video or image; null after an error, which is shown. */
async function uploadFile(file) {
  const name = printable(baseName(file.name));
  const drop = byId("drop");
  const extension = name.slice(name.lastIndexOf(".")).toLowerCase();
  const image = settings.images.includes(extension);
  const limit = image ? settings.imageLimit : settings.limit;
  if (!image && !settings.extensions.includes(extension))
    return tell(`${name} is not a video or an image. Known endings: ${[...settings.extensions, ...settings.images].join(" ")}`, true);
  if (file.size > limit)
    return tell(`${name} is larger than ${Math.round(limit / 2 ** 20)} MB. Upload a part of it, or run sce-video search FILE --index INDEX`, true);
  drop.classList.add("busy");
  tell(`Embedding ${name} …`);
  clearTimeout(tell.timer);
  const answer = await ask(`/api/v1/upload?name=${encodeURIComponent(baseName(file.name))}`, file);
  drop.classList.remove("busy");
  if (!answer) return null;
  byId("message").hidden = true;
  return uploaded(answer.upload, name, answer.kind === "image", answer.shown);
}

/** Search for a file alone; dropped on the query, it is one example more. */
async function upload(file, add = false) {
  const example = await uploadFile(file);
  if (example && add && panel.query) panel.add("like", [example]);
  else if (example) panel.only(example);
}

async function missing(rows) {
  const answer = await ask("/api/v1/missing", { rows });
  for (const row of answer?.rows ?? []) grid.mark(row, "gone");
  const gone = byId("grid").querySelectorAll(".gone").length;
  if (!gone) return;
  byId("gone").textContent = `${gone === 1 ? "A video" : `${gone} videos`} shown here can no longer be read, but can still be examples. To update the index, run: ${videos.update}`;
  byId("gone").hidden = false;
}

function selected() {
  const count = grid.selection.size;
  byId("select-none").hidden = count === 0;
  byId("select-none").textContent = `Clear selection (${count})`;
  byId("like-selected").hidden = count === 0;
  byId("unlike-selected").hidden = count === 0 || !panel.query;
}

const grid = new Grid(byId("grid"), byId("more"), videos, {
  similar,
  missing,
  selected,
  thumb,
  clip: clipOf,
  like: (row) => panel.add("like", [panel.example(row)]),
  unlike: (row) => panel.add("unlike", [panel.example(row)]),
  play: (row) => {
    const span = grid.items.find((item) => item.row === row)?.span ?? videos.spans?.[row];
    play(videos.names[row], `/api/v1/video/${row}?s=${settings.session}`, clipOf(row), settings.playable, span);
    segments.open(row, span);
  },
});
const isGone = (row) => grid.cards.get(row)?.classList.contains("gone");
Object.assign(page, { grid, title, thumb, clip: (row) => (isGone(row) ? null : clipOf(row)), changed: filtered });
const panel = new QueryPanel(page);
const conditions = new Conditions(page);
page.moreLikeLabel = (name) => panel.moreLikeLabel(name);
page.searchMoment = (row, start, end) => panel.only(panel.example(row, start, end));
const labels = new Labels(page);
const segments = new Segments(page);

// -- filters, map, keys --------------------------------------------------------------------

function fillGroups() {
  const select = byId("group");
  const before = select.value;
  const options = (title, entries) => {
    const group = element("optgroup", { label: title });
    group.append(...entries.map(([value, name]) => element("option", { value }, name)));
    return entries.length ? [group] : [];
  };
  const given = videos.classes.map((name, i) => [`l:${i}`, name]);
  select.replaceChildren(
    element("option", { value: "" }, "All folders and labels"),
    ...options("Sub-folder", videos.folders.map((name, i) => [`f:${i}`, name])),
    ...options("Label", given.length ? [...given, ["l:-1", "no label"]] : []),
  );
  select.value = [...select.options].some((option) => option.value === before) ? before : "";
}

function labelled() {
  fillGroups();
  if (points) drawMap();
}

/** Draw the map; again after a change of labels, since they are what its colours tell apart. */
function drawMap() {
  const node = byId("map");
  if (!points.rows.length || !points.methods.length) {
    node.replaceChildren(element("p", { class: "soft" }, "A map needs at least two videos."));
    return;
  }
  const { rows } = points;
  const entry = (names, numbers) => rows.map((row) => names[numbers[row]] ?? null);
  map = featureMap(node, {
    projections: Object.fromEntries(points.methods.map(({ name, x, y }) => [name, { x, y }])),
    name: rows.map((row) => videos.names[row]),
    label: entry(videos.classes, videos.label),
    group: entry(videos.folders, videos.folder),
    clip: rows.map(clipOf),
    media: "video",
    onclick: (i) => similar(rows[i]),
  });
  markQuery();
  const all = videos.names.length;
  byId("map-note").textContent =
    (rows.length < all ? `${rows.length.toLocaleString("en")} of ${amount(all)}, at equal steps. ` : "") +
    "Point at a video to play it, click to find similar ones.";
}

/** Mark the video that is searched for; of several the first. */
function markQuery() {
  const i = points.rows.indexOf(panel.rows()[0]);
  map.highlight(i < 0 ? null : i);
}

function filtered() {
  remember();
  return show();
}

function listen() {
  let waiting;
  byId("path").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filtered, 200);
  });
  byId("group").addEventListener("change", filtered);
  for (const name of ["centred", "refined"])
    byId(name).addEventListener("change", () => (panel.query ? filtered() : remember()));
  addEventListener("popstate", restore);
  byId("to-grid").addEventListener("click", () => grid.enter());
  byId("back").addEventListener("click", () => search(null));
  byId("select-shown").addEventListener("click", () => grid.select([...grid.cards.keys()]));
  byId("select-none").addEventListener("click", () => grid.select([]));
  for (const name of ["labels", "map"])
    byId(`${name}-button`).addEventListener("click", () => {
      document.body.classList.toggle(`show-${name}`);
      dispatchEvent(new Event("resize")); // The map had no size before.
      scrollTo({ top: 0 });
    });
  byId("message").addEventListener("click", () => (byId("message").hidden = true));
  byId("player-close").addEventListener("click", () => byId("player").close());
  byId("player").addEventListener("close", () => byId("player-media").replaceChildren());
  byId("file").addEventListener("change", (event) => {
    if (event.target.files[0]) upload(event.target.files[0]);
    event.target.value = "";
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    byId("drop").classList.add("over");
  });
  addEventListener("dragleave", (event) => event.relatedTarget || byId("drop").classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    byId("drop").classList.remove("over");
    if (event.dataTransfer.files[0]) upload(event.dataTransfer.files[0], byId("query").contains(event.target));
  });
  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (!file) return; // text, for the field that has the focus
    event.preventDefault();
    upload(file);
  });
  addEventListener("keydown", keys);
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if (grid.selection.size) grid.select([]);
    else if (panel.query) search(null);
    return;
  }
  if (typing) return;
  if (event.key.startsWith("Arrow") && event.target === document.body) grid.enter();
  else if (event.key === "/") byId("path").focus();
  else if (event.key === "l") {
    const row = grid.rowOf(event.target); // typing moves the focus away from the card
    if (!grid.selection.size && row !== null) grid.select([row]);
    byId("label").focus();
  } else if (event.key === "u") labels.undo();
  else if (/^[1-9]$/.test(event.key)) labels.giveNumber(Number(event.key));
  else return;
  event.preventDefault();
}

async function start() {
  listen();
  const state = await ask("/api/v1/videos");
  if (!state) return;
  byId("refined-label").hidden = !state.refinable;
  Object.assign(videos, state, { label: state.labels.label, classes: state.labels.classes });
  const failures = state.failures ? `, ${state.failures} unreadable file${state.failures === 1 ? "" : "s"} left out` : "";
  byId("summary").textContent = `${amount(videos.names.length)} of ${state.root}${failures}`;
  byId("problem").textContent = state.problem;
  byId("problem").hidden = !state.problem;
  byId("words-form").hidden = !state.texts;
  conditions.fill();
  labels.update(state.labels);
  await restore();
  const found = await ask("/api/v1/map");
  if (!found) return;
  for (const name of settings.scripts) await load(name);
  points = found;
  drawMap();
}

/** Load a script of the server; Plotly is large, and the page must not wait for it. */
function load(name) {
  const script = element("script", { src: `/static/${name}` });
  script.nonce = byId("settings").nonce;
  document.head.append(script);
  return new Promise((resolve, reject) => {
    script.addEventListener("load", resolve);
    script.addEventListener("error", reject);
  });
}

start();
