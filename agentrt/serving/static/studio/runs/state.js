// The list of runs, the open run, and the changes with which it runs again.

import { call, sessionPath, sleep } from "../server.js";
import { state, update } from "../store.js";
import { Record } from "./record.js";
import { areUnfinished, listTasks } from "./tasks.js";

const PAGE = 100;
const MAX_TRIES = 30;

export const runs = {
  list: [],
  cursor: null,
  words: "",
  status: "",
  tool: "",
  layer: "",
  label: "",
  record: null, // the open run
  rowId: null, // its selected step
  tab: "",
  showsLayers: false,
  other: null, // the run that it is compared with
  fresh: null, // the key of a fork that has just started
  replay: null, // the result of a replay
  waiting: [], // questions in all sessions
  seenTasks: new Set(), // the background calls of the open run that were listed
  off: new Set(), // layers to leave out when a run runs again
};

export const rowOf = (record, id) => record?.timeline.rows.find((row) => row.id === id) ?? null;

const key = (run) => `${run.session_id}/${run.reply_id}`;

// `mode` is "new" for another search, "more" for its next page, and "again" for what is new in it.
export async function listRuns(mode = "new") {
  if (!state.servesRuns) return;
  const query = { limit: PAGE };
  for (const [name, value] of Object.entries({ text: runs.words.trim(), status: runs.status, tool: runs.tool.trim(), layer: runs.layer.trim() })) if (value) query[name] = value;
  if (runs.label.includes(":")) query.label = runs.label;
  if (mode === "more" && runs.cursor) query.cursor = runs.cursor;
  const asked = JSON.stringify(query);
  const page = await call("runs", { query });
  const found = new Set(page.runs.map(key));
  const others = runs.list.filter((run) => !found.has(key(run)));
  if (mode === "more") runs.list = [...others, ...page.runs];
  // Earlier pages stay, below new runs.
  else runs.list = mode === "again" && runs.asked === asked && page.cursor ? [...page.runs, ...others] : page.runs;
  if (mode !== "again" || runs.asked !== asked || !page.cursor) runs.cursor = page.cursor;
  if (mode !== "more") runs.asked = asked;
  state.hasRuns ||= runs.list.length > 0;
  update();
}

export async function listWaiting() {
  const { waiting } = await call("waiting");
  runs.waiting = waiting;
  update();
}

export async function answerQuestion(session, event) {
  await call(sessionPath(session, "/replies"), { method: "POST", body: { answer: { ...event, session_id: session } } });
  await dropQuestion(session);
}

export function dropQuestion(session) {
  runs.waiting = runs.waiting.filter((found) => found.session_id !== session);
  return listWaiting();
}

export async function loadRecord(sessionId, replyId) {
  const record = new Record(sessionId, replyId);
  // A fork that has just started may not be written yet, and a request for it would fail.
  for (let tries = 0; runs.fresh === record.key && tries < MAX_TRIES; tries += 1) {
    const page = await call("runs", { query: { limit: PAGE } });
    if (page.runs.some((run) => key(run) === record.key)) runs.fresh = null;
    else await sleep(300);
  }
  await record.load();
  if (record.page.status === "running") record.follow();
  return record;
}

export async function openRecord(sessionId, replyId) {
  if (runs.record?.key === `${sessionId}/${replyId}`) return;
  runs.record?.close();
  Object.assign(runs, { record: null, rowId: null, tab: "", replay: null });
  runs.off.clear();
  runs.record = await loadRecord(sessionId, replyId);
  if (runs.record.tasks.size) await listTasks(runs.record.taskSession);
  update();
}

// A waiting run continues after an answer, here or elsewhere.
export async function refreshRecords() {
  for (const record of [runs.record, runs.other]) {
    const listed = record?.page && !record.isLive && runs.list.find((run) => key(run) === record.key);
    if (!listed || (listed.status === record.page.status && listed.lines === record.page.lines)) continue;
    await record.load();
    if (record.page.status === "running") record.follow();
  }
  const { record } = runs;
  if (!record?.page || !record.tasks.size) return;
  const isNew = [...record.tasks].some((id) => !runs.seenTasks.has(id));
  if (!isNew && !areUnfinished(record.taskSession)) return;
  runs.seenTasks = new Set(record.tasks);
  // Their tokens and cost are part of the run.
  if ((await listTasks(record.taskSession)) && !record.isLive) await record.load();
}
