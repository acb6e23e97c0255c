// Two runs, of the same device or of two devices: first the environment, then the cells that changed.
"use strict";

conform.start(async (app, site) => {
  const { el, state, model, pieces } = conform;
  const statuses = model.statuses(site);
  const runs = pieces.allRuns(site);
  const known = new Set(runs.map(([id]) => id));
  const place = el("div", { class: "controls" }), result = el("div", {});
  const LONGEST = 200;

  // The newest run and the previous one, or the newest run of the next device.
  function usual() {
    const device = site.devices.find((each) => each.runs.length > 1) || site.devices[0];
    const [before, after] = device.runs.slice(-2);
    return after ? [before.id, after.id] : [before.id, model.newest(site.devices[1] || device).id];
  }

  async function show() {
    const [first, second] = usual();
    const a = known.has(state.get("a")) ? state.get("a") : first;
    const b = known.has(state.get("b")) ? state.get("b") : second;
    const choose = (name) => (value) => { state.set({ a, b, [name]: value }, true); show(); };
    place.replaceChildren(
      pieces.choice("Before", runs, a, choose("a")), pieces.choice("After", runs, b, choose("b")),
      el("button", { type: "button", onclick: () => { state.set({ a: b, b: a }, true); show(); } }, "Swap"));
    const { runs: loaded, universe } = await model.load([a, b]);
    const [before, after] = loaded;
    const was = universe.letters(before), now = universe.letters(after);
    const changes = new Map(site.changeKinds.map((kind) => [kind.name, []]));
    for (let cell = 0; cell < universe.size; cell++) {
      if (was[cell] === now[cell]) continue;
      const what = site.changes[String.fromCharCode(was[cell], now[cell])];
      if (what) changes.get(what).push(cell);
    }
    const counts = el("dl", { class: "facts" }, site.changeKinds.map((kind) => el("div", { title: kind.meaning },
      el("dt", {}, kind.name.replaceAll("-", " ")), el("dd", { "data-change": kind.name }, conform.number(changes.get(kind.name).length)))));
    const some = site.changeKinds.filter((kind) => changes.get(kind.name).length);
    result.replaceChildren(environment(before, after), el("section", {}, el("h2", {}, "What changed"), counts,
      some.length ? null : el("p", {}, "No cell changed.")), ...some.map((kind) => list(kind, changes.get(kind.name), { universe, was, now, before, after })));
  }

  function environment(before, after) {
    const names = [...new Set([...Object.keys(site.devices[0].runs[0].environment), ...Object.keys(before.facts), ...Object.keys(after.facts)])];
    const value = (run, name) => String(run.provenance[name] ?? run.facts[name] ?? "");
    const rows = names.map((name) => [name, value(before, name), value(after, name)]);
    const differ = rows.filter(([, one, other]) => one !== other);
    const table = (shown) => el("table", {},
      el("thead", {}, el("tr", {}, ["Name", `Before: ${before.start.slice(0, 10)}`, `After: ${after.start.slice(0, 10)}`].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, shown.map(([name, one, other]) => el("tr", {}, el("th", { scope: "row" }, pieces.factName(name)), el("td", {}, one || "none"), el("td", {}, other || "none")))));
    return el("section", {}, el("h2", {}, "Differences in the environment"),
      differ.length ? el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences of environment" }, table(differ)) : el("p", {}, "torch, the driver and all other recorded properties of the environment are the same."),
      el("details", {}, el("summary", {}, "The whole environment"), el("div", { class: "scroll" }, table(rows))));
  }

  function list(kind, cells, { universe, was, now, after }) {
    const status = (letters, cell) => statuses.get(String.fromCharCode(letters[cell]));
    const device = pieces.deviceOf(site, after.id);
    const shown = cells.slice(0, LONGEST).map((cell) => el("li", {},
      pieces.square(status(now, cell).kind, model.told(status(now, cell))), " ",
      pieces.cellLink({ device: device.slug, run: after.id, ...universe.names(cell) }), " ",
      el("small", {}, `${model.told(status(was, cell))} → ${model.told(status(now, cell))}`)));
    const text = kind.name.replaceAll("-", " ");
    return el("section", {}, el("h2", {}, `${text[0].toUpperCase()}${text.slice(1)}`),
      el("p", { class: "hint" }, kind.meaning),
      el("ul", { class: "plain" }, shown),
      cells.length > LONGEST ? el("p", {}, `and ${conform.number(cells.length - LONGEST)} more: `) : null,
      el("button", { type: "button", class: "quiet", onclick: () => conform.save(`${kind.name}.csv`, "text/csv", [
        pieces.csv(["clause", "op", "dtype", "before", "after"]),
        ...cells.map((cell) => { const { clause, op, dtype } = universe.names(cell); return pieces.csv([clause, op, dtype, model.told(status(was, cell)), model.told(status(now, cell))]); }),
      ].join("")) }, "Download (CSV)"));
  }

  app.append(place, result);
  addEventListener("popstate", show);
  addEventListener("hashchange", show);
  await show();
});
