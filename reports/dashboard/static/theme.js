// Light or dark before the first paint: what the reader chose, else what their system says.
"use strict";
(function () {
  let chosen = null;
  try {
    chosen = localStorage.getItem("conform-theme");
  } catch (error) {
    chosen = null; // storage is switched off: the system's choice holds
  }
  if (chosen === "dark" || chosen === "light") {
    document.documentElement.dataset.theme = chosen;
  }
})();
