"use strict";
// Every page works without this; with it, pages follow what happens, and keys lead through them.
(() => {
  const one = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const told = one("#connection");
  const tell = (state) => { if (told) { told.textContent = told.dataset.state = state; } };

  // Live: a stream says that something changed; the page is fetched, and only what differs is touched.
  let stream = null, fetching = false, again = false, lost = 0;

  const isTyped = (field) => field.matches("select")
    ? [...field.options].some((option) => option.selected !== option.defaultSelected)
    : field.matches("input:not([type=hidden]), textarea")
      && (field.value !== field.defaultValue || field.checked !== field.defaultChecked);

  const isAtEnd = (log) => log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  const toEnd = (log) => { log.scrollTop = log.scrollHeight; };

  const show = (next) => {
    const ended = new Set(all("[data-follow]").filter(isAtEnd).map((log) => log.id));
    Idiomorph.morph(one("main"), next.querySelector("main"), {
      callbacks: {
        // What was typed stays, unless another field stands there now. A question that changed is not swapped under
        // the eyes of who is about to answer: it says so.
        beforeNodeMorphed: (now, then) => {
          if (now.nodeType !== 1) return true;
          const isSame = now.id === then.id && now.name === then.name;
          const isOutdated = isSame && now.dataset.seen && now.dataset.seen !== then.dataset.seen;
          if (isOutdated) now.classList.add("outdated");
          return !isOutdated && !(isSame && isTyped(now));
        },
        beforeAttributeUpdated: (name, node) => !(name === "open" && node.matches("details, dialog")),
      },
    });
    document.title = next.title;
    all("[data-follow]").forEach((log) => { if (ended.has(log.id)) toEnd(log); });
  };

  const refresh = async () => {
    if (fetching) { again = true; return; }
    fetching = true;
    const began = performance.now();
    let rest = 1000;
    try {
      const answer = await fetch(location.href, { headers: { "X-Part": "main" }, signal: AbortSignal.timeout(30000) });
      const next = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (answer.status === 403) { tell("this browser is not let in any more"); close(); }
      else if (next.querySelector("main")) { show(next); document.body.dataset.live = next.body.dataset.live || ""; }
      rest = performance.now() - began - 100; // a page that takes long is not fetched all the time
    } catch { again = true; }
    setTimeout(() => { fetching = false; if (again && stream) { again = false; refresh(); } }, rest);
  };

  const close = () => { if (stream) { stream.close(); stream = null; } };

  const open = () => {
    close();
    if (!document.body.dataset.live || document.hidden) return;
    stream = new EventSource(document.body.dataset.live);
    stream.onopen = () => { lost = 0; tell("live"); };
    stream.onerror = () => { tell(++lost > 3 || stream.readyState === 2 ? "the server has ended" : "reconnecting…"); };
    stream.addEventListener("changed", refresh);
    stream.addEventListener("gone", () => { close(); tell("deleted"); refresh(); });
    stream.addEventListener("end", () => { lost = 4; tell("the server has ended"); });
  };

  document.addEventListener("visibilitychange", open);
  all("[data-follow]").forEach(toEnd);
  open();

  // As agentos.render.text.ago tells times.
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  setInterval(() => document.hidden || all("time[datetime]").forEach((time) => {
    const s = (Date.now() - Date.parse(time.dateTime)) / 1000;
    const [size, unit] = units.find(([size]) => s >= size) || [];
    if (size && time.textContent.endsWith(" ago")) time.textContent = `${Math.floor(s / size)} ${unit} ago`;
  }), 10000);

  // As agentos.render.text.duration does.
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  const duration = (s) => s < 10 ? `${Math.max(0, s).toFixed(1)}s` : s < 60 ? `${Math.floor(s)}s`
    : s < 3600 ? `${Math.floor(s / 60)}m${two(s % 60)}s` : `${Math.floor(s / 3600)}h${two(s % 3600 / 60)}m`;
  setInterval(() => document.hidden || all("[data-since]").forEach((time) => {
    time.textContent = duration((Date.now() - Date.parse(time.dataset.since)) / 1000);
  }), 1000);

  document.addEventListener("change", (event) => {
    if (event.target.closest("[data-autosubmit]")) event.target.form?.requestSubmit();
  });

  const step = (by) => {
    const rows = all(".row-link").filter((row) => row.checkVisibility());
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(Math.max(at + by, 0), rows.length - 1)]?.focus();
  };
  const keys = {
    j: () => step(1),
    k: () => step(-1),
    "/": () => one("[type=search]")?.focus(),
    a: () => one("#gates a, .gate-link")?.click(),
    u: () => { location.href = "/"; },
    "?": () => one("dialog#keys")?.showModal(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || one("dialog[open]")) return;
    if (event.target.closest("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (Object.hasOwn(keys, event.key)) { event.preventDefault(); keys[event.key](); }
  });
})();
