// The query language: parses text into a tree, and evaluates the tree to the matching cells.
//
//   query := or;  or := and ("or" and)*;  and := not (["and"] not)*;  not := "not" not | "(" or ")" | term
//   term  := field ":" value ("," value)*  |  word
//
// A field is clause, op, dtype, family, status, or a device. An error carries its position.
"use strict";

conform.query = (function () {
  const FIELDS = ["clause", "op", "dtype", "family", "status"];
  const KEYWORDS = ["and", "or", "not"];
  const WORDS = {
    pass: "outcome pass", fail: "outcome fail", error: "the check could not be made",
    unsupported: "raised NotImplementedError", blocked: "another clause must pass first", undeclared: "not tried: unsupported by declaration", ambiguous: "the references disagree",
    crash: "the process died", hang: "did not return", expected: "failed as the manifest says",
    regression: "worse than the manifest says", improvement: "better than the manifest says",
    flaky: "declared flaky", bad: "tried, but did not pass", any: "has the cell", absent: "does not have the cell",
  };

  class QueryError extends Error {
    constructor(message, at, length = 1) {
      super(message);
      this.at = at;
      this.length = Math.max(length, 1);
    }
  }

  // Tokens: ( ) : , and words; a word in double quotes may contain anything but a double quote.
  function tokens(text) {
    const found = [];
    let at = 0;
    while (at < text.length) {
      const char = text[at];
      if (/\s/.test(char)) { at++; continue; }
      if ("():,".includes(char)) { found.push({ kind: char, text: char, at, end: ++at }); continue; }
      if (char === '"') {
        const end = text.indexOf('"', at + 1);
        if (end < 0) throw new QueryError('A quote is opened and not closed: add the missing ".', at, text.length - at);
        found.push({ kind: "word", quoted: true, text: text.slice(at + 1, end), at, end: end + 1 });
        at = end + 1;
        continue;
      }
      let end = at;
      while (end < text.length && !/[\s():,"]/.test(text[end])) end++;
      found.push({ kind: "word", text: text.slice(at, end), at, end });
      at = end;
    }
    return found;
  }

  // Read a query. `devices` are the site's. Throws QueryError. An empty query is null: every cell.
  function parse(text, devices) {
    const list = tokens(text);
    let next = 0;
    const peek = () => list[next];
    const keyword = (name) => {
      const token = peek();
      return token && token.kind === "word" && !token.quoted && token.text.toLowerCase() === name && list[next + 1]?.kind !== ":";
    };

    function or() {
      const items = [and()];
      while (keyword("or")) { next++; items.push(and()); }
      return items.length > 1 ? { type: "or", items } : items[0];
    }

    function and() {
      const items = [not()];
      while (peek() && peek().kind !== ")" && !keyword("or")) {
        if (keyword("and")) next++;
        items.push(not());
      }
      return items.length > 1 ? { type: "and", items } : items[0];
    }

    function not() {
      if (!keyword("not")) return atom();
      next++;
      return { type: "not", item: not() };
    }

    function atom() {
      const token = peek();
      if (!token) throw new QueryError("The query ends here; expected a term, such as op:add.", text.length);
      if (token.kind === "(") {
        next++;
        const inside = or();
        if (peek()?.kind !== ")") throw new QueryError("This parenthesis is not closed: add the missing ).", token.at);
        next++;
        return inside;
      }
      if (token.kind !== "word" || keyword("and") || keyword("or")) {
        throw new QueryError(`Expected a term, such as op:add, found “${token.text}”.`, token.at, token.text.length);
      }
      next++;
      if (peek()?.kind !== ":") return { type: "name", field: "op", patterns: [pattern(`*${token.text}*`)] };
      const colon = list[next++];
      return term(token, values(colon));
    }

    function values(colon) {
      const found = [];
      do {
        if (found.length) next++; // the comma
        const value = peek();
        if (!value || value.kind !== "word") {
          throw new QueryError("Expected a value after this, such as op:add or dtype:float32,bfloat16.", list[next - 1]?.at ?? colon.at);
        }
        found.push(value);
        next++;
      } while (peek()?.kind === ",");
      return found;
    }

    function term(name, wanted) {
      const field = name.text.toLowerCase();
      if (!name.quoted && FIELDS.includes(field) && field !== "status") {
        return { type: "name", field, patterns: wanted.map((value) => pattern(value.text)) };
      }
      const device = field === "status" && !name.quoted ? null : find(name, devices);
      for (const value of wanted) {
        if (!(value.text.toLowerCase() in WORDS)) {
          throw new QueryError(`“${value.text}” is not a status.${meant(value.text, Object.keys(WORDS))} Known: ${Object.keys(WORDS).join(", ")}.`, value.at, value.text.length);
        }
      }
      return { type: "status", device, words: wanted.map((value) => value.text.toLowerCase()) };
    }

    if (!list.length) return null;
    const tree = or();
    const rest = peek();
    if (rest) throw new QueryError("This parenthesis has no matching (: remove it, or open one before it.", rest.at);
    return tree;
  }

  // The device that a field names: by its slug, or else by its name, the largest plan first.
  function find(name, devices) {
    const exact = devices.find((device) => device.slug === name.text);
    if (exact) return exact;
    const same = devices.filter((device) => device.device === name.text);
    if (same.length) return same.reduce((a, b) => (conform.model.newest(b).judged > conform.model.newest(a).judged ? b : a));
    const known = [...new Set([...FIELDS, ...devices.map((device) => device.device), ...devices.map((device) => device.slug)])];
    throw new QueryError(`“${name.text}” is neither a field nor a device.${meant(name.text, known)} Known: ${known.join(", ")}.`, name.at, name.end - name.at);
  }

  function meant(word, known) {
    let best = null, least = Math.max(2, Math.floor(word.length / 3)) + 1;
    for (const name of known) {
      const far = distance(word.toLowerCase(), name.toLowerCase());
      if (far < least) { best = name; least = far; }
    }
    return best ? ` Did you mean “${best}”?` : "";
  }

  // Edits between two words (Levenshtein).
  function distance(a, b) {
    let before = Array.from({ length: b.length + 1 }, (_, i) => i);
    for (let i = 1; i <= a.length; i++) {
      const row = [i];
      for (let j = 1; j <= b.length; j++) {
        row[j] = Math.min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
      }
      before = row;
    }
    return before[b.length];
  }

  // * is any text, ? one character; upper and lower case are the same.
  function pattern(text) {
    const escaped = text.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*+/g, ".*").replace(/\?/g, ".");
    return new RegExp(`^${escaped}$`, "is");
  }

  // The devices whose letters a tree needs; null means "the device or devices shown".
  function asked(tree, found = new Set()) {
    if (!tree) return found;
    if (tree.type === "status") found.add(tree.device);
    for (const item of tree.items || (tree.item ? [tree.item] : [])) asked(item, found);
    return found;
  }

  // The letters that a status word matches.
  function codes(word, statuses) {
    const found = new Uint8Array(128);
    for (const [code, row] of statuses) {
      const absent = row.outcome === "absent";
      const fits = word === "any" ? !absent
        : word === "absent" ? absent
        : word === "undeclared" || row.kind === "undeclared" ? word === row.kind
        : word === "bad" ? !absent && row.outcome !== "pass"
        : word === "ambiguous" ? row.outcome === "ambiguous-reference"
        : row.outcome === word || row.verdict === word;
      if (fits) found[code.charCodeAt(0)] = 1;
    }
    return found;
  }

  // Each loop over all cells is a separate function on one kind of array, so that engines optimize it.
  function both(mask, other) { for (let i = 0; i < mask.length; i++) mask[i] &= other[i]; }
  function either(mask, other) { for (let i = 0; i < mask.length; i++) mask[i] |= other[i]; }
  function invert(mask) { for (let i = 0; i < mask.length; i++) mask[i] ^= 1; }
  function named(mask, fits, of) { for (let i = 0; i < mask.length; i++) mask[i] = fits[of[i]]; }
  function lettered(mask, fits, list) { for (let i = 0; i < mask.length; i++) mask[i] |= fits[list[i]]; }

  // One byte per cell: whether the tree matches it. `letters(device)` gives lists of letters: those of the
  // device, or, for null, those of the devices shown.
  function evaluate(tree, universe, letters, statuses) {
    const size = universe.size;
    if (!tree) return new Uint8Array(size).fill(1);
    if (tree.type === "and" || tree.type === "or") {
      const [first, ...rest] = tree.items.map((item) => evaluate(item, universe, letters, statuses));
      for (const mask of rest) (tree.type === "and" ? both : either)(first, mask);
      return first;
    }
    if (tree.type === "not") {
      const mask = evaluate(tree.item, universe, letters, statuses);
      invert(mask);
      return mask;
    }
    const mask = new Uint8Array(size);
    if (tree.type === "name") {
      const field = tree.field === "family" ? "clause" : tree.field;
      const names = { op: universe.ops, clause: universe.clauses, dtype: universe.dtypes }[field];
      const text = tree.field === "family" ? conform.model.family : (name) => name;
      const fits = Uint8Array.from(names, (name) => tree.patterns.some((each) => each.test(text(name))) ? 1 : 0);
      named(mask, fits, universe[field]);
      return mask;
    }
    for (const word of tree.words) {
      const fits = codes(word, statuses);
      for (const list of letters(tree.device)) lettered(mask, fits, list);
    }
    return mask;
  }

  return { parse, evaluate, asked, tokens, QueryError, FIELDS, KEYWORDS, WORDS };
})();
