// The overview is complete without scripts; this script adds how old each run is now.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const shown of document.querySelectorAll("[data-age]")) {
    shown.textContent = conform.age(shown.dataset.age);
  }
});
