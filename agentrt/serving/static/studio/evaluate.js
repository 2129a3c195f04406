// Reports of evaluations: their list, and one of them with its figures, the worth of each layer, and the trials.

import { call } from "./server.js";
import { state, update } from "./store.js";
import { clean, count, duration, money, plural } from "./text.js";
import { useState } from "./vendor/htm-preact.js";
import { Folded, Plain, html } from "./widgets.js";

const FIRST_ROWS = 100; // of a long table

const reports = { list: [], page: null };

export async function openReport(name, other) {
  if (!state.hasReports) return;
  if (name === null) {
    reports.page = null;
    reports.list = (await call("reports")).reports;
  } else if (reports.page?.name !== name || (reports.page.comparison?.with ?? null) !== other) {
    reports.page = null;
    if (!reports.list.length) reports.list = (await call("reports")).reports;
    reports.page = await call(`reports/${encodeURIComponent(name)}`, { query: other === null ? {} : { with: other } });
  }
  update();
}

export function Evaluate({ go }) {
  const { list, page } = reports;
  if (page) return html`<main class="page evaluate" aria-label="Report" key=${page.name}><${Report} page=${page} go=${go} /></main>`;
  return html`<main class="page evaluate" aria-label="Reports">
    <h2>Reports of evaluations</h2>
    <ul class="items panel">${list.map(({ name, written_at: writtenAt, size }) => html`<li key=${name}>
      <button type="button" class="item" onClick=${() => go({ view: "evaluate", report: name })}>
        <span class="title">${clean(name)}</span><small>${new Date(writtenAt).toLocaleString()}, ${count(Math.ceil(size / 1000))} KB</small>
      </button></li>`)}
    </ul>
    ${!list.length && html`<p class="dim">${state.hasReports ? "The folder has no report yet." : "This server shows no reports."} <code>agentrt eval cases.py --json FOLDER/name.json</code> writes one, and <code>create_app(agent, reports=FOLDER)</code> shows it.</p>`}
  </main>`;
}

// A file may hold anything in the place of a number.
const figure = (value) => Number(value).toFixed(3);
const signed = (value) => `${value > 0 ? "+" : ""}${figure(value)}`;
const range = ([low, high]) => `[${figure(low)}, ${figure(high)}]`;
const percent = (value) => `${Math.round(100 * value)} %`;

function Report({ page, go }) {
  const failed = page.trials.filter((trial) => !trial.passed);
  const most = page.estimates.at(-1);
  const against = (event) => go({ view: "evaluate", report: page.name, ...(event.target.value && { with: event.target.value }) });
  const { agents, judges, users } = page.spending;
  return html`
    <div class="row">
      <button type="button" onClick=${() => go({ view: "evaluate" })}>‹ Reports</button>
      <h2 class="grow">${clean(page.title)} <span class="dim">${clean(page.name)}</span></h2>
      <label class="row dim">Compare with <select aria-label="Compare with" onChange=${against}>
        <option value="" selected=${!page.comparison}>no other report</option>
        ${reports.list.filter(({ name }) => name !== page.name).map(({ name }) => html`<option key=${name} value=${name} selected=${page.comparison?.with === name}>${clean(name)}</option>`)}
      </select></label>
    </div>
    <div class="row chips">
      ${[
        ["passed ", `${figure(page.quality)} ${range(page.interval)}`],
        ["", `${plural(page.cases.length, "case")} × ${count(page.repeats)}`],
        most.k > 1 && [`pass@${most.k} `, figure(most.pass_at)],
        most.k > 1 && [`pass^${most.k} `, figure(most.pass_hat)],
        ["", plural(failed.length, "failed trial")],
        ["agents ", spent(agents)],
        judges.input_tokens > 0 && ["judges ", spent(judges)],
        users.input_tokens > 0 && ["simulated users ", spent(users)],
        ["", `${duration(page.seconds * 1000)} a trial`],
      ].filter(Boolean).map(([name, value]) => html`<span class="chip">${name}<b>${value}</b></span>`)}
    </div>
    ${page.comparison && html`<${Comparison} comparison=${page.comparison} />`}
    <${Quality} page=${page} />
    ${page.ablation.length > 0 && html`<${Layers} page=${page} most=${most} />`}
    <${Trials} title="Failed trials" trials=${failed} go=${go} />
    <${Cases} cases=${page.cases} />
    <${Trials} title="Passed trials" trials=${page.trials.filter((trial) => trial.passed)} go=${go} />`;
}

const spent = ({ input_tokens: input, output_tokens: output, cost }) => `${count(input + output)} tokens, ${cost === null ? "cost unknown" : money(cost)}`;

function Comparison({ comparison }) {
  const { better, worse, same, missing, p } = comparison;
  const kinds = [["worse", worse], ["better", better], ["same", same], ["in one of them only", missing]];
  return html`<div class="panel side comparison">
    <p>Against <b>${clean(comparison.with)}</b>: ${kinds.filter(([, names]) => names.length).map(([kind, names]) => `${count(names.length)} ${kind}`).join(", ")}, p = ${figure(p)}</p>
    ${kinds.filter(([kind, names]) => kind !== "same" && names.length).map(([kind, names]) => html`<p class="note" key=${kind}><b>${kind}:</b> ${clean(names.slice(0, FIRST_ROWS).join(", "))}${names.length > FIRST_ROWS && ", ..."}</p>`)}
  </div>`;
}

// A bar from zero to the value, and a line over its interval.
function Bar({ value, interval, reach, isSigned = false, label }) {
  const from = isSigned ? -reach : 0;
  const at = (number) => (200 * (Math.min(Math.max(Number(number) || 0, from), reach) - from)) / (reach - from);
  const [zero, end, low, high] = [0, value, ...interval].map(at);
  return html`<svg class=${`whisker${value < 0 ? " bad" : ""}`} viewBox="-2 0 204 16" role="img" aria-label=${clean(label)}>
    <rect class="mean" x=${Math.min(zero, end)} y="3" width=${Math.abs(end - zero)} height="10" />
    <path class="zero" d=${`M${zero} 0V16`} /><path class="interval" d=${`M${low} 8H${high}M${low} 5V11M${high} 5V11`} />
  </svg>`;
}

function Quality({ page }) {
  const groups = [{ name: "all", cases: page.cases.length, quality: page.quality, interval: page.interval }, ...page.evaluators, ...page.labels];
  return html`<div class="panel wide"><table class="numbers quality">
    <thead><tr><th>share of passes</th><th></th><th>passed</th><th>95 %</th><th>score</th><th>cases</th></tr></thead>
    <tbody><${Rows} rows=${groups} columns="6" draw=${(group, index) => html`<tr key=${index}>
      <td>${clean(group.name)}</td><td><${Bar} value=${group.quality} interval=${group.interval} reach=${1} label=${`${figure(group.quality)} of ${group.name}`} /></td>
      <td>${figure(group.quality)}</td><td>${range(group.interval)}</td><td>${group.score === undefined ? "" : figure(group.score)}</td><td>${count(group.cases)}</td>
    </tr>`} /></tbody>
  </table>
  ${page.estimates.length > 1 && html`<table class="numbers">
    <thead><tr><th>k</th><th>pass@k, one of k tries passes</th><th>pass^k, all of them pass</th></tr></thead>
    <tbody>${page.estimates.map(({ k, pass_at: at, pass_hat: hat }) => html`<tr key=${k}><td>${k}</td><td>${figure(at)}</td><td>${figure(hat)}</td></tr>`)}</tbody>
  </table>`}</div>`;
}

function Layers({ page, most }) {
  const known = page.ablation.filter(({ error }) => error === null);
  // The same to both sides of zero, and not so near that chance looks large.
  const reach = Math.max(0.1, ...known.flatMap(({ interval }) => interval.map((end) => Math.abs(end) || 0)));
  return html`<div class="panel wide"><table class="numbers layers">
    <thead><tr><th>without</th><th></th><th>pass@1</th><th>worth of the layer, 95 %</th><th>pass^${count(page.repeats)}</th><th>p</th><th>share of cost</th><th>seconds</th></tr></thead>
    <tbody>
      <tr><td class="dim">(nothing)</td><td></td><td>${figure(page.quality)}</td><td></td><td>${figure(most.pass_hat)}</td><td></td><td></td><td></td></tr>
      ${page.ablation.map((row, index) => row.error !== null
        ? html`<tr key=${index}><td>${clean(row.layer)}</td><td colspan="7" class="dim">${clean(row.error)}</td></tr>`
        : html`<tr key=${index}>
          <td>${clean(row.layer)}</td><td><${Bar} value=${row.change} interval=${row.interval} reach=${reach} isSigned=${true} label=${`worth of ${row.layer}: ${signed(row.change)}`} /></td>
          <td>${figure(row.quality)}</td><td>${signed(row.change)} ${range(row.interval)}</td><td>${figure(row.pass_hat)}</td><td>${figure(row.p)}</td><td>${percent(row.cost_share)}</td><td>${signed(row.seconds)}</td>
        </tr>`)}
    </tbody>
  </table></div>`;
}

// The first rows of many, and more on request.
function Rows({ rows, columns, draw }) {
  const [limit, setLimit] = useState(FIRST_ROWS);
  const hidden = rows.length - limit;
  return html`${rows.slice(0, limit).map(draw)}
    ${hidden > 0 && html`<tr key="more"><td colspan=${columns}><button type="button" onClick=${() => setLimit(limit + 5 * FIRST_ROWS)}>Show more: ${count(hidden)} are hidden</button></td></tr>`}`;
}

function Cases({ cases }) {
  const share = ({ passed }) => passed.filter(Boolean).length / passed.length;
  const ordered = cases.toSorted((one, other) => share(one) - share(other));
  return html`<div class="panel wide"><table class="numbers cases">
    <thead><tr><th>case</th><th></th><th>passed</th><th>95 %</th></tr></thead>
    <tbody><${Rows} rows=${ordered} columns="4" draw=${(found) => html`<tr key=${found.name}>
      <td>${clean(found.name)}</td><td><${Bar} value=${share(found)} interval=${found.interval} reach=${1} label=${`${percent(share(found))} of ${found.name}`} /></td>
      <td>${count(found.passed.filter(Boolean).length)} of ${count(found.passed.length)}</td><td>${range(found.interval)}</td>
    </tr>`} /></tbody>
  </table></div>`;
}

function Trials({ title, trials, go }) {
  const [limit, setLimit] = useState(FIRST_ROWS);
  if (!trials.length) return null;
  return html`<div class="panel side trials"><p class="caption">${title}</p>
    ${trials.slice(0, limit).map((trial) => html`<${Trial} key=${`${trial.case} ${trial.repeat}`} trial=${trial} go=${go} />`)}
    ${trials.length > limit && html`<button type="button" onClick=${() => setLimit(limit + FIRST_ROWS)}>Show more: ${count(trials.length - limit)} are hidden</button>`}
  </div>`;
}

function Trial({ trial, go }) {
  const { error, verdicts, answer, runs } = trial;
  const wrong = Object.entries(verdicts).filter(([, verdict]) => !verdict.passed).map(([name]) => name);
  const why = error ? `${error.where}: ${error.type}` : wrong.join(", ");
  return html`<${Folded} id=${`trial:${reports.page.name}:${trial.case}:${trial.repeat}`} isFailed=${!trial.passed} title=${clean(`${trial.case}, try ${trial.repeat + 1}${why && `: ${why}`}`)}>
    ${error && html`<p class="failed">${clean(`${error.where}: ${error.type}: ${error.text}`)}</p>`}
    ${answer ? html`<${Plain} source=${answer} look="markdown" />` : html`<p class="dim">No answer.</p>`}
    <table><tbody>${Object.entries(verdicts).map(([name, verdict]) => html`<tr key=${name}>
      <td>${clean(name)}</td><td class=${verdict.passed ? "" : "failed"}>${verdict.passed ? "passed" : "failed"}</td><td>${figure(verdict.score)}</td><td>${clean(verdict.reason)}</td>
    </tr>`)}</tbody></table>
    ${runs.map(([run, reply], index) => html`<button type="button" key=${reply} onClick=${() => go({ run, reply })}>Look into the run${runs.length > 1 ? ` of turn ${index + 1}` : ""}</button>`)}
  <//>`;
}
