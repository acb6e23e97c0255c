// One cause: the devices that have it, and its cells on one of them.
"use strict";

conform.start(async (app, site) => {
  const { el, state, model, pieces } = conform;

  async function show() {
    const id = state.get("id");
    const { runs, universe } = await model.load(site.devices.map((device) => model.newest(device).id));
    const having = site.devices.map((device, i) => ({ device, run: runs[i], causes: runs[i].causes.filter((cause) => cause.id === id) }));
    const some = having.filter(({ causes }) => causes.length);
    if (!some.length) {
      app.replaceChildren(el("h1", {}, "Cause"), el("p", { class: "notice", role: "alert" }, id
        ? `No newest run has a cause “${id}”: what failed for it may be fixed.` : "Choose a cause on the page of all causes."),
      el("p", {}, el("a", { href: "causes.html" }, "All causes")));
      return;
    }
    const { device, run, causes } = some.find((each) => each.device.slug === state.get("device")) || some[0];
    const [first] = causes;
    const before = device.runs.length > 1 ? (await model.load([device.runs[device.runs.length - 2].id])) : null;
    document.title = first.sentence;
    app.replaceChildren(...[
      el("p", { class: "hint" }, el("a", { href: `causes.html#${encodeURIComponent(device.slug)}` }, "Causes"), ` · ${first.id}`),
      el("h1", { class: "sentence" }, first.sentence),
      el("ul", { class: "devices", "aria-label": "Devices" }, some.map((each) => el("li", {}, el("a", { href: conform.address("cause", { id, device: each.device.slug }), "aria-current": each.device === device ? "true" : null },
        model.title(each.device), el("small", {}, conform.plural(each.causes.reduce((sum, cause) => sum + cause.cells, 0), "cell")))))),
      some.length < having.length ? el("p", { class: "hint" }, `Not on ${having.filter(({ causes: none }) => !none.length).map((each) => model.title(each.device)).join(", ")}.`) : null,
      ...causes.map((cause, i) => part(cause, { device, run, universe, before }, i === 0)),
      el("p", { class: "hint" }, "A cause is presumed from the failures: two faults with the same symptoms are one cause here, and one fault with two symptoms is two."),
    ].filter(Boolean));
  }

  function part(cause, { device, run, universe, before }, open) {
    const cells = pieces.cellsAt(universe, run, cause.positions), letters = universe.letters(run);
    const verdict = cause.verdict === "regression" ? "regression" : cause.verdict === "expected" ? "listed in the manifest" : cause.verdict;
    const fresh = before === null ? 0 : newly(before, universe, letters, cells);
    const example = { device: device.slug, clause: cause.example[0], op: cause.example[1], dtype: kind(cause.example) };
    const bugs = (run.bugs || []).filter((bug) => [...bug.expected, ...bug.seen].some((at) => cause.positions.includes(at)));
    return el("section", { "data-verdict": cause.verdict },
      el("dl", { class: "facts" }, [
        ["Cells", conform.number(cause.cells)], ["Failing checks", conform.number(cause.checks)], ["Verdict", `${verdict}${cause.gating ? "" : ", does not gate yet"}`],
        ...(before ? [["Did not fail in the run before", conform.number(fresh)]] : []),
      ].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      ...(cause.todo ? [el("p", {}, el("b", {}, "To do: "), cause.todo)] : []),
      ...(cause.used ? [el("p", { class: "hint" }, cause.used)] : []),
      el("p", {}, "Read first: ", pieces.cellLink(example, el("code", {}, `${example.clause}::${model.cellName(example.op, example.dtype)}`))),
      ...(bugs.length ? [el("p", {}, "Public bugs: ", bugs.flatMap((bug, i) => [i ? ", " : "", pieces.bugLink(bug)]))] : []),
      cells.length ? el("h2", {}, "Cells") : null,
      pieces.byClause(site, { device, run, universe, letters, cells }, open));
  }

  const kind = ([, , dtype, variant]) => (variant ? `${dtype}@${variant}` : dtype);

  // How many of the cells had another status in the run before.
  function newly(before, universe, letters, cells) {
    const old = before.universe.letters(before.runs[0]);
    return cells.filter((cell) => {
      const { clause, op, dtype } = universe.names(cell), at = before.universe.find(clause, op, dtype);
      return at < 0 || old[at] !== letters[cell];
    }).length;
  }

  addEventListener("popstate", show);
  addEventListener("hashchange", show);
  await show();
});
