// Two runs side by side, the first difference marked; or the differences of a replay.

import { Diff } from "../diff.js";
import { state } from "../store.js";
import { clean, count, duration, money } from "../text.js";
import { html } from "../widgets.js";
import { QuestionCard } from "../chat/forms.js";
import { messageText } from "./record.js";
import { Answer, Chips } from "./run.js";
import { answerQuestion, listRuns, refreshRecords, runs } from "./state.js";

export function Compare({ go }) {
  const { record, other, replay } = runs;
  if (!record?.page) return html`<main class="page"><${Picker} go=${go} title="Compare two runs: choose the first one" onPick=${(run) => go({ compare: run.session_id, reply: run.reply_id })} /></main>`;
  const back = html`<button type="button" onClick=${() => go({ run: record.sessionId, reply: record.replyId })}>‹ Run</button>`;
  if (state.isReplay && replay) return html`<main class="page">${back}<${Replay} record=${record} replay=${replay} go=${go} /></main>`;
  if (!other?.page) {
    const pick = (run) => go({ compare: record.sessionId, reply: record.replyId, with: run.session_id, other: run.reply_id });
    return html`<main class="page">${back}<h2>${clean(record.page.title)}</h2><${Picker} go=${go} title="Choose the run to compare it with" onPick=${pick} /></main>`;
  }
  return html`<main class="page">
    <div class="row">${back}<h2 class="grow">Two runs of ${clean(record.page.agent)}</h2></div>
    <${Two} one=${record} other=${other} go=${go} />
  </main>`;
}

function Picker({ title, onPick }) {
  const { record } = runs;
  const listed = runs.list.filter((run) => !record?.page || run.session_id !== record.sessionId || run.reply_id !== record.replyId);
  return html`<p class="dim">${title}</p><ul class="items panel">
    ${listed.map((run) => html`<li key=${`${run.session_id}/${run.reply_id}`}><button type="button" class="item" onClick=${() => onPick(run)}>
      <span class="title">${clean(run.title || "(no text)")}</span><small>${clean(run.agent)}, ${new Date(run.begun_at).toLocaleString()}</small>
    </button></li>`)}
  </ul>`;
}

// The steps of one run as the agent took them, without those of its sub-agents.
const stepsOf = (record) => record.timeline.rows.filter((row) => row.depth === 0 && row.kind !== "reply" && !row.isRetry);

// The parts of a step that must be equal for two steps to be the same.
function contentOf(record, row) {
  if (row.attempts.length) {
    const request = record.lastRequest(row);
    if (!request) return { kind: row.kind };
    const parts = { kind: "model" };
    request.messages.forEach((message, index) => (parts[`messages[${index}]`] = messageText(message)));
    parts.tools = request.tools.map((tool) => tool.function?.name ?? "").join(", ");
    parts.answer = request.answer ? messageText(request.answer) : (row.attempts.at(-1).error ?? "");
    return parts;
  }
  if (row.call) return { kind: row.name, arguments: record.inputOf(row), result: record.outputOf(row) };
  return { kind: row.kind, name: row.name };
}

function firstDifference(one, other) {
  for (const where of new Set([...Object.keys(one), ...Object.keys(other)])) {
    if (one[where] !== other[where]) return { where, before: one[where] ?? null, after: other[where] ?? null };
  }
  return null;
}

// The other run may be a fork of this one: it has the earlier steps only in its requests.
function pairs(one, other) {
  const steps = stepsOf(one);
  const others = stepsOf(other);
  const source = /^(.*)\/([^/]+)\/(\d+)$/.exec(other.page.labels.forked_from ?? "");
  const isFork = source !== null && one.key.endsWith(`${source[1]}/${source[2]}`);
  const point = isFork ? one.timeline.steps[Number(source[3])] : null;
  const shared = point ? steps.filter((row) => (row.endSeq ?? row.seq) <= point.seq && (point.kind !== "model" || row.seq < point.seq)).length : 0;
  const rows = steps.slice(0, shared).map((row) => ({ one: row, other: null, isShared: true, difference: null }));
  let isSame = true;
  for (let index = 0; index < Math.max(steps.length - shared, others.length); index += 1) {
    const pair = { one: steps[shared + index], other: others[index], difference: null };
    if (isSame) {
      pair.difference = pair.one && pair.other ? firstDifference(contentOf(one, pair.one), contentOf(other, pair.other)) : { where: pair.one ? "only in the first run" : "only in the second run", before: null, after: null };
      isSame = pair.difference === null;
    }
    rows.push(pair);
  }
  return { rows, isFork };
}

// The layers of one run that the other one lacks.
function missingLayers(one, other) {
  const keys = (record) => (record.value(record.page.chains)?.middlewares ?? []).map((layer) => layer.key);
  const kept = new Set(keys(other));
  return keys(one).filter((key) => !kept.has(key));
}

function Two({ one, other, go }) {
  const { rows, isFork } = pairs(one, other);
  const missing = missingLayers(one, other).join(", ");
  const first = rows.find((row) => row.difference);
  const shared = rows.filter((row) => row.isShared).length;
  const open = (record, row) => go({ run: record.sessionId, reply: record.replyId, step: row.id });
  return html`
    <div class="two">
      ${[[one, "Recorded"], [other, `${isFork ? "Forked" : "Other"}${missing && ` without ${missing}`}`]].map(([record, title]) => html`<div class="panel side" key=${record.key}>
        <p class="caption">${clean(title)}</p><${Chips} page=${record.page} /><${Answer} record=${record} /><${Waiting} record=${record} />
      </div>`)}
    </div>
    <div class="panel wide"><table class="steps">
      <thead><tr><th></th><th>recorded</th><th>${isFork ? "forked" : "other"}</th><th></th></tr></thead>
      <tbody>${rows.map((row, index) => html`<tr key=${index} class=${row.difference ? "first" : row.isShared ? "same" : ""}>
        <td class="dim">${index + 1}</td>
        <td><${Cell} record=${one} row=${row.one} onOpen=${open} /></td>
        <td>${row.isShared ? html`<span class="dim">from the record</span>` : html`<${Cell} record=${other} row=${row.other} onOpen=${open} />`}</td>
        <td>${row.difference && html`<b>first difference: ${clean(row.difference.where)}</b>`}</td>
      </tr>`)}</tbody>
    </table></div>
    ${first && first.difference.before !== null && html`<div class="panel side"><p class="caption">The first difference</p><${Diff} title=${first.difference.where} before=${first.difference.before} after=${first.difference.after} /></div>`}
    ${!first && html`<p>Both took the same steps.</p>`}
    <div class="panel wide"><${Totals} one=${one} other=${other} shared=${shared} isFork=${isFork} /></div>`;
}

function Cell({ record, row, onOpen }) {
  if (!row) return html`<span class="dim">—</span>`;
  return html`<button type="button" class="link" onClick=${() => onOpen(record, row)}>${clean(row.name)}</button> <span class="dim">${duration((row.end ?? record.timeline.newest) - row.start)}</span>`;
}

function Totals({ one, other, shared, isFork }) {
  // A fork does not pay again for the steps before its start.
  const before = stepsOf(one).slice(0, shared).flatMap((row) => row.attempts);
  const base = (pick) => (isFork ? before.reduce((sum, attempt) => sum + (pick(attempt) ?? 0), 0) : 0);
  const lines = [
    ["cost", money, one.page.cost, other.page.cost, base((attempt) => attempt.cost)],
    ["time", (seconds) => (seconds === null ? "" : duration(seconds * 1000)), one.page.seconds, other.page.seconds, isFork && shared ? (stepsOf(one)[shared - 1].end - one.timeline.start) / 1000 : 0],
    ["model calls", count, one.page.calls, other.page.calls, base(() => 1)],
    ["tokens", count, one.page.usage.input_tokens + one.page.usage.output_tokens, other.page.usage.input_tokens + other.page.usage.output_tokens, base(({ usage }) => usage && usage.input_tokens + usage.output_tokens)],
  ];
  return html`<table class="numbers">
    <thead><tr><th>whole run</th><th>recorded</th><th>${isFork ? "forked, with the earlier steps" : "other"}</th><th>new in it</th></tr></thead>
    <tbody>${lines.map(([name, show, left, right, prefix]) => html`<tr key=${name}><td>${name}</td><td>${show(left)}</td><td>${right === null ? show(right) : show(right + prefix)}</td><td>${show(right)}</td></tr>`)}</tbody>
  </table>`;
}

// A fork may ask before it runs a tool: its question is answered here.
function Waiting({ record }) {
  const question = record.page.status === "waiting" && runs.waiting.find((found) => found.session_id === record.sessionId)?.question;
  if (!question) return null;
  const answer = async (event) => {
    await answerQuestion(record.sessionId, event);
    await listRuns("again");
    await refreshRecords();
  };
  return html`<${QuestionCard} question=${question} onAnswer=${answer} />`;
}

function Replay({ record, replay, go }) {
  const { differences, without, finished } = replay;
  const rowAt = ({ reply_id: replyId, step }) => step && record.timeline.rows.find((row) => row.replyId === replyId && [row.seq, row.endSeq].includes(step.seq));
  const look = (row) => go({ run: record.sessionId, reply: record.replyId, step: row.id });
  return html`
    <h2>Replay of ${clean(record.page.title)}</h2>
    <p class="dim">No model and no tool was called${without.length ? html`; left out: <b>${clean(without.join(", "))}</b>` : ""}.${!finished && " It did not reach the end of the record."}</p>
    ${!differences.length && html`<p class="panel side"><b>No difference.</b> Every request, decision and result was the same.</p>`}
    ${differences.map((difference, index) => html`<div class="panel side" key=${index}>
      <p class="caption">${index === 0 ? "First difference" : `Difference ${index + 1}`}</p>
      <div class="row"><span class="grow">${clean(describe(difference))}</span>
        ${rowAt(difference) && html`<button type="button" onClick=${() => look(rowAt(difference))}>Open the step</button>`}</div>
      <${Diff} title=${difference.where} before=${valueOf(difference.before)} after=${valueOf(difference.after)} />
    </div>`)}`;
}

const describe = ({ step, where, layer }) => `${step ? `Step ${step.number} (${step.kind})` : "Before the first step"}: ${where}${layer ? `, because of ${layer}` : ""}`;
const valueOf = (value) => (value == null ? null : typeof value === "string" ? value : Array.isArray(value.content) ? messageText(value) : typeof value.content === "string" ? value.content : JSON.stringify(value, null, 1));
