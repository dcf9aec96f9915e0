// Keeps the page up to date, loads pages without a flash, and reacts to keys. Every page works without
// this script.
"use strict";
(() => {
  const main = () => document.getElementById("content");
  // A pause in typing after which the list is filtered.
  const TYPING_MS = 60;
  let source = null;
  let selected = -1;
  let loading = 0;

  const state = (text) => {
    const shown = document.getElementById("live");
    if (shown) shown.textContent = text;
  };

  // What the reader has opened, typed and scrolled stays as it is.
  const keep = () => {
    const active = document.activeElement;
    const typed = active && main().contains(active) && active.name
      ? { name: active.name, value: active.value, start: active.selectionStart, end: active.selectionEnd } : null;
    const open = [...main().querySelectorAll("details")].map((it) => it.open);
    const left = [...main().querySelectorAll(".scroll")].map((it) => it.scrollLeft);
    const logs = [...main().querySelectorAll("pre.log")].map((it) =>
      it.scrollTop + it.clientHeight >= it.scrollHeight - 4 ? Infinity : it.scrollTop);
    return () => {
      main().querySelectorAll("details").forEach((it, at) => { if (at in open) it.open = open[at]; });
      main().querySelectorAll(".scroll").forEach((it, at) => { it.scrollLeft = left[at] || 0; });
      main().querySelectorAll("pre.log").forEach((it, at) => {
        it.scrollTop = Math.min(at in logs ? logs[at] : Infinity, it.scrollHeight);
      });
      if (!typed) return;
      const again = main().querySelector(`[name="${CSS.escape(typed.name)}"]:not([type=hidden])`);
      if (!again) return;
      again.value = typed.value;
      again.focus({ preventScroll: true });
      if (typed.start !== null && again.setSelectionRange && again.type !== "number") {
        again.setSelectionRange(typed.start, typed.end);
      }
    };
  };

  const parsed = (text) => new DOMParser().parseFromString(text, "text/html");

  const follow = () => {
    if (source) source.close();
    source = null;
    // A hidden page needs no updates: browsers allow few connections to one server.
    if (document.body.dataset.live !== "true" || document.hidden) return state("");
    const shown = document.body.dataset.shown;
    source = new EventSource("/live?page=" + encodeURIComponent(location.pathname + location.search)
      + (shown ? "&shown=" + shown : ""));
    source.addEventListener("open", () => state("live"));
    source.addEventListener("page", (event) => {
      state("live");
      document.body.dataset.shown = event.lastEventId;
      const restore = keep();
      main().replaceChildren(...parsed(event.data).body.childNodes);
      restore();
      mark(selected, false);
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
    const restore = how === "replace" ? keep() : null;
    const at = new URL(response.url);
    if (how === "push") history.pushState(null, "", at.pathname + at.search);
    if (how === "replace") history.replaceState(null, "", at.pathname + at.search);
    document.title = page.title;
    document.body.dataset.live = page.body.dataset.live;
    document.body.dataset.shown = page.body.dataset.shown;
    document.querySelector("header").replaceWith(page.querySelector("header"));
    main().replaceWith(next);
    selected = -1;
    if (restore) restore(); else { scrollTo(0, 0); next.focus({ preventScroll: true }); }
    follow();
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
  let typing = 0;
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-instant]");
    if (!form) return;
    clearTimeout(typing);
    // A choice is made at once; a word is typed.
    typing = setTimeout(() => show(address(form), "replace"), event.target.tagName === "SELECT" ? 0 : TYPING_MS);
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
