// Markdown as text nodes: paragraphs, emphasis, code, lists and tables. No HTML, no links, no images: they stay as written.

import { html } from "./vendor/htm-preact.js";

const LIST = /^( *)(?:([-*+])|(\d{1,9})[.)]) +(.*)$/;
const RULE = /^\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const MAX_DEPTH = 8;

export function markdown(text) {
  const lines = text.split("\n");
  const blocks = [];
  let paragraph = [];
  const endParagraph = () => {
    if (paragraph.length) blocks.push(html`<p>${inline(paragraph.join("\n"))}</p>`);
    paragraph = [];
  };
  for (let index = 0; index < lines.length; ) {
    const line = lines[index];
    const fence = /^ {0,3}(`{3,})[^`]*$/.exec(line);
    if (fence) {
      endParagraph();
      let end = index + 1;
      while (end < lines.length && lines[end].trim() !== fence[1]) end += 1;
      blocks.push(html`<pre><code>${lines.slice(index + 1, end).join("\n")}</code></pre>`);
      index = end + 1;
    } else if (isTableHead(line, lines[index + 1])) {
      endParagraph();
      let end = index + 2;
      while (end < lines.length && lines[end].includes("|")) end += 1;
      blocks.push(table(line, lines.slice(index + 2, end)));
      index = end;
    } else if (LIST.test(line)) {
      endParagraph();
      let end = index + 1;
      while (end < lines.length && (LIST.test(lines[end]) || /^ +\S/.test(lines[end]))) end += 1;
      blocks.push(list(lines.slice(index, end), 0));
      index = end;
    } else {
      const heading = /^#{1,6} +(.*)$/.exec(line);
      if (heading || !line.trim()) endParagraph();
      if (heading) blocks.push(html`<p class="heading">${inline(heading[1])}</p>`);
      else if (line.trim()) paragraph.push(line);
      index += 1;
    }
  }
  endParagraph();
  return blocks;
}

const isTableHead = (line, rule = "") => line.includes("|") && rule.includes("-") && RULE.test(rule.slice(0, 2000)) && split(line).length === split(rule).length;
const split = (line) => line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|");
const cells = (line) => split(line).map((cell) => inline(cell.trim()));

function table(head, rows) {
  return html`<div class="wide"><table>
    <thead><tr>${cells(head).map((cell) => html`<th>${cell}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${cells(row).map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

// Lines of one list; indented ones belong to the item before them.
function list(lines, depth) {
  const [, indent, bullet, number] = LIST.exec(lines[0]);
  const items = [];
  for (const line of lines) {
    const found = LIST.exec(line);
    if (found && (found[1].length <= indent.length || !items.length)) items.push({ text: [found[4]], inner: [] });
    else if (found || items.at(-1).inner.length) items.at(-1).inner.push(line);
    else items.at(-1).text.push(line.trim());
  }
  const entries = items.map(({ text, inner }) => {
    const rest = !inner.length ? null : depth < MAX_DEPTH ? list(inner, depth + 1) : inner.join("\n");
    return html`<li>${inline(text.join("\n"))}${rest}</li>`;
  });
  return bullet ? html`<ul>${entries}</ul>` : html`<ol start=${Number(number)}>${entries}</ol>`;
}

const isWord = (character) => character !== undefined && /[\p{L}\p{N}_]/u.test(character);

// Each kind of mark is searched once: if one has no end, no later one has.
function inline(text, depth = 0) {
  const parts = [];
  const missing = new Set();
  let plain = "";
  const push = (node) => {
    if (plain) parts.push(plain);
    plain = "";
    parts.push(node);
  };
  const find = (mark, from) => {
    if (missing.has(mark)) return -1;
    const end = text.indexOf(mark, from);
    if (end < 0) missing.add(mark);
    return end;
  };
  for (let index = 0; index < text.length; ) {
    const character = text[index];
    if (character === "\\" && /[\\`*_#|~-]/.test(text[index + 1] ?? "")) {
      plain += text[index + 1];
      index += 2;
      continue;
    }
    if (character === "`") {
      let size = 1;
      while (text[index + size] === "`") size += 1;
      const mark = "`".repeat(size);
      const end = find(mark, index + size);
      if (end >= 0) {
        push(html`<code>${text.slice(index + size, end).replace(/^ (.*) $/s, "$1")}</code>`);
        index = end + size;
      } else {
        plain += mark;
        index += size;
      }
      continue;
    }
    if ((character === "*" || character === "_") && depth < MAX_DEPTH) {
      const mark = text[index + 1] === character ? character + character : character;
      const from = index + mark.length;
      const opens = !/\s/.test(text[from] ?? " ") && (character === "*" || !isWord(text[index - 1]));
      const end = opens ? find(mark, from + 1) : -1;
      const closes = end >= 0 && !/\s/.test(text[end - 1]) && (character === "*" || !isWord(text[end + mark.length]));
      if (closes) {
        const inner = inline(text.slice(from, end), depth + 1);
        push(mark.length === 2 ? html`<strong>${inner}</strong>` : html`<em>${inner}</em>`);
        index = end + mark.length;
      } else {
        plain += mark;
        index = from;
      }
      continue;
    }
    plain += character;
    index += 1;
  }
  if (plain) parts.push(plain);
  return parts;
}
