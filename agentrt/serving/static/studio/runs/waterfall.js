// The time line as rows with bars.

import { clean, duration } from "../text.js";
import { Still, html } from "../widgets.js";

const MAX_ROWS = 20_000;
const ICONS = { reply: "R", model: "M", tool: "T", agent: "A", wait: "…" };

// While a reply runs, the scale grows in steps: a step draws all rows; between steps only unfinished rows are drawn.
const STEP = 1.25;
const stepped = (span) => STEP ** Math.ceil(Math.log(span) / Math.log(STEP));

const bar = (start, end, { origin, span, now }) => ({ left: `${((start - origin) / span) * 100}%`, width: `${(((end ?? now) - start) / span) * 100}%` });

class Row extends Still {
  render({ row, origin, span, now, isCurrent, isReached, layers, mark, onPick }) {
    const scale = { origin, span, now };
    const kinds = `${row.kind}${row.isFailed ? " failed" : ""}${row.depth ? " inner" : ""}`;
    const tries = row.attempts.length;
    const bars = tries > 1 ? row.attempts : [row];
    const changed = row.layers.some((layer) => layer.changes);
    return html`<li class=${kinds} style=${{ "--depth": row.depth }}>
      <button type="button" aria-current=${String(isCurrent)} title=${clean(`${row.name} ${row.note}`)} data-row=${row.id} tabindex=${isReached ? "0" : "-1"} onClick=${() => onPick(row)}>
        <span class="name"><span class="icon" data-icon=${ICONS[row.kind]}></span><span class="label">${clean(row.name)}</span>
          ${tries > 1 && html`<span class="mark">${tries} tries</span>`}
          ${mark && html`<span class="mark" title="a background call">${mark}</span>`}
          ${changed && html`<span class="mark" title="a layer changed something here">changed</span>`}</span>
        <span class="track">${bars.map((part) => html`<i class=${part.error ? "failed" : ""} style=${bar(part.start, part.end, scale)}></i>`)}</span>
        <span class="time">${duration((row.end ?? now) - row.start)}</span>
      </button>
      ${layers && row.layers.filter((layer) => layer.layer !== null).map(
        (layer) => html`<div class="layer-row" title=${layer.hook}>
          <span class="name" style=${{ "--place": layer.place }}><span class="label">${clean(layer.layer)}</span>${layer.changes > 0 && html`<span class="mark">changed</span>`}</span>
          <span class="track"><i style=${bar(layer.start, layer.end, scale)}></i></span>
          <span class="time" title="own time">${duration(layer.own)}</span>
        </div>`,
      )}
    </li>`;
  }
}

// Tab reaches one row and the arrow keys the others: there may be thousands.
function moveFocus(event) {
  const item = event.target.closest("li");
  const next = { ArrowDown: item?.nextElementSibling, ArrowUp: item?.previousElementSibling, Home: item?.parentElement.firstElementChild, End: item?.parentElement.lastElementChild }[event.key];
  if (!next) return;
  event.preventDefault();
  next.firstElementChild.focus();
}

// `current` is the selected row, `isLive` whether the reply runs, and `markOf(row)` what else there is to say of a row.
export function Waterfall({ id, timeline, current = null, layers = false, isLive = false, hasAxis = false, markOf, onPick }) {
  const all = timeline?.rows ?? [];
  const rows = all.slice(0, MAX_ROWS);
  const now = isLive && all.length ? Date.now() + timeline.offset : (timeline?.newest ?? 0);
  const origin = timeline?.start ?? 0;
  const latest = rows.reduce((end, row) => Math.max(end, row.end ?? now), origin + 1);
  const span = isLive ? stepped(latest - origin) : latest - origin;
  return html`
    ${all.length > rows.length && html`<p class="note">The first ${MAX_ROWS} of ${all.length} steps.</p>`}
    ${hasAxis && all.length > 0 && html`<div class="axis"><span>${[0, 0.25, 0.5, 0.75, 1].map((part) => html`<span>${duration(part * span)}</span>`)}</span></div>`}
    <ol id=${id} class="waterfall" onKeyDown=${moveFocus}>
      ${rows.map(
        (row, index) => html`<${Row} key=${row.id} row=${row} version=${row.version} origin=${origin} span=${span} now=${row.end === null ? now : 0}
          isCurrent=${row === current} isReached=${current ? row === current : index === 0} layers=${layers} mark=${markOf?.(row)} onPick=${onPick} />`,
      )}
    </ol>`;
}
