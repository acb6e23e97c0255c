// One device: operators by clause or by dtype, or cases by clause. Operators and cases are never in one grid, because
// no clause has cells of both. Rows and columns with the most cells that do not pass come first.
"use strict";

conform.start(async (app, site) => {
  const { el, state, model, pieces, query } = conform;
  const statuses = model.statuses(site), ranks = model.ranks(site);
  const summary = el("p", { class: "status", role: "status" });
  const panel = el("aside", { class: "panel", "aria-label": "The selected square", "aria-live": "polite", hidden: true });
  const VIEWS = { ops: "Operators", cases: "Cases" };
  const tabs = Object.fromEntries(Object.keys(VIEWS).map((name) => [name, el("button", { type: "button", "data-view": name, onclick: () => choose({ show: name, at: "", col: "" }) })]));
  const BAD = 0, PASSED = 1, UNJUDGED = 2; // not judged: ambiguous, or not tried by declaration
  const outcomes = new Uint8Array(128); // of each letter
  for (const [code, row] of statuses) outcomes[code.charCodeAt(0)] = row.outcome === "pass" ? PASSED : ["ambiguous", "undeclared"].includes(row.kind) ? UNJUDGED : BAD;
  const NAMES = innerWidth < 700 ? 150 : innerWidth < 1600 ? 230 : 300; // the width of the rows' names
  const SMALL = 3; // families with fewer operators stand together
  const TOP = 12; // rows that are in view at every screen size: columns are sorted by them
  let device, run, universe, letters, units, tree = null, view = null, others = new Map();

  const grid = conform.virtual({
    site, label: "Status of every cell", nameWidth: NAMES, rowsInView: 40, ontoggle: toggle,
    onactive: chosen, onopen: (row, column) => { const found = members(row, column); if (found.length) location.href = conform.address("cell", values(found[0])); },
  });
  const box = conform.querybox(site, names, (found, text) => { tree = found; state.set({ q: text }); refresh(); });

  function names() {
    return { ops: universe.ops, clauses: universe.clauses, dtypes: universe.dtypes, families: [...new Set(universe.clauses.map(model.family))] };
  }

  async function load() {
    device = site.devices.find((each) => each.slug === state.get("device")) || model.urgent(site);
    const wanted = pieces.runOf(site, device, state.get("run"));
    const id = device.runs.some((each) => each.id === wanted) ? wanted : model.newest(device).id;
    const newest = site.devices.map((each) => model.newest(each).id);
    const loaded = await model.load([...new Set([id, ...newest])]);
    universe = loaded.universe;
    run = loaded.runs[0];
    letters = universe.letters(run);
    others = new Map(site.devices.map((each) => [each, universe.letters(loaded.runs.find((one) => one.id === model.newest(each).id))]));
    others.set(device, letters);
    const contract = await conform.need(`contracts/${run.contract}`);
    units = new Map(contract.clauses.map((clause) => [clause.id, clause.unit]));
    controls();
    box.set(state.get("q"));
  }

  function choose(changes) {
    state.set(changes, true);
    refresh();
  }

  function controls() {
    const set = (name) => (value) => choose({ [name]: value });
    const clauses = [["", "every clause"], ...[...new Set(universe.clauses.map(model.family))].map((name) => [`${name}.*`, `all of ${name}`]), ...universe.clauses.map((name) => [name, name])];
    place.replaceChildren(
      pieces.choice("Device", site.devices.map((each) => [each.slug, model.title(each)]), device.slug, (value) => { state.set({ device: value, run: "", at: "", col: "" }, true); load(); }),
      pieces.choice("Rows", [["", "one by one"], ["family", "by family"], ["namespace", "by namespace"]], state.get("group"), (value) => choose({ group: value, open: "", at: "", col: "" })));
    options.replaceChildren(
      pieces.choice("Run", [...device.runs].reverse().map((each) => [each.id, pieces.runText(each)]), run.id, (value) => { state.set({ run: value }, true); load(); }),
      pieces.choice("Columns", [["clause", "clauses"], ["dtype", "dtypes (operators only)"]], state.get("by", "clause"), set("by")),
      pieces.choice("Clause", clauses, state.get("clause"), set("clause")),
      pieces.choice("Sort", [["bad", "most not passing first"], ["urgent", "most urgent first"], ["name", "by name"]], state.get("sort", "bad"), set("sort")),
      el("button", { type: "button", onclick: download }, "Download these cells (CSV)"));
  }

  // The view that the address names; else operators, unless all cells that do not pass are cases.
  function wantedView({ ops, cases }) {
    const named = state.get("show"), some = (counts) => counts.some((each) => each > 0);
    if (Object.hasOwn(VIEWS, named)) return named;
    return some(cases) && (!some(ops) || (cases[BAD] && !ops[BAD])) ? "cases" : "ops";
  }

  // The selected cells, as rows and columns.
  function refresh() {
    if (!universe) return;
    const began = performance.now();
    const mask = query.evaluate(tree, universe, (wanted) => [wanted ? others.get(wanted) : letters], statuses);
    const fits = pattern(state.get("clause"));
    const clauseFits = Uint8Array.from(universe.clauses, (name) => (fits(name) ? 1 : 0));
    const caseDtypes = universe.dtypes.map(model.isCase);
    const counts = { ops: new Uint32Array(3), cases: new Uint32Array(3) };
    count(universe, mask, clauseFits, letters, caseDtypes, counts.ops, counts.cases);
    const show = wantedView(counts), cases = show === "cases";
    const by = cases || state.get("by", "clause") !== "dtype" ? "clause" : "dtype";
    only(mask, universe.dtype, caseDtypes, cases);
    const names = by === "clause" ? universe.clauses : universe.dtypes;
    const size = universe.ops.length * names.length;
    const squares = new Uint8Array(size).fill(255), badAt = new Uint16Array(size);
    tally(universe, universe[by], names.length, mask, clauseFits, letters, squares, badAt);
    const bad = sums(badAt, names.length);
    const rows = rowsOf(squares, names.length, bad, badAt, cases);
    const all = rows.flatMap((row) => (row.members ? row.members : [row.op]));
    const columns = columnsOf(by, names, squares, badAt, all, fits, cases);
    view = { by, names, columns, rows, squares, badAt, mask, clauseFits, show, count: all.length };
    grid.grid.scrollTo(0, 0);
    grid.show({
      rows: rows.length, corner: cases ? "Case" : "Operator", width: wide(columns.length, by === "clause" ? 42 : 34), columns,
      row: (i) => (rows[i].members ? { name: `${rows[i].open ? "▾" : "▸"} ${rows[i].group}`, count: conform.number(rows[i].members.length), group: true, open: rows[i].open } : { name: universe.ops[rows[i].op], href: pieces.opAddress(site, universe.ops[rows[i].op]) }),
      rank, label,
    });
    describe(counts);
    document.documentElement.dataset.filtered = (performance.now() - began).toFixed(1);
    const wanted = state.get("at");
    if (wanted) {
      const row = rows.findIndex((each) => each.op !== undefined && universe.ops[each.op] === wanted);
      if (row >= 0) grid.activate(row, 1 + Math.max(0, columns.findIndex((each) => each.name === state.get("col"))));
    }
  }

  // The width of a column: as the window has room, but never so narrow that names of clauses run into each other.
  function wide(columns, most) {
    const room = grid.grid.clientWidth - NAMES - 2;
    return Math.max(26, Math.min(most, Math.floor(room / Math.max(columns, 1))));
  }

  // The two tabs, the line above the grid, and the empty panel.
  function describe(counts) {
    const { show, rows } = view, noun = show === "cases" ? "case" : "operator";
    for (const [name, tab] of Object.entries(tabs)) {
      tab.replaceChildren(VIEWS[name], " ", el("small", {}, `${conform.number(counts[name][BAD])} not passing`));
      tab.setAttribute("aria-pressed", String(name === show));
    }
    const passed = counts[show][PASSED], judged = passed + counts[show][BAD];
    summary.replaceChildren(
      el("span", { "data-passed": passed, "data-judged": judged }, el("b", {}, conform.number(passed)), ` of ${conform.number(judged)} cells pass`),
      el("span", {}, conform.plural(view.count, noun)),
      el("span", {}, "A square shows the most urgent of its cells. Click it, or use the arrow keys and Enter."));
    panel.hidden = rows.length > 0;
    panel.replaceChildren(el("p", { class: "hint" }, rows.length ? "" : `No cell of ${show === "cases" ? "a case" : "an operator"} matches. Change the query or the clause, or choose the other tab.`));
  }

  // Each pass over the cells is a function of its own, so that engines compile it once for all columns.
  function count({ clause, dtype, size }, mask, clauseFits, letters, caseDtypes, ops, cases) {
    for (let cell = 0; cell < size; cell++) {
      const letter = letters[cell];
      if (!mask[cell] || letter === model.ABSENT || !clauseFits[clause[cell]]) continue;
      (caseDtypes[dtype[cell]] ? cases : ops)[outcomes[letter]]++;
    }
  }

  // Keep the cells of cases, or those of operators, in the mask. A case has no dtype.
  function only(mask, dtype, caseDtypes, cases) {
    for (let cell = 0; cell < mask.length; cell++) if (caseDtypes[dtype[cell]] !== cases) mask[cell] = 0;
  }

  function tally({ op, clause, size }, of, wide, mask, clauseFits, letters, squares, badAt) {
    for (let cell = 0; cell < size; cell++) {
      const letter = letters[cell];
      if (!mask[cell] || letter === model.ABSENT || !clauseFits[clause[cell]]) continue;
      const rank = ranks[letter], at = op[cell] * wide + of[cell];
      if (rank < squares[at]) squares[at] = rank;
      if (outcomes[letter] === BAD) badAt[at]++;
    }
  }

  // The sum of each row of `wide` numbers.
  function sums(numbers, wide) {
    const found = new Uint32Array(numbers.length / wide);
    for (let at = 0; at < numbers.length; at++) found[Math.floor(at / wide)] += numbers[at];
    return found;
  }

  function pattern(text) {
    if (!text) return () => true;
    return text.endsWith(".*") ? (name) => name.startsWith(text.slice(0, -1)) : (name) => name === text;
  }

  // The columns that have a square, and, without a query, the clauses that the device's declaration excludes.
  function columnsOf(by, names, squares, badAt, ops, fits, cases) {
    const wide = names.length;
    const used = new Uint8Array(wide), all = new Uint32Array(wide), top = new Uint32Array(wide);
    ops.forEach((op, place) => {
      for (let j = 0; j < wide; j++) {
        const at = op * wide + j;
        if (squares[at] !== 255) used[j] = 1;
        all[j] += badAt[at];
        if (place < TOP && badAt[at]) top[j]++;
      }
    });
    const found = names.map((name, at) => ({ name, at })).filter(({ at }) => used[at]);
    if (by === "clause") {
      const families = [...new Set(universe.clauses.map(model.family))];
      const place = ({ name }) => { const at = families.indexOf(model.family(name)); return at < 0 ? families.length : at; };
      const unit = cases ? "case" : "op";
      if (!tree) found.push(...Object.keys(run.undeclared).filter((name) => fits(name) && units.get(name) === unit).map((name) => ({ name, at: -1 })));
      found.sort((a, b) => place(a) - place(b)); // stable: within a family as it was
    }
    const red = ({ at }) => at >= 0 && all[at] > 0;
    if (state.get("sort", "bad") !== "name") {
      const failing = found.filter(red).sort((a, b) => top[b.at] - top[a.at] || all[b.at] - all[a.at]);
      found.splice(0, found.length, ...failing, ...found.filter((each) => !red(each)));
    }
    const section = (each) => (state.get("sort", "bad") !== "name" && red(each) ? "failing" : by === "clause" ? model.family(each.name) : "");
    return found.map((each, place) => ({
      label: by === "clause" ? each.name.slice(each.name.indexOf(".") + 1) : each.name || "no dtype", over: by === "clause" ? model.family(each.name) : "", name: each.name, at: each.at, first: place === 0 || section(each) !== section(found[place - 1]),
      title: each.at < 0 ? `${each.name}: unsupported by declaration, requires ${run.undeclared[each.name].join(", ")}` : each.name,
    }));
  }

  function rowsOf(squares, wide, bad, badAt, cases) {
    let ops = [];
    for (let op = 0; op < universe.ops.length; op++) {
      for (let at = op * wide; at < (op + 1) * wide; at++) if (squares[at] !== 255) { ops.push(op); break; }
    }
    const urgent = (op) => { let best = 255; for (let at = op * wide; at < (op + 1) * wide; at++) if (squares[at] < best) best = squares[at]; return best; };
    const all = new Uint32Array(wide);
    for (let at = 0; at < badAt.length; at++) all[at % wide] += badAt[at];
    // Rows that fail in the same column stand together: of the columns in which a row fails, the one that fails most.
    const common = (op) => { let best = -1; for (let j = 0; j < wide; j++) if (badAt[op * wide + j] && (best < 0 || all[j] > all[best])) best = j; return best; };
    const keys = new Map(ops.map((op) => [op, { urgent: urgent(op), common: common(op) }]));
    const together = (a, b) => { const x = keys.get(a).common, y = keys.get(b).common; return x === y ? 0 : (y < 0 ? 0 : all[y]) - (x < 0 ? 0 : all[x]) || x - y; };
    const sort = state.get("sort", "bad");
    if (sort === "bad") ops.sort((a, b) => bad[b] - bad[a] || together(a, b) || keys.get(a).urgent - keys.get(b).urgent || a - b);
    if (sort === "urgent") ops.sort((a, b) => keys.get(a).urgent - keys.get(b).urgent || bad[b] - bad[a] || a - b);
    const by = state.get("group");
    if (by !== "family" && by !== "namespace") return ops.map((op) => ({ op }));
    const groups = new Map(), opened = new Set(state.get("open").split(",").filter(Boolean));
    for (const op of ops) {
      const known = groupOf(op, by, cases);
      groups.set(known, [...(groups.get(known) || []), op]);
    }
    if (by === "family" && !cases) {
      const small = [...groups].filter(([, members]) => members.length < SMALL);
      for (const [name] of small) groups.delete(name);
      const rest = small.flatMap(([, members]) => members);
      if (rest.length) groups.set("other operators", rest);
    }
    // Sorted by what does not pass, groups keep the order of their worst operators.
    const total = (members) => members.reduce((sum, op) => sum + bad[op], 0);
    const ordered = [...groups].sort(sort === "name" ? ([a], [b]) => (a < b ? -1 : 1) : ([, a], [, b]) => total(b) - total(a));
    return ordered.flatMap(([group, members]) => [{ group, members, open: opened.has(group) }, ...(opened.has(group) ? members.map((op) => ({ op })) : [])]);
  }

  // The family or the namespace of an operator; of a case, the family of its clauses.
  function groupOf(op, by, cases) {
    const name = universe.ops[op];
    if (cases) return caseFamily(op);
    if (by === "family") return universe.families.get(name) || "other operators";
    const space = name.includes(".") ? name.slice(0, name.lastIndexOf(".")) : "";
    return space.startsWith("nn.functional") ? "nn.functional" : space.split(".")[0] || "torch";
  }

  function caseFamily(op) {
    const { clauses, dtypes } = universe, start = op * universe.width;
    for (let at = start; at < start + universe.width; at++) if (universe.at[at] >= 0) return model.family(clauses[Math.floor((at - start) / dtypes.length)]);
    return "";
  }

  function toggle(i) {
    const row = view.rows[i];
    if (!row.members) return;
    const opened = new Set(state.get("open").split(",").filter(Boolean));
    if (!opened.delete(row.group)) opened.add(row.group);
    const above = grid.grid.scrollTop;
    state.set({ open: [...opened].join(","), at: "", col: "" }, true);
    refresh();
    grid.activate(view.rows.findIndex((each) => each.group === row.group), 0, false);
    grid.grid.scrollTop = above;
  }

  function rank(i, j) {
    const { rows, columns, squares, names } = view;
    const { op, members } = rows[i], column = columns[j];
    if (members) return column.at < 0 ? 255 : members.reduce((best, each) => Math.min(best, squares[each * names.length + column.at]), 255);
    return column.at < 0 ? undeclared : squares[op * names.length + column.at];
  }

  function label(i, j) {
    const { rows, columns } = view, found = rank(i, j);
    if (rows[i].members) {
      const failing = rows[i].members.filter((op) => columns[j].at >= 0 && view.badAt[op * view.names.length + columns[j].at]).length;
      return `${rows[i].group}, ${columns[j].name}: ${found === 255 ? "no cells" : `${site.kinds[found].label}; ${conform.number(failing)} of ${conform.number(rows[i].members.length)} have cells that do not pass`}`;
    }
    return `${universe.ops[rows[i].op]}, ${columns[j].name}: ${found === 255 ? "no cells" : site.kinds[found].label}`;
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
    state.set({ at: name, col: column < 0 ? "" : columns[column].name });
    panel.hidden = false;
    const found = members(row, column);
    const why = column >= 0 && columns[column].at < 0 ? el("p", {}, columns[column].title) : null;
    panel.replaceChildren(el("h3", {}, name), el("p", { class: "hint" }, column < 0 ? "every column" : columns[column].name), ...(why ? [why] : []),
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

  const place = el("div", { class: "bar-part" }), options = el("div", { class: "controls" });
  const chosenOption = ["run", "by", "clause", "sort"].some((name) => state.get(name));
  app.append(
    el("div", { class: "controls toolbar" }, place, el("div", { class: "tabs", role: "group", "aria-label": "Operators or cases" }, Object.values(tabs)), box.box,
      el("details", { class: "options-line", open: chosenOption }, el("summary", {}, "Sorting, run, download"), options)),
    el("div", { class: "with-panel" }, grid.grid, panel), el("div", { class: "under" }, summary, pieces.legend(site)));
  addEventListener("popstate", load);
  addEventListener("hashchange", load);
  await load();
});
