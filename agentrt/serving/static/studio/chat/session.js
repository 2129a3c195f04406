// The open session of the chat, and the reply that it follows.

import { Refused, call, randomId, readEvents, request, sessionPath, sleep } from "../server.js";
import { listTasks } from "../runs/tasks.js";
import { Timeline } from "../runs/timeline.js";
import { guarded, set, setOffline, state, update } from "../store.js";
import { Live } from "./live.js";

const PAGE = 100; // messages at first
const MAX_KEPT_REPLIES = 50; // whose sub-agents are shown below their messages

export const chat = {
  session: null, // from the server
  isStored: false, // whether the server has it
  sessionId: null,
  etag: null,
  last: PAGE,
  cursor: null,
  sessions: [],
  words: "", // the search for sessions
  live: null, // the reply that runs or waits
  mine: null, // the message that was sent, until the session has it
  follower: null, // the AbortController of the stream
  inspected: null, // the shown time line
  layers: [], // the times of the layers of that reply
  hasProbe: true,
  pending: null, // a sent message without a response
  kept: new Map(), // sub-agents, by the reply that called them
  sticks: true, // to the bottom, until the reader scrolls up; not measured at each event, which would cost a layout
};

export function toBottom() {
  chat.sticks = true;
  update();
}

export async function refresh(force = false) {
  const id = chat.sessionId;
  if (id === null) return;
  if (!chat.isStored) {
    // From the list: a request for an unknown session would fail.
    const { sessions } = await call("sessions", { query: { prefix: id, limit: 1 } });
    chat.isStored = sessions[0]?.session_id === id;
    if (!chat.isStored) return update();
  }
  const session = await call(sessionPath(id), {
    query: { last: chat.last },
    headers: chat.etag && !force ? { "If-None-Match": chat.etag } : {},
  });
  if (session === null || id !== chat.sessionId) return;
  listTasks(id).catch(() => {}); // it may have let calls go, or been woken by one
  keepMessages(session.messages);
  chat.session = session;
  chat.etag = session.etag ?? null;
  // The session has the sent message by now.
  chat.mine = null;
  if (chat.live && !chat.follower && session.reply?.id !== chat.live.id && !failedUnseen(session.messages)) chat.live = null;
  update();
  if (session.reply && !chat.follower && (session.reply.id !== chat.live?.id || session.status === "running")) follow(session.reply.id);
}

// A reply that failed before its first word is not a message of the session.
const failedUnseen = (messages) => !["completed", undefined].includes(chat.live.end?.finished_reason) && !messages.some((message) => message.id === chat.live.id);

// Unchanged messages stay the same objects, which are not drawn again.
function keepMessages(messages) {
  const known = new Map((chat.session?.messages ?? []).map((message) => [message.id, message]));
  messages.forEach((message, index) => {
    const before = known.get(message.id);
    sources.set(message, JSON.stringify(message));
    if (before && sources.get(before) === sources.get(message)) messages[index] = before;
  });
}

const sources = new WeakMap();

export async function openSession(id) {
  chat.follower?.abort();
  Object.assign(chat, { sessionId: id, isStored: false, session: null, etag: null, last: PAGE, live: null, mine: null, follower: null, inspected: null, layers: [], hasProbe: true });
  set({ problem: null });
  await guarded(() => refresh(true))();
  toBottom();
}

export async function follow(replyId) {
  if (chat.follower && chat.live?.id === replyId) return;
  chat.follower?.abort();
  const controller = (chat.follower = new AbortController());
  const sessionId = chat.sessionId;
  if (chat.live?.id !== replyId) chat.live = new Live(replyId);
  const { live } = chat;
  chat.inspected = live.timeline;
  update();
  const clock = setInterval(() => {
    update();
    readLayers(replyId).catch(() => {});
  }, 400);
  let pause = 250;
  let isDone = false;
  try {
    while (!isDone && !controller.signal.aborted) {
      try {
        const response = await request(`replies/${encodeURIComponent(replyId)}/events`, {
          query: { session: sessionId },
          headers: live.seq ? { "Last-Event-ID": String(live.seq) } : {},
          signal: controller.signal,
        });
        if (response.status === 404 || response.status === 400) break;
        if (!response.ok) throw new Error("try again");
        setOffline(false);
        for await (const { event, data } of readEvents(response)) {
          pause = 250;
          if (event === "done") {
            isDone = true;
            break;
          }
          try {
            const applied = JSON.parse(data);
            live.apply(applied);
            if (applied.type === "TASK_STARTED") listTasks(sessionId).catch(() => {});
          } catch (error) {
            state.problem = `An event could not be shown: ${error.message}`; // and the next ones can
          }
          update();
        }
      } catch {
        if (controller.signal.aborted) return;
        setOffline(true);
      }
      if (!isDone) {
        // Sooner, if the browser reports that the network is back.
        await Promise.race([sleep(pause), new Promise((resolve) => addEventListener("online", resolve, { once: true }))]);
        pause = Math.min(pause * 2, 5000);
      }
    }
  } finally {
    clearInterval(clock);
    if (chat.follower === controller) chat.follower = null;
    if (live.children.length) chat.kept.set(replyId, live.children);
    if (chat.kept.size > MAX_KEPT_REPLIES) chat.kept.delete(chat.kept.keys().next().value);
  }
  if (controller.signal.aborted || chat.sessionId !== sessionId) return;
  await guarded(() => refresh(true))();
  update();
  await Promise.allSettled([readLayers(replyId), listSessions()]);
}

export async function send(text) {
  const { sessionId } = chat;
  // The same key for the same message, so that a delivered one is not sent twice.
  if (chat.pending?.text !== text || chat.pending.sessionId !== sessionId) chat.pending = { text, sessionId, key: randomId() };
  const { reply_id: replyId } = await call(sessionPath(sessionId, "/replies"), {
    method: "POST",
    body: { input: text },
    headers: { "Idempotency-Key": chat.pending.key },
  });
  chat.pending = null;
  chat.mine = text;
  chat.live = new Live(replyId);
  toBottom();
  follow(replyId);
  listSessions().catch(() => {});
}

export async function interrupt() {
  if (!chat.live) return;
  await call(`replies/${encodeURIComponent(chat.live.id)}/interrupt`, { method: "POST", query: { session: chat.sessionId } });
  if (!chat.follower) await refresh(true);
}

export async function answer(event) {
  const { reply_id: replyId } = await call(sessionPath(chat.sessionId, "/replies"), { method: "POST", body: { answer: event } });
  if (chat.session) chat.session.waiting = null;
  chat.etag = null;
  follow(replyId);
}

export async function forkAt(count) {
  const { session_id: id } = await call(sessionPath(chat.sessionId, "/fork"), { method: "POST", body: { messages: count } });
  await listSessions();
  return id;
}

export async function removeSession() {
  await call(sessionPath(chat.sessionId), { method: "DELETE" });
  await listSessions();
}

export async function exportSession() {
  const session = await call(sessionPath(chat.sessionId), { query: { last: chat.session?.messages_in_all ?? PAGE } });
  const content = JSON.stringify({ agent: state.agent, session, chains: state.chains }, null, 2);
  const url = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  const link = document.createElement("a");
  Object.assign(link, { href: url, download: `${chat.sessionId.replace(/[^\w.-]+/g, "_")}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export async function listSessions(append = false) {
  const words = chat.words.trim();
  const query = { limit: 100 };
  if (append && chat.cursor) query.cursor = chat.cursor;
  const page = await call("sessions", { query });
  let found = append ? [...chat.sessions, ...page.sessions] : page.sessions;
  // The server searches by the start of ids; the rest is searched here.
  if (words) {
    const { sessions } = await call("sessions", { query: { limit: 100, prefix: words } });
    const known = new Set(found.map((session) => session.session_id));
    found = [...found, ...sessions.filter((session) => !known.has(session.session_id))];
  }
  Object.assign(chat, { sessions: found, cursor: page.cursor });
  update();
}

// The time line of a reply, and the measured times of its layers.

export async function inspect(replyId) {
  if (chat.inspected?.replyId !== replyId) chat.inspected = chat.live?.id === replyId ? chat.live.timeline : await loadTimeline(replyId);
  await readLayers(replyId);
}

async function loadTimeline(replyId) {
  const timeline = new Timeline(replyId);
  const response = await request(`replies/${encodeURIComponent(replyId)}/events`, { query: { session: chat.sessionId } });
  if (!response.ok) throw new Refused(response.status, (await response.json().catch(() => ({}))).error);
  for await (const { event, data } of readEvents(response)) {
    if (event === "done") break;
    timeline.apply(JSON.parse(data));
  }
  return timeline;
}

async function readLayers(replyId) {
  const { probe, layers } = await call(`replies/${encodeURIComponent(replyId)}/layers`, { query: { session: chat.sessionId } });
  if (chat.inspected?.replyId !== replyId) return;
  Object.assign(chat, { layers, hasProbe: probe });
  update();
}
