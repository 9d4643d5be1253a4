// Shows /api/v1/pipelines and keeps it fresh. Everything from the host goes into the page as text, never as markup.
"use strict";

const REFRESH_MS = 2000, TIMEOUT_MS = 5000;

// [class, sign] of each state; the sign and the word tell what the colour does.
const STATES = {
  RUNNING: ["good", "●"], STARTING: ["calm", "◌"], STANDBY: ["calm", "◌"], DRAINING: ["calm", "◌"], STOPPED: ["calm", "■"],
  RETRYING: ["warn", "▲"], BLOCKED: ["warn", "▲"], MISCONFIGURED: ["bad", "✕"], STALLED: ["bad", "✕"], FAILED: ["bad", "✕"],
};
const PLUGIN_STATES = { ok: "good", streaming: "good", slow: "warn", down: "bad", connecting: "warn" };
const look = (state) => STATES[state] || ["warn", "?"];

// --- A small virtual DOM: what did not change stays, with its selection, focus and open <details>.

const h = (tag, props, ...children) => ({ tag, props: props || {}, children: children.flat(Infinity).filter((c) => c != null && c !== false) });

function patch(parent, nodes) {
  nodes.forEach((node, i) => {
    const old = parent.childNodes[i];
    if (typeof node !== "object") {
      const text = String(node);
      if (old && old.nodeType === Node.TEXT_NODE) {
        if (old.data !== text) old.data = text;
      } else {
        old ? parent.replaceChild(document.createTextNode(text), old) : parent.append(text);
      }
      return;
    }
    let el = old;
    if (!old || old.nodeName.toLowerCase() !== node.tag || (old.vkey || "") !== (node.props.key || "")) {
      el = document.createElement(node.tag);
      el.vkey = node.props.key;
      old ? parent.replaceChild(el, old) : parent.append(el);
    }
    const names = Object.keys(node.props).filter((n) => n !== "key" && n !== "onsubmit");
    for (const n of names) {
      if (el.getAttribute(n) !== String(node.props[n])) el.setAttribute(n, node.props[n]);
    }
    for (const n of el.vprops || []) {
      if (!names.includes(n)) el.removeAttribute(n);
    }
    el.vprops = names;
    el.onsubmit = node.props.onsubmit || null;
    patch(el, node.children);
  });
  while (parent.childNodes.length > nodes.length) parent.lastChild.remove();
}

// --- Numbers and times for people.

const count = (n) => Math.round(n).toLocaleString("en");

const rate = (n) => (n >= 10 ? count(n) : n > 0 ? n.toFixed(1) : "0") + "/s";

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  for (; n >= 1024 && u < units.length - 1; u++) n /= 1024;
  return (u === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)) + " " + units[u];
}

function duration(s) {
  s = Math.max(0, s);
  if (s < 10) return s.toFixed(1) + " s";
  if (s < 60) return Math.floor(s) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

const since = (time, now) => duration((now - Date.parse(time)) / 1000);
const at = (time) => h("span", { title: time }, new Date(time).toLocaleTimeString("en-GB"));

// --- Views.

const figure = (label, ...value) => h("li", {}, h("span", { class: "soft" }, label + " "), h("b", {}, ...value));
const badge = (cls, text) => h("span", { class: "badge " + cls }, text);
const pluginState = (state) => badge(PLUGIN_STATES[state] || "calm", state || "–");

function processInfo(p) {
  const parts = [];
  if (p.pid) parts.push("pid " + p.pid);
  if (p.restarts) parts.push(p.restarts + (p.restarts === 1 ? " restart" : " restarts"));
  return parts.join(", ");
}

function sourceRow(s) {
  const facts = [processInfo(s), s.oldest_unpublished_seconds != null && "oldest " + duration(s.oldest_unpublished_seconds),
    s.lag_bytes != null && "lag " + bytes(s.lag_bytes), s.backlog != null && "backlog " + count(s.backlog), s.text];
  return h("tr", { key: "source" },
    h("td", { class: "name" }, h("b", {}, "source "), s.plugin), h("td", {}, pluginState(s.state)),
    h("td", { class: "num" }, rate(s.read_rate)), h("td", { class: "num" }, count(s.events_read) + " read"),
    h("td", { class: "num" }, count(s.events_acked) + " acked"), h("td", { class: "wide soft" }, facts.filter(Boolean).join(" · ")));
}

function sinkRow(s) {
  const facts = [processInfo(s), s.failing_keys && count(s.failing_keys) + " failing keys", s.text];
  return h("tr", { key: "sink " + s.name },
    h("td", { class: "name" }, h("b", {}, "sink "), s.name, s.plugin !== s.name && h("span", { class: "soft" }, " " + s.plugin)), h("td", {}, pluginState(s.state)),
    h("td", { class: "num" }, rate(s.settle_rate)), h("td", { class: "num" }, count(s.events_settled) + " settled"),
    h("td", { class: "num" }, count(s.in_flight_events) + " in flight"), h("td", { class: "wide soft" }, facts.filter(Boolean).join(" · ")));
}

function heldTable(p, now) {
  if (!p.held.length) return null;
  const more = p.held_keys > p.held.length ? " (the first " + p.held.length + " of " + count(p.held_keys) + ")" : "";
  return [
    h("h3", {}, "Keys that wait" + more),
    h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Sink", "Key", "Event", "Why", "For", "Tries"].map((t, i) => h("th", i > 3 ? { class: "num" } : {}, t)))),
      h("tbody", {}, p.held.map((k) => h("tr", { key: k.sink + " " + k.event_id },
        h("td", { class: "nowrap" }, k.sink),
        h("td", {}, k.key ? h("code", {}, k.key) : h("span", { class: "soft" }, "no key"), " ",
          k.held ? badge("warn", "held") : badge("calm", "failing")),
        h("td", {}, h("code", {}, k.event_id)),
        h("td", { class: "wide" }, h("code", {}, k.code), h("span", { class: "soft" }, " " + k.class + " "), k.message, k.hint ? h("div", { class: "soft" }, k.hint) : ""),
        h("td", { class: "num" }, h("span", { title: k.since }, since(k.since, now))),
        h("td", { class: "num" }, count(k.attempts))))))),
  ];
}

function ownMetrics(p) {
  const all = [["source", p.source.metrics], ...p.sinks.map((s) => [s.name, s.metrics])];
  const rows = all.flatMap(([instance, metrics]) => Object.entries(metrics || {}).sort().map(([name, v]) =>
    h("tr", {}, h("td", { class: "soft" }, instance), h("td", {}, h("code", {}, name)), h("td", { class: "num" }, v.toLocaleString("en")))));
  if (!rows.length && !p.source.position && !p.order) return null;
  return h("details", {}, h("summary", {}, "Details"), h("ul", { class: "figures" },
    p.source.position && figure("Position", h("code", {}, p.source.position)), p.order && figure("Order", p.order)),
    rows.length > 0 && h("table", {}, h("tbody", {}, rows)));
}

function card(p, now) {
  const [cls, sign] = look(p.state);
  return h("article", { key: p.name, id: "pipeline-" + p.name, class: cls },
    h("div", { class: "head" }, h("h2", {}, p.name), badge(cls, sign + " " + p.state),
      h("span", { class: "soft", title: p.since }, "for " + since(p.since, now))),
    p.reason && h("p", { class: "reason" }, p.reason),
    h("ul", { class: "figures" },
      figure("In flight", count(p.in_flight_events) + " events, " + bytes(p.in_flight_bytes)),
      figure("Held keys", count(p.held_keys)),
      figure("Last settled", p.last_settled ? [at(p.last_settled)] : "–")),
    h("div", { class: "scroll" }, h("table", {}, h("tbody", {}, sourceRow(p.source), p.sinks.map(sinkRow)))),
    heldTable(p, now), ownMetrics(p));
}

function show(pipelines, now) {
  const bad = pipelines.filter((p) => look(p.state)[0] === "bad" || look(p.state)[0] === "warn").length;
  document.title = (bad ? "(" + bad + ") " : "") + "Relevo";
  patch(overview, pipelines.map((p) => {
    const [cls, sign] = look(p.state);
    return h("a", { class: cls, href: "#pipeline-" + p.name, title: p.state }, sign + " " + p.name);
  }));
  patch(main, pipelines.length ? pipelines.map((p) => card(p, now)) : [h("div", { class: "note" }, "No pipelines are running.")]);
}

function showRefusal(error) {
  const ask = error.code === "token_missing" || error.code === "token_wrong";
  patch(overview, []);
  patch(main, [h("div", { class: "note", key: "refusal" }, h("b", {}, error.message + ". "), error.hint,
    ask && h("form", { onsubmit: useToken }, h("input", { name: "token", type: "password", autocomplete: "off", placeholder: "Token", "aria-label": "Token" }),
      h("button", {}, "Show the pipelines")))]);
}

function useToken(event) {
  event.preventDefault();
  sessionStorage.setItem("token", event.target.elements.token.value);
  refresh();
}

// --- Refreshing.

const main = document.getElementById("pipelines"), overview = document.getElementById("overview"), freshness = document.getElementById("freshness");
let timer, running = false, last = null;

function fresh(text, lost) {
  freshness.textContent = text;
  freshness.className = main.className = lost ? "lost" : "";
}

async function refresh() {
  clearTimeout(timer);
  if (running) return;
  running = true;
  try {
    const token = sessionStorage.getItem("token");
    const answer = await fetch("api/v1/pipelines", {
      headers: token ? { Authorization: "Bearer " + token } : {}, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    const body = await answer.json();
    if (answer.ok) {
      // The host's clock, not the browser's: it is the one that wrote the times.
      show(body, Date.parse(answer.headers.get("Date")) || Date.now());
      last = new Date();
      fresh("updated " + last.toLocaleTimeString("en-GB"), false);
    } else {
      showRefusal(body.error);
      fresh("not allowed", false);
    }
  } catch (err) {
    fresh("the host does not answer" + (last ? " since " + last.toLocaleTimeString("en-GB") : ""), true);
  } finally {
    running = false;
    if (!document.hidden) timer = setTimeout(refresh, REFRESH_MS);
  }
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
