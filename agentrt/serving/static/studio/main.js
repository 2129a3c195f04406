// The page: the bar, the view that the address names, and what is looked for in the background.

import { Chat, newSession, statusText } from "./chat/chat.js";
import { readInputs } from "./chat/forms.js";
import { chat, listSessions, openSession, refresh } from "./chat/session.js";
import { Refused, call, isSigningIn, signOut, sleep } from "./server.js";
import { drawWith, guarded, set, setOffline, state, update } from "./store.js";
import { clean } from "./text.js";
import { html } from "./widgets.js";
import { render } from "./vendor/htm-preact.js";

const PANES = { chat: [["sessions", "Sessions"], ["chat", "Chat"], ["inspect", "Inspect"]] };
const PAUSE = 2000;

function App() {
  const panes = PANES[state.view] ?? [];
  return html`
    <a class="skip" href="#input" onClick=${skip}>To the message</a>
    <header>
      <h1>agentrt studio</h1>
      ${panes.length > 0 && html`<nav class="panes" aria-label="Parts of the view">
        ${panes.map(
          ([name, title]) => html`<button key=${name} type="button" data-show=${name} aria-pressed=${String(state.pane === name)} onClick=${() => set({ pane: name })}>${title}</button>`,
        )}
      </nav>`}
      <span class="grow"></span>
      <span id="status" role="status">${statusText()}</span>
      <label class="agent">Agent <select id="agent" onChange=${changeAgent}>
        ${state.agents.map((name) => html`<option key=${name} value=${name} selected=${name === state.agent}>${clean(name)}</option>`)}
      </select></label>
      ${state.isSignedIn && html`<button id="sign" type="button" onClick=${signOut}>Sign out</button>`}
    </header>
    ${state.problem && html`<div id="problem" role="alert">${clean(state.problem)}</div>`}
    <${Chat} openChat=${openChat} openRun=${null} />`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("input")?.focus();
}

async function openChat(sessionId) {
  set({ view: "chat", pane: "chat" });
  saveAddress({ session: sessionId });
  await openSession(sessionId);
  document.getElementById("input")?.focus();
}

const changeAgent = guarded(async (event) => {
  // The session that is open is not one of the other agent.
  chat.follower?.abort();
  chat.sessionId = null;
  await openAgent(event.target.value);
  await openChat(newSession());
});

async function openAgent(name) {
  state.agent = name;
  const { agents, chains } = await call("chains");
  set({ agents, chains, agent: name ?? agents[0] });
  await listSessions();
}

// The address leads back to what is shown, also in another tab.

let address = "";

function saveAddress(parts) {
  const parameters = new URLSearchParams(parts);
  if (state.agent !== null) parameters.set("agent", state.agent);
  address = `#${parameters}`;
  history.replaceState(null, "", address);
}

async function watch() {
  // What other clients begin, and what user agents ask.
  for (let turn = 0; ; turn += 1) {
    await sleep(PAUSE);
    if (document.hidden || isSigningIn()) continue;
    try {
      await readInputs();
      if (!chat.follower && turn % 2) await refresh();
      if (turn % 10 === 9) await listSessions();
    } catch (error) {
      setOffline(!(error instanceof Refused));
    }
  }
}

async function start() {
  drawWith(() => render(html`<${App} />`, document.getElementById("app")));
  addEventListener("offline", () => setOffline(true));
  addEventListener("hashchange", () => {
    if (location.hash !== address) location.reload();
  });
  const given = new URLSearchParams(location.hash.slice(1));
  update();
  for (let pause = 500; ; pause = Math.min(pause * 2, 5000)) {
    try {
      await openAgent(given.get("agent"));
      break;
    } catch (error) {
      if (error instanceof Refused) {
        set({ problem: error.message });
        if (error.status === 404) given.delete("agent");
        else return;
      } else setOffline(true);
      await sleep(pause);
    }
  }
  set({ problem: null });
  await openChat(given.get("session") ?? newSession());
  watch();
}

start();
