"use strict";
/* Heads of tables become buttons that sort, long tables show their first rows until all are asked for, and
   pictures are enlarged; without this script everything is there. */
const dress = (() => {
  const orders = new Map(), opened = new Set(), first = 20;
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim() : Number(cell.dataset.v);
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a.localeCompare(b, undefined, {numeric: true});
  };
  const sort = (table) => {
    const order = orders.get(table.dataset.table);
    if (!order) return;
    const [column, sign] = order, body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    rows.sort((a, b) => sign * compare(a[0], b[0]));
    body.append(...rows.map(([, row]) => row));
    [...table.tHead.rows[0].cells].forEach((head, at) => {
      if (at === column) head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
  };
  const sortable = (table) => {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = orders.get(table.dataset.table);
        const first = head.classList.contains("n") ? -1 : 1;
        orders.set(table.dataset.table, [column, now && now[0] === column ? -now[1] : first]);
        sort(table);
      });
    });
    sort(table);
  };
  const shorten = (table) => {
    const rows = table.tBodies[0].rows.length, name = table.dataset.table;
    if (rows <= first + 2) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "all";
    const show = () => {
      table.classList.toggle("short", !opened.has(name));
      button.textContent = opened.has(name) ? `Show the first ${first} of ${rows.toLocaleString("en")}` : `Show all ${rows.toLocaleString("en")} rows`;
    };
    button.addEventListener("click", () => {
      if (!opened.delete(name)) opened.add(name);
      show();
    });
    table.closest(".scroll").after(button);
    show();
  };
  const enlarge = (picture) => {
    const box = document.createElement("dialog"), large = picture.cloneNode(), name = document.createElement("p"), close = document.createElement("button");
    name.textContent = picture.alt;
    close.textContent = "Close";
    large.removeAttribute("width");
    large.removeAttribute("height");
    box.append(large, name, close);
    close.addEventListener("click", () => box.close());
    box.addEventListener("click", (event) => { if (event.target === box) box.close(); });
    box.addEventListener("close", () => box.remove());
    document.body.append(box);
    box.showModal();
  };
  document.addEventListener("click", (event) => { if (event.target.matches(".photo img, .large img")) enlarge(event.target); });
  document.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.target.matches(".photo img, .large img")) enlarge(event.target); });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
  const arrange = (table, order) => {
    const heads = [...table.tHead.rows[0].cells].slice(1), body = table.tBodies[0];
    const place = (cells) => order.map((wanted) => cells.find((cell) => Number(cell.dataset.at) === wanted));
    table.tHead.rows[0].append(...place(heads));
    const rows = [...body.rows];
    for (const row of rows) row.append(...place([...row.cells].slice(1)));
    body.append(...place(rows));
  };
  const matrix = (table) => {
    const box = document.createElement("div");
    box.className = "orders";
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "Order of the classes");
    for (const [name, order] of JSON.parse(table.dataset.orders)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.setAttribute("aria-pressed", String(!box.children.length));
      button.addEventListener("click", () => {
        arrange(table, order);
        for (const other of box.children) other.setAttribute("aria-pressed", String(other === button));
      });
      box.append(button);
    }
    table.closest(".scroll").before(box);
  };
  return (root) => {
    root.querySelectorAll("table[data-table]").forEach((table) => { sortable(table); shorten(table); });
    root.querySelectorAll(".photo img").forEach((picture) => { picture.tabIndex = 0; picture.setAttribute("role", "button"); picture.setAttribute("aria-label", `Enlarge ${picture.alt}`); });
    root.querySelectorAll("table[data-orders]").forEach(matrix);
  };
})();
dress(document);
