// Cells of all devices, found by a query: one row per cell, one column per device.
"use strict";

conform.start(async (app, site) => {
  const { el, state, model, pieces, query } = conform;
  const statuses = model.statuses(site), ranks = model.ranks(site);
  const { runs, universe } = await model.load(site.devices.map((device) => model.newest(device).id));
  const letters = runs.map((run) => universe.letters(run));
  const summary = el("p", { class: "status", role: "status" });
  let found = new Uint32Array(0);

  const grid = conform.virtual({
    site, label: "Cells found", nameWidth: innerWidth < 700 ? 210 : 520, onactive: () => undefined,
    onopen: (row, column) => { location.href = link(row, site.devices[Math.max(column, 0)]); },
  });
  const box = conform.querybox(site, () => ({
    ops: universe.ops, clauses: universe.clauses, dtypes: universe.dtypes, families: [...new Set(universe.clauses.map(model.family))],
  }), (tree, text) => { state.set({ q: text }); show(tree); });

  function link(row, device) {
    return conform.address("cell", { device: device.slug, ...universe.names(found[row]) });
  }

  function show(tree) {
    const began = performance.now();
    const mask = query.evaluate(tree, universe, (device) => (device ? [letters[site.devices.indexOf(device)]] : letters), statuses);
    let count = 0;
    for (let cell = 0; cell < universe.size; cell++) count += mask[cell];
    found = new Uint32Array(count);
    for (let cell = 0, next = 0; cell < universe.size; cell++) if (mask[cell]) found[next++] = cell;
    grid.show({
      rows: found.length, corner: "Cell", width: 46,
      columns: site.devices.map((device) => ({ label: device.device, over: device.plan, title: model.title(device) })),
      row: (i) => { const { clause, op, dtype } = universe.names(found[i]); return { name: `${op}${dtype ? ` · ${dtype}` : ""} · ${clause}`, href: link(i, site.devices[0]) }; },
      rank: (i, j) => ranks[letters[j][found[i]]],
      label: (i, j) => `${model.title(site.devices[j])}: ${model.told(statuses.get(String.fromCharCode(letters[j][found[i]])))}`,
    });
    summary.replaceChildren(
      el("span", { "data-found": found.length }, el("b", {}, conform.number(found.length)), ` of ${conform.plural(universe.size, "cell")}`),
      el("span", {}, "Press Enter or double-click to open a cell."),
      el("button", { type: "button", class: "quiet", onclick: download }, "Download these cells (CSV)"));
    document.documentElement.dataset.filtered = (performance.now() - began).toFixed(1);
  }

  function download() {
    const lines = [pieces.csv(["clause", "op", "dtype", ...site.devices.map((device) => device.slug)])];
    for (const cell of found) {
      const { clause, op, dtype } = universe.names(cell);
      lines.push(pieces.csv([clause, op, dtype, ...letters.map((list) => model.told(statuses.get(String.fromCharCode(list[cell]))))]));
    }
    conform.save("cells.csv", "text/csv", lines.join(""));
  }

  const examples = [
    ["status:bad", "everything that does not pass"],
    ["status:regression", "unexpected results"],
    ...(site.devices.length > 1 ? [[`${site.devices[1].slug}:fail and not ${site.devices[0].slug}:fail`, "fails on the first device, but not on the second"]] : []),
  ];
  app.append(
    el("div", { class: "controls" }, box.box),
    el("p", { class: "key" }, "Try ", examples.flatMap(([text, what]) => [el("button", { type: "button", title: what, onclick: () => { box.set(text); } }, el("code", {}, text))])),
    summary, grid.grid, pieces.legend(site));
  const restore = () => { if (box.input.value !== state.get("q")) box.set(state.get("q")); };
  addEventListener("popstate", restore);
  addEventListener("hashchange", restore);
  box.set(state.get("q", "status:bad"));
});
