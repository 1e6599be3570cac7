// A click on a column's head sorts its table: numbers as numbers, the rest as text; a second click turns the order round.
const number = (text) => parseFloat(text.replaceAll(",", "").replace("−", "-"));
for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].map((row) => [row.cells[column].textContent.trim(), row]);
      const numeric = rows.every(([text]) => text === "" || !isNaN(number(text)));
      const order = ([a], [b]) => (numeric ? (number(a) || 0) - (number(b) || 0) : a.localeCompare(b));
      rows.sort((a, b) => (down ? -order(a, b) : order(a, b)));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    });
  });
}
