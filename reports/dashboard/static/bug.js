// One public bug report: the manifest's blocks that name it, and the cells that it is about, on every device.
"use strict";

conform.start(async (app, site) => {
  const { el, state, model, pieces } = conform;

  async function show() {
    const url = state.get("url"), address = conform.web(url);
    const { runs, universe } = await model.load(site.devices.map((device) => model.newest(device).id));
    const having = site.devices.map((device, i) => ({ device, run: runs[i], bug: (runs[i].bugs || []).find((each) => each.url === url) })).filter(({ bug }) => bug);
    if (!having.length) {
      app.replaceChildren(el("h1", {}, "Public bug"), el("p", { class: "notice", role: "alert" }, url
        ? "No newest run is about this report." : "Choose a report on the page of all public bugs."), el("p", {}, el("a", { href: "bugs.html" }, "All public bugs")));
      return;
    }
    const { name, backend } = having[0].bug;
    document.title = name;
    app.replaceChildren(
      el("p", { class: "hint" }, el("a", { href: "bugs.html" }, "Public bugs")),
      el("h1", {}, name),
      el("p", { class: "lede" }, backend ? `Reported for ${backend}. ` : "", address ? el("a", { href: address, rel: "noopener noreferrer" }, address) : url),
      ...having.map(({ device, run, bug }, i) => of(device, run, bug, universe, i === 0)));
  }

  function of(device, run, bug, universe, open) {
    const letters = universe.letters(run);
    const list = (positions) => pieces.byClause(site, { device, run, universe, letters, cells: pieces.cellsAt(universe, run, positions) }, open);
    return el("section", { "data-device": device.slug }, el("h2", {}, model.title(device), " ", el("small", {}, pieces.moment(device.runs, run))),
      bug.blocks.length ? el("ul", { class: "rows blocks" }, byReason(run, bug).map((blocks) => el("li", {},
        el("div", {}, blocks.flatMap((block) => [el("code", {}, block.clause.join(", ")), " ", el("code", {}, block.op.join(", ")), el("br", {})])),
        el("div", {}, el("div", { class: "text" }, pieces.prose(blocks[0].reason)), el("small", { class: "meta" },
          [blocks[0].outcome, ...(blocks[0].kind ? [blocks[0].kind] : []), ...(blocks[0].expires ? [`expires ${blocks[0].expires}`] : [])].join(" · "), " · line ",
          blocks.flatMap((block, i) => [i ? ", " : "", el("a", { href: `manifest.html#${encodeURIComponent(device.slug)}-${block.line}` }, String(block.line))]), ` of ${run.manifest.path}`))))) : null,
      ...(bug.expected.length ? [el("h3", {}, `${conform.plural(bug.expected.length, "cell")} ${bug.expected.length === 1 ? "fails" : "fail"} as listed`), list(bug.expected)] : []),
      ...(bug.blocks.length && !bug.expected.length ? [el("p", { class: "hint" }, "No cell of this run failed as these blocks say.")] : []),
      ...(bug.seen.length ? [el("h3", {}, `${conform.plural(bug.seen.length, "failing cell")} would detect it`), list(bug.seen)] : []));
  }

  // The manifest's blocks that name the bug; those that say the same of several clauses or operators stand together.
  function byReason(run, bug) {
    const found = new Map();
    for (const block of bug.blocks.map((number) => run.manifest.blocks[number])) {
      const key = JSON.stringify([block.reason, block.outcome, block.kind, block.expires]);
      found.set(key, [...(found.get(key) || []), block]);
    }
    return [...found.values()];
  }

  addEventListener("popstate", show);
  addEventListener("hashchange", show);
  await show();
});
