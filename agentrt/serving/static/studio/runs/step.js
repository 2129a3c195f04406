// The selected step: its request, its layers, its answer, and the lines of its record.

import { Diff, Words } from "../diff.js";
import { call, runPath } from "../server.js";
import { guarded, mayLeaveOut, state, update } from "../store.js";
import { clean, count, duration, money, pretty } from "../text.js";
import { useEffect, useState } from "../vendor/htm-preact.js";
import { Folded, Plain, html } from "../widgets.js";
import { Again } from "./again.js";
import { callName, decisions } from "./findings.js";
import { blockText } from "./record.js";
import { rowOf, runs } from "./state.js";
import { Tasks } from "./tasks.js";

const HOOKS = ["on_reply", "on_content", "on_reasoning", "on_tools", "on_system_prompt", "on_model_call", "on_check_permission", "on_acting"];
const MAX_RAW = 200;

export function StepPane({ record, go }) {
  const row = rowOf(record, runs.rowId);
  if (!row) {
    return html`<section class="pane-step" aria-label="Step"><p class="note">Choose a step of the time line to see its request, its layers and its answer.</p></section>`;
  }
  const tabs = tabsOf(row);
  const tab = tabs.some(([name]) => name === runs.tab) ? runs.tab : tabs[0][0];
  const choose = (name) => () => {
    runs.tab = name;
    update();
  };
  return html`<section class="pane-step" aria-label="Step">
    <div class="tabs">
      <button type="button" class="back" onClick=${() => go({ run: record.sessionId, reply: record.replyId })}>‹ Run</button>
      ${tabs.map(([name, title]) => html`<button key=${name} type="button" aria-pressed=${String(name === tab)} onClick=${choose(name)}>${title}</button>`)}
    </div>
    <h2>${clean(row.round ? `${callName(row)}: ${row.name}` : row.name)}</h2>
    <p class="note">${row.seq ? `event ${row.seq}, ` : ""}${duration((row.end ?? record.timeline.newest) - row.start)}${row.note ? `, ${clean(row.note)}` : ""}</p>
    ${row.task && html`<${Tasks} session=${record.sessionId} ids=${new Set([row.task])} go=${go} />`}
    <div class="content" key=${`${row.id} ${tab}`}>${VIEWS[tab](record, row)}</div>
    ${state.playground !== false && row.depth === 0 && row.kind !== "reply" && html`<${Again} key=${row.id} record=${record} row=${row} go=${go} />`}
  </section>`;
}

function tabsOf(row) {
  const layers = ["layers", "Layers"];
  const raw = ["raw", "Raw"];
  if (row.attempts.length) return [layers, ["request", "Request"], ["answer", "Answer"], raw];
  if (row.call) return [["call", "Call and result"], layers, raw];
  if (row.question) return [["question", "Question"], raw];
  return [layers, raw];
}

const VIEWS = {
  request: (record, row) => html`<${Request} record=${record} row=${row} />`,
  layers: (record, row) => html`<${Onion} record=${record} row=${row} />`,
  answer: (record, row) => html`<${Attempts} record=${record} row=${row} />`,
  call: (record, row) => html`<${Call} record=${record} row=${row} />`,
  question: (record, row) => html`<${Asked} record=${record} row=${row} />`,
  raw: (record, row) => html`<${Raw} key=${row.lastLine} record=${record} row=${row} />`,
};

// The request of the last attempt.

function Request({ record, row }) {
  const request = record.lastRequest(row);
  if (!request) return html`<p class="note">${record.page.has_content ? "Reading the record." : "Its content was not recorded."}</p>`;
  const { usage, tools, changes } = request;
  const changesAt = (index, role) => changes.filter(({ where, after }) => after !== null && (where === `messages[${index}]` || (index === 0 && role === "system" && where === "current_prompt")));
  const removed = changes.filter(({ where, after }) => after === null && where.startsWith("messages["));
  return html`
    <div class="row chips">
      <span class="chip"><b>${count(request.messages.length)}</b> messages</span>
      <span class="chip"><b>${tools.length}</b> tools</span>
      ${usage && html`<span class="chip"><b>${count(usage.input_tokens)}</b> tokens, <b>${count(usage.cache_input_tokens)}</b> cached</span>`}
    </div>
    ${request.messages.map((message, index) => html`<${SentMessage} key=${index} message=${message} changes=${changesAt(index, message?.role)} />`)}
    ${removed.map(({ layer, where, before }) => html`<${Diff} title=${`${where}, removed by ${layer}`} before=${before} after=${null} />`)}
    ${changes.filter(({ where }) => where === "tools").map(({ layer, before, after }) => html`<${Diff} title=${`tools, changed by ${layer}`} before=${before} after=${after} />`)}
    ${tools.map((tool) => html`<${Folded} key=${tool.function?.name} id=${`tool:${row.id}:${tool.function?.name}`} title=${clean(`Tool ${tool.function?.name}`)}>
      <${Plain} source=${JSON.stringify(tool.function ?? tool, null, 2)} />
    <//>`)}`;
}

function SentMessage({ message, changes }) {
  if (!message) return html`<div class="sent"><p class="dim">not recorded</p></div>`;
  const layers = [...new Set(changes.map((change) => change.layer))];
  return html`<div class="sent">
    <div class="role">${clean(message.role)}${message.name && message.name !== message.role && html`<span class="dim">${clean(message.name)}</span>`}
      ${layers.length > 0 && html`<span class="by">changed by ${clean(layers.join(", "))}</span>`}</div>
    ${message.content.map((block, index) => {
      const text = blockText(block, true);
      const change = changes.find(({ after }) => after === text || after === blockText(block));
      if (!change) return html`<${Plain} key=${index} source=${blockText(block)} />`;
      // Compared with the message before the outermost layer that changed it.
      const [first] = changes.filter(({ at }) => at === change.at);
      return html`<div class="part" key=${index}>${block.type === "tool_result" && html`<span class="dim">${clean(`result of ${block.name}: `)}</span>`}<${Words} before=${first.before} after=${change.after} isWhole=${true} /></div>`;
    })}
  </div>`;
}

// The layers around this step, each inside the one before it.

function Onion({ record, row }) {
  const layers = record.layersOf(row);
  if (!layers.length) return html`<p class="note">This step has no layers, or none were recorded.</p>`;
  const hooks = [...new Set(layers.map((layer) => layer.hook))].sort((one, other) => HOOKS.indexOf(one) - HOOKS.indexOf(other));
  return hooks.map((hook) => html`<div key=${hook}>
    <h3 class="caption">${hook}</h3>
    ${places(layers.filter((layer) => layer.hook === hook)).map((layer) => html`<${LayerCard} key=${layer.place} record=${record} row=${row} layer=${layer} />`)}
  </div>`);
}

// The calls of each layer as one: a retry calls the layers inside it again.
function places(layers) {
  const byPlace = new Map();
  for (const layer of layers) {
    const sum = byPlace.get(layer.place);
    if (!sum) byPlace.set(layer.place, { ...layer, calls: 1, found: [...layer.found] });
    else Object.assign(sum, { own: sum.own + layer.own, total: sum.total + layer.total, calls: sum.calls + 1, outcome: layer.outcome, found: [...sum.found, ...layer.found] });
  }
  return [...byPlace.values()].sort((one, other) => one.place - other.place);
}

function LayerCard({ record, row, layer }) {
  const { found } = layer;
  const distinct = [...new Map(found.map((change) => [`${change.at} ${change.before} ${change.after}`, change])).values()];
  const isOff = runs.off.has(layer.layer);
  const flip = (event) => {
    if (event.target.checked) runs.off.delete(layer.layer);
    else runs.off.add(layer.layer);
    update();
  };
  const reasons = layer.layer === null ? [] : record.reasonOf(row.replyId, layer.layer);
  return html`<div class=${`onion${layer.layer === null ? " core" : ""}${distinct.length ? " touched" : ""}${isOff ? " off" : ""}`} style=${{ "--place": layer.place }}>
    <div class="row">
      <b class="layer-name">${clean(layer.layer ?? "core")}</b>
      ${layer.calls > 1 && html`<span class="chip">×${layer.calls}</span>`}
      ${layer.outcome === "raised" && html`<span class="failed">failed</span>`}
      ${layer.decision && html`<span class="chip">${layer.decision}</span>`}
      <span class="grow"></span>
      <span class="dim">own ${duration(layer.own)}, total ${duration(layer.total)}</span>
      ${layer.layer !== null && mayLeaveOut(layer.layer) && html`<input type="checkbox" class="switch" checked=${!isOff} aria-label=${clean(`Run again with ${layer.layer}`)} onChange=${flip} />`}
    </div>
    ${layer.reason && html`<p class="note">${clean(layer.reason)}</p>`}
    ${reasons.map((reason) => html`<p class="note">${clean(reason)}</p>`)}
    ${distinct.slice(0, 5).map((change, index) => html`<${Diff} key=${index} title=${change.at} before=${change.before} after=${change.after} />`)}
    ${distinct.length > 5 && html`<p class="note">And ${distinct.length - 5} more changes.</p>`}
  </div>`;
}

// The answers of all attempts.

function Attempts({ record, row }) {
  return row.attempts.map((attempt, index) => {
    const request = record.request(row.replyId, attempt.index);
    const facts = attempt.error ?? [attempt.end !== null && duration(attempt.end - attempt.start), `${attempt.pieces} pieces`, attempt.usage && `${attempt.usage.output_tokens} tokens`, attempt.cost !== null && money(attempt.cost)].filter(Boolean).join(", ");
    return html`<div class="sent" key=${index}>
      <div class="role">${row.attempts.length > 1 ? `attempt ${index + 1}` : "answer"}<span class=${`by ${attempt.error ? "failed" : "dim"}`}>${clean(facts)}</span></div>
      ${(request?.answer?.content ?? []).map((block, place) => html`<${Plain} key=${place} source=${blockText(block)} look=${block.type === "text" ? "markdown" : "mono"} />`)}
    </div>`;
  });
}

function Call({ record, row }) {
  return html`
    <div class="sent"><div class="role">arguments</div><${Plain} source=${pretty(record.inputOf(row))} /></div>
    <div class="sent"><div class="role">result<span class=${`by ${row.isFailed ? "failed" : "dim"}`}>${clean(row.note)}</span></div><${Plain} source=${record.outputOf(row)} /></div>`;
}

function Asked({ record, row }) {
  const ends = decisions(record, row);
  return row.question.tool_calls.map((toolCall, index) => html`<div class="sent" key=${toolCall.id}>
    <div class="role">asks to run ${clean(toolCall.name)}<span class="by">${clean(ends[index])}</span></div>
    <p class="note">${clean(row.question.questions?.[toolCall.id]?.message ?? "")}</p>
    <${Plain} source=${pretty(toolCall.input)} />
  </div>`);
}

function Raw({ record, row }) {
  const [lines, setLines] = useState(null);
  useEffect(() => {
    const run = record.byReply.get(row.replyId);
    const read = guarded(async () => {
      const limit = Math.min(row.lastLine - row.firstLine + 1, MAX_RAW);
      const found = await call(runPath(run.session_id, run.reply_id, "/lines"), { query: { after: Math.max(row.firstLine - 1, 0), limit: Math.max(limit, 1) } });
      setLines(found.lines.map((line) => JSON.stringify(line)).join("\n\n"));
    });
    if (run) read();
  }, []);
  return lines === null ? html`<p class="note">Reading the lines of the record.</p>` : html`<${Plain} source=${lines} />`;
}
