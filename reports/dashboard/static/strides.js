// A strided buffer as a picture: each square is one element of storage, numbered in the order in
// which the tensor's indices walk it. Gaps are storage without an element; the guard is known
// bytes around the view, compared after every call.
"use strict";

conform.strides = (function () {
  const SVG = "http://www.w3.org/2000/svg";
  const SIZE = 22, GAP = 2, ACROSS = 32, MOST = 192, GUARD = 6;

  function svg(tag, attributes, text) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // The storage position of every element, in index order; at most `most`.
  function positions({ shape, stride, offset }, most = 4096) {
    let found = [offset];
    for (let dim = 0; dim < shape.length; dim++) {
      const next = [];
      for (const at of found) for (let i = 0; i < shape[dim] && next.length < most; i++) next.push(at + i * stride[dim]);
      found = next;
    }
    return found;
  }

  function draw(tensor, guard) {
    const walked = positions(tensor);
    const extent = Math.max(tensor.extent, tensor.offset);
    const owner = new Map();
    walked.forEach((at, order) => owner.set(at, [...(owner.get(at) || []), order]));
    const shownOf = Math.min(extent, MOST);
    const slots = shownOf + (shownOf < extent ? 0 : Math.min(GUARD, guard));
    const rows = Math.ceil(slots / ACROSS), pitch = SIZE + GAP;
    const width = ACROSS * pitch + 4, height = rows * (pitch + 10) + 6;
    const picture = svg("svg", { class: "picture", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe(tensor, guard) });
    const lines = svg("pattern", { id: "guard-lines", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    lines.append(svg("line", { class: "guard-line", x1: 0, y1: 0, x2: 0, y2: 5 }));
    const defs = svg("defs", {});
    defs.append(lines);
    picture.append(defs);
    for (let at = 0; at < slots; at++) {
      const x = (at % ACROSS) * pitch + 2, y = Math.floor(at / ACROSS) * (pitch + 10) + 2;
      const orders = owner.get(at);
      const kind = orders ? "el" : at >= extent || at < tensor.offset ? "guard" : "gap";
      picture.append(svg("rect", { class: kind, x, y, width: SIZE, height: SIZE, rx: 3 }));
      if (orders) {
        const text = orders.length > 1 ? `×${orders.length}` : String(orders[0]);
        picture.append(svg("text", { x: x + SIZE / 2, y: y + SIZE / 2 + 3.5, "text-anchor": "middle", class: text.length > 3 ? "small" : "" }, text));
      }
      if (at % 8 === 0) picture.append(svg("text", { x: x + 1, y: y + SIZE + 9, class: "small" }, String(at)));
    }
    return picture;
  }

  function describe({ shape, stride, offset, extent }, guard) {
    return `Storage of a tensor of shape (${shape.join(", ")}), strides (${stride.join(", ")}), offset ${offset}: `
      + `elements 0 to ${extent}, then ${guard} elements of known bytes.`;
  }

  // A figure with its caption. `name` says which tensor, `real` whether it is the failing call's own.
  function figure(tensor, name, guard) {
    const { el } = conform;
    const { shape, stride, offset, extent, dtype } = tensor;
    const count = shape.reduce((product, size) => product * size, 1);
    const facts = `shape (${shape.join(", ")}) · strides (${stride.join(", ")}) · offset ${offset}${dtype ? ` · ${dtype}` : ""}`;
    const more = extent > MOST ? ` The first ${MOST} of ${extent} storage elements are drawn.` : "";
    const shared = stride.some((step, dim) => step === 0 && shape[dim] > 1) ? " ×n: n indices share one element." : "";
    return el("div", {}, el("p", {}, el("b", {}, name), " ", el("small", {}, facts)),
      count ? draw(tensor, guard) : el("p", { class: "hint" }, "The tensor has no elements, so nothing is drawn."),
      shared || more ? el("p", { class: "picture-legend" }, `${shared}${more}`.trim()) : null);
  }

  // What the squares of all figures of a section mean.
  function legend() {
    return conform.el("p", { class: "picture-legend" }, "Filled: the elements, numbered in index order; hatched: guard, known bytes before and after the view; empty: between elements.");
  }

  return { figure, legend, positions };
})();
