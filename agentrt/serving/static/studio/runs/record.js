// A recorded run: its data from the server, its time line, and the request and changes of each step.

import { call, readEvents, request, runPath, sleep } from "../server.js";
import { setOffline, update } from "../store.js";
import { outputText } from "../text.js";
import { Timeline } from "./timeline.js";

const RELOAD_PAUSE = 1500; // while a run grows; longer for a long run

export class Record {
  constructor(sessionId, replyId) {
    this.sessionId = sessionId;
    this.replyId = replyId;
    this.timeline = new Timeline(replyId);
    this.page = null;
    this.byReply = new Map(); // this run and those of its sub-agents
    this.isLive = false;
    this.lines = 0;
    this.tail = []; // lines that came after the page was read
    this.controller = new AbortController();
  }

  get key() {
    return `${this.sessionId}/${this.replyId}`;
  }

  // Its background calls, or itself if it is one, and the session that let them go.
  get tasks() {
    return this.page?.is_task ? new Set([this.replyId]) : this.timeline.tasks;
  }

  get taskSession() {
    return this.page?.is_task ? this.page.parent[0] : this.sessionId;
  }

  async load() {
    const page = await call(runPath(this.sessionId, this.replyId));
    this.page = page;
    this.byReply = new Map();
    const timeline = new Timeline(this.replyId);
    this.addRun(timeline, page);
    this.tail = this.tail.filter((line) => line.n > page.lines);
    for (const line of this.tail) timeline.applyLine(line, this.replyId);
    this.timeline = timeline;
    this.lines = Math.max(this.lines, page.lines);
    this.results = null;
    update();
  }

  addRun(timeline, run) {
    this.byReply.set(run.reply_id, run);
    if (run.parent && !timeline.owners.has(run.reply_id)) {
      const row = timeline.calls.get(`${run.parent[1]}:${run.parent[2]}`)?.row;
      if (row) timeline.owners.set(run.reply_id, row);
    }
    for (const line of linesOf(run)) timeline.applyLine(line, run.reply_id);
    for (const child of run.children) this.addRun(timeline, child);
  }

  close() {
    this.controller.abort();
  }

  // Reads until the run ends or waits; after a lost connection it continues after its last line.
  async follow() {
    const { signal } = this.controller;
    this.isLive = true;
    const clock = setInterval(() => {
      // The lines of sub-agents are in their own runs.
      if (this.timeline.isDelegating) this.reloadSoon();
      update();
    }, 400);
    let pause = 250;
    let isDone = false;
    try {
      while (!isDone && !signal.aborted) {
        try {
          const response = await request(runPath(this.sessionId, this.replyId, "/lines"), {
            headers: { Accept: "text/event-stream", ...(this.lines ? { "Last-Event-ID": String(this.lines) } : {}) },
            signal,
          });
          if ([400, 404].includes(response.status)) break;
          if (!response.ok) throw new Error("try again");
          setOffline(false);
          for await (const { event, data } of readEvents(response)) {
            pause = 250;
            isDone = event === "done";
            if (isDone) break;
            const line = JSON.parse(data);
            if (line.n <= this.lines) continue;
            this.lines = line.n;
            this.tail.push(line);
            this.timeline.applyLine(line, this.replyId);
            if (line.kind !== "event") this.reloadSoon();
            update();
          }
        } catch {
          if (signal.aborted) return;
          setOffline(true);
        }
        if (!isDone) {
          await Promise.race([sleep(pause), new Promise((resolve) => addEventListener("online", resolve, { once: true }))]);
          pause = Math.min(pause * 2, 5000);
        }
      }
    } finally {
      clearInterval(clock);
      this.isLive = false;
    }
    if (!signal.aborted) await this.load();
  }

  // Requests and changes come with the whole run, not with its lines.
  reloadSoon() {
    if (this.reload) return;
    this.reload = setTimeout(async () => {
      const begun = Date.now();
      try {
        if (!this.controller.signal.aborted) await this.load();
      } catch {
        // The next line and the end try again.
      }
      this.reload = setTimeout(() => (this.reload = null), 4 * (Date.now() - begun));
    }, RELOAD_PAUSE);
  }

  // From references to values.

  value(reference) {
    return reference == null ? null : (this.page?.contents[reference] ?? null);
  }

  message(reference) {
    const message = this.value(reference);
    if (!message || message.size !== undefined) return message && { role: "?", content: [{ type: "text", text: `[${message.size} bytes]` }] };
    if (message.blocks) return { ...message, content: message.blocks.map((block) => this.value(block) ?? { type: "text", text: "[not recorded]" }) };
    return { ...message, content: typeof message.content === "string" ? [{ type: "text", text: message.content }] : message.content };
  }

  request(replyId, index) {
    const requests = this.byReply.get(replyId)?.requests ?? [];
    if (!requests[index]) return null;
    // A request has only the messages that are new since the previous one.
    const listed = [];
    for (const { messages } of requests.slice(0, index + 1)) {
      listed.length = Math.min(messages.keep, listed.length);
      listed.push(...messages.add);
    }
    const { tools, answer, changes } = requests[index];
    return { ...requests[index], messages: listed.map((reference) => this.message(reference)), tools: listOf(this.value(tools)), answer: this.value(answer), changes: this.changes(changes) };
  }

  // The last request of the step; its prompt and tools were made before the first attempt.
  lastRequest(row) {
    const request = row.attempts.length ? this.request(row.replyId, row.attempts.at(-1).index) : null;
    if (request && row.attempts.length > 1) {
      const first = this.changesOf(row.replyId, row.attempts[0].index);
      request.changes = [...first.filter(({ where }) => where === "current_prompt" || where === "tools"), ...request.changes];
    }
    return request;
  }

  changesOf(replyId, index) {
    return this.changes(this.byReply.get(replyId)?.requests[index]?.changes ?? []);
  }

  // Changes with their texts; messages with equally many blocks are compared block by block.
  changes(listed) {
    return listed.flatMap((change) => {
      if (change.kind !== "message") return [{ ...change, at: change.where, before: textOf(change.before, this), after: textOf(change.after, this) }];
      const [before, after] = [this.message(change.before), this.message(change.after)];
      if (!before || !after || before.content.length !== after.content.length) {
        return [{ ...change, at: change.where, before: before && messageText(before), after: after && messageText(after) }];
      }
      const pairs = before.content.map((block, index) => [block, after.content[index]]);
      return pairs
        .map(([one, other]) => ({ ...change, at: `${change.where}${other.name ? `, result of ${other.name}` : ""}`, before: blockText(one, true), after: blockText(other, true) }))
        .filter((part) => part.before !== part.after);
    });
  }

  layersOf(row) {
    const calls = this.byReply.get(row.replyId)?.layer_calls ?? [];
    return row.layers.map((layer) => ({ ...layer, found: calls[layer.index] ? this.changes(calls[layer.index].changes) : [] }));
  }

  // The reason for the place of a layer, from `explain`.
  reasonOf(replyId, key) {
    const chains = this.value(this.byReply.get(replyId)?.chains);
    return chains?.middlewares?.find((layer) => layer.key === key)?.because ?? [];
  }

  block(type, callId) {
    if (!this.results) {
      this.results = new Map();
      for (const value of Object.values(this.page?.contents ?? {})) {
        const blocks = Array.isArray(value?.content) ? value.content : [value];
        for (const block of blocks) {
          if (block?.type === "tool_result" || block?.type === "tool_call") {
            const key = `${block.type}:${block.id}`;
            // The first value is the tool's; layers may have changed later ones.
            if (!this.results.has(key)) this.results.set(key, block);
          }
        }
      }
    }
    return this.results.get(`${type}:${callId}`);
  }

  inputOf(row) {
    return row.call.input || this.block("tool_call", row.call.id)?.input || "";
  }

  outputOf(row) {
    const block = this.block("tool_result", row.call.id);
    return block ? outputText(block.output) : row.output;
  }

  get question() {
    const made = this.page?.is_task && this.timeline.rows.find((row) => row.call);
    if (made) return `${made.name}(${this.inputOf(made)})`;
    return (this.page?.inputs ?? []).map((reference) => messageText(this.message(reference))).join("\n\n");
  }

  get answer() {
    const message = this.message(this.page?.message);
    const blocks = message?.content ?? [];
    const texts = (listed) => listed.filter((block) => block.type === "text").map((block) => block.text).join("\n\n");
    // Text before the last call is not the answer, unless nothing follows.
    const last = blocks.findLastIndex((block) => block.type === "tool_result");
    return texts(blocks.slice(last + 1)) || texts(blocks);
  }
}

// The lines of a run, as its record has them.
function linesOf(run) {
  const begun = Date.parse(run.begun_at);
  const time = (place) => (begun + place.at * 1000) * 1e6;
  const lines = [{ kind: "begin", n: 0, t: begun * 1e6 }];
  const add = (kind, place, rest) => lines.push({ kind, n: place.line, t: time(place), ...rest });
  for (const { event, ...place } of run.events) add("event", place, { event });
  for (const request of run.requests) {
    const { call_id, model, purpose, ended, error, usage, cost, pieces } = request;
    add("request", request, { call_id, model, purpose });
    if (ended) add("answer", ended, { call_id, error, usage, cost, pieces });
  }
  for (const layer of run.layer_calls) add("layer", layer, { ...layer, own_ns: layer.own_seconds * 1e9, total_ns: layer.total_seconds * 1e9 });
  for (const step of run.steps) add("step", step, { step: step.kind, seq: step.seq });
  for (const gap of run.gaps) add("gap", gap, gap);
  lines.sort((one, other) => one.n - other.n);
  if (run.ended_at && run.status !== "waiting") lines.push({ kind: "end", n: Infinity, t: Date.parse(run.ended_at) * 1e6, reason: run.status });
  return lines;
}

// A value too long for the page is replaced by its size.
const listOf = (value) => (Array.isArray(value) ? value : []);

export function blockText(block, isBare = false) {
  switch (block?.type) {
    case "text":
      return block.text;
    case "thinking":
      return block.thinking;
    case "hint":
      return block.hint;
    case "tool_call":
      return `calls ${block.name}(${block.input})`;
    case "tool_result":
      return isBare ? outputText(block.output) : `result of ${block.name}: ${outputText(block.output)}`;
    default:
      return JSON.stringify(block);
  }
}

export const messageText = (message) => (message?.content ?? []).map((block) => blockText(block)).join("\n");

function textOf(reference, record) {
  if (reference === null) return null;
  const value = record.value(reference);
  if (typeof value === "string") return value;
  if (Array.isArray(value?.content)) return messageText(value);
  return JSON.stringify(value, null, 1) ?? "";
}
