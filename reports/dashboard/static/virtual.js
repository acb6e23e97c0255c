// A grid of many rows of which those in view exist, and are used again as they scroll.
//
// The grid keeps the focus itself and names the active square (aria-activedescendant), so that
// arrow keys work however far they go.
"use strict";

conform.virtual = function (settings) {
  const { el } = conform;
  const ROW = 26, SPARE = 8;
  const { label, nameWidth, onactive, onopen } = settings;
  const head = el("div", { class: "vhead", role: "row", "aria-rowindex": "1" });
  const body = el("div", { role: "rowgroup" });
  const top = el("div", { class: "vtop", role: "rowgroup" }, head);
  const grid = el("div", { class: "vgrid", role: "grid", tabindex: "0", "aria-label": label, "aria-readonly": "true" }, top, body);
  let model = null, pool = [], active = null, frame = 0;

  // model: { rows, columns: [{label, title, first}], width, row(i) → {name, group, href}, paint(i, j, square) }
  function show(next) {
    model = next;
    active = null;
    head.replaceChildren(
      el("div", { class: "vcorner", role: "columnheader", "aria-colindex": "1" }, model.corner || "Operator"),
      ...model.columns.map((column, j) => el("div", {
        class: `vcol${column.first ? " first" : ""}`, role: "columnheader", "aria-colindex": String(j + 2), title: column.title || column.label,
      }, el("span", {}, column.label))));
    const width = nameWidth + model.columns.length * model.width;
    head.style.width = body.style.width = `${width}px`;
    head.firstChild.style.width = `${nameWidth}px`;
    for (const column of [...head.children].slice(1)) column.style.width = `${model.width}px`;
    body.style.height = `${model.rows * ROW}px`;
    body.style.position = "relative";
    grid.setAttribute("aria-rowcount", String(model.rows + 1));
    grid.setAttribute("aria-colcount", String(model.columns.length + 1));
    pool = [];
    body.replaceChildren();
    grid.removeAttribute("aria-activedescendant");
    paint();
  }

  function make(width) {
    const name = el("div", { class: "vname", role: "rowheader", "aria-colindex": "1" });
    name.style.width = `${nameWidth}px`;
    const squares = model.columns.map((column, j) => {
      const square = el("div", { class: "vcell", role: "gridcell", "aria-colindex": String(j + 2) });
      square.style.width = `${model.width}px`;
      return square;
    });
    const row = el("div", { class: "vrow", role: "row" }, name, ...squares);
    row.style.width = `${width}px`;
    body.append(row);
    return { row, name, squares, at: -1 };
  }

  // Fill the rows in view. A row that is in view already is left as it is.
  function paint() {
    frame = 0;
    if (!model) return;
    const count = Math.ceil(grid.clientHeight / ROW) + 2 * SPARE;
    const width = nameWidth + model.columns.length * model.width;
    while (pool.length < Math.min(count, model.rows)) pool.push(make(width));
    if (!pool.length) return;
    const first = Math.max(0, Math.floor(grid.scrollTop / ROW) - SPARE);
    const last = Math.min(model.rows, first + pool.length);
    for (let i = first; i < last; i++) {
      const held = pool[i % pool.length];
      if (held.at !== i) fill(held, i);
    }
  }

  function fill(held, i) {
    held.at = i;
    const told = model.row(i);
    held.row.style.transform = `translateY(${i * ROW}px)`;
    held.row.setAttribute("aria-rowindex", String(i + 2));
    held.row.classList.toggle("group", Boolean(told.group));
    held.name.className = `vname${told.group ? " group" : ""}`;
    held.name.replaceChildren(told.href ? el("a", { href: told.href, tabindex: "-1" }, told.name) : told.name);
    held.name.title = told.name;
    held.name.id = `g-${i}-0`;
    for (let j = 0; j < held.squares.length; j++) {
      const square = held.squares[j];
      square.className = `vcell${model.columns[j].first ? " first" : ""}`;
      square.id = `g-${i}-${j + 1}`;
      model.paint(i, j, square);
    }
    if (active && active.row === i) mark();
  }

  function mark() {
    for (const on of body.querySelectorAll(".on")) on.classList.remove("on");
    const id = `g-${active.row}-${active.column}`;
    const square = body.querySelector(`#${id}`);
    if (square) {
      square.classList.add("on");
      grid.setAttribute("aria-activedescendant", id);
    }
  }

  function activate(row, column, told = true) {
    if (!model || !model.rows) return;
    active = { row: Math.max(0, Math.min(row, model.rows - 1)), column: Math.max(0, Math.min(column, model.columns.length)) };
    const above = active.row * ROW, high = grid.clientHeight - head.offsetHeight;
    if (above < grid.scrollTop) grid.scrollTop = above;
    if (above + ROW > grid.scrollTop + high) grid.scrollTop = above + ROW - high;
    if (active.column > 0) {
      const left = (active.column - 1) * model.width, wide = grid.clientWidth - nameWidth;
      if (left < grid.scrollLeft) grid.scrollLeft = left;
      if (left + model.width > grid.scrollLeft + wide) grid.scrollLeft = left + model.width - wide;
    }
    paint();
    mark();
    if (told) onactive?.(active.row, active.column - 1);
  }

  grid.addEventListener("scroll", () => { if (!frame) frame = requestAnimationFrame(paint); }, { passive: true });
  grid.addEventListener("click", (event) => {
    const square = event.target.closest("[id^='g-']");
    if (!square || event.target.closest("a")) return;
    const [, row, column] = square.id.split("-").map(Number);
    activate(row, column);
  });
  grid.addEventListener("dblclick", () => { if (active) onopen?.(active.row, active.column - 1); });
  grid.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(grid.clientHeight / ROW) - 4);
    const { row, column } = active || { row: -1, column: 1 };
    const moves = {
      ArrowDown: [row + 1, column], ArrowUp: [row - 1, column], ArrowRight: [Math.max(row, 0), column + 1],
      ArrowLeft: [Math.max(row, 0), column - 1], PageDown: [row + page, column], PageUp: [row - page, column],
      Home: event.ctrlKey ? [0, 1] : [Math.max(row, 0), 1],
      End: event.ctrlKey ? [Infinity, Infinity] : [Math.max(row, 0), Infinity],
    };
    if (event.key === "Enter" && active) onopen?.(active.row, active.column - 1);
    else if (event.key in moves && !event.altKey && !event.metaKey) activate(...moves[event.key]);
    else return;
    event.preventDefault();
  });
  new ResizeObserver(() => paint()).observe(grid);
  return { grid, show, activate, get active() { return active; } };
};
