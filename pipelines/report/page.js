"use strict";
// Sorts a table by a column: the first click upwards, the second downwards. Groups of rows stay groups, empty cells stay last.

function compare(kind, one, other) {
  return kind === "text" ? one.localeCompare(other, undefined, { numeric: true }) : Number(one) - Number(other);
}

function sort(table, header) {
  const column = [...header.parentNode.children].indexOf(header);
  const down = header.getAttribute("aria-sort") === "ascending";
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

for (const table of document.querySelectorAll("table.data")) {
  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    button.addEventListener("click", () => sort(table, header));
    header.append(button);
  }
}

// What is folded is printed.
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
});
