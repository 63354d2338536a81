// Segments of the video that is played: start and end on a time line, and their labels.

import { byId, clock, element, moment } from "./search_cards.js";

const COLOURS = 8; // of theme.css
const MOMENT = 2; // seconds of a query, of an index of whole videos
const percent = (part, whole) => `${(100 * part) / whole}%`;

/** The panel under the player. page: videos, ask(path, body), tell(text), searchMoment(row, start, end). */
export class Segments {
  constructor(page) {
    Object.assign(this, { page, row: null, video: null, start: null, end: null, marked: false });
    this.state = { segments: [], classes: [], undo: 0 };
    byId("mark-start").addEventListener("click", () => this.mark("start"));
    byId("mark-end").addEventListener("click", () => this.mark("end"));
    byId("search-moment").addEventListener("click", () => this.search());
    byId("segment-undo").addEventListener("click", () => this.send("/undo", {}));
    byId("segment-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const name = byId("segment-label").value.trim();
      if (name) this.give(name);
    });
    byId("time-line").addEventListener("pointerdown", (event) => this.seek(event));
    byId("player").addEventListener("keydown", (event) => this.key(event));
    byId("player").addEventListener("close", () => (this.row = this.video = null));
  }

  /** For the player, which shows a row; span is the moment that was found. */
  async open(row, span) {
    const video = byId("player-media").querySelector("video");
    byId("segments").hidden = true;
    if (!video?.controls) return; // The times of a small copy are different.
    Object.assign(this, { row, video, start: span?.[0] ?? null, end: span?.[1] ?? null, marked: false });
    const state = await this.page.ask(`/api/v1/segments/${row}`);
    if (!state || this.row !== row) return;
    for (const name of ["loadedmetadata", "durationchange"]) video.addEventListener(name, () => this.draw());
    video.addEventListener("timeupdate", () => this.drawNow());
    video.addEventListener("error", () => (byId("segments").hidden = true));
    byId("segments").hidden = !video.isConnected;
    this.update(state);
  }

  get duration() {
    return Number.isFinite(this.video?.duration) ? this.video.duration : 0;
  }

  mark(which) {
    if (!this.video) return;
    const time = Math.min(this.video.currentTime, this.duration || Infinity);
    const other = which === "start" ? "end" : "start";
    if (this.marked && this[other] !== null && Math.round(1000 * time) === Math.round(1000 * this[other])) {
      this.page.tell(`Start and end are both at ${clock(time)}, but a segment needs a length. First move to another time.`, true);
      return;
    }
    this[which] = time;
    this.marked = true;
    if (this.start !== null && this.end !== null && this.end <= this.start) this[other] = null;
    this.draw();
  }

  /** Search for the stretch that was marked, else for what lies around the time that is shown. */
  search() {
    if (!this.video) return;
    const { row, duration } = this;
    const span = this.page.videos.spans?.[row];
    const length = Math.min(span ? span[1] - span[0] : MOMENT, duration || Infinity);
    const centre = Math.max(0, this.video.currentTime - length / 2);
    const from = duration ? Math.min(centre, duration - length) : centre;
    const marked = this.marked && this.start !== null && this.end !== null;
    const times = marked ? [this.start, this.end] : [from, from + length];
    byId("player").close();
    this.page.searchMoment(row, ...times.map((time) => Math.round(100 * time) / 100));
  }

  async give(label) {
    const { start, end } = this;
    if (start === null || end === null) {
      this.page.tell("Mark a start (i) and an end (o) first.");
      return;
    }
    if (await this.send("", { start, end, label })) {
      this.start = this.end = null;
      byId("segment-label").value = "";
      this.draw();
      byId("time-line").focus();
    }
  }

  async send(what, body) {
    const row = this.row;
    const state = row === null ? null : await this.page.ask(`/api/v1/segments/${row}${what}`, body);
    if (state && this.row === row) this.update(state);
    return state;
  }

  update(state) {
    this.state = state;
    byId("segment-names").replaceChildren(...state.classes.map((value) => element("option", { value })));
    byId("segment-classes").replaceChildren(
      ...state.classes.map((name, i) => {
        const button = element("button", { title: `Label the segment ${name}` }, this.dot(name), name);
        if (i < 9) button.append(element("kbd", {}, String(i + 1)));
        button.addEventListener("click", () => this.give(name));
        return button;
      }),
    );
    byId("segment-undo").disabled = state.undo === 0;
    if (state.total) byId("finetune").hidden = false;
    byId("segment-note").textContent = state.total
      ? `${state.total} segment${state.total === 1 ? "" : "s"} in ${state.file}, which sce-video finetune --train reads`
      : `Mark start and end, then give a label. Segments are saved in ${state.file}`;
    this.draw();
  }

  colour(label) {
    return `var(--c${this.state.classes.indexOf(label) % COLOURS})`;
  }

  dot(label) {
    const dot = element("i", { class: "dot" });
    dot.style.background = this.colour(label);
    return dot;
  }

  /** Overlapping segments lie in lanes, one above the other. */
  draw() {
    const { duration, start, end } = this;
    const ends = []; // of the last segment of each lane
    const lanes = this.state.segments.map((segment) => {
      const free = ends.findIndex((last) => last <= segment[0]);
      const lane = free < 0 ? ends.length : free;
      ends[lane] = segment[1];
      return lane;
    });
    byId("time-line").style.height = `${26 + 14 * Math.max(1, ends.length)}px`;
    byId("time-line").setAttribute("aria-valuemax", duration.toFixed(1));
    byId("time-marks").replaceChildren(
      ...(duration ? this.state.segments : []).map(([from, to, label], i) => {
        const bar = element("span", { class: "time-mark", title: `${label} ${moment([from, to])}` });
        Object.assign(bar.style, { left: percent(from, duration), width: percent(to - from, duration) });
        Object.assign(bar.style, { top: `${22 + 14 * lanes[i]}px`, background: this.colour(label) });
        return bar;
      }),
    );
    byId("segment-list").replaceChildren(...this.state.segments.map((segment, i) => this.item(segment, i)));
    const range = byId("time-range");
    range.hidden = !duration || (start === null && end === null);
    const [from, to] = [start ?? end, end ?? start];
    Object.assign(range.style, { left: percent(from, duration), width: percent(to - from, duration) });
    const part = (time) => (time === null ? "…" : clock(time));
    byId("marked").textContent = start === null && end === null ? "" : `${part(start)} to ${part(end)}`;
    const saved = byId("save-clip");
    saved.hidden = start === null || end === null;
    saved.setAttribute("href", `/api/v1/cut/${this.row}?start=${start}&end=${end}`);
    this.drawNow();
  }

  item([from, to, label], number) {
    const jump = element("button", { class: "plain", title: "Play" }, this.dot(label), `${moment([from, to])} ${label}`);
    jump.addEventListener("click", () => {
      this.video.currentTime = from;
      this.video.play();
    });
    const remove = element("button", { class: "plain", "aria-label": `Remove ${label} ${moment([from, to])}` }, "✕");
    remove.addEventListener("click", () => this.send("/remove", { number, label }));
    return element("li", {}, jump, remove);
  }

  drawNow() {
    if (!this.video) return;
    const { currentTime } = this.video;
    byId("time-now").style.left = percent(currentTime, this.duration || 1);
    byId("time-line").setAttribute("aria-valuenow", currentTime.toFixed(1));
    byId("time-line").setAttribute("aria-valuetext", clock(currentTime));
  }

  seek(event) {
    if (!this.video || !this.duration) return;
    const to = (moved) => {
      const box = byId("time-line").getBoundingClientRect();
      this.video.currentTime = this.duration * Math.min(1, Math.max(0, (moved.clientX - box.left) / box.width));
    };
    to(event);
    const end = new AbortController();
    addEventListener("pointermove", to, { signal: end.signal });
    addEventListener("pointerup", () => end.abort(), { signal: end.signal });
  }

  key(event) {
    if (byId("segments").hidden || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input")) return;
    const step = { ArrowLeft: -1, ArrowRight: 1, ",": -0.04, ".": 0.04 }[event.key];
    const onVideo = event.target === this.video; // which has arrows of its own
    if (step !== undefined && !(onVideo && event.key.startsWith("Arrow"))) {
      this.video.currentTime = Math.max(0, this.video.currentTime + step);
    } else if (event.key === "s") this.search();
    else if (event.key === "i") this.mark("start");
    else if (event.key === "o") this.mark("end");
    else if (event.key === "l") byId("segment-label").focus();
    else if (event.key === "u") this.send("/undo", {});
    else if (event.key === " " && event.target === byId("time-line")) {
      if (this.video.paused) this.video.play();
      else this.video.pause();
    } else if (/^[1-9]$/.test(event.key)) {
      const name = this.state.classes[Number(event.key) - 1];
      if (name !== undefined) this.give(name);
    } else return;
    event.preventDefault();
  }
}
