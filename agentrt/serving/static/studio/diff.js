// The differences of two texts, word by word.

import { clean } from "./text.js";
import { Still, html } from "./widgets.js";

const MAX_PRODUCT = 2_000_000;
const MAX_SAME = 240; // characters of an equal part
const MAX_SHOWN = 20_000;

export function compareWords(before, after) {
  const one = before.split(/(\s+)/);
  const other = after.split(/(\s+)/);
  let start = 0;
  while (start < one.length && start < other.length && one[start] === other[start]) start += 1;
  let end = 0;
  while (end < one.length - start && end < other.length - start && one[one.length - 1 - end] === other[other.length - 1 - end]) end += 1;
  const parts = [];
  const push = (kind, text) => {
    if (!text) return;
    if (parts.at(-1)?.kind === kind) parts.at(-1).text += text;
    else parts.push({ kind, text });
  };
  push("same", one.slice(0, start).join(""));
  middle(one.slice(start, one.length - end), other.slice(start, other.length - end), push);
  push("same", one.slice(one.length - end).join(""));
  return parts;
}

// The longest common sequence of words stays.
function middle(one, other, push) {
  if (one.length * other.length > MAX_PRODUCT) {
    push("del", one.join(""));
    push("ins", other.join(""));
    return;
  }
  const width = other.length + 1;
  const lengths = new Uint32Array((one.length + 1) * width);
  for (let i = one.length - 1; i >= 0; i -= 1) {
    for (let j = other.length - 1; j >= 0; j -= 1) {
      lengths[i * width + j] = one[i] === other[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  let i = 0;
  let j = 0;
  while (i < one.length || j < other.length) {
    if (i < one.length && j < other.length && one[i] === other[j]) {
      push("same", one[i]);
      i += 1;
      j += 1;
    } else if (j >= other.length || (i < one.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) {
      push("del", one[i]);
      i += 1;
    } else {
      push("ins", other[j]);
      j += 1;
    }
  }
}

const shorten = (text) => (text.length > MAX_SAME ? `${text.slice(0, MAX_SAME / 2)} … ${text.slice(-MAX_SAME / 2)}` : text);
const cut = (text) => clean(text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)} …` : text);

// `null` stands for a value that one side lacks.
export class Words extends Still {
  render({ before, after, isWhole = false }) {
    if (before === null) return html`<ins>${cut(after)}</ins>`;
    if (after === null) return html`<del>${cut(before)}</del>`;
    return compareWords(before, after).map(({ kind, text }) => {
      if (kind === "same") return clean(isWhole ? text : shorten(text));
      return kind === "del" ? html`<del>${cut(text)}</del>` : html`<ins>${cut(text)}</ins>`;
    });
  }
}

export function Diff({ title, before, after }) {
  return html`<div class="diff"><div class="at">${clean(title)}</div><p><${Words} before=${before} after=${after} /></p></div>`;
}
