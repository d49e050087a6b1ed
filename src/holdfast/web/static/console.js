// Keeps the live part of a page current. Without JavaScript every page and action still works.
"use strict";
(() => {
  const POLL_MS = 2000;
  const FIRST_POLL_MS = 300;
  const serverAhead = Number(document.body.dataset.now) - Date.now() / 1000;
  const now = () => Date.now() / 1000 + serverAhead;

  // -- times: as the server writes them, in whole seconds

  const UNITS = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  function duration(seconds) {
    seconds = Math.max(0, Math.floor(seconds));
    const row = UNITS.find(([size]) => seconds >= size);
    if (!row) return `${seconds} s`;
    const [size, unit, below, small] = row;
    const rest = Math.floor((seconds % size) / below);
    return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${small}` : ""}`;
  }
  function tick() {
    for (const time of document.querySelectorAll("time[data-ago]"))
      setText(time, `${duration(now() - time.dataset.ago)} ago`);
    for (const time of document.querySelectorAll("time[data-since]"))
      setText(time, duration(now() - time.dataset.since));
    for (const time of document.querySelectorAll("time[data-until]")) {
      const left = time.dataset.until - now();
      setText(time, left > 0 ? duration(left) : `${duration(-left)} ago`);
    }
    for (const bar of document.querySelectorAll("progress[data-deadline]"))
      bar.value = Math.max(0, bar.dataset.deadline - now());
  }
  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  // -- change a part in place, so that focus, open details and scrolling stay

  function isAlike(a, b) {
    return a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.id || "") === (b.id || "");
  }
  function morph(from, to) {
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    for (const { name } of [...from.attributes])
      if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
    for (const { name, value } of to.attributes)
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    morphChildren(from, to);
  }
  function morphChildren(from, to) {
    const byId = new Map([...from.children].filter((c) => c.id).map((c) => [c.id, c]));
    let place = from.firstChild;
    for (const wanted of [...to.childNodes]) {
      const known = wanted.id ? byId.get(wanted.id) : null;
      const match = known || (place && !place.id && isAlike(place, wanted) ? place : null);
      if (!match || !isAlike(match, wanted)) {
        from.insertBefore(wanted, place);
        continue;
      }
      if (match !== place) from.insertBefore(match, place);
      morph(match, wanted);
      place = match.nextSibling;
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }

  // -- updates

  const live = document.querySelector("[data-live]");
  const state = document.getElementById("stream");
  function show(text, isLate) {
    state.hidden = false;
    setText(state, text);
    state.classList.toggle("stream-late", isLate);
    live.classList.toggle("stale", isLate);
  }
  function update(html) {
    const parsed = new DOMParser().parseFromString(`<body>${html}</body>`, "text/html");
    morphChildren(live, parsed.body);
    tick();
  }
  function makeAddress() {
    const address = new URL(location.href);
    for (const [name, value] of new URLSearchParams(live.dataset.live))
      address.searchParams.set(name, value);
    address.searchParams.set("part", "1");
    address.hash = "";
    return address;
  }
  async function poll() {
    try {
      const response = await fetch(makeAddress());
      if (response.redirected) location.reload(); // to the login
      if (response.ok) update(await response.text());
      show(response.ok ? "Live" : "This is gone", !response.ok);
    } catch {
      show("The console does not answer", true);
    }
  }
  // A hidden tab asks for nothing. What is still being counted follows soon.
  async function keepLive() {
    if (!document.hidden) await poll();
    setTimeout(keepLive, live.querySelector(".loading") ? FIRST_POLL_MS : POLL_MS);
  }
  if (live) {
    setTimeout(keepLive, FIRST_POLL_MS);
    document.addEventListener("visibilitychange", () => document.hidden || poll());
  }
  setInterval(tick, 1000);

  // -- choosing many dead letters

  for (const form of document.querySelectorAll("form[data-choices]")) {
    const all = form.querySelector("[data-all]");
    const boxes = [...form.querySelectorAll("input[name=choice]")];
    const note = form.querySelector("[data-chosen]");
    if (!all) continue;
    all.hidden = false;
    const count = () => {
      const chosen = boxes.filter((box) => box.checked).length;
      all.checked = chosen === boxes.length;
      all.indeterminate = chosen > 0 && chosen < boxes.length;
      setText(note, chosen ? `${chosen} chosen` : "");
    };
    all.addEventListener("change", () => {
      for (const box of boxes) box.checked = all.checked;
      count();
    });
    form.addEventListener("change", count);
    count();
  }
})();
