// The page: the bar, the view in the address, and the polling in the background.

import { Chat, newSession, statusText } from "./chat/chat.js";
import { readInputs } from "./chat/forms.js";
import { chat, listSessions, openSession, refresh } from "./chat/session.js";
import { Evaluate, openReport } from "./evaluate.js";
import { Compare } from "./runs/compare.js";
import { Inbox, openQuestions } from "./runs/inbox.js";
import { Runs } from "./runs/run.js";
import { listRuns, listWaiting, loadRecord, openRecord, refreshRecords, runs } from "./runs/state.js";
import { areUnfinished, listTasks } from "./runs/tasks.js";
import { Refused, call, isSigningIn, signOut, sleep } from "./server.js";
import { drawWith, guarded, set, setOffline, state, update } from "./store.js";
import { clean } from "./text.js";
import { Component, render } from "./vendor/htm-preact.js";
import { html } from "./widgets.js";

const PAUSE = 2000;
const VIEWS = [["runs", "Runs", Runs], ["inbox", "Inbox", Inbox], ["compare", "Compare", Compare], ["evaluate", "Evaluate", Evaluate], ["chat", "Chat", Chat]];
const PANES = {
  chat: [["sessions", "Sessions"], ["chat", "Chat"], ["inspect", "Inspect"]],
  runs: [["list", "List"], ["run", "Run"], ["step", "Step"]],
};
const shownViews = () => VIEWS.filter(([name]) => ({ evaluate: state.hasReports, runs: state.servesRuns, compare: state.servesRuns })[name] ?? true);
const SKIPS = { chat: ["#input", "To the message"], runs: [".pane-step button", "To the step"] };

function App() {
  const View = VIEWS.find(([name]) => name === state.view)?.[2];
  const [target, words] = SKIPS[state.view] ?? ["main button", "To the content"];
  const skip = (event) => {
    event.preventDefault();
    [...document.querySelectorAll(target)].find((element) => element.checkVisibility())?.focus();
  };
  return html`
    <a class="skip" href="#" onClick=${skip}>${words}</a>
    <header>
      <h1>agentrt studio</h1>
      <nav aria-label="Views">
        ${shownViews().map(([name, title]) => html`<button key=${name} type="button" data-view=${name} aria-current=${state.view === name ? "page" : null} onClick=${() => openView(name)}>
          ${title}${name === "inbox" && openQuestions() > 0 && html`<span class="badge">${openQuestions()}</span>`}
        </button>`)}
      </nav>
      <span class="grow"></span>
      <span id="status" role="status">${statusText()}</span>
      <label class="agent" hidden=${state.agents.length < 2}>Agent <select id="agent" onChange=${changeAgent}>
        ${state.agents.map((name) => html`<option key=${name} value=${name} selected=${name === state.agent}>${clean(name)}</option>`)}
      </select></label>
      ${state.isSignedIn && html`<button id="sign" type="button" onClick=${signOut}>Sign out</button>`}
      ${PANES[state.view] && html`<nav class="panes" aria-label="Parts of the view">
        ${PANES[state.view].map(([name, title]) => html`<button key=${name} type="button" data-show=${name} aria-pressed=${String(state.pane === name)} onClick=${() => set({ pane: name })}>${title}</button>`)}
      </nav>`}
    </header>
    ${state.problem && html`<div id="problem" role="alert">${clean(state.problem)}</div>`}
    ${View && html`<${Guard} key=${state.view}><${View} go=${go} openChat=${(session) => go({ session })} openRun=${(session, reply) => go({ run: session, reply })} /><//>`}`;
}

// A view that fails shows its error, and the others work on.
class Guard extends Component {
  componentDidCatch(error) {
    console.error(error);
    this.setState({ error });
  }

  render({ children }, { error }) {
    return error ? html`<main class="page"><p class="failed">This could not be shown: ${clean(error.message)}</p></main>` : children;
  }
}

// The address names the view, so it works in another tab, and so does the Back button.

export function go(parts, replaces = false) {
  const parameters = new URLSearchParams(parts);
  if (state.agent !== null) parameters.set("agent", state.agent);
  const address = `#${parameters}`;
  if (address !== location.hash) history[replaces ? "replaceState" : "pushState"](null, "", address);
  return guarded(() => show(new URLSearchParams(parts)))();
}

function openView(name) {
  if (name === "chat") return go({ session: chat.sessionId ?? newSession() });
  if (name === "compare" && runs.record) return go({ compare: runs.record.sessionId, reply: runs.record.replyId });
  return go({ view: name });
}

async function show(address) {
  const [session, run, compare, reply] = ["session", "run", "compare", "reply"].map((name) => address.get(name));
  if (session !== null) {
    set({ view: "chat", pane: "chat" });
    if (session !== chat.sessionId) await openSession(session);
    update(() => document.getElementById("input")?.focus());
  } else if (run !== null) {
    set({ view: "runs", pane: address.has("step") ? "step" : "run" });
    runs.rowId = address.get("step");
    await openRecord(run, reply);
    runs.rowId = address.get("step");
    // On a narrow screen the focus would stay on a hidden element.
    update(() => matchMedia("(max-width: 900px)").matches && document.querySelector(`.pane-${state.pane} button`)?.focus());
  } else if (compare !== null) {
    set({ view: "compare", isReplay: address.has("replay") });
    await openRecord(compare, reply);
    const [other, otherReply] = [address.get("with"), address.get("other")];
    if (runs.other?.key !== `${other}/${otherReply}`) {
      runs.other?.close();
      runs.other = null;
      if (other !== null) runs.other = await loadRecord(other, otherReply);
    }
    update();
  } else {
    const view = address.get("view");
    set({ view: VIEWS.some(([name]) => name === view) ? view : "runs", pane: "list", isReplay: false });
    if (view === "inbox") await listWaiting();
    if (view === "evaluate") await openReport(address.get("report"), address.get("with"));
  }
}

const changeAgent = guarded(async (event) => {
  // The open session does not belong to the other agent.
  chat.follower?.abort();
  chat.sessionId = null;
  runs.record?.close();
  Object.assign(runs, { record: null, other: null, list: [] });
  const { view } = state;
  await openAgent(event.target.value);
  await (view === "chat" ? openView("chat") : go({ view }));
});

async function openAgent(name) {
  state.agent = name;
  const { agents, chains, playground, reports, runs: servesRuns } = await call("chains");
  const observers = (chains.observers ?? []).flatMap((hook) => hook.observers);
  set({ agents, chains, playground, hasReports: reports, servesRuns, agent: name ?? agents[0], hasRuns: servesRuns && observers.some((layer) => layer.class === "RunRecorder") });
  await Promise.all([listSessions(), listRuns()]);
}

async function watch() {
  // Sessions of other clients, and questions of user agents.
  for (let turn = 0; ; turn += 1) {
    await sleep(PAUSE);
    if (document.hidden || isSigningIn()) continue;
    try {
      await readInputs();
      if (turn % 2) {
        await listWaiting();
        if (state.view !== "chat") {
          await listRuns("again");
          await refreshRecords();
        }
        if (state.view === "chat" && !chat.follower) await refresh();
        if (state.view === "chat" && areUnfinished(chat.sessionId)) await listTasks(chat.sessionId);
      }
      if (turn % 10 === 9) await listSessions();
    } catch (error) {
      setOffline(!(error instanceof Refused));
    }
  }
}

async function start() {
  drawWith(() => render(html`<${App} />`, document.getElementById("app")));
  addEventListener("offline", () => setOffline(true));
  addEventListener("popstate", () => guarded(() => show(new URLSearchParams(location.hash.slice(1))))());
  const address = new URLSearchParams(location.hash.slice(1));
  update();
  for (let pause = 500; ; pause = Math.min(pause * 2, 5000)) {
    try {
      await openAgent(address.get("agent"));
      break;
    } catch (error) {
      if (error instanceof Refused) {
        set({ problem: error.message });
        if (error.status === 404) address.delete("agent");
        else return;
      } else setOffline(true);
      await sleep(pause);
    }
  }
  set({ problem: null });
  const parts = Object.fromEntries(address);
  delete parts.agent;
  if (Object.keys(parts).length) await go(parts, true);
  else await go(runs.list.length ? { view: "runs" } : { session: newSession() }, true);
  watch();
}

start();
