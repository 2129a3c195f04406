// The pending questions of all sessions.

import { InputCard, QuestionCard, board } from "../chat/forms.js";
import { call, sessionPath } from "../server.js";
import { state } from "../store.js";
import { clean } from "../text.js";
import { html } from "../widgets.js";
import { listWaiting, runs } from "./state.js";

export const openQuestions = () => runs.waiting.length + board.inputs.length;

export function Inbox({ go }) {
  const answer = (session) => async (event) => {
    await call(sessionPath(session, "/replies"), { method: "POST", body: { answer: { ...event, session_id: session } } });
    runs.waiting = runs.waiting.filter((found) => found.session_id !== session);
    await listWaiting();
  };
  return html`<main class="page inbox" aria-label="Inbox">
    <h2>Pending questions</h2>
    ${runs.waiting.map(({ session_id: session, question }) => {
      const run = runs.list.find((found) => found.session_id === session && found.reply_id === question.reply_id);
      return html`<${QuestionCard} key=${`${session} ${question.seq}`} question=${question} onAnswer=${answer(session)}>
        <div class="row">
          <span class="note grow">${clean([run?.labels.owner, run?.title, session].filter(Boolean).join(" · "))}</span>
          ${state.hasRuns && html`<button type="button" onClick=${() => go({ run: session, reply: question.reply_id })}>Open the run</button>`}
          <button type="button" onClick=${() => go({ session })}>Open the chat</button>
        </div>
      <//>`;
    })}
    ${board.inputs.map((input) => html`<${InputCard} key=${input.input_id} input=${input} />`)}
    ${!openQuestions() && html`<p class="dim">No question is pending.</p>`}
  </main>`;
}
