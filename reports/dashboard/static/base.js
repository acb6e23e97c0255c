// What every page uses: making elements, loading data, state in the address, the theme.
//
// Classic deferred scripts, not modules: browsers do not load modules from a file, and this site
// opens from one. Data comes the same way: data/KEY.js calls conform.give(KEY, …).
// Text from runs is untrusted: it goes into the page only by textContent.
"use strict";

const conform = (function () {
  const html = document.documentElement;
  const root = html.dataset.root || "";
  const given = new Map();
  const awaited = new Map();

  function give(key, json) {
    given.set(key, JSON.parse(json));
  }

  // A promise of the data of a key. A missing file is an error with a readable message.
  function need(key) {
    if (given.has(key)) return Promise.resolve(given.get(key));
    if (!awaited.has(key)) {
      awaited.set(key, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = `${root}data/${key}.js`;
        script.onload = () => given.has(key)
          ? resolve(given.get(key))
          : reject(new Error(`data/${key}.js was loaded, but contains different data. Build the site again.`));
        script.onerror = () => reject(new Error(`data/${key}.js could not be loaded. Copy the whole site folder, with data/.`));
        document.head.append(script);
      }));
    }
    return awaited.get(key);
  }

  // el("a", { href: "…", class: "…", onclick: f }, "text", child, …). No markup is ever parsed.
  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
    return made;
  }

  // State is in the address after the #, so that every view can be shared and bookmarked.
  const state = {
    all() {
      return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    },
    get(name, otherwise = "") {
      return new URLSearchParams(location.hash.slice(1)).get(name) ?? otherwise;
    },
    // Change some values. With `step`, the back button undoes the change.
    set(changes, step = false) {
      const values = new URLSearchParams(location.hash.slice(1));
      for (const [name, value] of Object.entries(changes)) {
        if (value === "" || value === null || value === undefined) values.delete(name);
        else values.set(name, value);
      }
      const hash = `#${values}`;
      if (hash === location.hash || (hash === "#" && location.hash === "")) return;
      history[step ? "pushState" : "replaceState"](null, "", hash);
    },
  };

  function address(page, values) {
    return `${root}${page}.html#${new URLSearchParams(values)}`;
  }

  const number = (value) => value.toLocaleString("en-US");
  const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
  const day = (start) => start.slice(0, 10);

  function age(start, now = Date.now()) {
    const days = Math.max(0, Math.floor((now - Date.parse(start)) / 86400000));
    return days === 0 ? "today" : days === 1 ? "1 day ago" : `${number(days)} days ago`;
  }

  // An address of the web, or null: any other scheme could run code.
  function web(text) {
    return /^https?:\/\/[^\s<>"'\\]+$/.test(text || "") ? text : null;
  }

  async function copy(text, button) {
    const before = button.textContent;
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch (error) {
      const area = el("textarea", { class: "hidden", "aria-hidden": "true" }); // from a file
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    button.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = before; }, 1600);
  }

  // Offer a text as a file.
  function save(name, type, text) {
    const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function theme() {
    const button = document.getElementById("theme");
    const dark = () => html.dataset.theme
      ? html.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    const show = () => { button.textContent = dark() ? "Light" : "Dark"; };
    button.hidden = false;
    button.setAttribute("aria-label", "Switch between light and dark");
    button.addEventListener("click", () => {
      html.dataset.theme = dark() ? "light" : "dark";
      try {
        localStorage.setItem("conform-theme", html.dataset.theme);
      } catch (error) {
        // Storage is switched off: the choice applies to this page only.
      }
      show();
    });
    show();
  }

  // Open what the address names, if it is folded away: browsers open what is around it, not the element itself.
  function unfold() {
    let id = location.hash.slice(1);
    try {
      id = decodeURIComponent(id);
    } catch (error) {
      return; // not an id of ours
    }
    const named = id && document.getElementById(id);
    if (!named) return;
    for (let part = named; part; part = part.parentElement) if (part instanceof HTMLDetailsElement) part.open = true;
    named.scrollIntoView();
  }

  // Start a page. Errors are shown in it.
  function start(page) {
    document.addEventListener("DOMContentLoaded", async () => {
      const app = document.getElementById("app");
      try {
        await page(app, given.get("site"));
        html.dataset.ready = "true";
      } catch (error) {
        app.replaceChildren(el("p", { class: "notice", role: "alert" }, error.message));
        html.dataset.ready = "error";
        throw error;
      }
    });
  }

  // The menu is wider than a phone: show the entry of this page.
  function here() {
    const menu = document.querySelector(".top nav"), entry = menu?.querySelector("[aria-current]");
    if (entry) menu.scrollLeft = entry.offsetLeft - menu.offsetLeft - (menu.clientWidth - entry.offsetWidth) / 2;
  }

  document.addEventListener("DOMContentLoaded", here);
  document.addEventListener("DOMContentLoaded", theme);
  document.addEventListener("DOMContentLoaded", unfold);
  addEventListener("hashchange", unfold);
  return { give, need, el, state, address, number, plural, day, age, web, copy, save, start, root };
})();
