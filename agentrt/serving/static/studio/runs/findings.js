// Findings about a run, by rules: each leads to its step.

import { count, duration, money } from "../text.js";

const MIN_REMOVED = 0.2; // of a text, for a layer to stand out
const FAR_ABOVE = 5; // times the median of the agent
const MIN_RUNS = 5;

export function findings(record, others) {
  const { timeline, page } = record;
  const rows = timeline.rows;
  const found = [...removedTexts(record, rows)];
  const add = (kind, row, name, text) => found.push({ kind, row, name, text });
  for (const row of rows) {
    for (const attempt of row.attempts) {
      if (attempt.error) add("bad", row, callName(row), `an attempt failed (${attempt.error})`);
    }
    if (row.isRetry) add("wait", row, row.name, `waited ${duration(row.end - row.start)}`);
    if (row.call && row.isFailed && row.end !== null) add("bad", row, row.name, row.note === "error" ? `failed: ${record.outputOf(row).slice(0, 200)}` : row.note);
    if (row.question) addWait(record, row, add);
    if (row.isFailed && row.kind === "reply") add("bad", row, "The reply", `ended as ${row.note}`);
    for (const layer of row.layers) {
      if (layer.decision === "deny" && layer.layer !== null) add("bad", row, layer.layer, `denied this call: ${layer.reason}`);
    }
  }
  for (const gap of timeline.gaps) add("bad", timeline.root, "The record", `is incomplete: ${gap.reason}${gap.count ? `, ${count(gap.count)} lines` : ""}`);
  const same = others.filter((other) => other.agent === page.agent && other.seconds !== null);
  if (same.length >= MIN_RUNS) {
    const cost = median(same.map((other) => other.cost ?? 0));
    const seconds = median(same.map((other) => other.seconds));
    if (cost > 0 && page.cost > FAR_ABOVE * cost) add("wait", timeline.root, "Cost", `${money(page.cost)} is ${Math.round(page.cost / cost)} times the median of this agent`);
    if (page.seconds > FAR_ABOVE * seconds) add("wait", timeline.root, "Time", `${duration(page.seconds * 1000)} is ${Math.round(page.seconds / seconds)} times the median of this agent`);
  }
  return found;
}

export const callName = (row) => (row.round ? `Model call ${row.round}` : row.name);

function addWait(record, row, add) {
  const name = row.question.tool_calls.map((call) => call.name).join(", ");
  const time = duration((row.end ?? record.timeline.newest) - row.start);
  if (row.end === null) add("wait", row, name, "is waiting for an answer");
  else if (row.question.type !== "REQUIRE_USER_CONFIRM") add("wait", row, name, `got its result after ${time}`);
  else add("wait", row, name, `${decisions(record, row).includes("denied") ? "was denied" : "was approved"} after ${time}`);
}

// The outcomes of the calls in a question; the id of a sub-agent's call has the ids of the calls around it.
export const decisions = (record, row) =>
  row.question.tool_calls.map(({ id }) => record.timeline.rows.find((other) => other.call?.id === id.split("/").at(-1) && other.start >= row.start)?.note ?? "");

// The layers that removed text: each layer once, with the number of model calls that it affected.
function* removedTexts(record, rows) {
  const byLayer = new Map();
  const seen = (layer, row, change) => {
    const { before, after } = change;
    if (before === null || (after !== null && after.length >= before.length * (1 - MIN_REMOVED))) return;
    if (!byLayer.has(layer)) byLayer.set(layer, { rows: new Set(), removed: 0, size: 0, where: "" });
    const notes = byLayer.get(layer);
    notes.rows.add(row);
    const removed = before.length - (after?.length ?? 0);
    if (removed > notes.removed) Object.assign(notes, { removed, size: before.length, where: change.at });
  };
  const models = rows.filter((row) => row.attempts.length);
  for (const row of models) {
    for (const attempt of row.attempts) {
      for (const change of record.changesOf(row.replyId, attempt.index)) seen(change.layer, row, change);
    }
  }
  for (const row of rows.filter((other) => other.call)) {
    for (const layer of record.layersOf(row)) for (const change of layer.found) seen(layer.layer, row, change);
  }
  for (const [layer, { rows: touched, removed, size, where }] of byLayer) {
    const [row] = touched;
    const calls = [...touched].filter((other) => other.attempts.length).length;
    const place = calls ? ` before ${calls} of ${models.length} model calls` : "";
    yield { kind: "layer", row, name: layer, text: `removed ${count(removed)} of ${count(size)} characters of ${where}${place}` };
  }
}

function median(numbers) {
  const sorted = [...numbers].sort((one, other) => one - other);
  return sorted[Math.floor(sorted.length / 2)];
}
