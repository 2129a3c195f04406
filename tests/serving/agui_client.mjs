// Runs that @ag-ui/client makes: the URL of a server, a thread, and a list of runs from standard input; prints what it has
// after each.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const require = createRequire(process.cwd() + "/");
const { HttpAgent } = require("@ag-ui/client");
const { url, thread, runs } = JSON.parse(readFileSync(0, "utf8"));
const agent = new HttpAgent({ url, threadId: thread, initialState: { mine: 1 } });
const seen = [];
for (const run of runs) {
  const events = [], states = [], partial = [];
  let finished = null;
  for (const message of run.messages ?? []) agent.addMessage(message);
  const resume = run.decide?.map((payload, index) =>
    payload === null
      ? { interruptId: agent.pendingInterrupts[index].id, status: "cancelled" }
      : { interruptId: agent.pendingInterrupts[index].id, status: "resolved", payload });
  let error = null;
  try {
    const { runId, forwardedProps } = run;
    await agent.runAgent({ ...(resume && { resume }), ...(runId && { runId }), ...(forwardedProps && { forwardedProps }) }, {
      onEvent: ({ event }) => {
        events.push(event.type);
        if (event.type.startsWith("STATE_")) states.push(event);
      },
      onStateChanged: ({ state }) => { partial.push(structuredClone(state.agentrt?.structured_output)); },
      onRunFinishedEvent: ({ event }) => { finished = event; },
      onRunErrorEvent: ({ event }) => { finished = event; },
    });
  } catch (failure) {
    error = { status: failure.status ?? null, code: failure.payload?.error?.code ?? null, message: String(failure) };
  }
  const { messages, state, pendingInterrupts: open } = agent;
  seen.push(structuredClone({ events, states, partial, finished, error, messages, state, open })); // the next run changes them
}
console.log(JSON.stringify(seen));
