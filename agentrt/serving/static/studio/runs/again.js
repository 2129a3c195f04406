// Run again from a step: with other layers, another prompt or another model.

import { call, runPath } from "../server.js";
import { guarded, state } from "../store.js";
import { clean } from "../text.js";
import { useRef, useState } from "../vendor/htm-preact.js";
import { Folded, html } from "../widgets.js";
import { messageText } from "./record.js";
import { runs } from "./state.js";

const EFFECTS = [["ask", "ask first"], ["record", "answer from the record"]];
const ALL_EFFECTS = [...EFFECTS, ["run", "run"]];

export function Again({ record, row, go }) {
  const prompt = useRef();
  const model = useRef();
  const effects = useRef();
  const [isBusy, setBusy] = useState(false);
  const isOpen = state.playground === true; // else the prompt, the model and the tools stay guarded
  const request = record.lastRequest(row);
  const [system] = request?.messages ?? [];
  const original = system?.role === "system" ? promptOf(request, system) : "";
  const body = () => {
    const changed = { at: row.endSeq ?? row.seq, without: [...runs.off], effects: effects.current.value };
    if (prompt.current && prompt.current.value !== original) changed.system_prompt = prompt.current.value;
    if (model.current?.value.trim()) changed.model = model.current.value.trim();
    return changed;
  };
  const during = (action) =>
    guarded(async () => {
      setBusy(true);
      try {
        await action();
      } finally {
        setBusy(false);
      }
    });
  const replay = during(async () => {
    const { at: _, ...changed } = body();
    const found = await call(runPath(record.sessionId, record.replyId, "/replay"), { method: "POST", body: { ...changed, after: "keep" } });
    runs.replay = { ...found, without: changed.without };
    go({ compare: record.sessionId, reply: record.replyId, replay: "1" });
  });
  const fork = during(async () => {
    const made = await call(runPath(record.sessionId, record.replyId, "/fork"), { method: "POST", body: body() });
    runs.fresh = `${made.session_id}/${made.reply_id}`;
    go({ compare: record.sessionId, reply: record.replyId, with: made.session_id, other: made.reply_id });
  });
  return html`<form class="again" onSubmit=${(event) => {
    event.preventDefault();
    fork();
  }}>
    <h3 class="caption">Run again from here</h3>
    <p class="note">${runs.off.size ? html`Without <b>${clean([...runs.off].join(", "))}</b>.` : "With all layers: use their switches to leave some out."} Earlier steps do not run again.</p>
    <${Folded} id="again" title=${isOpen ? "Another prompt or model" : "Tools"}>
      ${isOpen && original && html`<label>System prompt<textarea rows="4" ref=${prompt} defaultValue=${original}></textarea></label>`}
      ${isOpen && html`<label>Model<input ref=${model} placeholder="as recorded" /></label>`}
      <label>Tools that are not read-only <select ref=${effects}>${(isOpen ? ALL_EFFECTS : EFFECTS).map(([value, title]) => html`<option value=${value}>${title}</option>`)}</select></label>
    <//>
    <div class="row">
      <button type="button" disabled=${isBusy} onClick=${replay} title="No model and no tool is called">Replay</button>
      <button type="submit" class="primary" disabled=${isBusy}>Fork and run</button>
    </div>
  </form>`;
}

// The agent's own prompt, before layers changed it.
function promptOf(request, system) {
  const first = request.changes.find((change) => change.where === "current_prompt");
  return first ? first.before : messageText(system);
}
