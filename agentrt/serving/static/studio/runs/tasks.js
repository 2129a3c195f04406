// Background calls: how each stands, and the buttons that open its run and end it.

import { Refused, call } from "../server.js";
import { guarded, state, update } from "../store.js";
import { clean } from "../text.js";
import { html } from "../widgets.js";

const STANDINGS = { running: ["running", "working"], waiting: ["waiting", "waiting for you"] };
const OUTCOMES = {
  success: ["completed", "done"], error: ["failed", "failed"], denied: ["failed", "not permitted"], interrupted: ["interrupted", "stopped"],
  timeout: ["failed", "took too long"], unknown: ["failed", "unknown"], given_up: ["failed", "given up"], none: ["failed", "without a result"],
};

const listed = new Map(); // the background calls of sessions, by their sessions

const standingOf = (task) => STANDINGS[task.state] ?? OUTCOMES[task.outcome] ?? ["failed", "over"];

export const standingText = (session, id) => {
  const task = listed.get(session)?.find((found) => found.id === id);
  return task ? standingOf(task)[1] : "background";
};

// Returns whether any of them stands differently than before.
export async function listTasks(session) {
  const before = JSON.stringify(listed.get(session));
  try {
    listed.set(session, (await call("tasks", { query: { session } })).tasks);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    listed.delete(session); // the session was deleted
  }
  update();
  return JSON.stringify(listed.get(session)) !== before;
}

// Whether any of them may still change.
export const areUnfinished = (session) => (listed.get(session) ?? []).some((task) => task.state !== "over");

export async function stopTask(session, id) {
  await call(`tasks/${encodeURIComponent(id)}/stop`, { method: "POST", query: { session } });
  await listTasks(session);
}

// Those of a session, or the ones with these ids.
export function Tasks({ session, ids = null, go }) {
  const tasks = (listed.get(session) ?? []).filter((task) => (ids ? ids.has(task.id) : task.state !== "over"));
  if (!tasks.length) return null;
  return html`<div class="panel tasks" role="group" aria-label="Background calls">
    <p class="caption">Background calls</p>
    <ul class="items">${tasks.map((task) => html`<${Task} key=${task.id} session=${session} task=${task} go=${go} />`)}</ul>
  </div>`;
}

function Task({ session, task, go }) {
  const [kind, words] = standingOf(task);
  const tool = clean(task.tool);
  return html`<li class="row" data-task=${task.id}>
    <span class=${`pill ${kind}`}>${words}</span>
    <b class="grow">${tool}</b>
    ${task.state === "waiting" && html`<button type="button" aria-label=${`Answer ${tool}`} onClick=${() => go({ view: "inbox" })}>Answer</button>`}
    ${state.hasRuns && html`<button type="button" aria-label=${`Open the run of ${tool}`} onClick=${() => go({ run: task.session_id, reply: task.reply_id })}>Open the run</button>`}
    ${task.state !== "over" && html`<button type="button" aria-label=${`Stop ${tool}`} onClick=${guarded(() => stopTask(session, task.id))}>Stop</button>`}
  </li>`;
}
