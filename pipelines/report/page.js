"use strict";
// Makes the page easier to read; without it everything is shown, in the order in which it was written.

function compare(kind, one, other) {
  return kind === "text" ? one.localeCompare(other, undefined, { numeric: true }) : Number(one) - Number(other);
}

// Sorts a table by a column. Groups of rows stay groups, empty cells stay last.
function sort(table, header, down) {
  const column = [...header.parentNode.children].indexOf(header);
  for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
    const value = (row) => row.cells[column].dataset.value;
    const full = rows.filter((row) => value(row) !== "");
    full.sort((one, other) => (down ? -1 : 1) * compare(header.dataset.kind, value(one), value(other)));
    body.append(...full, ...rows.filter((row) => value(row) === ""));
  }
}

// A button in each header: the first click sorts upwards, the second downwards.
function makeSortable(table) {
  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sort(table, header, header.getAttribute("aria-sort") === "ascending"));
    header.append(button);
  }
}

function labelled(words, control, id) {
  const label = document.createElement("label");
  control.id = id;
  label.append(words, control);
  return label;
}

// What a cell says, without its tag.
function untagged(cell) {
  return [...cell.childNodes].filter((node) => node.className !== "tag").map((node) => node.textContent).join("").trim();
}

function selection(entries) {
  const select = document.createElement("select");
  for (const [value, text] of [["", "all"], ...entries]) select.add(new Option(text, value));
  return select;
}

// A choice for each column that filters rows, and one for columns that are shown one at a time; and how many rows are shown.
function makeFilters(table) {
  const headers = [...table.tHead.rows[0].cells];
  const rows = [...table.tBodies].flatMap((body) => [...body.rows]).filter((row) => !row.classList.contains("group"));
  const filters = [];
  for (const [column, header] of headers.entries()) {
    if (!("filters" in header.dataset)) continue;
    const names = new Map();
    for (const { cells } of rows) {
      if (cells[column].dataset.value !== "") names.set(cells[column].dataset.value, untagged(cells[column]));
    }
    const entries = [...names].sort((one, other) => compare("text", one[1], other[1]));
    if (entries.length > 1) filters.push([column, selection(entries)]);
  }
  const facets = headers.filter((header) => header.dataset.of);
  if (!filters.length && !facets.length) return;

  const bar = document.createElement("div");
  bar.className = "controls";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", `Choose what is shown of: ${table.closest(".scroll").getAttribute("aria-label")}`);
  const count = document.createElement("p");
  count.className = "note";
  count.setAttribute("role", "status");
  const apply = () => {
    const chosen = filters.filter(([, select]) => select.value !== "");
    for (const row of rows) row.hidden = chosen.some(([column, select]) => row.cells[column].dataset.value !== select.value);
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  for (const [column, select] of filters) {
    select.addEventListener("change", apply);
    bar.append(labelled(headers[column].textContent, select, `${table.id}-${column}`));
  }
  if (facets.length > 1) {
    const select = selection(facets.map((header) => [String(headers.indexOf(header)), header.textContent]));
    select.addEventListener("change", () => {
      for (const header of facets) {
        const column = headers.indexOf(header);
        const hidden = select.value !== "" && select.value !== String(column);
        for (const row of table.rows) if (row.cells.length === headers.length) row.cells[column].hidden = hidden;
      }
      if (select.value !== "") sort(table, headers[Number(select.value)], true);
    });
    bar.append(labelled(facets[0].dataset.of, select, `${table.id}-of`));
  }
  bar.append(count);
  table.closest(".scroll").before(bar);
  apply();
}

// A slider over names; calls `show` with the one that is chosen.
function slider(words, names, id, show) {
  const range = document.createElement("input");
  const shown = document.createElement("output");
  Object.assign(range, { type: "range", min: 0, max: names.length - 1, step: 1, value: 0 });
  const update = () => {
    const name = names[range.valueAsNumber];
    shown.textContent = `${range.valueAsNumber + 1} of ${names.length}: ${name}`;
    range.setAttribute("aria-valuetext", shown.textContent);
    show(range.valueAsNumber);
  };
  range.addEventListener("input", update);
  const label = labelled(words, range, id);
  shown.htmlFor = id;
  label.append(shown);
  return { label, update };
}

// Sliders over the images of a gallery and the kinds of maps; a box to see all at once.
function makeViewer(gallery, number) {
  const rows = [...gallery.querySelectorAll(".row")];
  const pictures = [...gallery.querySelectorAll("li")];
  const kinds = [...new Set(pictures.filter((one) => one.dataset.kind).map((one) => one.dataset.kind))];
  const state = { row: 0, kind: 0, all: false };
  const apply = () => {
    for (const [place, row] of rows.entries()) row.hidden = !state.all && place !== state.row;
    for (const one of pictures) one.hidden = !state.all && Boolean(one.dataset.kind) && one.dataset.kind !== kinds[state.kind];
  };
  const sliders = [];
  if (rows.length > 1) {
    const names = rows.map((row) => row.getAttribute("aria-label"));
    sliders.push(slider("Image", names, `gallery-${number}-image`, (place) => ((state.row = place), apply())));
  }
  if (kinds.length > 1) {
    sliders.push(slider("Head", kinds, `gallery-${number}-head`, (place) => ((state.kind = place), apply())));
  }
  if (!sliders.length) return;
  const bar = document.createElement("div");
  bar.className = "controls";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", `Choose what is shown of: ${gallery.getAttribute("aria-label")}`);
  const box = Object.assign(document.createElement("input"), { type: "checkbox" });
  box.addEventListener("change", () => ((state.all = box.checked), apply()));
  bar.append(...sliders.map(({ label }) => label), labelled("Show all", box, `gallery-${number}-all`));
  gallery.before(bar);
  for (const { update } of sliders) update();
}

// What is folded is printed, and folded again.
function printUnfolded() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const folded of opened) folded.open = true;
  });
  addEventListener("afterprint", () => {
    for (const folded of opened) folded.open = false;
  });
}

// Loads the page again every few seconds, unless that is paused; what was chosen, sorted and unfolded stays so.
function reload(seconds) {
  const key = "beyondcls";
  const controls = () => document.querySelectorAll(".controls select, .controls input");
  const sorted = () => [...document.querySelectorAll("th[aria-sort]")];
  const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
  const bar = document.createElement("p");
  bar.className = "live";
  bar.append(labelled(`Live: loads again every ${seconds} s`, box, "live"));
  document.querySelector("header").append(bar);

  const kept = JSON.parse(sessionStorage.getItem(key) ?? "{}");
  box.checked = kept.live ?? true;
  for (const control of controls()) {
    if (!(control.id in (kept.chosen ?? {}))) continue;
    if (control.type === "checkbox") control.checked = kept.chosen[control.id];
    else control.value = kept.chosen[control.id];
    control.dispatchEvent(new Event(control.type === "range" ? "input" : "change"));
  }
  for (const [id, column, down] of kept.sorted ?? []) {
    const table = document.getElementById(id);
    if (table?.tHead.rows[0].cells[column]) sort(table, table.tHead.rows[0].cells[column], down);
  }
  for (const folded of document.querySelectorAll("details")) {
    folded.open ||= (kept.open ?? []).includes(folded.querySelector("summary").textContent);
  }
  if (kept.top) scrollTo({ top: kept.top, behavior: "instant" });

  addEventListener("pagehide", () => {
    const chosen = Object.fromEntries([...controls()].map((c) => [c.id, c.type === "checkbox" ? c.checked : c.value]));
    const open = [...document.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
    const orders = sorted().map((th) => [th.closest("table").id, th.cellIndex, th.getAttribute("aria-sort") === "descending"]);
    const state = { live: box.checked, chosen, open, sorted: orders, top: scrollY };
    sessionStorage.setItem(key, JSON.stringify(state));
  });
  setInterval(() => {
    if (box.checked) location.reload();
  }, 1000 * seconds);
}

for (const table of document.querySelectorAll("table.data")) {
  makeFilters(table); // before headers hold buttons: their text is that of the labels
  makeSortable(table);
}
for (const [number, gallery] of document.querySelectorAll(".gallery").entries()) makeViewer(gallery, number);
printUnfolded();
if (document.documentElement.dataset.reloadS) reload(Number(document.documentElement.dataset.reloadS));
