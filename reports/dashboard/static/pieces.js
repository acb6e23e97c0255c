// Pieces that several pages share: the square of a status, the legend, choices of device and run.
"use strict";

conform.pieces = (function () {
  const { el, model } = conform;

  function square(kind, label) {
    return el("span", { class: `sq k-${kind}`, role: "img", "aria-label": label || kind, title: label || kind });
  }

  function legend(site, without = ["absent", "not-run"]) {
    return el("p", { class: "key" }, site.kinds.filter((kind) => !without.includes(kind.name)).map((kind) =>
      el("span", {}, square(kind.name, kind.label), " ", el("span", { title: kind.meaning }, kind.label))));
  }

  // A labelled choice. `options` are [value, text].
  function choice(name, options, value, onchange) {
    const select = el("select", { id: `choose-${name.toLowerCase().replaceAll(" ", "-")}`, onchange: () => onchange(select.value) },
      options.map(([each, text]) => el("option", { value: each, selected: each === value }, text)));
    return el("label", { for: select.id }, name, select);
  }

  function runText(run) {
    const { torch, driver } = run.environment;
    return [run.start.slice(0, 16).replace("T", " "), ...labelTexts(run.labels), `torch ${torch}`, ...(driver ? [`driver ${driver}`] : [])].join(" · ");
  }

  // The labels of a run as texts, as reports/dashboard/markup.py writes them.
  function labelTexts(labels = {}) {
    const { branch, commit, pr, ...others } = labels;
    return [...(branch ? [branch] : []), ...(commit ? [commit.slice(0, 10)] : []), ...(pr ? [`PR ${pr}`] : []), ...Object.entries(others).map(([name, value]) => `${name} ${value}`)];
  }

  // The cells at positions of a run's axis.
  function cellsAt(universe, run, positions) {
    const wanted = new Set(positions), found = [];
    let next = 0;
    universe.walk(universe.axes.get(run.axis), (place) => { if (wanted.has(next++)) found.push(universe.at[place]); });
    return found;
  }

  // Cells as one folded list for each clause; with `open`, the list of the clause with most cells is open.
  const LISTED = 48;
  function byClause(site, { device, run, universe, letters, cells }, open = true) {
    const statuses = model.statuses(site), clauses = new Map();
    for (const cell of cells) {
      const { clause } = universe.names(cell);
      clauses.set(clause, [...(clauses.get(clause) || []), cell]);
    }
    const item = (cell) => {
      const status = statuses.get(String.fromCharCode(letters[cell])), names = universe.names(cell);
      return el("li", {}, square(status.kind, model.told(status)), cellLink({ device: device.slug, run: run.id, ...names }, model.cellName(names.op, names.dtype)));
    };
    const most = [...clauses].sort(([, a], [, b]) => b.length - a.length);
    return el("div", { class: "by-clause" }, most.map(([clause, found], i) => {
      const list = el("ul", { class: "cells" }, found.slice(0, LISTED).map(item));
      const more = el("button", { type: "button", class: "quiet", onclick: () => { list.append(...found.slice(LISTED).map(item)); more.remove(); } }, `Show ${conform.number(found.length - LISTED)} more`);
      return el("details", { class: "family", open: open && i === 0 }, el("summary", {}, el("code", {}, clause), " ", el("small", {}, conform.plural(found.length, "cell"))), list, found.length > LISTED ? more : null);
    }));
  }

  const bugLink = (bug) => el("a", { href: conform.address("bug", { url: bug.url }) }, bug.backend ? `${bug.name} on ${bug.backend}` : bug.name);

  // Every run of every device, the newest first: [id, text].
  function allRuns(site) {
    return site.devices.flatMap((device) => [...device.runs].reverse().map((run) => [run.id, `${model.title(device)} · ${runText(run)}`]));
  }

  // A property of a run's environment, as the pages call it.
  const FACTS = { left_behind: "side effects of importing the backend", expectations: "manifest" };
  const factName = (name) => (Object.hasOwn(FACTS, name) ? FACTS[name] : name.replaceAll("_", " "));

  // The date of one of several runs, with its time if another has the same date.
  function moment(runs, run) {
    const day = conform.day(run.start), same = runs.filter((each) => conform.day(each.start) === day).length > 1;
    return same ? run.start.slice(0, 16).replace("T", " ") : day;
  }

  // The id of the run that an address names: its id, or a device with "latest", "previous" or a label of its newest run
  // with that label, such as npu-core:latest or npu-core:main. "" if there is none.
  function runNamed(site, text) {
    const cut = text.lastIndexOf(":"), which = text.slice(cut + 1);
    if (cut < 0) return deviceOf(site, text) ? text : "";
    const runs = site.devices.find((device) => device.slug === text.slice(0, cut))?.runs || [];
    const labelled = runs.filter((run) => Object.values(run.labels || {}).includes(which));
    const found = which === "latest" ? runs[runs.length - 1] : which === "previous" ? runs[runs.length - 2] : labelled[labelled.length - 1];
    return found ? found.id : "";
  }

  // The same for a page of one device, where the address names the run alone: an id, "latest", "previous" or a label.
  const runOf = (site, device, text) => runNamed(site, text) || runNamed(site, `${device.slug}:${text}`);

  function deviceOf(site, run) {
    return site.devices.find((device) => device.runs.some((each) => each.id === run));
  }

  function cellLink(values, ...text) {
    return el("a", { href: conform.address("cell", values) }, text.length ? text : `${values.clause} · ${values.op}${values.dtype ? ` · ${values.dtype}` : ""}`);
  }

  function opAddress(site, op) {
    const slug = Object.hasOwn(site.slugs, op) ? site.slugs[op] : op;
    return `${conform.root}op/${encodeURIComponent(slug)}.html`;
  }

  const opLink = (site, op) => el("a", { href: opAddress(site, op) }, "every clause and dtype");

  // Text with code between backticks.
  function prose(text) {
    return text.split(/`([^`]+)`/).map((part, place) => (place % 2 ? el("code", {}, part) : part));
  }

  // A CSV field; what a spreadsheet would take for a formula gets an apostrophe.
  function csv(fields) {
    return `${fields.map((field) => {
      const text = /^[=+\-@\t]/.test(field) ? `'${field}` : String(field);
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    }).join(",")}\r\n`;
  }

  return { moment, runNamed, runOf, labelTexts, cellsAt, byClause, bugLink, square, legend, choice, factName, runText, allRuns, deviceOf, cellLink, opAddress, opLink, prose, csv };
})();
