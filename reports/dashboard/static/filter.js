// A filter for the long lists that are complete without scripts: it hides the rows without the text, and opens the
// groups that hold the others. The text is in the address (#q=…), beside the anchor of a row.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const { el, state } = conform;
  const place = document.querySelector("[data-filter]");
  const rows = [...document.querySelectorAll("[data-row]")];
  const groups = [...document.querySelectorAll("main details:not([data-row])")];
  const sections = [...document.querySelectorAll("main section")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const wasOpen = new Map(groups.map((group) => [group, group.open]));
  const found = el("span", { role: "status", class: "hint" });
  const input = el("input", { id: "filter", type: "search", "aria-label": place.dataset.filter, placeholder: place.dataset.filter, autocomplete: "off", spellcheck: "false" });

  function show() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row, i) => {
      const fits = words.every((word) => texts[i].includes(word));
      row.hidden = !fits;
      count += fits;
    });
    const holds = (part) => part.querySelector("[data-row]:not([hidden])") !== null;
    for (const group of groups) {
      const any = holds(group);
      group.hidden = words.length > 0 && !any && group.querySelector("[data-row]") !== null;
      group.open = words.length ? any : wasOpen.get(group);
    }
    for (const section of sections) section.hidden = words.length > 0 && section.querySelector("[data-row]") !== null && !holds(section);
    found.textContent = words.length ? `${conform.number(count)} of ${conform.number(rows.length)}` : "";
  }

  input.addEventListener("input", () => { state.set({ q: input.value.trim() }); show(); });
  place.classList.add("filter");
  place.append(input, found);
  const wanted = /^#q=|[#&]q=/.test(location.hash) ? state.get("q") : "";
  if (wanted) { input.value = wanted; show(); }
});
