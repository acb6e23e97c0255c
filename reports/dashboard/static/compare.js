// Two or three runs, of one device or of several: first the environment, then the cells that differ.
//
// Two runs are compared as a before and an after: what newly fails, what is fixed. Three are put side by side: which
// cells fail on which of them.
"use strict";

conform.start(async (app, site) => {
  const { el, state, model, pieces, query } = conform;
  const statuses = model.statuses(site), ranks = model.ranks(site);
  const runs = pieces.allRuns(site);
  const place = el("div", { class: "controls" }), result = el("div", {}), summary = el("p", { class: "status", role: "status" });
  const LISTED = 30;
  let universe = null, compared = [], letters = [], tree = null;

  const box = conform.querybox(site, () => ({
    ops: universe.ops, clauses: universe.clauses, dtypes: universe.dtypes, families: [...new Set(universe.clauses.map(model.family))],
  }), (found, text) => { tree = found; state.set({ q: text }); differences(); });

  // The newest run and the previous one, or the newest run of the next device.
  function usual() {
    const urgent = model.urgent(site);
    const device = [urgent, ...site.devices].find((each) => each.runs.length > 1) || urgent;
    const [before, after] = device.runs.slice(-2);
    return after ? [before.id, after.id] : [before.id, model.newest(site.devices.find((each) => each !== device) || device).id];
  }

  async function show() {
    const [first, second] = usual();
    const a = pieces.runNamed(site, state.get("a")) || first, b = pieces.runNamed(site, state.get("b")) || second;
    const c = pieces.runNamed(site, state.get("c"));
    const choose = (name) => (value) => { state.set({ a, b, ...(c ? { c } : {}), [name]: value }, true); show(); };
    place.replaceChildren(
      pieces.choice(c ? "First" : "Before", runs, a, choose("a")), pieces.choice(c ? "Second" : "After", runs, b, choose("b")),
      pieces.choice("Third", [["", "no third run"], ...runs], c || "", choose("c")),
      el("button", { type: "button", onclick: () => { state.set({ a: b, b: a }, true); show(); } }, "Swap"), box.box);
    const loaded = await model.load([...new Set([a, b, ...(c ? [c] : [])])]);
    universe = loaded.universe;
    compared = [a, b, ...(c ? [c] : [])].map((id) => loaded.runs.find((run) => run.id === id));
    letters = compared.map((run) => universe.letters(run));
    result.replaceChildren(environment(), changed);
    box.set(state.get("q"));
  }

  // How a run is called beside the others: by its device, and by its date if the device occurs twice.
  function names() {
    const titles = compared.map((run) => model.title(pieces.deviceOf(site, run.id)));
    return titles.map((title, i) => (titles.filter((each) => each === title).length > 1 ? `${title}, ${pieces.moment(compared, compared[i])}` : title));
  }

  function environment() {
    const facts = [...new Set([...Object.keys(site.devices[0].runs[0].environment), ...compared.flatMap((run) => Object.keys(run.facts))])];
    const value = (run, name) => String(run.provenance[name] ?? run.facts[name] ?? "");
    const rows = facts.map((name) => [name, ...compared.map((run) => value(run, name))]);
    const differ = rows.filter(([, ...values]) => new Set(values).size > 1);
    const heads = compared.length > 2 ? names() : compared.map((run, i) => `${i ? "After" : "Before"}: ${pieces.moment(compared, run)}`);
    const table = (shown) => el("table", {},
      el("thead", {}, el("tr", {}, ["Name", ...heads].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, shown.map(([name, ...values]) => el("tr", {}, el("th", { scope: "row" }, pieces.factName(name)), values.map((each) => el("td", {}, each || "none"))))));
    return el("section", {}, el("h2", {}, "Differences in the environment"),
      differ.length ? el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences of environment" }, table(differ)) : el("p", {}, "torch, the driver and all other recorded properties of the environment are the same."),
      el("details", {}, el("summary", {}, "The whole environment"), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The whole environment" }, table(rows))));
  }

  const changed = el("div", {});

  // The cells that differ and that the query matches. A device in a query means its run in this comparison.
  function differences() {
    if (!universe) return;
    const of = (device) => (device ? letters.filter((_, i) => pieces.deviceOf(site, compared[i].id) === device) : letters);
    const mask = query.evaluate(tree, universe, of, statuses), cells = [];
    for (let cell = 0; cell < universe.size; cell++) {
      if (mask[cell] && letters.some((list) => list[cell] !== letters[0][cell])) cells.push(cell);
    }
    changed.replaceChildren(...(compared.length > 2 ? sideBySide(cells) : beforeAndAfter(cells)));
    summary.replaceChildren(el("span", {}, el("b", { "data-differ": cells.length }, conform.number(cells.length)), ` ${cells.length === 1 ? "cell differs" : "cells differ"}`));
  }

  function beforeAndAfter(cells) {
    const [was, now] = letters, changes = new Map(site.changeKinds.map((kind) => [kind.name, []]));
    for (const cell of cells) {
      const what = site.changes[String.fromCharCode(was[cell], now[cell])];
      if (what) changes.get(what).push(cell);
    }
    const counts = el("dl", { class: "facts" }, site.changeKinds.map((kind) => el("div", { title: kind.meaning },
      el("dt", {}, words(kind.name)), el("dd", { "data-change": kind.name }, conform.number(changes.get(kind.name).length)))));
    const some = site.changeKinds.filter((kind) => changes.get(kind.name).length);
    return [el("section", {}, el("h2", {}, "What changed"), counts, some.length ? null : el("p", {}, "No cell changed.")),
      ...some.map((kind, i) => group(capital(words(kind.name)), kind.meaning, changes.get(kind.name), i === 0, kind.name))];
  }

  // Cells by where they pass: one group for each combination that occurs, the largest first.
  function sideBySide(cells) {
    const titles = names(), groups = new Map();
    for (const cell of cells) {
      const key = letters.map((list) => standing(list[cell])).join("");
      groups.set(key, [...(groups.get(key) || []), cell]);
    }
    const told = (key) => ["x", ".", "?", "-"].flatMap((sign) => {
      const some = titles.filter((_, i) => key[i] === sign);
      return some.length ? [`${SIGNS[sign]} ${some.join(" and ")}`] : [];
    }).join("; ");
    const ordered = [...groups].sort(([a, x], [b, y]) => b.includes("x") - a.includes("x") || y.length - x.length);
    return [el("section", {}, el("h2", {}, "What differs"), ordered.length ? null : el("p", {}, "No cell differs.")),
      ...ordered.map(([key, found], i) => group(capital(told(key)), "", found, i === 0, key))];
  }
  const SIGNS = { x: "does not pass on", ".": "passes on", "?": "is not judged on", "-": "is not planned on" };
  const standing = (letter) => {
    const status = statuses.get(String.fromCharCode(letter));
    return status.outcome === "absent" ? "-" : status.outcome === "pass" ? "." : ["ambiguous", "undeclared"].includes(status.kind) ? "?" : "x";
  };

  const words = (name) => name.replaceAll("-", " ");
  const capital = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;

  // One kind of difference, folded away unless it is the first. The most urgent statuses come first.
  function group(title, meaning, cells, open, name) {
    const status = (list, cell) => statuses.get(String.fromCharCode(list[cell]));
    const worst = (cell) => Math.min(...letters.map((list) => ranks[list[cell]]));
    const sorted = [...cells].sort((a, b) => worst(a) - worst(b) || a - b);
    const after = compared.length - 1;
    // The page of the cell on a device that has it, the last one first.
    const holder = (cell) => { for (let i = after; i > 0; i--) if (letters[i][cell] !== model.ABSENT) return i; return 0; };
    const item = (cell) => {
      const run = compared[holder(cell)], device = pieces.deviceOf(site, run.id), { clause, op, dtype } = universe.names(cell);
      return el("li", {}, el("span", { class: "squares-of" }, letters.map((list) => pieces.square(status(list, cell).kind, model.told(status(list, cell))))),
        el("span", {}, pieces.cellLink({ device: device.slug, run: run.id, clause, op, dtype }, `${clause} · ${model.cellName(op, dtype)}`), " ",
          el("small", {}, letters.map((list) => model.told(status(list, cell))).join(compared.length > 2 ? ", " : " → "))));
    };
    const list = el("ul", { class: "plain compared" }, sorted.slice(0, LISTED).map(item));
    const more = el("button", { type: "button", class: "quiet", onclick: () => { list.append(...sorted.slice(LISTED).map(item)); more.remove(); } }, `Show ${conform.number(sorted.length - LISTED)} more`);
    const download = el("button", { type: "button", class: "quiet", onclick: () => conform.save(`${compared.length > 2 ? "cells" : name}.csv`, "text/csv", [
      pieces.csv(["clause", "op", "dtype", ...(compared.length > 2 ? names() : ["before", "after"])]),
      ...cells.map((cell) => { const { clause, op, dtype } = universe.names(cell); return pieces.csv([clause, op, dtype, ...letters.map((each) => model.told(status(each, cell)))]); }),
    ].join("")) }, "Download (CSV)");
    return el("details", { class: "family", open, "data-group": name }, el("summary", {}, el("h2", {}, title), " ", el("small", {}, conform.plural(cells.length, "cell"))),
      meaning ? el("p", { class: "hint" }, meaning) : null, list, sorted.length > LISTED ? more : null, download);
  }

  app.append(place, summary, result);
  addEventListener("popstate", show);
  addEventListener("hashchange", show);
  await show();
});
