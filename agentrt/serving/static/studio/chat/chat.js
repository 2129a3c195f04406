// The chat: sessions, messages as they arrive, questions, and the time line and layers of a reply.

import { randomId } from "../server.js";
import { Tasks } from "../runs/tasks.js";
import { Waterfall } from "../runs/waterfall.js";
import { flash, guarded, set, state, update } from "../store.js";
import { clean, duration, usageText } from "../text.js";
import { Component, useRef } from "../vendor/htm-preact.js";
import { Still, html, open } from "../widgets.js";
import { Blocks, Body } from "./blocks.js";
import { InputCard, QuestionCard, board } from "./forms.js";
import { answer, chat, exportSession, forkAt, inspect, interrupt, listSessions, refresh, removeSession, send, toBottom } from "./session.js";

export const newSession = () => `studio-${randomId()}`;

export function statusText() {
  if (state.isOffline) return "Connection lost, trying again";
  if (state.view !== "chat") return "";
  if (chat.follower) return "Working";
  if (chat.session?.waiting) return "Waiting for you";
  return chat.session?.status === "running" ? "Queued" : "";
}

export function Chat({ go, openChat, openRun }) {
  return html`<main class="three chat" data-pane=${state.pane}>
    <${Sessions} openChat=${openChat} />
    <${Conversation} go=${go} openChat=${openChat} openRun=${openRun} />
    <${Inspection} />
  </main>`;
}

function Sessions({ openChat }) {
  const typing = useRef();
  const search = (event) => {
    chat.words = event.target.value;
    update();
    clearTimeout(typing.current);
    typing.current = setTimeout(guarded(() => listSessions()), 300);
  };
  const words = chat.words.trim().toLowerCase();
  const found = chat.sessions
    .filter((session) => session.session_id.toLowerCase().includes(words))
    .sort((one, other) => (one.updated_at < other.updated_at ? 1 : -1));
  return html`<section id="sessions" class="pane-sessions" aria-label="Sessions">
    <div class="row">
      <input id="search" class="search" type="search" placeholder="Search sessions" aria-label="Search sessions" value=${chat.words} onInput=${search} />
      <button id="new" type="button" onClick=${() => openChat(newSession())}>New</button>
    </div>
    <ul id="list" class="items">
      ${found.map(
        ({ session_id: id, status, messages, updated_at: updated }) => html`<li key=${id}>
          <button type="button" class="item" aria-current=${String(id === chat.sessionId)} onClick=${() => openChat(id)}>
            ${clean(id)}<small>${messages} messages, ${status}, ${new Date(updated).toLocaleString()}</small>
          </button>
        </li>`,
      )}
    </ul>
    ${chat.cursor && html`<button id="more" type="button" onClick=${guarded(() => listSessions(true))}>More sessions</button>`}
  </section>`;
}

class Conversation extends Component {
  componentDidUpdate() {
    if (chat.sticks && this.messages) this.messages.scrollTop = this.messages.scrollHeight;
  }

  componentDidMount() {
    this.componentDidUpdate();
  }

  render({ go, openChat, openRun }) {
    const { session, live, follower } = chat;
    const messages = session?.messages ?? [];
    const first = (session?.messages_in_all ?? 0) - messages.length;
    const question = follower ? null : session?.waiting;
    const remove = guarded(async () => {
      if (!confirm(`Delete the session ${chat.sessionId}?`)) return;
      await removeSession();
      openChat(newSession());
    });
    const earlier = guarded(() => {
      chat.last *= 10;
      return refresh(true);
    });
    const noteScroll = ({ currentTarget }) => {
      chat.sticks = currentTarget.scrollHeight - currentTarget.scrollTop - currentTarget.clientHeight < 60;
    };
    const fork = (count) => guarded(async () => openChat(await forkAt(count)));
    const sendAnswer = async (event) => {
      await answer({ ...event, session_id: chat.sessionId });
      document.getElementById("input")?.focus();
    };
    return html`<section id="chat" class="pane-chat" aria-label="Chat">
      <div class="row bar">
        <h2 id="title">${clean(chat.sessionId ?? "")}</h2>
        <span id="usage" class="note">${sessionUsage(session, messages, first)}</span>
        <button id="export" type="button" onClick=${guarded(exportSession)}>Export</button>
        <button id="delete" type="button" onClick=${remove}>Delete</button>
      </div>
      <div id="messages" tabindex="-1" ref=${(element) => (this.messages = element)} onScroll=${noteScroll}>
        ${first > 0 && html`<button id="earlier" type="button" onClick=${earlier}>Earlier messages</button>`}
        <div id="log">
          ${messages.map(
            (message, index) => html`<${Message} key=${message.id} message=${message} index=${first + index}
              children_=${chat.kept.get(message.id)} onFork=${fork(first + index + 1)} onRun=${state.hasRuns && openRun} />`,
          )}
        </div>
        <div id="live">
          ${chat.mine !== null && html`<article class="message user" key="mine"><div class="meta"><b>user</b></div><div class="body"><div class="text">${clean(chat.mine)}</div></div></article>`}
          ${live && html`<${LiveMessage} key=${live.id} live=${live} version=${live.blocks.version} onRun=${state.hasRuns && openRun} />`}
        </div>
        <div id="questions" aria-live="polite">
          ${question && html`<${QuestionCard} question=${question} mayEdit=${session.allow_edited_input} onAnswer=${sendAnswer} />`}
          ${board.inputs.map((input) => html`<${InputCard} key=${input.input_id} input=${input} />`)}
        </div>
      </div>
      <${Tasks} session=${chat.sessionId} go=${go} />
      <${Composer} />
    </section>`;
  }
}

function sessionUsage(session, messages, first) {
  const sum = { input_tokens: 0, output_tokens: 0, cache_input_tokens: 0 };
  for (const { usage } of messages) for (const name of Object.keys(sum)) sum[name] += usage?.[name] ?? 0;
  const cost = session?.cost ? `, cost ${session.cost.toPrecision(3)}` : "";
  return sum.input_tokens ? `${usageText(sum)} in ${first > 0 ? "these messages" : "all"}${cost}` : "";
}

function Head({ message, onFork, onRun }) {
  const isReply = message.role === "assistant" && message.id;
  return html`<div class="meta">
    <b>${clean(message.name ?? message.role)}</b>
    ${message.created_at && html`<span>${new Date(message.created_at).toLocaleTimeString()}</span>`}
    ${message.finished_reason && message.finished_reason !== "completed" && html`<span class="failed">${message.finished_reason}</span>`}
    ${message.error && html`<span class="failed">${clean(message.error)}</span>`}
    <span>${usageText(message.usage)}</span>
    ${isReply && html`<button type="button" onClick=${() => showTimes(message.id)}>Times</button>`}
    ${isReply && onRun && html`<button type="button" onClick=${() => onRun(chat.sessionId, message.id)}>Open the run</button>`}
    ${onFork && html`<button type="button" title="Start another session with the messages up to here" onClick=${onFork}>Fork here</button>`}
  </div>`;
}

class Message extends Still {
  render({ message, children_, onFork, onRun }) {
    if (this.message !== message || this.children !== children_) {
      Object.assign(this, { message, children: children_, blocks: new Blocks() });
      const content = typeof message.content === "string" ? [{ type: "text", text: message.content, id: message.id }] : message.content;
      this.blocks.showAll(content, children_?.filter((child) => child.parent === message.id));
    }
    const isUser = message.role === "user";
    return html`<article class=${`message ${isUser ? "user" : "assistant"}`} data-id=${message.id} tabindex="-1">
      <${Head} message=${message} onFork=${onFork} onRun=${onRun} />
      <${Body} blocks=${this.blocks} version=${this.blocks.version} isUser=${isUser} onTimes=${(key) => showTimes(message.id, key)} />
    </article>`;
  }
}

function LiveMessage({ live, onRun }) {
  return html`<article class="message assistant" data-id=${live.id} tabindex="-1">
    <${Head} message=${{ ...live.end, id: live.id, role: "assistant", name: state.agent, created_at: null }} onRun=${onRun} />
    <${Body} blocks=${live.blocks} version=${live.blocks.version} onTimes=${(key) => showTimes(live.id, key)} />
  </article>`;
}

function Composer() {
  const form = useRef();
  const submit = async (event) => {
    event.preventDefault();
    const [input, button] = form.current.elements;
    const text = input.value;
    if (!text.trim() || button.disabled) return;
    button.disabled = true;
    await guarded(async () => {
      await send(text);
      if (input.value === text) input.value = "";
    })();
    button.disabled = false;
  };
  const press = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.current.requestSubmit();
  };
  const canInterrupt = chat.live && (chat.follower || chat.session?.waiting);
  return html`<form id="composer" ref=${form} onSubmit=${submit}>
    <textarea id="input" rows="2" aria-label="Message" placeholder="Message, sent with Enter" onKeyDown=${press}></textarea>
    <button id="send" class="primary" type="submit">Send</button>
    <button id="interrupt" type="button" hidden=${!canInterrupt} onClick=${guarded(interrupt)}>Interrupt</button>
  </form>`;
}

// From a message to its time line, and back.

const showTimes = (replyId, key = null) =>
  guarded(async () => {
    await inspect(replyId);
    const row = chat.inspected.byKey.get(key) ?? chat.inspected.root;
    set({ pane: "inspect" });
    update(() => {
      const button = [...document.querySelectorAll("#waterfall button")].find((found) => found.dataset.row === row?.id);
      if (button) flash(button);
    });
  })();

function showBlock(row) {
  if (row.target) open(row.target);
  set({ pane: "chat" });
  update(() => {
    const messages = document.getElementById("messages");
    const block = row.target && messages.querySelector(`.block[data-key="${CSS.escape(row.target)}"]`);
    const message = [...messages.querySelectorAll(".message")].find((element) => element.dataset.id === chat.inspected?.replyId);
    const found = block || message;
    if (!found) return;
    chat.sticks = false;
    const details = found.closest("details");
    if (details) details.open = true;
    const own = block?.querySelector("details");
    if (own) own.open = true;
    flash(found);
  });
}

function Inspection() {
  const { inspected, live, follower } = chat;
  const isLive = follower !== null && live?.timeline === inspected;
  const note = !inspected ? "The newest reply is shown here, or another one by its Times button." : inspected.isKept ? "" : "The server no longer has the earlier events of this reply.";
  return html`<section id="inspect" class="pane-inspect" aria-label="Inspect">
    <h2>Time line</h2>
    <p class="note">${note}</p>
    <${Waterfall} id="waterfall" timeline=${inspected} isLive=${isLive} onPick=${showBlock} />
    <h2>Layers</h2>
    <p class="note">${chat.hasProbe ? "" : "To measure times, add LayerTimes, from agentrt.probe, to the middlewares of the agent."}</p>
    <div id="layers"><${Chains} /></div>
  </section>`;
}

function Chains() {
  const all = state.chains?.hooks ?? [];
  const times = new Map(chat.layers.map((layer) => [`${layer.hook} ${layer.place}`, layer]));
  const without = all.filter((hook) => !hook.layers.length).map((hook) => hook.hook);
  return html`
    ${all.filter((hook) => hook.layers.length).map(
      (hook) => html`<div class="hook" key=${hook.hook}>
        <h3 title=${hook.wraps}>${hook.hook}</h3>
        <div class="layer head"><span>${hook.wraps}</span><span class="time">own</span><span class="time">total</span></div>
        ${[...hook.layers.map((layer) => layer.key), null].map((name, place) => {
          const time = times.get(`${hook.hook} ${place}`);
          const kind = !time ? "" : time.active ? " passed active" : " passed";
          return html`<div class=${`layer${kind}`} data-hook=${hook.hook} data-layer=${name ?? ""} title=${hook.layers[place]?.where ?? hook.core}>
            <span>${clean(`${name ?? "core"}${time ? ` ×${time.calls}` : ""}${time?.outcome === "raised" ? ", failed" : ""}`)}</span>
            <span class="time">${time ? duration(time.own_ms) : ""}</span>
            <span class="time">${time ? duration(time.total_ms) : ""}</span>
          </div>`;
        })}
      </div>`,
    )}
    <p class="note">${without.length ? `Without layers: ${without.join(", ")}.` : ""}</p>`;
}
