// Keeps the page up to date, loads pages without a flash, and reacts to keys. Every page works without
// this script.
"use strict";
(() => {
  const main = () => document.getElementById("content");
  // A stream of updates begins this long after a page is shown, so that it does not delay the next one.
  const FOLLOW_MS = 150;
  let source = null;
  let selected = -1;
  let loading = 0;
  let following = 0;
  let wanted = null;

  const state = (text) => {
    const shown = document.getElementById("live");
    if (shown && shown.textContent !== text) shown.textContent = text;
  };

  // Nodes with the same key are the same for the reader: a row is that of its first link.
  const key = (node) => {
    if (node.nodeName === "TR") return "TR " + (node.querySelector("a")?.getAttribute("href") || "");
    return node.nodeName + " " + (node.getAttribute?.("name") || "");
  };

  // Makes an element equal to another one. Parts that are equal stay as they are, with what the reader
  // has opened, typed, selected and scrolled.
  const patch = (old, next) => {
    if (old.isEqualNode(next)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== next.data) old.data = next.data;
      return;
    }
    for (const { name } of [...old.attributes]) {
      const isReaders = name === "open" && old.nodeName === "DETAILS";
      if (!isReaders && !next.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of [...next.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const places = new Map();
    [...old.childNodes].forEach((it, at) => {
      if (!places.has(key(it))) places.set(key(it), []);
      places.get(key(it)).push([at, it]);
    });
    let last = -1;
    let from = old.firstChild;
    const drop = (end) => {
      while (from !== end) {
        const dropped = from;
        from = from.nextSibling;
        dropped.remove();
      }
    };
    for (const it of [...next.childNodes]) {
      const found = places.get(key(it)) || [];
      while (found.length && found[0][0] <= last) found.shift();
      if (!found.length) {
        old.insertBefore(it, from);
        continue;
      }
      const [at, kept] = found.shift();
      drop(kept);
      last = at;
      from = kept.nextSibling;
      patch(kept, it);
    }
    drop(null);
  };

  // Shows changed content of the same page. The end of a log stays in view, and the chosen row chosen.
  const update = (change) => {
    const chosen = rows()[selected];
    const ends = [...main().querySelectorAll("pre.log")].filter((it) =>
      it.scrollTop + it.clientHeight >= it.scrollHeight - 4);
    change();
    ends.forEach((it) => { it.scrollTop = it.scrollHeight; });
    const at = rows().indexOf(chosen);
    mark(at < 0 ? selected : at, false);
  };

  const parsed = (text) => new DOMParser().parseFromString(text, "text/html");

  const stop = () => {
    if (source) source.close();
    source = null;
  };

  const follow = () => {
    clearTimeout(following);
    stop();
    // A hidden page needs no updates: browsers allow few connections to one server.
    if (document.body.dataset.live !== "true" || document.hidden) return state("");
    const shown = document.body.dataset.shown;
    source = new EventSource("/live?page=" + encodeURIComponent(location.pathname + location.search)
      + (shown ? "&shown=" + shown : ""));
    source.addEventListener("open", () => state("live"));
    source.addEventListener("page", (event) => {
      state("live");
      document.body.dataset.shown = event.lastEventId;
      const next = main().cloneNode(false);
      next.append(...parsed(event.data).body.childNodes);
      update(() => patch(main(), next));
    });
    source.addEventListener("end", (event) => {
      source.close();
      state("ended");
      main().replaceChildren(...parsed(event.data).body.childNodes);
    });
    source.addEventListener("error", () => state(source && source.readyState === 2 ? "not live" : "reconnecting"));
  };

  // Shows another page of the dashboard. A page that cannot be loaded this way is opened as usual.
  const show = async (address, how) => {
    const turn = ++loading;
    wanted = null;
    let response, text;
    try {
      response = await fetch(address, { headers: { accept: "text/html" }, credentials: "same-origin" });
      text = await response.text();
    } catch {
      return location.assign(address);
    }
    if (turn !== loading) return;
    const page = parsed(text);
    const next = page.getElementById("content");
    if (!next) return location.assign(address);
    const at = new URL(response.url);
    if (how === "push") history.pushState(null, "", at.pathname + at.search);
    if (how === "replace") history.replaceState(null, "", at.pathname + at.search);
    document.title = page.title;
    document.body.dataset.live = page.body.dataset.live;
    document.body.dataset.shown = page.body.dataset.shown;
    const header = page.querySelector("header");
    header.querySelector("#live").textContent = document.getElementById("live").textContent;
    selected = -1;
    if (how === "replace") {
      patch(document.querySelector("header"), header);
      update(() => patch(main(), next));
    } else {
      document.querySelector("header").replaceWith(header);
      main().replaceWith(next);
      scrollTo(0, 0);
      next.focus({ preventScroll: true });
    }
    stop();
    clearTimeout(following);
    following = setTimeout(follow, FOLLOW_MS);
  };

  const address = (form) => {
    const fields = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value !== "") fields.append(name, value);
    const query = fields.toString();
    return new URL(form.action).pathname + (query ? "?" + query : "");
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='/']");
    if (!link || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    show(link.getAttribute("href"), "push");
  });
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "get") return;
    event.preventDefault();
    show(address(event.target), "push");
  });
  // A list is filtered at once. What is typed while it loads is asked for after that, in one request.
  let filters = false;
  document.addEventListener("input", async (event) => {
    const form = event.target.closest("form[data-instant]");
    if (!form) return;
    wanted = address(form);
    if (filters) return;
    filters = true;
    try {
      while (wanted) await show(wanted, "replace");
    } finally {
      filters = false;
    }
  });
  addEventListener("popstate", () => show(location.pathname + location.search, "back"));

  const rows = () => [...main().querySelectorAll("table.rows tbody tr")].filter((row) => row.querySelector("a"));
  const mark = (at, scroll) => {
    const all = rows();
    all.forEach((row) => row.classList.remove("selected"));
    if (at < 0 || !all.length) return;
    selected = Math.max(0, Math.min(at, all.length - 1));
    all[selected].classList.add("selected");
    if (scroll) {
      all[selected].scrollIntoView({ block: "nearest" });
      all[selected].querySelector("a").focus({ preventScroll: true });
    }
  };

  let prefix = "";
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest("input, textarea, select");
    if (event.key === "Escape" && field) return field.blur();
    if (field || event.metaKey || event.ctrlKey || event.altKey) return;
    const dialog = document.getElementById("keys");
    if (prefix === "g") {
      prefix = "";
      const link = document.querySelector(`header a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); show(link.getAttribute("href"), "push"); }
      return;
    }
    const pager = (end) => main().querySelector(`.pager a[rel="${end}"]`);
    const actions = {
      g: () => { prefix = "g"; setTimeout(() => { prefix = ""; }, 1500); },
      "/": () => (main().querySelector("form.filter input[type=search], form.filter input")
        || document.querySelector("header input")).focus(),
      j: () => mark(selected + 1, true),
      k: () => mark(selected - 1, true),
      "[": () => { const to = pager("prev"); if (to) show(to.getAttribute("href"), "push"); },
      "]": () => { const to = pager("next"); if (to) show(to.getAttribute("href"), "push"); },
      p: () => {
        const pause = document.getElementById("pause");
        if (pause) show(pause.getAttribute("href"), "push");
      },
      "?": () => (dialog.open ? dialog.close() : dialog.showModal()),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });

  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => { if (source) source.close(); });
  addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
  document.querySelectorAll("pre.log").forEach((it) => { it.scrollTop = it.scrollHeight; });
  follow();
})();
