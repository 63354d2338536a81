"use strict";
// Lets a reader decide on rows of clips, and saves the decisions as a table: path,decision,other.
for (const section of document.querySelectorAll("section[data-file]")) {
  const { names: [keep, , apart], decided } = JSON.parse(section.querySelector("script").textContent);
  const save = section.querySelector(".save"), output = section.querySelector("output");
  const rows = [...section.querySelectorAll(".clip-row")].map((element) => ({
    element,
    selects: [...element.querySelectorAll("select")],
    beyond: JSON.parse(element.dataset.beyond),
    chosen: false,  // whether the reader has chosen which videos to keep
  }));
  const pathOf = (select) => select.dataset.path;
  const first = (select) => select.dataset.first;

  function lines() {
    const changed = new Set(rows.filter((row) => row.chosen).flatMap((row) => row.selects.map(pathOf)));
    const found = decided.filter(([path, decision]) => !(decision === keep && changed.has(path)));
    for (const { selects, beyond, chosen } of rows) {
      const paths = [...selects.map(pathOf), ...beyond];
      for (const select of selects) {
        const path = pathOf(select);
        if (chosen && select.value === keep) found.push([path, keep, ""]);
        if (select.value !== apart) continue;
        found.push(...paths.filter((other) => other !== path).map((other) => [path, apart, other]));
      }
    }
    return found;
  }

  function show() {
    let changed = 0, empty = 0;
    for (const row of rows) {
      const { element, selects } = row;
      if (selects.some((s) => (s.value === keep) !== (first(s) === keep))) row.chosen = true;
      const nothing = !selects.some((s) => s.value === keep) && selects.some((s) => s.value !== apart);
      element.classList.toggle("nothing", nothing);
      empty += nothing;
      changed += row.chosen || selects.some((s) => s.value !== first(s));
    }
    const file = section.dataset.file;
    output.textContent = empty ? `${empty} ${empty === 1 ? "group keeps" : "groups keep"} no video. Keep one video of each group.`
      : changed ? `You have decided on ${changed} of ${rows.length} groups. Save ${file} next to this page, and run the command again with --overwrite.` : "";
    output.classList.toggle("part-problem", empty > 0);
    save.disabled = empty > 0 || changed === 0;
  }

  section.addEventListener("change", show);
  for (const button of section.querySelectorAll("[data-best]")) {
    button.addEventListener("click", () => {
      for (const row of rows) {
        const left = row.selects.filter((select) => select.value !== apart);
        const worth = (select) => JSON.parse(select.dataset.quality)[button.dataset.best];
        // If several are equally good, keep the first, which was kept before.
        const best = left.reduce((one, two) => worth(two) > worth(one) ? two : one, left[0]);
        for (const select of left) select.value = select === best ? keep : "remove";
        row.chosen = true;
      }
      show();
    });
  }
  save.addEventListener("click", () => {
    const cell = (text) => /[",;\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    const table = [["path", "decision", "other"], ...lines()].map((line) => line.map(cell).join(",") + "\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(table, { type: "text/csv" }));
    link.download = section.dataset.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  show();
}
