// Parts that several views share.

import { Component, html, useState } from "./vendor/htm-preact.js";
import { markdown } from "./markdown.js";
import { LongText, count } from "./text.js";

export { html };

// Draws again only if a property has changed; costly properties have a `version`.
export class Still extends Component {
  shouldComponentUpdate(next) {
    return Object.keys(next).some((name) => name !== "children" && typeof next[name] !== "function" && next[name] !== this.props[name]);
  }
}

class Shown extends Still {
  render({ text, mono, isMarkdown }) {
    const { head } = text;
    if (mono) return html`<pre>${head}</pre>`;
    return isMarkdown ? html`<div class="text md">${markdown(head)}</div>` : html`<div class="text">${head}</div>`;
  }
}

export function Text({ text, mono = false, isMarkdown = false }) {
  const hidden = text.size - text.head.length;
  const [, setLimit] = useState(text.limit);
  const more = () => {
    text.showMore();
    setLimit(text.limit);
  };
  return html`<div>
    <${Shown} text=${text} version=${text.version} mono=${mono} isMarkdown=${isMarkdown} />
    ${hidden > 0 && html`<button type="button" onClick=${more}>Show more: ${count(hidden)} characters are hidden</button>`}
  </div>`;
}

// A text that does not change; `look` is "mono", "text" or "markdown".
export class Plain extends Still {
  render({ source, look = "mono" }) {
    if (this.source !== source) Object.assign(this, { source, text: new LongText(source) });
    return html`<${Text} text=${this.text} mono=${look === "mono"} isMarkdown=${look === "markdown"} />`;
  }
}

const opened = new Set(); // the keys of unfolded parts

export const open = (key) => opened.add(key);

export function Folded({ id, title, isFailed = false, children }) {
  const toggle = (event) => (event.currentTarget.open ? opened.add(id) : opened.delete(id));
  return html`<details open=${opened.has(id)} class=${isFailed ? "error" : ""} onToggle=${toggle}>
    <summary>${title}</summary>
    ${children}
  </details>`;
}
