// A grid of many rows. Only the rows in view exist; they are reused as the grid scrolls.
//
// The squares of a row are one small canvas: thousands of elements with a picture each cost a
// browser several frames. The grid keeps the focus and names the active square, which is a separate
// element (aria-activedescendant), so that arrow keys and screen readers reach every square.
"use strict";

conform.virtual = function (settings) {
  const { el } = conform;
  const TALL = 26, SPARE = 6, TINTLESS = ["pass", "not-run", "undeclared"];
  // rowsInView: how many rows there should be on the screen; without it, rows are as tall as a finger needs.
  const { site, label, nameWidth, onactive, onopen, ontoggle, rowsInView } = settings;
  const head = el("div", { class: "vhead", role: "row", "aria-rowindex": "1" });
  const top = el("div", { class: "vtop", role: "rowgroup" }, head);
  const body = el("div", { class: "vbody", role: "rowgroup" });
  const grid = el("div", { class: "vgrid", role: "grid", tabindex: "0", "aria-label": label, "aria-readonly": "true" }, top, body);
  const square = el("div", { class: "vcell on", role: "gridcell", id: "active-square" });
  let model = null, pool = [], active = null, frame = 0, width = 0, sprites = null, ROW = TALL;

  const DENSE = 14, ROOMY = 22; // the least and the greatest height of rows that share the screen
  function rowHeight() {
    if (!rowsInView || innerWidth < 700 || matchMedia("(pointer: coarse)").matches) return TALL;
    const high = grid.clientHeight - top.offsetHeight;
    return Math.max(DENSE, Math.min(ROOMY, Math.floor(high / Math.max(1, Math.min(rowsInView, model.rows)))));
  }

  // model: { rows, columns: [{label, over, title, first}], width, row(i) → {name, group, href, open},
  //          rank(i, j) → place in site.kinds or 255, label(i, j) → text }
  function show(next) {
    model = next;
    active = null;
    square.remove();
    width = nameWidth + model.columns.length * model.width;
    head.replaceChildren(
      el("div", { class: "vcorner", role: "columnheader", "aria-colindex": "1" }, model.corner || "Operator"),
      ...model.columns.map((column, j) => el("div", {
        class: `vcol${column.first ? " first" : ""}`, role: "columnheader", "aria-colindex": String(j + 2), title: column.title || column.label,
      }, el("span", {}, column.over ? [el("small", {}, column.over), el("br", {})] : null, column.label))));
    head.style.width = body.style.width = `${width}px`;
    head.firstChild.style.width = `${nameWidth}px`;
    for (const column of [...head.children].slice(1)) column.style.width = `${model.width}px`;
    ROW = rowHeight();
    grid.style.setProperty("--row", `${ROW}px`);
    grid.dataset.row = String(ROW);
    body.style.height = `${model.rows * ROW}px`;
    grid.setAttribute("aria-rowcount", String(model.rows + 1));
    grid.setAttribute("aria-colcount", String(model.columns.length + 1));
    grid.removeAttribute("aria-activedescendant");
    for (const surplus of pool.splice(model.rows)) surplus.row.remove();
    for (const held of pool) fit(held);
    paint();
  }

  function make() {
    const name = el("div", { class: "vname", role: "rowheader", "aria-colindex": "1" });
    name.style.width = `${nameWidth}px`;
    const canvas = el("canvas", { class: "vsquares", "aria-hidden": "true" });
    const row = el("div", { class: "vrow", role: "row" }, name, canvas);
    body.append(row);
    return fit({ row, name, canvas, at: -1 });
  }

  // Give a row's canvas the size of this model's columns, in device pixels.
  function fit(held) {
    const wide = model.columns.length * model.width, dense = devicePixelRatio || 1;
    held.at = -1;
    held.row.style.width = `${width}px`;
    held.canvas.style.width = `${wide}px`;
    const across = Math.round(wide * dense), high = Math.round(ROW * dense);
    if (held.canvas.width !== across) held.canvas.width = across; // setting it allocates a new surface
    if (held.canvas.height !== high) held.canvas.height = high;
    return held;
  }

  // One picture for each kind of status, in the colours of the theme.
  function draw() {
    const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
    const dense = devicePixelRatio || 1;
    return site.kinds.map((kind) => {
      if (!kind.path) return null;
      const picture = document.createElement("canvas");
      picture.width = Math.round(model.width * dense);
      picture.height = Math.round(ROW * dense);
      const context = picture.getContext("2d");
      context.scale(dense, dense);
      context.fillStyle = dark ? kind.dark : kind.light;
      if (!TINTLESS.includes(kind.name)) {
        context.globalAlpha = 0.11;
        context.fillRect(1, 0, model.width - 1, ROW);
        context.globalAlpha = 1;
      }
      const icon = Math.min(14, ROW - 3, model.width - 6);
      // Whole pixels: a mark between two pixels is blurred.
      context.translate(Math.round((model.width - icon) / 2), Math.round((ROW - icon) / 2));
      context.scale(icon / 16, icon / 16);
      context.fill(new Path2D(kind.path), "evenodd");
      return picture;
    });
  }

  // Fill the rows in view. Rows that are already in view stay unchanged.
  function paint() {
    frame = 0;
    if (!model) return;
    const key = `${getComputedStyle(document.documentElement).colorScheme}/${model.width}/${ROW}/${devicePixelRatio}`;
    if (sprites?.key !== key) {
      sprites = { key, pictures: draw() };
      for (const held of pool) fit(held);
    }
    const count = Math.ceil(grid.clientHeight / ROW) + 2 * SPARE;
    while (pool.length < Math.min(count, model.rows)) pool.push(make());
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
    held.row.className = told.group ? "vrow group" : "vrow";
    held.name.className = told.group ? "vname group" : "vname";
    held.name.replaceChildren(told.href ? el("a", { href: told.href, tabindex: "-1" }, told.name) : told.name, told.count ? el("small", {}, ` ${told.count}`) : "");
    if (told.group && told.open !== undefined) held.name.setAttribute("aria-expanded", String(told.open));
    else held.name.removeAttribute("aria-expanded");
    held.name.title = told.name;
    held.name.id = `row-${i}`;
    const context = held.canvas.getContext("2d"), dense = devicePixelRatio || 1;
    context.clearRect(0, 0, held.canvas.width, held.canvas.height);
    for (let j = 0; j < model.columns.length; j++) {
      const rank = model.rank(i, j);
      if (rank !== 255 && sprites.pictures[rank]) context.drawImage(sprites.pictures[rank], Math.round(j * model.width * dense), 0);
    }
    if (square.parentNode === held.row) square.remove();
    if (active && active.row === i) mark();
  }

  // Place the active square, or the mark of the active name.
  function mark() {
    for (const on of body.querySelectorAll(".vname.on")) on.classList.remove("on");
    const held = pool[active.row % pool.length];
    if (held?.at !== active.row) return;
    if (active.column === 0) {
      square.remove();
      held.name.classList.add("on");
      grid.setAttribute("aria-activedescendant", held.name.id);
      return;
    }
    const j = active.column - 1;
    square.style.left = `${nameWidth + j * model.width}px`;
    square.style.width = `${model.width}px`;
    square.setAttribute("aria-colindex", String(j + 2));
    square.setAttribute("aria-label", model.label(active.row, j));
    held.row.append(square);
    grid.setAttribute("aria-activedescendant", square.id);
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

  // The row and column under the pointer; column 0 is the name.
  function under(event) {
    const row = event.target.closest?.(".vrow");
    const held = row && pool.find((each) => each.row === row);
    if (!held || held.at < 0) return null;
    if (event.target.closest(".vname")) return [held.at, 0];
    const left = event.clientX - held.canvas.getBoundingClientRect().left;
    return [held.at, 1 + Math.max(0, Math.min(model.columns.length - 1, Math.floor(left / model.width)))];
  }

  grid.addEventListener("scroll", () => { if (!frame) frame = requestAnimationFrame(paint); }, { passive: true });
  grid.addEventListener("click", (event) => {
    const found = under(event);
    if (!found || event.target.closest("a")) return;
    activate(...found);
    if (found[1] === 0) ontoggle?.(found[0]);
  });
  grid.addEventListener("dblclick", (event) => {
    const found = under(event);
    if (found) onopen?.(found[0], found[1] - 1);
  });
  grid.addEventListener("mousemove", (event) => {
    const found = under(event);
    if (found && found[1] > 0) event.target.title = model.label(found[0], found[1] - 1);
  });
  grid.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(grid.clientHeight / ROW) - 4);
    const { row, column } = active || { row: -1, column: 1 };
    const moves = {
      ArrowDown: [row + 1, column], ArrowUp: [row - 1, column], ArrowRight: [Math.max(row, 0), column + 1],
      ArrowLeft: [Math.max(row, 0), column - 1], PageDown: [row + page, column], PageUp: [row - page, column],
      Home: event.ctrlKey ? [0, 1] : [Math.max(row, 0), 1],
      End: event.ctrlKey ? [Infinity, Infinity] : [Math.max(row, 0), Infinity],
    };
    if ((event.key === "Enter" || event.key === " ") && active && model.row(active.row).group) ontoggle?.(active.row);
    else if (event.key === "Enter" && active) onopen?.(active.row, active.column - 1);
    else if (event.key in moves && !event.altKey && !event.metaKey) activate(...moves[event.key]);
    else return;
    event.preventDefault();
  });
  let high = 0;
  new ResizeObserver(() => {
    if (model && rowsInView && grid.clientHeight !== high) { // as many rows as before, in another height
      const place = active;
      high = grid.clientHeight;
      show(model);
      if (place) activate(place.row, place.column, false);
    } else paint();
  }).observe(grid);
  new MutationObserver(paint).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  return { grid, show, activate };
};
