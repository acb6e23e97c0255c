// Pieces that several pages share: the square of a status, the legend, choices of device and run.
"use strict";

conform.pieces = (function () {
  const { el, model } = conform;

  function square(kind, label) {
    return el("span", { class: `sq k-${kind}`, role: "img", "aria-label": label || kind, title: label || kind });
  }

  function legend(site, without = ["absent", "not-run"]) {
    return el("p", { class: "key" }, site.kinds.filter((kind) => !without.includes(kind.name)).flatMap((kind) => [
      square(kind.name, kind.label), el("span", { title: kind.meaning }, kind.label)]));
  }

  // A labelled choice. `options` are [value, text].
  function choice(name, options, value, onchange) {
    const select = el("select", { id: `choose-${name.toLowerCase().replaceAll(" ", "-")}`, onchange: () => onchange(select.value) },
      options.map(([each, text]) => el("option", { value: each, selected: each === value }, text)));
    return el("label", { for: select.id }, name, select);
  }

  function runText(run) {
    const { torch, driver } = run.environment;
    return `${run.start.slice(0, 16).replace("T", " ")} · torch ${torch}${driver ? ` · driver ${driver}` : ""}`;
  }

  // Every run of every device, the newest first: [id, text].
  function allRuns(site) {
    return site.devices.flatMap((device) => [...device.runs].reverse().map((run) => [run.id, `${model.title(device)} · ${runText(run)}`]));
  }

  // A property of a run's environment, as the pages call it.
  const FACTS = { left_behind: "side effects of importing the backend", expectations: "manifest" };
  const factName = (name) => (Object.hasOwn(FACTS, name) ? FACTS[name] : name.replaceAll("_", " "));

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

  return { square, legend, choice, factName, runText, allRuns, deviceOf, cellLink, opAddress, opLink, prose, csv };
})();
