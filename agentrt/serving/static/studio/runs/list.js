// The list of runs, with its search and filters.

import { guarded, update } from "../store.js";
import { clean, count, duration, money } from "../text.js";
import { useRef } from "../vendor/htm-preact.js";
import { Still, html } from "../widgets.js";
import { listRuns, runs } from "./state.js";

const FILTERS = [["", "All"], ["completed", "Done"], ["waiting", "Waiting"], ["running", "Running"], ["failed", "Failed"], ["interrupted", "Stopped"]];
export const STATES = { completed: "done", waiting: "waiting for you", failed: "failed", running: "running", died: "died", interrupted: "stopped" };

export function RunList({ onOpen }) {
  const typing = useRef();
  const change = (name) => (event) => {
    runs[name] = event.target.value;
    update();
    clearTimeout(typing.current);
    typing.current = setTimeout(guarded(() => listRuns()), 300);
  };
  const filter = (status) => guarded(() => {
    runs.status = status;
    return listRuns();
  });
  const isFiltered = runs.words || runs.status || runs.tool || runs.layer || runs.label;
  return html`<section class="pane-list" aria-label="Runs">
    <input class="search" type="search" placeholder="Search titles" aria-label="Search runs" value=${runs.words} onInput=${change("words")} />
    <div class="row filters">
      ${FILTERS.map(([status, title]) => html`<button key=${status} type="button" aria-pressed=${String(runs.status === status)} onClick=${filter(status)}>${title}</button>`)}
    </div>
    <details class="filters">
      <summary>Tool, layer, owner</summary>
      <input aria-label="Tool that was called" placeholder="Tool that was called" value=${runs.tool} onInput=${change("tool")} />
      <input aria-label="Layer that changed something" placeholder="Layer that changed something" value=${runs.layer} onInput=${change("layer")} />
      <input aria-label="Label" placeholder="Label, such as owner:ann" value=${runs.label} onInput=${change("label")} />
    </details>
    <ul id="runs" class="items">
      ${runs.list.map(
        (run) => html`<${Item} key=${`${run.session_id}/${run.reply_id}`} run=${run} facts=${JSON.stringify(run)} onOpen=${onOpen}
          isCurrent=${runs.record?.sessionId === run.session_id && runs.record?.replyId === run.reply_id} />`,
      )}
    </ul>
    ${!runs.list.length && html`<p class="note">${isFiltered ? "No run matches." : "No run is recorded yet. Runs of agents with a RunRecorder appear here."}</p>`}
    ${runs.cursor && html`<button type="button" onClick=${guarded(() => listRuns("more"))}>More runs</button>`}
  </section>`;
}

class Item extends Still {
  render({ run, isCurrent, onOpen }) {
    const tokens = run.usage.input_tokens + run.usage.output_tokens;
    return html`<li><button type="button" class="item" aria-current=${String(isCurrent)} onClick=${() => onOpen(run.session_id, run.reply_id)}>
      <span class="title">${clean(run.title || "(no text)")}</span>
      <span class="facts">
        <span class=${`pill ${run.status}`}>${STATES[run.status]}</span>
        ${run.labels.owner && html`<span>${clean(run.labels.owner)}</span>`}
        ${run.seconds !== null && html`<span>${duration(run.seconds * 1000)}</span>`}
        <span title="of the run and its sub-agents">${count(tokens)} tokens</span>
        ${run.cost !== null && html`<span>${money(run.cost)}</span>`}
        <span>${new Date(run.begun_at).toLocaleString()}</span>
      </span>
    </button></li>`;
  }
}
