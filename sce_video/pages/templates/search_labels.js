// Labels that the user gives. Every change is written to the list on disk immediately.

import { byId, chip, element } from "./search_cards.js";

/** The panel. page: videos, grid, ask(path, body), tell(text), labelled(). */
export class Labels {
  constructor(page) {
    this.page = page;
    byId("label-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const name = byId("label").value;
      if (name.trim()) this.give(name);
    });
    byId("unlabel").addEventListener("click", () => this.give(null));
    byId("undo").addEventListener("click", () => this.undo());
    byId("finetune").addEventListener("click", () => this.showCommand());
    byId("commands-close").addEventListener("click", () => byId("commands").close());
  }

  /** Rows that a label would be given to: the selection, else the card with the focus. */
  rows() {
    const { grid } = this.page;
    if (grid.selection.size) return [...grid.selection];
    const row = grid.rowOf(document.activeElement);
    return row === null ? [] : [row];
  }

  async give(name) {
    const rows = this.rows();
    if (!rows.length) {
      this.page.tell("First select videos with the box in the corner of a card or the key x.");
      return;
    }
    const state = await this.page.ask("/api/v1/label", { rows, label: name });
    if (!state) return;
    byId("label").value = "";
    this.page.grid.selection.clear();
    this.page.grid.selectionChanged();
    this.update(state);
    const videos = rows.length === 1 ? "1 video" : `${rows.length} videos`;
    const left = state.refused.length
      ? `, except for ${state.refused.length} whose paths a list cannot contain, such as ${state.refused[0]}. Rename these files and update the index`
      : "";
    this.page.tell(name === null ? `${videos}: label removed` : `${videos} labelled ${name.trim()}${left}`);
  }

  /** By a digit key. */
  giveNumber(number) {
    const name = this.page.videos.classes[number - 1];
    if (name !== undefined) this.give(name);
  }

  async undo() {
    const state = await this.page.ask("/api/v1/undo", {});
    if (state) this.update(state);
  }

  update(state) {
    const { videos } = this.page;
    Object.assign(videos, { classes: state.classes, label: state.label });
    const counts = new Array(state.classes.length).fill(0);
    for (const label of state.label) if (label >= 0) counts[label] += 1;
    byId("label-names").replaceChildren(...state.classes.map((name) => element("option", { value: name })));
    byId("classes").replaceChildren(
      ...state.classes.map((name, i) => {
        const button = element("button", { title: `Label the selection ${name}` }, chip(name));
        button.append(element("span", { class: "soft" }, String(counts[i])));
        if (i < 9) button.append(element("kbd", {}, String(i + 1)));
        button.addEventListener("click", () => this.give(name));
        const more = element("button", { class: "more-like", title: `Find videos that resemble those labelled ${name}, and not those with other labels` }, "≈");
        more.setAttribute("aria-label", `Find more like ${name}`);
        more.disabled = counts[i] === 0;
        more.addEventListener("click", () => this.page.moreLikeLabel(name));
        return element("span", { class: "class" }, button, more);
      }),
    );
    const total = counts.reduce((sum, count) => sum + count, 0);
    const others = state.elsewhere ? `, ${state.elsewhere} more that are not in the index` : "";
    byId("label-note").textContent = total
      ? `${total} of ${state.label.length} videos labelled${others}. Saved in ${state.file} and ${state.class_file}`
      : `Select videos, then give them a label. It is saved in ${state.file}`;
    byId("undo").disabled = state.undo === 0;
    byId("finetune").hidden = counts.filter(Boolean).length < 2 && !state.segments;
    this.page.grid.redraw();
    this.page.labelled();
  }

  async showCommand() {
    const answer = await this.page.ask("/api/v1/split", {});
    if (!answer) return;
    const notes = [];
    if (answer.files.length > 1) {
      notes.push(`A quarter of each class is held out for testing, and the rest is for training: ${answer.files.join(" and ")}.`);
    }
    if (answer.files.length < 2 || answer.commands.length > 1) {
      notes.push("For segments, a quarter of the recordings is held out for testing.");
    }
    byId("commands-note").textContent = notes.join(" ");
    const parts = answer.commands.flatMap((command, i) => {
      const copy = element("button", { class: "copy" }, "Copy");
      copy.addEventListener("click", async () => {
        await navigator.clipboard.writeText(command);
        copy.textContent = "Copied";
      });
      const what = i < 1 && answer.files.length ? "these labels" : "the labelled segments";
      const title = element("h3", {}, `Finetune the network of the index with ${what}, and test it`);
      return [element("div", { class: "row spread" }, title, copy), element("pre", { tabIndex: 0 }, command)];
    });
    byId("commands-text").replaceChildren(...parts);
    byId("commands").showModal();
  }
}
