// The pending questions of all sessions.

import { InputCard, QuestionCard, board } from "../chat/forms.js";
import { guarded, state } from "../store.js";
import { clean } from "../text.js";
import { html } from "../widgets.js";
import { answerQuestion, dropQuestion, runs } from "./state.js";
import { stopTask } from "./tasks.js";

export const openQuestions = () => runs.waiting.length + board.inputs.length;

export function Inbox({ go }) {
  const stop = (session, task) => guarded(async () => {
    await stopTask(task.session_id, task.id);
    await dropQuestion(session);
  });
  return html`<main class="page inbox" aria-label="Inbox">
    <h2>Pending questions</h2>
    ${runs.waiting.map(({ session_id: session, question, task }) => {
      const run = runs.list.find((found) => found.session_id === session && found.reply_id === question.reply_id);
      return html`<${QuestionCard} key=${`${session} ${question.seq}`} question=${question} onAnswer=${(event) => answerQuestion(session, event)}>
        <div class="row">
          <span class="note grow">${clean([run?.labels.owner, run?.title, task ? `background call of ${task.tool} in ${task.session_id}` : session].filter(Boolean).join(" · "))}</span>
          ${state.hasRuns && html`<button type="button" onClick=${() => go({ run: session, reply: question.reply_id })}>Open the run</button>`}
          <button type="button" onClick=${() => go({ session: task?.session_id ?? session })}>Open the chat</button>
          ${task && html`<button type="button" onClick=${stop(session, task)}>Stop</button>`}
        </div>
      <//>`;
    })}
    ${board.inputs.map((input) => html`<${InputCard} key=${input.input_id} input=${input} />`)}
    ${!openQuestions() && html`<p class="dim">No question is pending.</p>`}
  </main>`;
}
