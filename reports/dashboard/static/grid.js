// One device: operator x dtype, or operator x clause.
"use strict";

conform.start(async (app, site) => {
  const { el, state, model, pieces, query } = conform;
  const statuses = model.statuses(site), ranks = model.ranks(site);
  const summary = el("p", { class: "status", role: "status" });
  const panel = el("aside", { class: "panel", "aria-label": "The selected square", "aria-live": "polite" });
  let device, run, universe, letters, tree = null, view = null, others = new Map();

  const grid = conform.virtual({
    site, label: "Status of every operator", nameWidth: innerWidth < 700 ? 150 : 250,
    onactive: chosen, onopen: (row, column) => { const found = members(row, column); if (found.length) location.href = conform.address("cell", values(found[0])); },
  });
  const box = conform.querybox(site, names, (found, text) => { tree = found; state.set({ q: text }); refresh(); });

  function names() {
    return { ops: universe.ops, clauses: universe.clauses, dtypes: universe.dtypes, families: [...new Set(universe.clauses.map(model.family))] };
  }

  async function load() {
    device = site.devices.find((each) => each.slug === state.get("device")) || site.devices[0];
    const wanted = state.get("run");
    const id = device.runs.some((each) => each.id === wanted) ? wanted : model.newest(device).id;
    const newest = site.devices.map((each) => model.newest(each).id);
    const loaded = await model.load([...new Set([id, ...newest])]);
    universe = loaded.universe;
    run = loaded.runs[0];
    letters = universe.letters(run);
    others = new Map(site.devices.map((each) => [each, universe.letters(loaded.runs.find((one) => one.id === model.newest(each).id))]));
    others.set(device, letters);
    controls();
    box.set(state.get("q"));
  }

  function controls() {
    const set = (name) => (value) => { state.set({ [name]: value }, true); refresh(); };
    const clauses = [["", "every clause"], ...[...new Set(universe.clauses.map(model.family))].map((name) => [`${name}.*`, `all of ${name}`]), ...universe.clauses.map((name) => [name, name])];
    place.replaceChildren(
      pieces.choice("Device", site.devices.map((each) => [each.slug, model.title(each)]), device.slug, (value) => { state.set({ device: value, run: "" }, true); load(); }),
      pieces.choice("Run", [...device.runs].reverse().map((each) => [each.id, pieces.runText(each)]), run.id, (value) => { state.set({ run: value }, true); load(); }),
      pieces.choice("Columns", [["dtype", "dtypes"], ["clause", "clauses"]], state.get("by", "dtype"), set("by")),
      pieces.choice("Clause", clauses, state.get("clause"), set("clause")),
      pieces.choice("Sort", [["name", "by name"], ["bad", "most not passing first"], ["urgent", "most urgent first"]], state.get("sort", "name"), set("sort")),
      pieces.choice("Group", [["", "no groups"], ["namespace", "by namespace"]], state.get("group"), set("group")));
  }

  // The selected cells, as rows and columns, in one pass over the cells.
  function refresh() {
    if (!universe) return;
    const by = state.get("by", "dtype") === "clause" ? "clause" : "dtype";
    const began = performance.now();
    const mask = query.evaluate(tree, universe, (wanted) => [wanted ? others.get(wanted) : letters], statuses);
    const fits = pattern(state.get("clause"));
    const clauseFits = Uint8Array.from(universe.clauses, (name) => (fits(name) ? 1 : 0));
    const names = by === "clause" ? universe.clauses : universe.dtypes;
    const of = universe[by];
    const squares = new Uint8Array(universe.ops.length * names.length).fill(255);
    const bad = new Uint32Array(universe.ops.length), used = new Uint8Array(names.length);
    const counts = new Uint32Array(3); // other, passed, not judged
    tally(universe, of, names.length, mask, clauseFits, letters, { squares, bad, used, counts });
    const [rest, passed] = counts, judged = rest + passed;
    const columns = columnsOf(by, names, used, fits);
    const rows = rowsOf(squares, names.length, bad);
    view = { by, names, columns, rows, squares, mask, clauseFits };
    grid.show({
      rows: rows.length, corner: "Operator or case", width: by === "clause" ? 30 : 34, columns,
      row: (i) => (rows[i].group !== undefined ? { name: rows[i].group || "(no namespace)", group: true } : { name: universe.ops[rows[i].op], href: pieces.opAddress(site, universe.ops[rows[i].op]) }),
      rank, label,
    });
    summary.replaceChildren(
      el("span", { "data-passed": passed, "data-judged": judged }, el("b", {}, conform.number(passed)), ` of ${conform.number(judged)} cells pass`),
      el("span", {}, `${conform.plural(rows.filter((row) => row.op !== undefined).length, "row")}`),
      el("button", { type: "button", class: "quiet", onclick: download }, "Download these cells (CSV)"));
    panel.replaceChildren(el("p", { class: "hint" }, "Select a square with the mouse or the arrow keys to see its cells. Enter opens the first cell."));
    document.documentElement.dataset.filtered = (performance.now() - began).toFixed(1);
    const wanted = state.get("at");
    if (wanted) {
      const row = rows.findIndex((each) => each.op !== undefined && universe.ops[each.op] === wanted);
      if (row >= 0) grid.activate(row, 1 + Math.max(0, columns.findIndex((each) => each.label === state.get("col"))));
    }
  }

  // One pass over the cells. It is a separate function so that engines compile it once for all columns.
  function tally(universe, of, wide, mask, clauseFits, letters, { squares, bad, used, counts }) {
    const { op, clause, size } = universe;
    for (let cell = 0; cell < size; cell++) {
      const letter = letters[cell];
      if (!mask[cell] || letter === model.ABSENT || !clauseFits[clause[cell]]) continue;
      const rank = ranks[letter], at = op[cell] * wide + of[cell], outcome = outcomes[letter];
      if (rank < squares[at]) squares[at] = rank;
      used[of[cell]] = 1;
      counts[outcome]++;
      if (outcome === 0) bad[op[cell]]++;
    }
  }

  const outcomes = new Uint8Array(128); // 1 pass, 2 not judged: ambiguous, or not tried by declaration
  for (const [code, row] of statuses) outcomes[code.charCodeAt(0)] = row.outcome === "pass" ? 1 : ["ambiguous", "undeclared"].includes(row.kind) ? 2 : 0;

  function pattern(text) {
    if (!text) return () => true;
    return text.endsWith(".*") ? (name) => name.startsWith(text.slice(0, -1)) : (name) => name === text;
  }

  function columnsOf(by, names, used, fits) {
    let family = null;
    const found = [];
    const declared = by === "clause" ? Object.keys(run.undeclared).filter((name) => fits(name)) : [];
    const all = [...names.map((name, at) => ({ name, at })).filter(({ at }) => used[at]), ...declared.map((name) => ({ name, at: -1 }))];
    const families = [...new Set(universe.clauses.map(model.family))];
    const place = ({ name }) => { const at = families.indexOf(model.family(name)); return at < 0 ? families.length : at; };
    if (by === "clause") all.sort((a, b) => place(a) - place(b)); // stable: within a family as it was
    for (const { name, at } of all) {
      const of = by === "clause" ? model.family(name) : null;
      const why = at < 0 ? `${name}: unsupported by declaration, requires ${run.undeclared[name].join(", ")}` : name;
      found.push({ label: name || "case", title: why, first: of !== family, at });
      family = of;
    }
    return found;
  }

  function rowsOf(squares, wide, bad) {
    let ops = [];
    for (let op = 0; op < universe.ops.length; op++) {
      for (let at = op * wide; at < (op + 1) * wide; at++) if (squares[at] !== 255) { ops.push(op); break; }
    }
    const urgent = (op) => { let best = 255; for (let at = op * wide; at < (op + 1) * wide; at++) if (squares[at] < best) best = squares[at]; return best; };
    if (state.get("sort") === "bad") ops.sort((a, b) => bad[b] - bad[a] || a - b);
    if (state.get("sort") === "urgent") ops.sort((a, b) => urgent(a) - urgent(b) || bad[b] - bad[a] || a - b);
    if (state.get("group") !== "namespace") return ops.map((op) => ({ op }));
    const groups = new Map();
    for (const op of ops) {
      const name = universe.ops[op], space = name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : "";
      const known = space.startsWith("nn.functional") ? "nn.functional" : space.split(".")[0];
      groups.set(known, [...(groups.get(known) || []), op]);
    }
    return [...groups].sort(([a], [b]) => (a < b ? -1 : 1)).flatMap(([group, members]) => [{ group: `${group || "torch"} (${members.length})` }, ...members.map((op) => ({ op }))]);
  }

  function rank(i, j) {
    const { rows, columns, squares, names } = view;
    const op = rows[i].op, column = columns[j];
    return op === undefined ? 255 : column.at < 0 ? undeclared : squares[op * names.length + column.at];
  }

  function label(i, j) {
    const { rows, columns } = view, found = rank(i, j);
    if (rows[i].op === undefined) return rows[i].group;
    return `${universe.ops[rows[i].op]}, ${columns[j].label}: ${found === 255 ? "no cells" : site.kinds[found].label}`;
  }
  const undeclared = site.kinds.findIndex((kind) => kind.name === "undeclared");

  // The cells that a square represents, the most urgent first. Column -1 is the operator's name.
  function members(row, column) {
    const { rows, columns, mask, clauseFits } = view;
    const op = rows[row]?.op, at = column < 0 ? null : columns[column]?.at;
    if (op === undefined) return [];
    const found = [];
    for (let cell = 0; cell < universe.size; cell++) {
      if (universe.op[cell] !== op || !mask[cell] || letters[cell] === model.ABSENT || !clauseFits[universe.clause[cell]]) continue;
      if (at === null || universe[view.by][cell] === at) found.push(cell);
    }
    return found.sort((a, b) => ranks[letters[a]] - ranks[letters[b]] || a - b);
  }

  const values = (cell) => ({ device: device.slug, run: run.id, ...universe.names(cell) });

  function chosen(row, column) {
    const { rows, columns } = view;
    const op = rows[row].op;
    if (op === undefined) return;
    const name = universe.ops[op];
    state.set({ at: name, col: column < 0 ? "" : columns[column].label });
    const found = members(row, column);
    const why = column >= 0 && columns[column].at < 0 ? el("p", {}, columns[column].title) : null;
    panel.replaceChildren(el("h3", {}, name), el("p", { class: "hint" }, column < 0 ? "every column" : columns[column].label), ...(why ? [why] : []),
      el("p", {}, `${conform.plural(found.length, "cell")}; `, pieces.opLink(site, name)),
      el("ul", {}, found.slice(0, 200).map((cell) => {
        const status = statuses.get(String.fromCharCode(letters[cell]));
        const { clause, dtype } = universe.names(cell);
        return el("li", {}, pieces.square(status.kind, model.told(status)),
          el("span", {}, pieces.cellLink(values(cell), view.by === "dtype" && column >= 0 ? clause : `${clause}${dtype ? ` · ${dtype}` : ""}`), " ", el("small", {}, model.told(status))));
      })));
  }

  function download() {
    const lines = [pieces.csv(["clause", "op", "dtype", "outcome", "verdict"])];
    for (let cell = 0; cell < universe.size; cell++) {
      if (!view.mask[cell] || letters[cell] === model.ABSENT || !view.clauseFits[universe.clause[cell]]) continue;
      const { clause, op, dtype } = universe.names(cell), status = statuses.get(String.fromCharCode(letters[cell]));
      lines.push(pieces.csv([clause, op, dtype, status.outcome, status.verdict]));
    }
    conform.save(`${device.slug}.csv`, "text/csv", lines.join(""));
  }

  const place = el("div", { class: "controls" });
  app.append(place, el("div", { class: "controls" }, box.box), summary, el("div", { class: "with-panel" }, grid.grid, panel), pieces.legend(site));
  addEventListener("popstate", load);
  addEventListener("hashchange", load);
  await load();
});
