// Runs as the pages use them: one list of cells, and for each run one letter per cell.
"use strict";

conform.model = (function () {
  const ABSENT = 32; // the letter of a cell that a run does not have

  // The cells of one or more axes. Cells are identified by position; `op`, `clause` and `dtype` hold, for each,
  // positions in `ops`, `clauses` and `dtypes`.
  class Universe {
    constructor(axes) {
      this.axes = new Map(Object.entries(axes));
      const collect = (names) => [...new Set([...this.axes.values()].flatMap(names))];
      this.clauses = collect((axis) => axis.clauses);
      this.dtypes = collect((axis) => axis.dtypes);
      this.ops = collect((axis) => axis.ops.map(([op]) => op)).sort(compare);
      this.families = new Map([...this.axes.values()].flatMap((axis) => Object.entries(axis.families || {})));
      this.single = this.axes.size === 1 ? [...this.axes.keys()][0] : null;
      this.places = {
        op: places(this.ops), clause: places(this.clauses), dtype: places(this.dtypes),
      };
      this.width = this.clauses.length * this.dtypes.length;
      const cube = new Uint8Array(this.ops.length * this.width);
      for (const axis of this.axes.values()) this.walk(axis, (place) => { cube[place] = 1; });
      let size = 0;
      for (let place = 0; place < cube.length; place++) size += cube[place];
      this.size = size;
      this.op = new Uint16Array(size);
      this.clause = new Uint16Array(size);
      this.dtype = new Uint16Array(size);
      this.at = new Int32Array(cube.length).fill(-1); // from a place in the cube to a cell
      const wide = this.dtypes.length;
      let cell = 0;
      for (let place = 0; place < cube.length; place++) {
        if (!cube[place]) continue;
        this.op[cell] = Math.floor(place / this.width);
        this.clause[cell] = Math.floor((place % this.width) / wide);
        this.dtype[cell] = place % wide;
        this.at[place] = cell++;
      }
    }

    // Call `visit` with the cube's place of every cell of an axis, in the axis' order.
    walk(axis, visit) {
      const wide = this.dtypes.length;
      const clauses = axis.clauses.map((name) => this.places.clause.get(name) * wide);
      const dtypes = axis.dtypes.map((name) => this.places.dtype.get(name));
      for (const [op, pattern] of axis.ops) {
        const start = this.places.op.get(op) * this.width;
        for (const [clause, columns] of axis.patterns[pattern]) {
          for (const column of columns) visit(start + clauses[clause] + dtypes[column]);
        }
      }
    }

    // A run's letters by cell of this universe, as character codes.
    letters(run) {
      const letters = new Uint8Array(this.size).fill(ABSENT);
      let next = 0;
      this.walk(this.axes.get(run.axis), (place) => {
        letters[this.at[place]] = run.codes.charCodeAt(next++);
      });
      return letters;
    }

    // The position of a cell by its names, or -1.
    find(clause, op, dtype) {
      const c = this.places.clause.get(clause), o = this.places.op.get(op), d = this.places.dtype.get(dtype);
      if (c === undefined || o === undefined || d === undefined) return -1;
      return this.at[o * this.width + c * this.dtypes.length + d];
    }

    names(cell) {
      return { clause: this.clauses[this.clause[cell]], op: this.ops[this.op[cell]], dtype: this.dtypes[this.dtype[cell]] };
    }
  }

  function places(names) {
    return new Map(names.map((name, place) => [name, place]));
  }

  function compare(a, b) {
    return a < b ? -1 : a > b ? 1 : 0;
  }

  // What the letters mean, by letter.
  function statuses(site) {
    return new Map(site.statuses.map((row) => [row.code, row]));
  }

  // Rank of each letter's kind, the most urgent 0: by character code.
  function ranks(site) {
    const rank = new Map(site.kinds.map((kind, place) => [kind.name, place]));
    const ranked = new Uint8Array(128).fill(site.kinds.length - 1);
    for (const row of site.statuses) ranked[row.code.charCodeAt(0)] = rank.get(row.kind);
    return ranked;
  }

  function told(row) {
    if (row.outcome === "absent") return "not planned";
    if (row.kind === "undeclared") return "unsupported by declaration";
    return ["ok", "regression", "missing"].includes(row.verdict) ? row.outcome : `${row.outcome} (${row.verdict})`;
  }

  // Load runs by id and the universe of their axes.
  async function load(ids) {
    const runs = await Promise.all(ids.map((id) => conform.need(`runs/${id}`)));
    const names = [...new Set(runs.map((run) => run.axis))];
    const axes = await Promise.all(names.map((name) => conform.need(`axes/${name}`)));
    return { runs, universe: new Universe(Object.fromEntries(names.map((name, i) => [name, axes[i]]))) };
  }

  // Which file of a run's details, or of a history, holds an operator: FNV-1a of its UTF-8 bytes.
  function shard(op, shards) {
    let value = 0x811c9dc5;
    for (const byte of new TextEncoder().encode(op)) value = Math.imul(value ^ byte, 0x01000193) >>> 0;
    return value % shards;
  }

  // A dtype of the site may have a variant behind an @: "float32", "float32@compiled"; cases have none, or "@4 ranks".
  const isCase = (dtype) => dtype === "" || dtype.startsWith("@");
  function cellName(op, dtype) {
    const [plain, ...variant] = dtype.split("@");
    return `${op}${plain ? `[${plain}]` : ""}${variant.map((each) => `@${each}`).join("")}`;
  }

  const newest = (device) => device.runs[device.runs.length - 1];
  const urgent = (site) => site.devices.find((device) => device.slug === site.urgent);
  const family = (clause) => clause.split(".")[0];
  const title = (device) => `${device.device} · ${device.plan}`;

  return { Universe, ABSENT, statuses, ranks, told, load, shard, newest, urgent, family, title, isCase, cellName };
})();
