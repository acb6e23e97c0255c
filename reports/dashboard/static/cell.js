// One cell: what happened, where, since when, how to reproduce it, and what the contract says.
"use strict";

conform.start(async (app, site) => {
  const { el, state, model, pieces } = conform;
  const statuses = model.statuses(site);
  const axes = new Map(); // those that the history names

  async function show() {
    const { clause = "", op = "", dtype = "" } = state.all();
    const device = site.devices.find((each) => each.slug === state.get("device")) || site.devices[0];
    const wanted = pieces.runOf(site, device, state.get("run"));
    const run = device.runs.find((each) => each.id === wanted) || model.newest(device);
    const newest = site.devices.map((each) => model.newest(each).id);
    const { runs, universe } = await model.load([...new Set([run.id, ...newest])]);
    const document_ = runs[0];
    const cell = universe.find(clause, op, dtype);
    document.title = op ? `${op} · ${clause}` : document.title;
    if (cell < 0) {
      app.replaceChildren(el("h1", {}, "Cell"), el("p", { class: "notice", role: "alert" }, op || clause
        ? `No run on this site has the cell ${clause}::${model.cellName(op, dtype)}.` : "Name a cell in the address, or choose one in the grid."),
        el("p", {}, el("a", { href: "grid.html" }, "Go to the grid")));
      return;
    }
    const status = (one) => statuses.get(String.fromCharCode(universe.letters(one)[cell]));
    const here = status(document_);
    const [detail, counts] = await details(run, document_, { clause, op, dtype });
    const contract = await conform.need(`contracts/${document_.contract}`);
    const history = await conform.need(`history/${device.slug}/${model.shard(op, site.shards)}`);
    for (const name of history.axes) axes.set(name, await conform.need(`axes/${name}`));
    const values = { clause, op, dtype };
    app.replaceChildren(
      el("div", { class: "title-line" }, pieces.square(here.kind, model.told(here)), el("h1", {}, el("code", {}, model.cellName(op, dtype))), el("span", { class: "tag", "data-status": here.kind }, model.told(here))),
      el("p", { class: "lede" }, el("code", {}, clause), " · ", pieces.opLink(site, op), " · ", el("a", { href: conform.address("grid", { device: device.slug, run: run.id, show: model.isCase(dtype) ? "cases" : "ops", at: op, col: clause }) }, "in the grid")),
      el("ul", { class: "devices", "aria-label": "Devices" }, site.devices.map((each) => {
        const found = status(runs.find((one) => one.id === (each === device ? run.id : model.newest(each).id)));
        return el("li", {}, el("a", { href: conform.address("cell", { device: each.slug, ...values }), "aria-current": each === device ? "true" : null }, pieces.square(found.kind, model.told(found)), model.title(each), found.kind === "absent" ? el("small", {}, "not planned") : null));
      })),
      ...suspect(site.devices.map((each, i) => [each.device, status(runs.find((one) => one.id === newest[i]))])),
      el("div", { class: "columns" },
        el("div", {}, happened(run, detail, counts, here), ...before(detail), ...alike(detail, device), ...smallest(detail), ...layouts(detail, universe), ...repro(detail), ...manifest(document_, detail, device), ...more(detail)),
        el("div", { class: "beside" }, ...past(history, device, run, values), ...statement(contract, clause), ...environment(document_))));
  }

  // A notice if the cell fails in the newest run of every device that tries it, and two devices or more do.
  function suspect(found) {
    const failed = new Set(found.filter(([, each]) => ["fail", "crash", "hang", "error"].includes(each.outcome)).map(([device]) => device));
    if (failed.size < 2 || found.some(([, each]) => each.outcome === "pass")) return [];
    return [el("p", { class: "notice", "data-suspect": "" }, el("b", {}, "Suspect the test: "), "this cell fails on every device of this site that tries it. ", el("a", { href: "methodology.html#suspect" }, "What this means"))];
  }

  // The details of the cell, and [checks, samples]; null if the site does not keep the run's details.
  async function details(run, document_, { clause, op, dtype }) {
    if (!run.details) return [null, null];
    const shard = await conform.need(`details/${run.id}/${model.shard(op, site.shards)}`);
    const axis = await conform.need(`axes/${document_.axis}`);
    let at = 0;
    for (const [name, pattern] of axis.ops) {
      let within = 0;
      for (const [number, dtypes] of axis.patterns[pattern]) {
        for (const each of dtypes) {
          if (name === op && axis.clauses[number] === clause && axis.dtypes[each] === dtype) {
            const detail = Object.hasOwn(shard.cells, at + within) ? shard.cells[at + within] : {};
            const counts = Object.hasOwn(shard.counts, op) ? shard.counts[op] : null;
            return [{ ...detail, shard }, counts && [counts[0][within], counts[1][within]]];
          }
          within++;
        }
      }
      at += within;
    }
    return [{ shard }, null];
  }

  function happened(run, detail, counts, status) {
    if (detail === null) {
      return el("section", {}, el("h2", {}, "What happened"), el("p", {}, "This is an older run, for which the site keeps only the outcome."));
    }
    const lines = [];
    if (counts) lines.push(["Executed", conform.plural(counts[0], "check") + (counts[1] ? ` on ${conform.plural(counts[1], "sample")}` : "")]);
    if (detail.raises) lines.push(["Raised", detail.raises]);
    if (detail.worst) lines.push(["Worst absolute error", detail.worst]);
    if (detail.seconds) lines.push(["Time", `${detail.seconds} s`]);
    return el("section", {}, el("h2", {}, "What happened"),
      detail.message ? el("pre", { class: "box" }, detail.message) : el("p", {}, status.outcome === "pass" ? "Every executed check passed." : "No message was recorded."),
      detail.why && detail.why !== detail.message ? el("p", {}, el("b", {}, "Why: "), detail.why) : null,
      facts(lines));
  }

  function facts(lines) {
    return el("dl", { class: "lines" }, lines.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  function layouts(detail) {
    if (!detail?.layouts) return [];
    const ran = detail.ran === undefined ? null : detail.shard.sets[detail.ran];
    const picture = el("div", {});
    const buttons = detail.layouts.map((name) => el("button", { type: "button", "aria-pressed": "false", onclick: () => choose(name) }, name));
    const { pictures } = detail.shard;
    const drawn = (name) => (Object.hasOwn(pictures, name) ? pictures[name] : []);
    function choose(name) {
      buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === name)));
      const examples = drawn(name);
      picture.replaceChildren(...(examples.length
        ? examples.map((each, i) => conform.strides.figure(each, examples.length > 1 ? (i ? "The other tensors, an example" : "The first tensor, an example") : `${name}, an example`, each.guard))
        : [el("p", { class: "hint" }, `${name} is a directed check, which makes its own tensors, so there is no picture.`)]));
    }
    const first = detail.layouts.find((name) => drawn(name).length);
    if (first) choose(first);
    let inputs = 0;
    return [el("section", {}, el("h2", {}, "Failing layouts"),
      el("p", {}, `${detail.layouts.length}${ran ? ` of ${ran.length} that ran` : ""} fail.`),
      el("ul", { class: "layouts" }, buttons.map((button) => el("li", {}, button))), picture,
      detail.tensors ? el("details", { open: true }, el("summary", {}, el("b", {}, "Buffers of the failing call (reproduced below)")),
        detail.tensors.map((tensor) => conform.strides.figure(tensor, tensor.role === "out" ? "Target of out=" : `Input ${++inputs}`, tensor.guard))) : null,
      first || detail.tensors ? conform.strides.legend() : null)];
  }

  function smallest(detail) {
    const example = detail?.example;
    if (!example) return [];
    return [el("section", {}, el("h2", {}, "Smallest failing example"),
      el("p", {}, "Layout ", el("code", {}, example.layout), example.tried ? `; ${conform.plural(example.tried, "call")} tried` : "", example.whole ? "" : "; the search used up its budget"),
      copyable(example.call), el("pre", { class: "box" }, example.message),
      example.tensors.map((tensor, i) => el("div", {}, conform.strides.figure(tensor, `t[${i}]`, tensor.guard), tensor.values ? el("pre", { class: "box" }, tensor.values) : null)),
      conform.strides.legend())];
  }

  // Public bugs of other devices that cells like this one detect.
  function before(detail) {
    if (!detail?.seen) return [];
    return [el("section", {}, el("h2", {}, "Seen before"), el("p", {}, "Public bugs of other devices that cells of this clause and operator detect:"),
      el("ul", { class: "plain" }, detail.seen.map(([told, url]) => {
        const address = conform.web(url);
        return el("li", {}, address ? [el("a", { href: address, rel: "noopener noreferrer" }, told), " ", el("small", {}, el("a", { href: conform.address("bug", { url }) }, "all cells"))] : told);
      })))];
  }

  // Why it fails, and the cells that fail for the same reason.
  function alike(detail, device) {
    const cause = detail?.cause;
    if (!cause) return [];
    const links = cause.cells.map((text) => {
      const found = /^(.*?)::(.*?)(?:\[([^[\]]*)\])?(@[^@]*)?$/s.exec(text);
      return el("li", {}, found ? pieces.cellLink({ device: device.slug, clause: found[1], op: found[2], dtype: `${found[3] || ""}${found[4] || ""}` }) : text);
    });
    return [el("section", {}, el("h2", {}, "Cause"), el("p", {}, cause.id ? el("a", { href: conform.address("cause", { id: cause.id, device: device.slug }) }, `${cause.sentence}.`) : `${cause.sentence}.`), ...(cause.todo ? [el("p", {}, el("b", {}, "To do: "), cause.todo)] : []),
      cause.count > 1 ? el("p", {}, `${conform.plural(cause.count, "cell")} with this cause:`) : null,
      cause.count > 1 ? el("ul", { class: "plain" }, links) : null, cause.count > links.length ? el("p", { class: "hint" }, `and ${cause.count - links.length} more`) : null)];
  }

  function copyable(text, code = true) {
    const button = el("button", { type: "button", onclick: () => conform.copy(text, button) }, "Copy");
    return el("div", { class: "copyable" }, el("pre", { class: `box${code ? " code" : ""}`, tabindex: "0" }, text), button);
  }

  function repro(detail) {
    if (!detail?.repro) return [];
    const script = detail.script ? detail.script.map((line) => detail.shard.lines[line]).join("\n") : null;
    return [el("section", {}, el("h2", {}, "Reproduce"),
      el("p", {}, "In the results folder of the run:"), copyable(`python ${/^[\w./@%+-]+$/.test(detail.repro) ? detail.repro : `'${detail.repro.replaceAll("'", "'\\''")}'`}`),
      script ? el("details", {}, el("summary", {}, "The script: it needs only torch, and exits 1 while the fault is there and 0 when it is gone"), copyable(script),
        el("button", { type: "button", onclick: () => conform.save("repro.py", "text/x-python", script) }, "Save as repro.py"))
        : el("p", { class: "hint" }, "The script was not in the run's folder when the site was built."))];
  }

  function manifest(document_, detail, device) {
    const blocks = (detail?.blocks || []).map((number) => document_.manifest.blocks[number]);
    if (!blocks.length) return [];
    return [el("section", {}, el("h2", {}, blocks.length > 1 ? "Manifest blocks that apply" : "Manifest block that applies"), blocks.map((block) => {
      const issue = conform.web(block.issue);
      return el("div", { class: "card" },
        el("p", {}, block.reason),
        facts([
          ["Expects", `${block.outcome}${block.raises ? `, raising ${block.raises}` : ""}`],
          ["Cells", `${block.clause.join(", ")} · ${block.op.join(", ")}${block.dtype.join() === "*" ? "" : ` · ${block.dtype.join(", ")}`}${block.variant ? ` · variant ${block.variant.map((name) => name || "(none)").join(", ")}` : ""}`],
          ...(block.layouts ? [["In the layouts", block.layouts.join(", ")]] : []),
          ...(block.kind ? [["Kind", block.kind]] : []),
          ...(block.expires ? [["Expires", block.expires]] : []),
          ["Issue", issue ? [el("a", { href: issue, rel: "noopener noreferrer" }, issue), " ", el("small", {}, el("a", { href: conform.address("bug", { url: issue }) }, "all cells"))] : block.issue || "none"],
          ["Where", el("a", { href: `manifest.html#${device.slug}-${block.line}` }, `${document_.manifest.path}, line ${block.line}`)],
        ]));
    }))];
  }

  // Fields that later versions of the suite add, under their own names.
  function more(detail) {
    return Object.entries(detail?.more || {}).map(([name, text]) => el("section", {}, el("h2", {}, name.replaceAll("_", " ")), copyable(text, false)));
  }

  function past(history, device, run, { clause, op, dtype }) {
    const entry = Object.hasOwn(history.ops, op) ? history.ops[op] : null;
    if (!entry) return [];
    const [blocks, at] = entry;
    const items = history.runs.map((id, i) => {
      const letter = at[i] < 0 ? " " : letterIn(blocks[at[i]], history.axes, clause, dtype);
      return { id, letter, run: device.runs.find((each) => each.id === id) };
    });
    return [el("section", {}, el("h2", {}, "History"), el("p", { class: "hint" }, `${conform.plural(items.length, "run")}, oldest first.`),
      el("ol", { class: "past" }, items.map((item) => {
        const status = statuses.get(item.letter);
        const text = `${pieces.moment(device.runs, item.run)}: ${model.told(status)}; torch ${item.run.environment.torch}${item.run.environment.driver ? `, driver ${item.run.environment.driver}` : ""}`;
        return el("li", {}, el("a", { href: conform.address("cell", { device: device.slug, run: item.id, clause, op, dtype }), "aria-label": text, title: text, "aria-current": item.id === run.id ? "true" : null }, el("span", { class: `sq k-${status.kind}`, "aria-hidden": "true" })));
      })))];
  }

  function letterIn([axis, pattern, letters], names, clause, dtype) {
    const place = axes.get(names[axis]);
    let at = 0;
    for (const [number, dtypes] of place.patterns[pattern]) {
      for (const each of dtypes) {
        if (place.clauses[number] === clause && place.dtypes[each] === dtype) return letters[at];
        at++;
      }
    }
    return " ";
  }

  function statement(contract, id) {
    const clause = contract.clauses.find((each) => each.id === id);
    if (!clause) return [];
    return [el("section", {}, el("h2", {}, "The clause"), el("p", {}, pieces.prose(clause.statement || "No statement was recorded.")),
      facts([["Clause", el("a", { href: `contract.html#${encodeURIComponent(id)}` }, id)], ["Level", String(clause.level ?? "none")],
        ["Source", el("span", {}, pieces.prose(clause.source || "none"))], ["Planted faults", (clause.faults || []).join(", ") || "none"]]))];
  }

  function environment(document_) {
    const names = ["device", "device_name", "torch", "driver", "os", "arch", "python", "suite_version", "suite_commit", "plan", "plan_hash", "seed", "start", "expectations", "manifest_hash", "reference_cache", "left_behind"];
    return [el("section", {}, el("h2", {}, "Environment"), facts(names.map((name) => [pieces.factName(name), String(document_.provenance[name] ?? "") || "none"])))];
  }

  addEventListener("popstate", show);
  addEventListener("hashchange", show);
  await show();
});
