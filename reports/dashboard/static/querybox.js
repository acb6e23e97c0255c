// The input of a query: completion while typing, and errors that point at their position.
"use strict";

conform.querybox = function (site, names, onquery) {
  const { el, query } = conform;
  const LONGEST = 12;
  const options = el("ul", { class: "options", id: "query-options", role: "listbox", "aria-label": "Completions", hidden: true });
  const problem = el("div", { class: "query-error", role: "status", id: "query-problem" });
  const input = el("input", {
    id: "query", type: "text", autocomplete: "off", spellcheck: "false", role: "combobox",
    "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": "query-options",
    "aria-describedby": "query-problem", placeholder: "cpu:fail clause:layout.* op:nn.*",
  });
  const box = el("div", { class: "wide" },
    el("label", { for: "query" }, "Query"), el("a", { class: "help", href: `${conform.root}methodology.html#query`, "aria-label": "The query language", title: "The query language" }, "?"), input, options, problem);
  let shown = [], chosen = -1;

  // Completions at the caret: [text to insert, what it is].
  function candidates(word, field) {
    if (field === null) {
      return [
        ...query.FIELDS.map((name) => [`${name}:`, "field"]),
        ...[...new Set(site.devices.map((device) => device.device))].map((name) => [`${quoted(name)}:`, "device"]),
        ...site.devices.map((device) => [`${device.slug}:`, `${device.device}, plan ${device.plan}`]),
        ...query.KEYWORDS.map((name) => [`${name} `, "keyword"]),
      ];
    }
    const lists = names();
    if (field === "op") return lists.ops.map((name) => [quoted(name), "operator"]);
    if (field === "clause") return [...lists.families.map((name) => [`${name}.*`, "family"]), ...lists.clauses.map((name) => [name, "clause"])];
    if (field === "dtype") return lists.dtypes.filter(Boolean).map((name) => [name, "dtype"]);
    if (field === "family") return lists.families.map((name) => [name, "family"]);
    return Object.entries(query.WORDS);
  }

  const quoted = (name) => (/[\s():,"]/.test(name) ? `"${name.replaceAll('"', "?")}"` : name);

  // The word before the caret, where it begins, and the field that it is a value of.
  function context() {
    const before = input.value.slice(0, input.selectionStart ?? input.value.length);
    const word = /[^\s():,"]*$/.exec(before)[0];
    const at = before.length - word.length;
    const value = /([^\s():,"]+|"[^"]*"):(?:[^\s():"]+,)*$/.exec(before.slice(0, at));
    return { word, at, field: value ? value[1].replaceAll('"', "").toLowerCase() : null };
  }

  function suggest() {
    const { word, field } = context();
    const low = word.toLowerCase();
    const all = candidates(word, field);
    const begins = all.filter(([text]) => text.toLowerCase().startsWith(low));
    const holds = low ? all.filter(([text]) => !text.toLowerCase().startsWith(low) && text.toLowerCase().includes(low)) : [];
    shown = [...begins, ...holds].filter(([text]) => text !== word).slice(0, LONGEST);
    chosen = -1;
    draw();
  }

  function draw() {
    options.replaceChildren(...shown.map(([text, what], place) => el("li", {
      role: "option", id: `query-option-${place}`, "aria-selected": String(place === chosen),
      onmousedown: (event) => { event.preventDefault(); take(place); },
    }, el("span", {}, text), el("small", {}, what))));
    const open = shown.length > 0 && document.activeElement === input;
    options.hidden = !open;
    input.setAttribute("aria-expanded", String(open));
    if (open && chosen >= 0) {
      input.setAttribute("aria-activedescendant", `query-option-${chosen}`);
      options.children[chosen].scrollIntoView({ block: "nearest" });
    } else {
      input.removeAttribute("aria-activedescendant");
    }
  }

  function take(place) {
    const { at } = context();
    const end = input.selectionStart ?? input.value.length;
    const text = shown[place][0];
    const last = text.endsWith(":") || text.endsWith(" ") ? "" : " ";
    input.value = `${input.value.slice(0, at)}${text}${last}${input.value.slice(end).replace(/^\s+/, "")}`;
    const caret = at + text.length + last.length;
    input.setSelectionRange(caret, caret);
    changed();
    suggest();
  }

  function close() {
    shown = [];
    draw();
  }

  // Parse the query and pass it on. On an error, show it and keep the previous results.
  function changed() {
    try {
      const tree = query.parse(input.value, site.devices);
      problem.replaceChildren();
      input.removeAttribute("aria-invalid");
      onquery(tree, input.value.trim());
    } catch (error) {
      if (!(error instanceof query.QueryError)) throw error;
      input.setAttribute("aria-invalid", "true");
      problem.replaceChildren(error.message, el("pre", { "aria-hidden": "true" }, `${input.value}\n${" ".repeat(error.at)}${"^".repeat(error.length)}`));
    }
  }

  input.addEventListener("input", () => { changed(); suggest(); });
  input.addEventListener("focus", suggest);
  input.addEventListener("click", suggest);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const { key } = event;
    if (key === "Escape") close();
    else if (key === "ArrowDown" || key === "ArrowUp") {
      if (!shown.length) suggest();
      if (shown.length) chosen = (chosen + (key === "ArrowDown" ? 1 : shown.length) + (chosen < 0 && key === "ArrowUp" ? 1 : 0)) % shown.length;
      draw();
    } else if ((key === "Enter" || (key === "Tab" && !event.shiftKey)) && chosen >= 0) take(chosen);
    else return;
    event.preventDefault();
  });
  return {
    box, input,
    set(text) { input.value = text; changed(); },
  };
};
