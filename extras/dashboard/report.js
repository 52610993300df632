"use strict";
// Long tables: a field that hides rows without its words, and column heads that sort. The page is complete without it.
for (const table of document.querySelectorAll("table.long")) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const controls = table.closest(".scroll").previousElementSibling;
  const field = controls.querySelector("input");
  const count = controls.querySelector(".count");
  const show = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden) shown += 1;
    }
    count.textContent = shown + " of " + rows.length;
  };
  field.addEventListener("input", show);
  controls.hidden = false;
  show();
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = parseFloat(text);
    return Number.isNaN(number) || /^[a-z]/i.test(text) ? text : number;
  };
  const compare = (one, other) => {
    const empty = (found) => found === "" || found === "–";
    if (empty(one) || empty(other)) return empty(one) - empty(other);
    if (typeof one === "number" && typeof other === "number") return one - other;
    return String(one).localeCompare(String(other), "en", { numeric: true });
  };
  Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const downwards = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", downwards ? "descending" : "ascending");
      rows.sort((one, other) => compare(value(one, column), value(other, column)) * (downwards ? -1 : 1));
      body.append(...rows);
    });
  });
}
