// The search box of every page: operators, cases, clauses, cells, causes and public bugs of the newest runs.
//
// "/" or Ctrl+K reaches it; Enter opens the first result. The index (data/search.js) is loaded when the box is used
// first, and the names of cells when a text names an operator and a clause.
"use strict";

conform.search = (function () {
  const { el } = conform;
  const LONGEST = 12, CELLS = 8, FAR = 3;
  const SENTENCE = 5; // the order of causes
  const EXACT = 0, BEGINS = 1, WORD_BEGINS = 2, HOLDS = 3, ALL_WORDS = 4, NEAR = 5, NOT = 9;

  // How well a name fits a text, the best 0. Both are in lower case; `words` are those of the text.
  function fit(name, text, words) {
    if (name === text) return EXACT;
    if (name.startsWith(text)) return BEGINS;
    const at = name.indexOf(text);
    if (at > 0) return /[\w]/.test(name[at - 1]) && name[at - 1] !== "_" ? HOLDS : WORD_BEGINS;
    if (words.length > 1 && words.every((word) => name.includes(word))) return ALL_WORDS;
    return NOT;
  }

  // Edits between two words, where two letters that changed places are one edit; `most` + 1 if there are more.
  function distance(a, b, most) {
    if (Math.abs(a.length - b.length) > most) return most + 1;
    let older = [], before = Array.from({ length: b.length + 1 }, (_, i) => i);
    for (let i = 1; i <= a.length; i++) {
      const row = [i];
      for (let j = 1; j <= b.length; j++) {
        row[j] = Math.min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
        if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) row[j] = Math.min(row[j], older[j - 2] + 1);
      }
      if (Math.min(...row) > most) return most + 1;
      older = before;
      before = row;
    }
    return before[b.length];
  }

  // Everything that can be found. `names` are in lower case: the whole name, and a short one that means as much: the
  // last part of an operator's name, the device of a device and plan. Of names that fit equally, low orders come first.
  function entries(index) {
    const { root } = conform, made = [];
    const add = (text, note, href, order, short = "") => made.push({ names: [text, short].filter(Boolean).map((name) => name.toLowerCase()), text, note, href, order });
    const page = (op) => `${root}op/${encodeURIComponent(Object.hasOwn(index.slugs, op) ? index.slugs[op] : op)}.html`;
    index.devices.forEach(([slug, title, , device]) => add(title, "device", conform.address("grid", { device: slug }), 0, device));
    for (const op of index.ops) add(op, "operator", page(op), 1, op.slice(op.lastIndexOf(".") + 1));
    for (const id of index.clauses) add(id, "clause", `${root}contract.html#${encodeURIComponent(id)}`, 2);
    for (const name of index.cases) add(name, "case", page(name), 3);
    for (const bug of index.bugs) add(bug.text, bug.note, conform.address("bug", { url: bug.id }), 4);
    for (const cause of index.causes) {
      add(cause.text, cause.note, conform.address("cause", { id: cause.id, device: index.devices[cause.devices[0]][0] }), SENTENCE);
    }
    return made;
  }

  // The entries that fit a text, the best first; without any, those with the nearest names.
  function find(all, typed) {
    const text = typed.trim().toLowerCase(), words = text.split(/[\s:·[\]]+/).filter(Boolean);
    if (!text) return [];
    const found = [];
    for (const entry of all) {
      const rank = Math.min(...entry.names.map((name) => fit(name, text, words)));
      if (rank !== NOT) found.push({ entry, rank });
    }
    const order = (a, b) => a.rank - b.rank || a.entry.order - b.entry.order || a.entry.text.length - b.entry.text.length || (a.entry.text < b.entry.text ? -1 : 1);
    if (found.length) return found.sort(order).map(({ entry }) => entry);
    return near(all, text).map((entry) => ({ ...entry, note: `${entry.note}, nearest name` }));
  }

  // Names with few other letters.
  function near(all, text) {
    const most = Math.min(FAR, Math.max(1, Math.floor(text.length / 3))), found = [];
    for (const entry of all) {
      if (entry.order === SENTENCE) continue;
      const far = Math.min(...entry.names.map((name) => distance(text, name, most)));
      if (far <= most) found.push({ entry, rank: NEAR + far });
    }
    return found.sort((a, b) => a.rank - b.rank || a.entry.order - b.entry.order || a.entry.text.length - b.entry.text.length).map(({ entry }) => entry);
  }

  // The cells that a text names: an operator and a clause, and perhaps a dtype, in any order.
  async function cells(index, typed) {
    const words = typed.trim().toLowerCase().split(/::|[\s·[\]]+/).filter(Boolean);
    if (words.length < 2) return [];
    const ops = new Map([...index.cases, ...index.ops].map((op) => [op.toLowerCase(), op]));
    const op = words.find((word) => ops.has(word)) ?? nearest([...ops.keys()], words);
    if (op === undefined) return [];
    const rest = words.filter((word) => word !== op);
    const clauses = index.clauses.filter((id) => rest.some((word) => word.length > 2 && (id === word || id.split(".").some((part) => part.startsWith(word)))));
    if (!clauses.length) return [];
    const exact = clauses.filter((id) => rest.includes(id));
    const wanted = new Set(exact.length ? exact : clauses), name = ops.get(op), found = new Map();
    for (const [slug, , hash] of index.devices) {
      const axis = await conform.need(`axes/${hash}`);
      const pattern = axis.ops.find(([each]) => each === name)?.[1];
      if (pattern === undefined) continue;
      for (const [clause, dtypes] of axis.patterns[pattern]) {
        if (!wanted.has(axis.clauses[clause])) continue;
        for (const place of dtypes) {
          const dtype = axis.dtypes[place], key = `${axis.clauses[clause]}::${name}${dtype ? `[${dtype}]` : ""}`;
          if (!found.has(key)) found.set(key, { text: key, note: "cell", href: conform.address("cell", { device: slug, clause: axis.clauses[clause], op: name, dtype }) });
        }
      }
    }
    const named = (each) => rest.some((word) => each.text.toLowerCase().includes(`[${word}`));
    return [...found.values()].sort((a, b) => named(b) - named(a)).slice(0, CELLS);
  }

  // An operator whose last part is one of the words.
  function nearest(ops, words) {
    return ops.find((op) => words.some((word) => op.endsWith(`.${word}`)));
  }

  function start() {
    const place = document.getElementById("search");
    const list = el("ul", { class: "options", id: "search-options", role: "listbox", "aria-label": "Results", hidden: true });
    const input = el("input", {
      type: "text", id: "search-input", role: "combobox", autocomplete: "off", spellcheck: "false", "aria-label": "Search", "aria-autocomplete": "list",
      "aria-expanded": "false", "aria-controls": "search-options", placeholder: "Search  /", title: "Operators, clauses, cells, causes, public bugs. Press / to search",
    });
    let index = null, all = [], shown = [], chosen = 0, asked = 0;

    async function load() {
      index = await conform.need("search");
      all = entries(index);
    }

    async function suggest() {
      const ask = ++asked, typed = input.value;
      if (!index) {
        try {
          await load();
        } catch (error) {
          shown = [];
          list.replaceChildren(el("li", { role: "option", "aria-selected": "false" }, error.message));
          list.hidden = false;
          return;
        }
      }
      const names = find(all, typed), exact = names[0]?.names[0] === typed.trim().toLowerCase();
      const those = await cells(index, typed);
      if (ask !== asked) return; // more was typed meanwhile
      const plain = names.filter((each) => !each.note.endsWith("nearest name") || !those.length);
      shown = (exact ? [...plain.slice(0, 1), ...those, ...plain.slice(1)] : [...those, ...plain]).slice(0, LONGEST);
      chosen = 0;
      draw();
    }

    function draw() {
      const open = document.activeElement === input && input.value.trim() !== "";
      list.replaceChildren(...shown.map((each, i) => el("li", {
        role: "option", id: `search-option-${i}`, "aria-selected": String(i === chosen),
        onmousedown: (event) => { event.preventDefault(); go(each); },
      }, el("span", {}, each.text), el("small", {}, each.note))));
      if (open && !shown.length) list.append(el("li", { role: "option", "aria-selected": "false", "aria-disabled": "true" }, el("span", {}, `Nothing is called “${input.value.trim()}”.`), el("small", {}, "Try a part of the name")));
      list.hidden = !open;
      input.setAttribute("aria-expanded", String(open));
      if (open && shown.length) {
        input.setAttribute("aria-activedescendant", `search-option-${chosen}`);
        list.children[chosen].scrollIntoView({ block: "nearest" });
      } else input.removeAttribute("aria-activedescendant");
    }

    function go(entry) {
      input.blur();
      location.href = entry.href;
    }

    input.addEventListener("input", suggest);
    input.addEventListener("focus", () => { if (input.value) suggest(); else if (!index) load().catch(() => undefined); });
    input.addEventListener("blur", () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); });
    input.addEventListener("keydown", async (event) => {
      const { key } = event;
      if (key === "Escape") input.blur();
      else if (key === "ArrowDown" && shown.length) { chosen = (chosen + 1) % shown.length; draw(); }
      else if (key === "ArrowUp" && shown.length) { chosen = (chosen + shown.length - 1) % shown.length; draw(); }
      else if (key === "Enter") {
        event.preventDefault();
        const before = chosen; // whoever types fast presses Enter before the results are there
        await suggest();
        if (shown.length) go(shown[Math.min(before, shown.length - 1)]);
        return;
      } else return;
      event.preventDefault();
    });
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
      const slash = event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey;
      if (!slash && !(event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey))) return;
      event.preventDefault();
      input.focus();
      input.select();
    });
    place.append(input, list);
    place.hidden = false;
  }

  document.addEventListener("DOMContentLoaded", start);
  return { find, entries, distance };
})();
