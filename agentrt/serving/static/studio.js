"use strict";
// All that a model, a tool or a user says reaches the page as text nodes, never as markup.

const $ = (id) => document.getElementById(id);
const FIRST_SHOWN = 20_000; // characters of one text, so that a line of megabytes does not stop the page
const MORE_SHOWN = 200_000;
const PAGE = 100; // messages at first
const MAX_ROWS = 500; // in the time line
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Characters that hide, or change the order of what is read before it is approved, are shown by their numbers.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\u{e0000}-\u{e007f}]/gu;
const clean = (text) =>
  String(text).replace(/\r\n/g, "\n").replace(HIDDEN, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);

function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child != null) element.append(child instanceof Node ? child : clean(child));
  }
  return element;
}

function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// JSON with line breaks, each token as it stands: a number that JavaScript cannot hold must not look like another one.
function pretty(text) {
  let tokens;
  try {
    JSON.parse(text);
    tokens = text.length < MORE_SHOWN && text.match(/"(?:[^"\\]+|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  } catch {
    // It is not JSON yet, or never.
  }
  if (!tokens) return text;
  let depth = 0;
  let written = "";
  const breakLine = () => (written += `\n${"  ".repeat(Math.min(depth, 40))}`);
  tokens.forEach((token, index) => {
    if (token === "}" || token === "]") {
      depth -= 1;
      if (tokens[index - 1] !== "{" && tokens[index - 1] !== "[") breakLine();
    }
    // As JSON writes them, so that the text stays the same JSON.
    written += token.replace(HIDDEN, (found) => found.replace(/[^]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`));
    if (token === ":") written += " ";
    if (token === ",") breakLine();
    if (token === "{" || token === "[") {
      depth += 1;
      if (tokens[index + 1] !== "}" && tokens[index + 1] !== "]") breakLine();
    }
  });
  return written;
}

const duration = (ms) => (ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

// The server

const state = {
  agent: null,
  agents: [],
  chains: null,
  session: null, // as the server gave it
  isBegun: false, // whether the server has it
  sessionId: null,
  etag: null,
  last: PAGE,
  cursor: null,
  sessions: [],
  live: null, // the reply that is followed, or waits
  follower: null, // the AbortController of the stream
  inspected: null, // the timeline that is shown
  pending: null, // a message that was sent, and of which no answer has come
  isOffline: false,
};

class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered with status ${status}`);
    this.status = status;
    this.code = error?.code;
    this.problems = error?.problems ?? [];
  }
}

let signingIn = null;

function signIn(note) {
  signingIn ??= new Promise((resolve) => {
    $("login-note").textContent = note;
    $("token").value = "";
    $("login").addEventListener(
      "close",
      () => {
        signingIn = null;
        const token = $("token").value.trim();
        $("token").value = "";
        if (token) sessionStorage.setItem("token", token);
        resolve();
      },
      { once: true },
    );
    $("login").showModal();
  });
  return signingIn;
}

async function request(path, { method = "GET", body, headers = {}, signal, query = {} } = {}) {
  const parameters = new URLSearchParams(query);
  if (state.agent !== null) parameters.set("agent", state.agent);
  const url = `api/${path}${parameters.size ? `?${parameters}` : ""}`;
  for (;;) {
    const token = sessionStorage.getItem("token");
    const response = await fetch(url, {
      method,
      signal,
      cache: "no-store",
      credentials: "same-origin",
      headers: {
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...(token === null ? {} : { Authorization: `Bearer ${token}` }),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    $("sign").hidden = token === null;
    if (response.status !== 401) return response;
    // Another request may have asked for it meanwhile.
    if (token === sessionStorage.getItem("token")) await signIn(token === null ? "" : "The server does not know this token.");
  }
}

async function call(path, options) {
  const response = await request(path, options);
  setOffline(false);
  if (response.status === 304 || response.status === 204) return null;
  const value = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, value.error);
  if (response.headers.has("ETag")) value.etag = response.headers.get("ETag");
  return value;
}

const sessionPath = (id, rest = "") => `sessions/${encodeURIComponent(id)}${rest}`;

async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  let end = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    parts.push(value);
    // Joined only where an event ends: one may come in thousands of pieces.
    const isWhole = (end + value).includes("\n\n");
    end = value.slice(-1) || end;
    if (!isWhole) continue;
    const messages = parts.join("").split("\n\n");
    parts = [messages.pop()];
    for (const message of messages) {
      const fields = { data: "" };
      for (const line of message.split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
      }
      if (fields.data) yield fields;
    }
  }
}

// Status and problems

function setOffline(isOffline) {
  if (state.isOffline === isOffline) return;
  state.isOffline = isOffline;
  showStatus();
}

function showStatus() {
  const { live, session } = state;
  const isWaiting = session?.waiting != null && !state.follower;
  $("status").textContent = state.isOffline
    ? "Connection lost, trying again"
    : state.follower
      ? "Working"
      : isWaiting
        ? "Waits for you"
        : session?.status === "running"
          ? "In the queue"
          : "";
  $("interrupt").hidden = !(live && (state.follower || isWaiting));
}

function showProblem(error) {
  $("problem").hidden = error === null;
  $("problem").textContent = error === null ? "" : clean(error.message ?? error);
}

// What is asked of the server at a click: a failure is shown, and nothing else happens.
function guarded(action) {
  return async (...args) => {
    try {
      showProblem(null);
      return await action(...args);
    } catch (error) {
      if (error instanceof Refused) showProblem(error);
      else {
        setOffline(true);
        showProblem("The server cannot be reached. Nothing was changed; try again.");
      }
    }
  };
}

// Texts and blocks

const opened = new Set(); // what the user has unfolded, by its key

function textView(tag, attributes) {
  const node = document.createTextNode("");
  const element = h(tag, attributes, node);
  const root = h("div", {}, element);
  let parts = [];
  let size = 0;
  let limit = FIRST_SHOWN;
  const more = h("button", {
    type: "button",
    hidden: true,
    onclick() {
      limit += MORE_SHOWN;
      parts = [parts.join("")];
      node.data = parts[0].slice(0, limit);
      show();
    },
  });
  root.append(more);
  function show() {
    more.hidden = size <= node.length;
    if (!more.hidden) more.textContent = `Show more: ${(size - node.length).toLocaleString("en")} characters are hidden`;
  }
  return {
    root,
    append(text) {
      const shown = clean(text);
      parts.push(shown);
      size += shown.length;
      if (node.length < limit) node.appendData(shown.slice(0, limit - node.length));
      show();
    },
    set(text) {
      parts = [];
      size = 0;
      node.data = "";
      this.append(text);
    },
    read: () => parts.join(""),
  };
}

function folded(key, title, view) {
  const summary = h("summary", {}, title);
  const details = h(
    "details",
    { open: opened.has(key), ontoggle: () => (details.open ? opened.add(key) : opened.delete(key)) },
    summary,
    view.root,
  );
  return { details, summary };
}

class Body {
  // The blocks of one message, as it grows or as it is.
  constructor(replyId) {
    this.replyId = replyId;
    this.element = h("div", { class: "body" });
    this.blocks = new Map();
  }

  add(key, title, { mono = false, jump = false } = {}) {
    const view = textView(mono ? "pre" : "div", mono ? {} : { class: "text" });
    const block = { view, root: h("div", { class: "block", tabindex: "-1", data: { key } }) };
    if (title === null) block.root.append(view.root);
    else {
      const { details, summary } = folded(key, title, view);
      Object.assign(block, { details, summary });
      block.root.append(details);
    }
    if (jump) {
      const show = guarded(() => inspect(this.replyId, key));
      block.root.append(h("button", { type: "button", class: "jump", onclick: show }, "Times"));
    }
    this.blocks.get(key)?.root.remove();
    this.blocks.set(key, block);
    this.element.append(block.root);
    return block;
  }

  get(key) {
    return this.blocks.get(key);
  }

  remove(key) {
    this.blocks.get(key)?.root.remove();
    this.blocks.delete(key);
  }

  clear() {
    this.blocks.clear();
    this.element.replaceChildren();
  }

  call(id, name) {
    return this.add(`call:${id}`, `Call of ${name}`, { mono: true, jump: true });
  }

  result(id, name) {
    return this.get(`result:${id}`) ?? this.add(`result:${id}`, `Result of ${name}`, { mono: true });
  }

  endResult(id, name, outcome) {
    const block = this.result(id, name);
    block.summary.textContent = clean(`Result of ${name}: ${outcome}`);
    block.details.classList.toggle("error", outcome !== "success" && outcome !== "running");
  }

  show(block) {
    const { id } = block;
    switch (block.type) {
      case "text":
        this.add(id, null).view.append(block.text);
        break;
      case "thinking":
        this.add(id, "Thinking").view.append(block.thinking);
        break;
      case "tool_call":
        this.call(id, block.name).view.append(pretty(block.input));
        break;
      case "tool_result":
        this.result(id, block.name).view.set(outputText(block.output));
        this.endResult(id, block.name, block.state);
        break;
      case "hint":
        this.add(id, "Note to the model").view.append(block.hint);
        break;
      case "data":
        this.add(id, null).view.append(dataText(block));
        break;
      default:
        this.add(id ?? block.type, `${block.type}`, { mono: true }).view.append(JSON.stringify(block, null, 2));
    }
  }
}

function dataText(block) {
  const source = block.source ?? {};
  const size = source.data ? `, ${Math.round((source.data.length * 3) / 4).toLocaleString("en")} bytes` : "";
  return `[${block.name ?? "data"}: ${source.media_type ?? "?"}${size}${source.url ? `, ${source.url}` : ""}]`;
}

function outputText(output) {
  if (typeof output === "string") return output;
  return (output ?? []).map((part) => (part.type === "text" ? part.text : dataText(part))).join("\n");
}

// The time line: what took how long in one reply

class Timeline {
  constructor(replyId) {
    this.replyId = replyId;
    this.rows = [];
    this.open = new Map();
    this.depth = new Map([[replyId, 0]]);
    this.byKey = new Map();
    this.isKept = true;
  }

  begin(key, kind, name, event, target = null) {
    const row = { kind, name, start: Date.parse(event.created_at), end: null, target, note: "", depth: this.depth.get(event.reply_id) ?? 1, keys: [] };
    this.rows.push(row);
    this.open.set(key, row);
    if (target) this.byKey.set(target, row);
    return row;
  }

  end(key, event, note = "", isFailed = false) {
    const row = this.open.get(key);
    if (!row) return;
    this.open.delete(key);
    Object.assign(row, { end: Date.parse(event.created_at), isFailed });
    row.note ||= note;
  }

  // The first block that a model call gave is what its row leads to.
  claim(event, key) {
    const row = this.open.get(`model:${event.reply_id}`);
    if (!row) return;
    row.target ??= key;
    if (!this.byKey.has(key)) this.byKey.set(key, row);
  }

  apply(event) {
    const id = event.reply_id;
    const now = Date.parse(event.created_at);
    this.newest = Math.max(this.newest ?? now, now);
    // The clock of the server may be another one: what is newest is from just now, at the latest.
    this.offset = Math.max(this.offset ?? -Infinity, now - Date.now());
    switch (event.type) {
      case "REPLY_START":
        if (id === this.replyId) this.begin("reply", "reply", "Reply", event);
        break;
      case "REPLY_RESUMED":
        this.isKept = false;
        break;
      case "REPLY_END":
        if (id === this.replyId) {
          this.end("wait", event);
          this.end("reply", event, event.finished_reason, event.finished_reason !== "completed");
        }
        break;
      case "MODEL_CALL_START":
        this.begin(`model:${id}`, "model", event.model_name, event);
        break;
      case "MODEL_CALL_END": {
        const tokens = event.input_tokens === null ? "" : `${event.input_tokens} + ${event.output_tokens} tokens`;
        this.end(`model:${id}`, event, tokens);
        break;
      }
      case "MODEL_CALL_RETRY": {
        const row = this.begin(`retry:${event.seq}`, "wait", `Retry: ${event.reason}`, event);
        row.end = row.start + event.wait_seconds * 1000;
        this.open.delete(`retry:${event.seq}`);
        break;
      }
      case "TEXT_BLOCK_START":
      case "THINKING_BLOCK_START":
      case "DATA_BLOCK_START":
        this.claim(event, event.block_id);
        break;
      case "TOOL_CALL_START":
        this.claim(event, `call:${event.tool_call_id}`);
        break;
      case "TOOL_RESULT_START":
        this.begin(`tool:${event.tool_call_id}`, "tool", event.tool_call_name, event, `call:${event.tool_call_id}`);
        break;
      case "TOOL_RESULT_END":
        this.end(`tool:${event.tool_call_id}`, event, event.state, event.state !== "success");
        break;
      case "SUBAGENT_START":
        this.depth.set(event.child_reply_id, (this.depth.get(id) ?? 0) + 1);
        break;
      case "REQUIRE_USER_CONFIRM":
      case "REQUIRE_EXTERNAL_EXECUTION": {
        if (id !== this.replyId) break;
        const [first] = event.tool_calls;
        const name = event.type === "REQUIRE_USER_CONFIRM" ? "Wait for approval" : "Wait for results";
        const row = this.begin("wait", "wait", name, event);
        row.target = first ? `call:${first.id}` : null;
        break;
      }
      case "USER_CONFIRM_RESULT":
      case "EXTERNAL_EXECUTION_RESULT":
      case "USER_INTERRUPT":
        this.end("wait", event);
        break;
      case "CUSTOM":
        if (typeof event.value?.wait_seconds === "number") {
          const row = this.begin(`custom:${event.seq}`, "wait", event.name, event);
          row.end = row.start + event.value.wait_seconds * 1000;
          this.open.delete(`custom:${event.seq}`);
        }
    }
  }
}

function showTimeline() {
  const timeline = state.inspected;
  const rows = timeline?.rows.slice(0, MAX_ROWS) ?? [];
  const start = Math.min(...rows.map((row) => row.start));
  const isLive = state.follower && state.live?.timeline === timeline;
  const now = isLive && rows.length ? Date.now() + timeline.offset : timeline?.newest;
  const span = Math.max(1, ...rows.map((row) => (row.end ?? now) - start));
  $("waterfall-note").textContent =
    timeline === null
      ? "Of the newest reply, or of one whose Times you ask for."
      : !timeline.isKept
        ? "The server has not kept the earlier events of this reply."
        : timeline.rows.length > rows.length
          ? `The first ${MAX_ROWS} of ${timeline.rows.length} steps.`
          : "";
  const items = rows.map((row) => {
    row.item ??= makeRow(row);
    const { item } = row;
    const end = row.end ?? now;
    item.bar.style.left = `${((row.start - start) / span) * 100}%`;
    item.bar.style.width = `${((end - row.start) / span) * 100}%`;
    item.time.textContent = duration(end - row.start);
    item.element.className = `${row.kind}${row.isFailed ? " failed" : ""}${row.depth ? " inner" : ""}`;
    item.button.title = clean(`${row.name} ${row.note}`);
    return item.element;
  });
  reconcile($("waterfall"), items);
}

function makeRow(row) {
  const bar = h("i");
  const time = h("span", { class: "time" });
  const button = h(
    "button",
    { type: "button", onclick: () => showBlock(row.target) },
    h("span", { class: "name" }, row.name),
    h("span", { class: "track" }, bar),
    time,
  );
  return { bar, time, button, element: h("li", {}, button) };
}

// Children that stay are not moved, so that they keep the focus.
function reconcile(parent, wanted) {
  wanted.forEach((child, index) => {
    const present = parent.children[index];
    if (present !== child) parent.insertBefore(child, present ?? null);
  });
  while (parent.children.length > wanted.length) parent.lastElementChild.remove();
}

function flash(element) {
  element.scrollIntoView({ block: "center" });
  element.focus({ preventScroll: true });
  element.classList.add("flash");
  setTimeout(() => element.classList.remove("flash"), 1500);
}

function showBlock(key) {
  show("chat");
  const found = [...document.querySelectorAll("#messages .block")].find((element) => element.dataset.key === key);
  const message = [...document.querySelectorAll("#messages .message")].find(
    (element) => element.dataset.id === state.inspected?.replyId,
  );
  const target = found ?? message;
  if (!target) return;
  const details = found?.querySelector("details");
  if (details) details.open = true;
  flash(target);
}

async function inspect(replyId, key = null) {
  if (state.inspected?.replyId !== replyId) {
    state.inspected = state.live?.id === replyId ? state.live.timeline : await loadTimeline(replyId);
  }
  showTimeline();
  await readLayers(replyId);
  show("inspect");
  const row = state.inspected.byKey.get(key) ?? state.inspected.rows[0];
  const button = row?.item?.button;
  if (button) flash(button);
}

async function loadTimeline(replyId) {
  const timeline = new Timeline(replyId);
  const response = await request(`replies/${encodeURIComponent(replyId)}/events`, { query: { session: state.sessionId } });
  if (!response.ok) throw new Refused(response.status, (await response.json().catch(() => ({}))).error);
  for await (const { event, data } of readEvents(response)) {
    if (event === "done") break;
    timeline.apply(JSON.parse(data));
  }
  return timeline;
}

// Layers

async function readLayers(replyId) {
  const { probe, layers } = await call(`replies/${encodeURIComponent(replyId)}/layers`, { query: { session: state.sessionId } });
  if (state.inspected?.replyId === replyId) showLayers(layers, probe);
}

function showLayers(layers = [], hasProbe = true) {
  $("layers-note").textContent = hasProbe
    ? ""
    : "Times are measured for an agent with LayerTimes, from agentrt.probe, among its middlewares.";
  const times = new Map(layers.map((layer) => [`${layer.hook} ${layer.place}`, layer]));
  const hooks = (state.chains?.hooks ?? []).filter((hook) => hook.layers.length);
  const bare = (state.chains?.hooks ?? []).filter((hook) => !hook.layers.length);
  const parts = hooks.map((hook) => {
    const names = [...hook.layers.map((layer) => layer.key), null];
    return h(
      "div",
      { class: "hook" },
      h("h3", { title: hook.wraps }, hook.hook),
      h("div", { class: "layer head" }, h("span", {}, hook.wraps), h("span", { class: "time" }, "own"), h("span", { class: "time" }, "total")),
      names.map((name, place) => {
        const time = times.get(`${hook.hook} ${place}`);
        const kind = !time ? "" : time.active ? " passed active" : " passed";
        return h(
          "div",
          { class: `layer${kind}`, data: { hook: hook.hook, layer: name ?? "" }, title: hook.layers[place]?.where ?? hook.core },
          h("span", {}, `${name ?? "core"}${time ? ` ×${time.calls}` : ""}${time?.outcome === "raised" ? ", failed" : ""}`),
          h("span", { class: "time" }, time ? duration(time.own_ms) : ""),
          h("span", { class: "time" }, time ? duration(time.total_ms) : ""),
        );
      }),
    );
  });
  const without = bare.map((hook) => hook.hook).join(", ");
  $("layers").replaceChildren(...parts, h("p", { class: "note" }, without ? `Without layers: ${without}.` : ""));
}

// A reply as it comes

class Live {
  constructor(id) {
    this.id = id;
    this.seq = 0;
    this.timeline = new Timeline(id);
    this.bodies = new Map([[id, new Body(id)]]);
    this.element = h("article", { class: "message assistant", data: { id }, tabindex: "-1" }, messageHead({ id, role: "assistant", name: state.agent }), this.bodies.get(id).element);
  }

  apply(event) {
    if (event.seq) this.seq = Math.max(this.seq, event.seq);
    this.timeline.apply(event);
    const body = this.bodies.get(event.reply_id) ?? this.bodies.get(this.id);
    const block = event.block_id;
    switch (event.type) {
      case "REPLY_RESUMED":
        body.clear();
        event.blocks.forEach((part) => body.show(part));
        break;
      case "MODEL_CALL_RETRY":
      case "BLOCKS_WITHDRAWN":
        event.block_ids.forEach((id) => [id, `call:${id}`].forEach((key) => body.remove(key)));
        break;
      case "TEXT_BLOCK_START":
        body.add(block, null);
        break;
      case "THINKING_BLOCK_START":
        body.add(block, "Thinking");
        break;
      case "TEXT_BLOCK_DELTA":
      case "THINKING_BLOCK_DELTA":
        body.get(block)?.view.append(event.delta);
        break;
      case "TEXT_BLOCK_END":
        if (event.text != null) body.get(block)?.view.set(event.text);
        break;
      case "DATA_BLOCK_START":
        body.add(block, null).view.append(`[${event.name ?? "data"}: ${event.media_type}]`);
        break;
      case "HINT_BLOCK":
        body.add(block, "Note to the model").view.append(event.hint);
        break;
      case "TOOL_CALL_START":
        body.call(event.tool_call_id, event.tool_call_name);
        break;
      case "TOOL_CALL_DELTA":
        body.get(`call:${event.tool_call_id}`)?.view.append(event.delta);
        break;
      case "TOOL_CALL_END": {
        const view = body.get(`call:${event.tool_call_id}`)?.view;
        view?.set(pretty(view.read()));
        break;
      }
      case "TOOL_RESULT_START":
        body.result(event.tool_call_id, event.tool_call_name);
        break;
      case "TOOL_RESULT_TEXT_DELTA":
        body.result(event.tool_call_id, event.tool_call_name).view.append(event.delta);
        break;
      case "TOOL_RESULT_END":
        if (event.output != null) body.result(event.tool_call_id, event.tool_call_name).view.set(outputText(event.output));
        body.endResult(event.tool_call_id, event.tool_call_name, event.state);
        break;
      case "SUBAGENT_START":
        this.openChild(event, body);
    }
  }

  openChild(event, body) {
    if (this.bodies.has(event.child_reply_id)) return;
    const child = new Body(this.id);
    this.bodies.set(event.child_reply_id, child);
    const { details } = folded(`child:${event.child_reply_id}`, `Agent ${event.name}`, { root: child.element });
    body.element.append(details);
  }
}

async function follow(replyId) {
  if (state.follower && state.live?.id === replyId) return;
  state.follower?.abort();
  const controller = (state.follower = new AbortController());
  const sessionId = state.sessionId;
  if (state.live?.id !== replyId) {
    state.live = new Live(replyId);
    $("live").replaceChildren(state.live.element);
  }
  const { live } = state;
  state.inspected = live.timeline;
  showStatus();
  const clock = setInterval(() => {
    showTimeline();
    readLayers(replyId).catch(() => {});
  }, 400);
  let pause = 250;
  let isDone = false;
  try {
    while (!isDone && !controller.signal.aborted) {
      try {
        const response = await request(`replies/${encodeURIComponent(replyId)}/events`, {
          query: { session: sessionId },
          headers: live.seq ? { "Last-Event-ID": String(live.seq) } : {},
          signal: controller.signal,
        });
        if (response.status === 404 || response.status === 400) break;
        if (!response.ok) throw new Error("try again");
        setOffline(false);
        for await (const { event, data } of readEvents(response)) {
          pause = 250;
          if (event === "done") {
            isDone = true;
            break;
          }
          try {
            live.apply(JSON.parse(data));
          } catch (error) {
            showProblem(`An event could not be shown: ${error.message}`); // and the next ones can
          }
          if (sticks) toBottom();
        }
      } catch {
        if (controller.signal.aborted) return;
        setOffline(true);
      }
      if (!isDone) {
        // Sooner, where the browser says that there is a network again.
        await Promise.race([sleep(pause), new Promise((resolve) => addEventListener("online", resolve, { once: true }))]);
        pause = Math.min(pause * 2, 5000);
      }
    }
  } finally {
    clearInterval(clock);
    if (state.follower === controller) state.follower = null;
  }
  if (controller.signal.aborted || state.sessionId !== sessionId) return;
  showTimeline();
  await guarded(() => refresh(true))();
  showStatus();
  await Promise.allSettled([readLayers(replyId), listSessions()]);
}

let wantsBottom = false;
let sticks = true; // to the bottom, until the reader scrolls up; not measured at each event, which would cost a layout

function noteScroll() {
  const { scrollHeight, scrollTop, clientHeight } = $("messages");
  sticks = scrollHeight - scrollTop - clientHeight < 60;
}

function toBottom() {
  sticks = true;
  if (wantsBottom) return;
  wantsBottom = true; // once for all events of a frame
  requestAnimationFrame(() => {
    wantsBottom = false;
    $("messages").scrollTop = $("messages").scrollHeight;
  });
}

// The session

function messageHead(message, index = null) {
  const parts = [h("b", {}, message.name ?? message.role)];
  if (message.created_at) parts.push(h("span", {}, new Date(message.created_at).toLocaleTimeString()));
  if (message.finished_reason && message.finished_reason !== "completed") parts.push(h("span", { class: "failed" }, message.finished_reason));
  if (message.error) parts.push(h("span", { class: "failed" }, message.error));
  const usage = usageText(message.usage);
  if (usage) parts.push(h("span", {}, usage));
  if (message.role === "assistant" && message.id) {
    parts.push(h("button", { type: "button", onclick: guarded(() => inspect(message.id)) }, "Times"));
  }
  if (index !== null) {
    const fork = guarded(() => forkAt(index + 1));
    parts.push(h("button", { type: "button", title: "Begin another session with the messages up to here", onclick: fork }, "Fork here"));
  }
  return h("div", { class: "meta" }, parts);
}

function usageText(usage) {
  if (!usage || usage.input_tokens == null) return "";
  const cached = usage.cache_input_tokens ? `, ${usage.cache_input_tokens} cached` : "";
  const parts = Object.values(usage.subagents ?? {});
  const own = (name) => parts.reduce((rest, part) => rest - part[name], usage[name]);
  const ofIt = parts.length ? `, ${own("input_tokens")} + ${own("output_tokens")} its own` : "";
  return `${usage.estimated ? "about " : ""}${usage.input_tokens} + ${usage.output_tokens ?? 0} tokens${cached}${ofIt}`;
}

const drawn = new Map(); // articles by the id of the message, with what they were made from

function drawMessage(message, index) {
  const source = JSON.stringify([message, index]);
  const before = drawn.get(message.id);
  if (before?.source === source) return before.element;
  const body = new Body(message.id);
  if (typeof message.content === "string") body.show({ type: "text", text: message.content, id: message.id });
  else message.content.forEach((block) => body.show(block));
  const element = h("article", { class: `message ${message.role === "user" ? "user" : "assistant"}`, data: { id: message.id }, tabindex: "-1" }, messageHead(message, index), body.element);
  drawn.set(message.id, { source, element });
  return element;
}

function drawSession() {
  const { session } = state;
  const messages = session?.messages ?? [];
  const first = (session?.messages_in_all ?? 0) - messages.length;
  const kept = new Set(messages.map((message) => message.id));
  for (const id of drawn.keys()) if (!kept.has(id)) drawn.delete(id);
  reconcile($("log"), messages.map((message, index) => drawMessage(message, first + index)));
  // The message that was sent is among those of the session by now.
  for (const child of [...$("live").children]) if (child !== state.live?.element) child.remove();
  $("earlier").hidden = first <= 0;
  $("title").textContent = clean(state.sessionId ?? "");
  const sum = { input_tokens: 0, output_tokens: 0, cache_input_tokens: 0 };
  for (const { usage } of messages) for (const name of Object.keys(sum)) sum[name] += usage?.[name] ?? 0;
  const cost = session?.cost ? `, cost ${session.cost.toPrecision(3)}` : "";
  $("usage").textContent = sum.input_tokens ? `${usageText(sum)} in ${first > 0 ? "these messages" : "all"}${cost}` : "";
  if (state.live && !state.follower && (!session?.reply || session.reply.id !== state.live.id)) {
    $("live").replaceChildren();
    state.live = null;
  }
  drawQuestion();
  showStatus();
  if (sticks) toBottom();
}

async function refresh(force = false) {
  const id = state.sessionId;
  if (id === null) return;
  if (!state.isBegun) {
    // Asked for in the list: a session that is not there would be an error.
    const { sessions } = await call("sessions", { query: { prefix: id, limit: 1 } });
    state.isBegun = sessions[0]?.session_id === id;
    if (!state.isBegun) return drawSession();
  }
  const session = await call(sessionPath(id), {
    query: { last: state.last },
    headers: state.etag && !force ? { "If-None-Match": state.etag } : {},
  });
  if (session === null || id !== state.sessionId) return;
  state.session = session;
  state.etag = session.etag ?? null;
  drawSession();
  if (session.reply && !state.follower && session.reply.id !== state.live?.id) follow(session.reply.id);
  else if (session.reply && session.status === "running" && !state.follower) follow(session.reply.id);
}

async function openSession(id) {
  state.follower?.abort();
  Object.assign(state, { sessionId: id, isBegun: false, session: null, etag: null, last: PAGE, live: null, follower: null, inspected: null });
  drawn.clear();
  $("log").replaceChildren();
  $("live").replaceChildren();
  $("questions").replaceChildren();
  showProblem(null);
  saveAddress();
  drawList();
  showTimeline();
  showLayers([], true);
  show("chat");
  await guarded(() => refresh(true))();
  toBottom();
}

function saveAddress() {
  const parts = new URLSearchParams({ session: state.sessionId });
  if (state.agent !== null) parts.set("agent", state.agent);
  history.replaceState(null, "", `#${parts}`);
}

async function send(text) {
  const sessionId = state.sessionId;
  // The same key for the same message, so that one that got through is not sent twice.
  if (state.pending?.text !== text || state.pending.sessionId !== sessionId) state.pending = { text, sessionId, key: randomId() };
  const { reply_id: replyId } = await call(sessionPath(sessionId, "/replies"), {
    method: "POST",
    body: { input: text },
    headers: { "Idempotency-Key": state.pending.key },
  });
  state.pending = null;
  $("input").value = "";
  const mine = h("article", { class: "message user" }, h("div", { class: "meta" }, h("b", {}, "user")), h("div", { class: "body" }, h("div", { class: "text" }, text)));
  state.live = new Live(replyId);
  $("live").replaceChildren(mine, state.live.element);
  toBottom();
  follow(replyId);
  listSessions().catch(() => {});
}

async function forkAt(count) {
  const { session_id: id } = await call(sessionPath(state.sessionId, "/fork"), { method: "POST", body: { messages: count } });
  await listSessions();
  await openSession(id);
}

async function exportSession() {
  const session = await call(sessionPath(state.sessionId), { query: { last: state.session?.messages_in_all ?? PAGE } });
  const content = JSON.stringify({ agent: state.agent, session, chains: state.chains }, null, 2);
  const url = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  h("a", { href: url, download: `${state.sessionId.replace(/[^\w.-]+/g, "_")}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Questions of the agent

function drawQuestion() {
  const question = state.follower ? null : (state.session?.waiting ?? null);
  const key = question ? `${question.reply_id}:${question.seq}` : "";
  const present = document.querySelector("#questions .agent");
  if ((present?.dataset.key ?? "") === key) return; // with what was typed into it
  present?.remove();
  if (!question) return;
  const card = question.type === "REQUIRE_USER_CONFIRM" ? confirmCard(question) : externalCard(question);
  card.dataset.key = key;
  $("questions").prepend(card);
  toBottom();
}

async function answer(event) {
  const { reply_id: replyId } = await call(sessionPath(state.sessionId, "/replies"), { method: "POST", body: { answer: event } });
  document.querySelector("#questions .agent")?.remove();
  if (state.session) state.session.waiting = null;
  state.etag = null;
  follow(replyId);
  $("input").focus();
}

const place = (question, callId) => (question.inside?.[callId]?.length ? ` in ${question.inside[callId].join(" > ")}` : "");

function confirmCard(question) {
  const decisions = new Map();
  let isSent = false; // a second click must not send a second answer
  const fields = question.tool_calls.map((toolCall) => {
    const asked = question.questions?.[toolCall.id];
    const original = pretty(toolCall.input);
    const mayEdit = state.session.allow_edited_input && !toolCall.id.includes("/");
    const input = mayEdit ? h("textarea", { class: "json", rows: Math.min(12, original.split("\n").length + 1), "aria-label": `Arguments of ${toolCall.name}`, spellcheck: "false" }) : null;
    if (input) input.value = original;
    const view = input ? null : textView("pre", {});
    view?.append(original);
    const feedback = h("input", { "aria-label": "Feedback", placeholder: "Feedback, for the model" });
    const decide = (confirmed) =>
      guarded(async () => {
        decisions.set(toolCall.id, () => ({
          confirmed,
          // As it was asked, to the byte, unless it was edited.
          tool_call: { ...toolCall, input: input && input.value !== original ? input.value : toolCall.input },
          rules: [],
          feedback: feedback.value || null,
        }));
        allow.setAttribute("aria-pressed", String(confirmed));
        deny.setAttribute("aria-pressed", String(!confirmed));
        if (isSent || decisions.size < question.tool_calls.length) return;
        isSent = true;
        try {
          await answer({
            type: "USER_CONFIRM_RESULT",
            reply_id: question.reply_id,
            session_id: state.sessionId,
            confirm_results: question.tool_calls.map((other) => decisions.get(other.id)()),
          });
        } catch (error) {
          isSent = false;
          throw error;
        }
      });
    const allow = h("button", { type: "button", class: "allow", onclick: decide(true) }, "Allow");
    const deny = h("button", { type: "button", class: "deny", onclick: decide(false) }, "Deny");
    return h(
      "div",
      { role: "group", "aria-label": `Call of ${toolCall.name}` },
      h("h3", {}, `May ${toolCall.name}${place(question, toolCall.id)} run?`),
      h("p", { class: "note" }, asked?.message ?? ""),
      input ?? view.root,
      h("label", {}, feedback),
      h("div", { class: "row" }, allow, deny),
    );
  });
  return h("div", { class: "card agent" }, fields);
}

function externalCard(question) {
  const inputs = question.tool_calls.map(() => h("textarea", { rows: 3, "aria-label": "Result" }));
  const submit = guarded(async (event) => {
    event.preventDefault();
    await answer({
      type: "EXTERNAL_EXECUTION_RESULT",
      reply_id: question.reply_id,
      session_id: state.sessionId,
      execution_results: question.tool_calls.map(({ id, name }, index) => ({ type: "tool_result", id, name, output: inputs[index].value })),
    });
  });
  const fields = question.tool_calls.map((toolCall, index) => {
    const view = textView("pre", {});
    view.append(pretty(toolCall.input));
    return h("div", {}, h("h3", {}, `Run ${toolCall.name}${place(question, toolCall.id)}, and write its result`), view.root, inputs[index]);
  });
  return h("form", { class: "card agent", onsubmit: submit }, fields, h("div", { class: "row" }, h("button", { type: "submit" }, "Send results")));
}

// Questions of UserAgents

async function readInputs() {
  const { inputs } = await call("inputs");
  const cards = new Map([...document.querySelectorAll("#questions .user-agent")].map((card) => [card.dataset.key, card]));
  const wanted = new Set(inputs.map((input) => input.input_id));
  for (const [key, card] of cards) if (!wanted.has(key)) card.remove();
  for (const input of inputs) if (!cards.has(input.input_id)) $("questions").append(inputCard(input));
}

function inputCard(input) {
  const { schema } = input;
  const text = h("textarea", { rows: 2, "aria-label": "Answer" });
  const fields = schema ? schemaFields(schema) : [];
  const problems = h("p", { class: "failed", role: "alert" }, (input.problems ?? []).join("; "));
  const submit = guarded(async (event) => {
    event.preventDefault();
    const values = schema ? {} : null;
    for (const field of fields) {
      const value = field.read();
      if (value !== undefined) values[field.name] = value;
    }
    try {
      await call(`inputs/${encodeURIComponent(input.input_id)}`, { method: "POST", body: { text: text.value, values } });
      card.remove();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      problems.textContent = clean([error.message, ...error.problems].join("; "));
    }
  });
  const card = h(
    "form",
    { class: "card user-agent", data: { key: input.input_id }, onsubmit: submit, novalidate: true },
    h("h3", {}, `${input.agent_name} asks for your answer`),
    h("label", {}, "Answer", text),
    fields.map((field) => field.label),
    problems,
    h("div", { class: "row" }, h("button", { type: "submit" }, "Send answer")),
  );
  return card;
}

function resolveSchema(schema, root) {
  const name = /^#\/\$defs\/(.*)$/.exec(schema?.$ref ?? "")?.[1];
  const found = name === undefined ? schema : { ...root.$defs?.[name], ...schema };
  const variants = (found?.anyOf ?? []).filter((variant) => variant.type !== "null");
  return variants.length === 1 ? { ...resolveSchema(variants[0], root), ...found, anyOf: undefined } : (found ?? {});
}

function schemaFields(root) {
  const required = new Set(root.required ?? []);
  return Object.entries(root.properties ?? {}).map(([name, part]) => {
    const schema = resolveSchema(part, root);
    const choices = schema.enum ?? (schema.const === undefined ? null : [schema.const]);
    let control;
    let read;
    if (choices) {
      control = h("select", {}, required.has(name) ? null : h("option", { value: "" }, ""), choices.map((choice, index) => h("option", { value: String(index) }, String(choice))));
      if (schema.default !== undefined) control.value = String(choices.indexOf(schema.default));
      read = () => (control.value === "" ? undefined : choices[Number(control.value)]);
    } else if (schema.type === "boolean") {
      control = h("input", { type: "checkbox" });
      control.checked = schema.default === true;
      read = () => control.checked;
    } else if (schema.type === "integer" || schema.type === "number") {
      control = h("input", { inputmode: "decimal" });
      if (schema.default != null) control.value = schema.default;
      read = () => (control.value.trim() === "" ? undefined : Number.isNaN(Number(control.value)) ? control.value : Number(control.value));
    } else if (schema.type === "string") {
      control = schema.format === "password" ? h("input", { type: "password", autocomplete: "off" }) : h("input", {});
      if (typeof schema.default === "string" && schema.format !== "password") control.value = schema.default;
      read = () => (control.value === "" && !required.has(name) ? undefined : control.value);
    } else {
      control = h("textarea", { class: "json", rows: 3, placeholder: "JSON" });
      if (schema.default != null) control.value = JSON.stringify(schema.default, null, 2);
      read = () => {
        if (control.value.trim() === "") return undefined;
        try {
          return JSON.parse(control.value);
        } catch {
          return control.value;
        }
      };
    }
    control.setAttribute("name", name);
    const hint = [schema.title ?? name, required.has(name) ? "" : "optional", schema.description ?? ""].filter(Boolean).join(", ");
    return { name, read, label: h("label", {}, hint, control) };
  });
}

// The list of sessions

async function listSessions(append = false) {
  const words = $("search").value.trim();
  const query = { limit: 100 };
  if (append && state.cursor) query.cursor = state.cursor;
  const page = await call("sessions", { query });
  let found = append ? [...state.sessions, ...page.sessions] : page.sessions;
  // The server searches by what ids begin with; the rest is looked for in what is here.
  if (words) {
    const { sessions } = await call("sessions", { query: { limit: 100, prefix: words } });
    const known = new Set(found.map((session) => session.session_id));
    found = [...found, ...sessions.filter((session) => !known.has(session.session_id))];
  }
  state.sessions = found;
  state.cursor = page.cursor;
  drawList();
}

function drawList() {
  const words = $("search").value.trim().toLowerCase();
  const found = state.sessions
    .filter((session) => session.session_id.toLowerCase().includes(words))
    .sort((one, other) => (one.updated_at < other.updated_at ? 1 : -1));
  $("list").replaceChildren(
    ...found.map(({ session_id: id, status, messages, updated_at: updated }) =>
      h(
        "li",
        {},
        h(
          "button",
          { type: "button", "aria-current": String(id === state.sessionId), onclick: () => openSession(id) },
          id,
          h("small", {}, `${messages} messages, ${status}, ${new Date(updated).toLocaleString()}`),
        ),
      ),
    ),
  );
  $("more").hidden = !state.cursor;
}

// The whole page

function show(view) {
  document.body.dataset.view = view;
  for (const button of document.querySelectorAll("[data-show]")) {
    button.setAttribute("aria-pressed", String(button.dataset.show === view));
  }
}

async function openAgent(name) {
  state.agent = name;
  const { agents, chains } = await call("chains");
  Object.assign(state, { agents, chains, agent: name ?? agents[0] });
  $("agent").replaceChildren(...agents.map((agent) => h("option", { value: agent }, agent)));
  $("agent").value = state.agent;
  showLayers([], true);
  await listSessions();
}

async function watch() {
  // What other clients begin, and what `UserAgent`s ask.
  for (let turn = 0; ; turn += 1) {
    await sleep(2000);
    if (document.hidden || $("login").open) continue;
    try {
      await readInputs();
      if (!state.follower && turn % 2) await refresh();
      if (turn % 10 === 9) await listSessions();
    } catch (error) {
      setOffline(!(error instanceof Refused));
    }
  }
}

function bind() {
  for (const button of document.querySelectorAll("[data-show]")) button.addEventListener("click", () => show(button.dataset.show));
  $("agent").addEventListener(
    "change",
    guarded(async () => {
      // The session that is open is not one of the other agent.
      state.follower?.abort();
      state.sessionId = null;
      await openAgent($("agent").value);
      await openSession(`studio-${randomId()}`);
    }),
  );
  $("new").addEventListener("click", () => openSession(`studio-${randomId()}`).then(() => $("input").focus()));
  $("more").addEventListener("click", guarded(() => listSessions(true)));
  let typing;
  $("search").addEventListener("input", () => {
    drawList();
    clearTimeout(typing);
    typing = setTimeout(guarded(() => listSessions()), 300);
  });
  $("earlier").addEventListener(
    "click",
    guarded(() => {
      state.last = Math.max(state.last * 10, PAGE);
      return refresh(true);
    }),
  );
  $("export").addEventListener("click", guarded(exportSession));
  $("delete").addEventListener(
    "click",
    guarded(async () => {
      if (!confirm(`Delete the session ${state.sessionId}?`)) return;
      await call(sessionPath(state.sessionId), { method: "DELETE" });
      await listSessions();
      await openSession(`studio-${randomId()}`);
    }),
  );
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("input").value;
    if (!text.trim() || $("send").disabled) return;
    $("send").disabled = true;
    guarded(send)(text).finally(() => ($("send").disabled = false));
  });
  $("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  });
  $("interrupt").addEventListener(
    "click",
    guarded(async () => {
      const { live } = state;
      if (!live) return;
      await call(`replies/${encodeURIComponent(live.id)}/interrupt`, { method: "POST", query: { session: state.sessionId } });
      if (!state.follower) await refresh(true);
    }),
  );
  $("sign").addEventListener("click", () => {
    sessionStorage.removeItem("token");
    location.reload();
  });
  $("messages").addEventListener("scroll", noteScroll, { passive: true });
  addEventListener("offline", () => setOffline(true));
  // A link to a session may be followed in a page that is open.
  addEventListener("hashchange", () => location.reload());
}

async function start() {
  bind();
  show("chat");
  showTimeline();
  const address = new URLSearchParams(location.hash.slice(1));
  for (let pause = 500; ; pause = Math.min(pause * 2, 5000)) {
    try {
      await openAgent(address.get("agent"));
      break;
    } catch (error) {
      if (error instanceof Refused) {
        showProblem(error);
        if (error.status === 404) address.delete("agent");
        else return;
      } else setOffline(true);
      await sleep(pause);
    }
  }
  await openSession(address.get("session") ?? `studio-${randomId()}`);
  $("input").focus();
  watch();
}

start();
