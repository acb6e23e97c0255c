// Light or dark before the first paint: the reader's choice, or else the system's setting.
"use strict";
(function () {
  let chosen = null;
  try {
    chosen = localStorage.getItem("conform-theme");
  } catch (error) {
    chosen = null; // storage is switched off: the system's setting applies
  }
  if (chosen === "dark" || chosen === "light") {
    document.documentElement.dataset.theme = chosen;
  }
})();
