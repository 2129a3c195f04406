// The time line of a reply and of the sub-agents below it: from its events, or from the lines of its record.

const CALL_HOOKS = new Set(["on_model_call", "on_system_prompt", "on_tools", "on_content", "on_reasoning"]);

export class Timeline {
  constructor(replyId) {
    this.replyId = replyId;
    this.version = 0;
    this.roots = [];
    this.start = Infinity;
    this.newest = 0;
    this.isKept = true;
    this.open = new Map(); // unfinished rows, by the keys of the events that end them
    this.byKey = new Map(); // rows by the block that they lead to
    this.owners = new Map(); // the parent rows of sub-agents, by their replies
    this.replies = new Map([[replyId, newReply()]]);
    this.calls = new Map(); // tool calls by their ids
    this.tasks = new Set(); // the ids of background calls
    this.gaps = [];
    this.steps = []; // points at which a fork can start
    this.cached = null;
    this.line = 0; // the line of the record that is being read
  }

  // All rows, each below its parent.
  get rows() {
    if (this.cached?.version === this.version) return this.cached.rows;
    const rows = [];
    const visit = (row) => {
      rows.push(row);
      row.children.forEach(visit);
    };
    this.roots.forEach(visit);
    this.cached = { version: this.version, rows };
    return rows;
  }

  get root() {
    return this.roots[0];
  }

  get isDelegating() {
    return [...this.open.values()].some((row) => row.kind === "agent");
  }

  begin(key, kind, name, event, now, target = null) {
    const owner = this.outerCall(event) ?? this.owners.get(event.reply_id);
    const row = {
      id: `${event.reply_id}:${event.seq ?? 0}:${key}`,
      kind,
      name,
      replyId: event.reply_id,
      seq: event.seq ?? 0,
      start: now,
      end: null,
      target,
      note: "",
      isFailed: false,
      depth: owner ? owner.depth + 1 : 0,
      owner,
      children: [],
      attempts: [],
      layers: [],
      call: null,
      task: null, // the id of the background call that it has let go
      output: "",
      version: 0,
      firstLine: this.line,
      lastLine: this.line,
    };
    (owner?.children ?? this.roots).push(row);
    this.open.set(key, row);
    if (target) this.byKey.set(target, row);
    this.start = Math.min(this.start, now);
    this.version += 1;
    return row;
  }

  // The row of the call whose tool makes this one: its id is all but the last part of the path.
  outerCall(event) {
    const path = event.tool_call_id ?? "";
    return path.includes("/") ? this.open.get(`tool:${event.reply_id}:${path.slice(0, path.lastIndexOf("/"))}`) : undefined;
  }

  end(key, now, note = "", isFailed = false) {
    const row = this.open.get(key);
    if (!row) return null;
    this.open.delete(key);
    row.end = now;
    row.isFailed = isFailed;
    row.note ||= note;
    this.touch(row);
    return row;
  }

  touch(row) {
    row.lastLine = Math.max(row.lastLine, this.line);
    row.firstLine ||= this.line;
    row.version += 1;
    this.version += 1;
  }

  // The row of a model call leads to the first block of its answer.
  claim(event, key) {
    const row = this.open.get(`model:${event.reply_id}`);
    if (!row) return;
    row.target ??= key;
    if (!this.byKey.has(key)) this.byKey.set(key, row);
  }

  reply(replyId) {
    if (!this.replies.has(replyId)) this.replies.set(replyId, newReply());
    return this.replies.get(replyId);
  }

  note(now) {
    this.newest = Math.max(this.newest, now);
    // The server's clock may be ahead: the newest item is from now, at the latest.
    this.offset = Math.max(this.offset ?? -Infinity, now - Date.now());
  }

  apply(event, now = Date.parse(event.created_at)) {
    const id = event.reply_id;
    this.note(now);
    this.endWait(event, now);
    switch (event.type) {
      case "REPLY_START":
        if (id === this.replyId && !this.root) this.begin("reply", "reply", "Reply", event, now);
        break;
      case "REPLY_RESUMED":
        this.isKept = this.roots.length > 0;
        break;
      case "REPLY_END":
        if (id === this.replyId) {
          this.end("wait", now);
          this.end("reply", now, event.error ? `${event.finished_reason} (${event.error})` : event.finished_reason, event.finished_reason !== "completed");
        }
        break;
      case "MODEL_CALL_START":
        this.openModel(id, this.begin(`model:${id}`, "model", event.model_name, event, now));
        break;
      case "MODEL_CALL_END": {
        const tokens = event.input_tokens === null ? "" : `${event.input_tokens} + ${event.output_tokens} tokens`;
        this.end(`model:${id}`, now, tokens);
        break;
      }
      case "MODEL_CALL_RETRY": {
        const row = this.begin(`retry:${id}:${event.seq}`, "wait", `Retry: ${event.reason}`, event, now);
        this.end(`retry:${id}:${event.seq}`, now + event.wait_seconds * 1000);
        row.isRetry = true;
        break;
      }
      case "TEXT_BLOCK_START":
      case "THINKING_BLOCK_START":
      case "DATA_BLOCK_START":
        this.claim(event, event.block_id);
        break;
      case "TOOL_CALL_START":
        this.claim(event, `call:${event.tool_call_id}`);
        this.addCall(id, event.tool_call_id, event.tool_call_name);
        break;
      case "TOOL_CALL_DELTA": {
        const call = this.calls.get(`${id}:${event.tool_call_id}`);
        if (call && call.input.length < 1_000_000) call.input += event.delta;
        break;
      }
      case "TOOL_RESULT_START": {
        const call = this.addCall(id, event.tool_call_id, event.tool_call_name);
        const row = this.begin(`tool:${id}:${event.tool_call_id}`, "tool", event.tool_call_name, event, now, `call:${event.tool_call_id}`);
        row.call = call;
        row.layers.push(...call.layers);
        call.row = row;
        break;
      }
      case "TOOL_RESULT_TEXT_DELTA": {
        const row = this.open.get(`tool:${id}:${event.tool_call_id}`);
        if (row && row.output.length < 1_000_000) row.output += event.delta;
        break;
      }
      case "TOOL_RESULT_END": {
        const row = this.end(`tool:${id}:${event.tool_call_id}`, now, event.state, event.state !== "success");
        if (row && typeof event.output === "string") row.output = event.output;
        if (row) row.endSeq = event.seq;
        break;
      }
      case "SUBAGENT_START": {
        const row = this.open.get(`tool:${id}:${event.tool_call_id}`) ?? this.open.get(`model:${id}`) ?? this.root;
        if (row?.kind === "tool") row.kind = "agent";
        if (row) this.owners.set(event.child_reply_id, row);
        this.children ??= [];
        this.children.push({ sessionId: event.child_session_id, replyId: event.child_reply_id });
        if (row) this.touch(row);
        break;
      }
      case "TASK_STARTED": {
        const row = this.calls.get(`${id}:${event.tool_call_id}`)?.row;
        this.tasks.add(event.task_id);
        if (row) row.task = event.task_id;
        if (row) this.touch(row);
        break;
      }
      case "REQUIRE_USER_CONFIRM":
      case "REQUIRE_EXTERNAL_EXECUTION": {
        if (this.owners.has(id) || this.open.has("wait")) break; // the same question, of a sub-agent
        const [first] = event.tool_calls;
        const name = event.type === "REQUIRE_USER_CONFIRM" ? "Wait for approval" : "Wait for results";
        const row = this.begin("wait", "wait", name, event, now);
        row.target = first ? `call:${first.id}` : null;
        row.question = event;
        break;
      }
      case "USER_CONFIRM_RESULT":
      case "EXTERNAL_EXECUTION_RESULT":
      case "USER_INTERRUPT":
        this.end("wait", now);
        break;
      case "CUSTOM":
        if (typeof event.value?.wait_seconds === "number") {
          this.begin(`custom:${id}:${event.seq}`, "wait", event.name, event, now);
          this.end(`custom:${id}:${event.seq}`, now + event.value.wait_seconds * 1000);
        }
    }
  }

  // A record has no answers: a reply that continues has received one.
  endWait(event, now) {
    const question = this.open.get("wait")?.question;
    if (!question || event.reply_id !== this.replyId || event.seq <= question.seq) return;
    const isOther = event.type.startsWith("TOOL_RESULT") && !question.tool_calls.some(({ id }) => `${id}/`.startsWith(`${event.tool_call_id}/`));
    if (!isOther && !event.type.startsWith("REQUIRE")) this.end("wait", now);
  }

  addCall(replyId, callId, name) {
    const key = `${replyId}:${callId}`;
    if (!this.calls.has(key)) this.calls.set(key, { id: callId, replyId, name, input: "", layers: [], row: null });
    return this.calls.get(key);
  }

  openModel(replyId, row) {
    const reply = this.reply(replyId);
    reply.model = row;
    reply.round += 1;
    row.round = reply.round;
    row.layers.push(...reply.early.splice(0));
  }

  // A line of the record of the run `replyId`.
  applyLine(line, replyId) {
    const now = line.t / 1e6;
    if (Number.isFinite(line.n)) this.line = line.n;
    this.note(now);
    const reply = this.reply(replyId);
    switch (line.kind) {
      case "begin":
        if (replyId === this.replyId && !this.root) this.begin("reply", "reply", "Reply", { reply_id: replyId, seq: 0 }, now);
        break;
      case "event":
        if (!line.event.unreadable) this.apply(line.event, now);
        break;
      case "request":
        this.addRequest(line, replyId, reply, now);
        break;
      case "answer":
        this.addAnswer(line, reply, now);
        break;
      case "layer":
        this.addLayer(line, replyId, reply, now);
        break;
      case "step":
        if (replyId === this.replyId) this.steps.push({ number: this.steps.length, kind: line.step, seq: line.seq });
        break;
      case "gap":
        this.gaps.push(line);
        break;
      case "end":
        this.finish(replyId, line.reason, now);
    }
    this.version += 1;
  }

  addRequest(line, replyId, reply, now) {
    let row = reply.model?.end === null ? reply.model : null;
    if (!row) {
      // Not one of the reply's rounds but, for example, a summary.
      const key = `side:${replyId}:${line.call_id}`;
      row = this.begin(key, "model", `${line.model}${line.purpose ? ` (${line.purpose})` : ""}`, { reply_id: replyId, seq: 0 }, now);
      row.isSide = true;
    }
    const attempt = { callId: line.call_id, index: reply.requests, model: line.model, purpose: line.purpose, start: now, end: null, error: null, usage: null, cost: null, pieces: 0 };
    reply.requests += 1;
    reply.attempts.set(line.call_id, { row, attempt });
    row.attempts.push(attempt);
    this.touch(row);
  }

  addAnswer(line, reply, now) {
    const found = reply.attempts.get(line.call_id);
    if (!found) return;
    const { row, attempt } = found;
    Object.assign(attempt, { end: now, error: line.error, usage: line.usage, cost: line.cost, pieces: line.pieces });
    if (row.isSide) this.end(`side:${row.replyId}:${line.call_id}`, now, "", line.error !== null);
    row.isFailed = row.attempts.at(-1).error !== null;
    this.touch(row);
  }

  addLayer(line, replyId, reply, now) {
    const layer = {
      index: reply.layers,
      call: line.call,
      parent: line.parent,
      hook: line.hook,
      layer: line.layer,
      place: line.place,
      start: now - line.total_ns / 1e6,
      end: now,
      own: line.own_ns / 1e6,
      total: line.total_ns / 1e6,
      outcome: line.outcome,
      decision: line.decision,
      reason: line.reason ?? "",
      changes: line.changes.length,
    };
    reply.layers += 1;
    if (CALL_HOOKS.has(line.hook)) {
      const row = reply.model;
      // Before the first event of its round, for example while its prompt is made.
      if (!row || (row.end !== null && line.hook !== "on_reasoning" && layer.start >= row.end)) reply.early.push(layer);
      else this.attach(row, layer);
    } else if (line.hook === "on_acting" || line.hook === "on_check_permission") {
      reply.inner.push(layer);
      // The line of the outermost layer comes last, and tells which call they belong to.
      if (line.place === 0) this.attachToCall(replyId, layer, reply.inner.splice(0), reply);
    } else if (this.owners.get(replyId) ?? this.root) this.attach(this.owners.get(replyId) ?? this.root, layer);
  }

  attachToCall(replyId, outer, waiting, reply) {
    const calls = new Set([outer.call]);
    const group = [];
    for (const layer of waiting.reverse()) {
      if (layer === outer || calls.has(layer.parent)) {
        calls.add(layer.call);
        group.unshift(layer);
      } else reply.inner.unshift(layer);
    }
    const own = [...this.calls.values()].filter((call) => call.replyId === replyId && !call.layers.some((layer) => layer.hook === outer.hook));
    const distance = ({ row }) => Math.abs(row.start - outer.start) + Math.abs((row.end ?? outer.end) - outer.end);
    const call =
      outer.hook === "on_acting"
        ? own.filter(({ row }) => row).sort((one, other) => distance(one) - distance(other))[0]
        : own[0];
    if (!call) return;
    call.layers.push(...group);
    if (call.row) group.forEach((layer) => this.attach(call.row, layer));
  }

  attach(row, layer) {
    row.layers.push(layer);
    this.touch(row);
  }

  finish(replyId, reason, now) {
    if (reason === "parked") return;
    const isFailed = reason !== "completed";
    for (const [key, row] of [...this.open]) {
      if (row.replyId === replyId) this.end(key, now, row.kind === "reply" ? reason : "", isFailed && row.kind !== "wait");
    }
  }
}

const newReply = () => ({ model: null, round: 0, requests: 0, layers: 0, attempts: new Map(), early: [], inner: [] });
