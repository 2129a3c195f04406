// One run: question and answer, findings, its time line, and beside it the selected step.

import { call, runPath } from "../server.js";
import { guarded, state, update } from "../store.js";
import { LongText, clean, count, duration, money, plural } from "../text.js";
import { Plain, Text, html } from "../widgets.js";
import { findings } from "./findings.js";
import { RunList, STATES } from "./list.js";
import { listRuns, rowOf, runs } from "./state.js";
import { StepPane } from "./step.js";
import { Tasks, standingText } from "./tasks.js";
import { Waterfall } from "./waterfall.js";

export function Runs({ go }) {
  const open = (session, reply) => go({ run: session, reply });
  return html`<main class="three runs" data-pane=${state.pane}>
    <${RunList} onOpen=${open} />
    ${runs.record?.page ? html`<${RunPane} key=${runs.record.key} record=${runs.record} go=${go} />` : html`<section class="pane-run" aria-label="Run"><p class="note">Choose a run.</p></section>`}
    <${StepPane} record=${runs.record} go=${go} />
  </main>`;
}

export function RunPane({ record, go }) {
  const { page, timeline } = record;
  const pick = (row) => go({ run: record.sessionId, reply: record.replyId, step: row.id });
  const remove = guarded(async () => {
    if (!confirm("Delete this run, and those of its sub-agents? The session stays.")) return;
    await call(runPath(record.sessionId, record.replyId), { method: "DELETE" });
    runs.record = null;
    await listRuns();
    go({ view: "runs" });
  });
  return html`<section class="pane-run" aria-label="Run">
    <div class="head">
      <button type="button" class="back" onClick=${() => go({ view: "runs" })}>‹ Runs</button>
      <h2>${clean(page.title || "(no text)")}</h2>
      <${Chips} page=${page} />
      <div class="row">
        <button type="button" onClick=${() => go({ session: rootSession(page) })}>Open the chat</button>
        ${page.is_task && html`<button type="button" onClick=${() => go({ run: page.parent[0], reply: page.parent[1] })}>Open the run around it</button>`}
        <button type="button" onClick=${() => go({ compare: record.sessionId, reply: record.replyId })}>Compare</button>
        ${(!page.parent || page.is_task) && html`<button type="button" onClick=${remove}>Delete</button>`}
      </div>
    </div>
    <div class="panel qa">
      <div><p class="caption">Asked</p><${Plain} source=${record.question} look="text" /></div>
      <div><p class="caption">Answered</p><${Answer} record=${record} /></div>
    </div>
    <${Findings} record=${record} onPick=${pick} />
    <${Tasks} session=${record.taskSession} ids=${record.tasks} go=${go} />
    <div class="panel times">
      <div class="row head">
        <h2 class="grow">Time line</h2>
        <label class="row dim"><input type="checkbox" class="switch" checked=${runs.showsLayers} onChange=${(event) => {
          runs.showsLayers = event.target.checked;
          update();
        }} /> layers</label>
      </div>
      <${Waterfall} id="timeline" timeline=${timeline} current=${rowOf(record, runs.rowId)} layers=${runs.showsLayers} isLive=${record.isLive} hasAxis=${true} markOf=${(row) => row.task && standingText(record.sessionId, row.task)} onPick=${pick} />
    </div>
  </section>`;
}

// A sub-agent has a conversation of its own, which no chat shows.
const rootSession = (page) => (page.parent ? page.parent[0] : page.session_id);

export function Chips({ page }) {
  const chips = [
    page.labels.owner && ["owner ", page.labels.owner],
    ["", duration((page.seconds ?? (Date.now() - Date.parse(page.begun_at)) / 1000) * 1000)],
    ["", `${count(page.usage.input_tokens)} in, ${count(page.usage.output_tokens)} out`],
    ["", page.cost === null ? "cost unknown" : money(page.cost)],
    ["", plural(page.calls, "model call")],
    ["", plural(page.tools.length, "tool")],
    ["", plural(page.lines, "line")],
  ];
  return html`<div class="row chips">
    <span class=${`pill ${page.status}`}>${STATES[page.status]}</span>
    ${chips.filter(Boolean).map(([name, value]) => html`<span class="chip">${name}<b>${clean(value)}</b></span>`)}
  </div>`;
}

const answers = new WeakMap(); // texts by their pages, so that they are made once

export function Answer({ record }) {
  const { page } = record;
  if (!answers.has(page)) answers.set(page, new LongText(record.answer ?? ""));
  if (answers.get(page).size) return html`<${Text} text=${answers.get(page)} isMarkdown=${true} />`;
  if (!page.has_content) return html`<p class="dim">Its content was not recorded.</p>`;
  return html`<p class="dim">${{ running: "Not yet.", waiting: "Not yet: it is waiting for an answer." }[page.status] ?? "Nothing."}</p>`;
}

const known = new WeakMap(); // findings by their time lines

function Findings({ record, onPick }) {
  const { timeline } = record;
  if (known.get(timeline)?.version !== timeline.version) known.set(timeline, { version: timeline.version, found: findings(record, runs.list) });
  const { found } = known.get(timeline);
  if (!found.length) return null;
  return html`<div class="panel findings">
    <p class="caption">What stands out</p>
    <ul>
      ${found.slice(0, 50).map(
        ({ kind, row, name, text }, index) => html`<li key=${index}><button type="button" onClick=${() => row && onPick(row)}>
          <span class="dot" data-kind=${kind}></span><span><b>${clean(name)}</b> ${clean(text)}</span>
        </button></li>`,
      )}
    </ul>
    ${found.length > 50 && html`<p class="note">And ${found.length - 50} more.</p>`}
  </div>`;
}
