// The blocks of one message, growing or finished.

import { LongText, clean, dataText, outputText, pretty } from "../text.js";
import { Folded, Still, Text, html } from "../widgets.js";

export class Blocks {
  version = 0;

  constructor() {
    this.blocks = new Map();
  }

  add(key, title, { mono = false, call = null, isMarkdown = false } = {}) {
    const block = { key, title, mono, call, isMarkdown, text: new LongText(), isFailed: false, inner: null };
    this.blocks.delete(key); // moved to the end if it comes again
    this.blocks.set(key, block);
    this.version += 1;
    return block;
  }

  get(key) {
    return this.blocks.get(key);
  }

  remove(key) {
    this.blocks.delete(key);
    this.version += 1;
  }

  append(key, text) {
    this.blocks.get(key)?.text.append(text);
    this.version += 1;
  }

  setText(key, text) {
    this.blocks.get(key)?.text.set(text);
    this.version += 1;
  }

  clear() {
    this.blocks.clear();
    this.version += 1;
  }

  call(id, name) {
    return this.add(`call:${id}`, `${id.includes("/") ? "Inner call" : "Call"} of ${name}`, { mono: true, call: id });
  }

  result(id, name) {
    return this.get(`result:${id}`) ?? this.add(`result:${id}`, `Result of ${name}`, { mono: true });
  }

  endResult(id, name, outcome) {
    const block = this.result(id, name);
    block.title = `Result of ${name}: ${outcome}`;
    block.isFailed = outcome !== "success" && outcome !== "running";
    this.version += 1;
  }

  // Each sub-agent below the call that started it.
  showAll(content, children = []) {
    for (const block of content) {
      this.show(block);
      for (const child of children) if (block.type === "tool_call" && block.id === child.callId) this.child(child.replyId, child.name, child.inner);
    }
  }

  child(replyId, name, inner) {
    this.add(`child:${replyId}`, `Agent ${name}`).inner = inner;
  }

  show(block) {
    const { id } = block;
    switch (block.type) {
      case "text":
        this.add(id, null, { isMarkdown: true }).text.append(block.text);
        break;
      case "thinking":
        this.add(id, "Thinking").text.append(block.thinking);
        break;
      case "tool_call":
        this.call(id, block.name).text.append(pretty(block.input));
        break;
      case "tool_result":
        this.result(id, block.name).text.set(outputText(block.output));
        this.endResult(id, block.name, block.state);
        break;
      case "hint":
        this.add(id, "Note to the model").text.append(block.hint);
        break;
      case "data":
        this.add(id, null).text.append(dataText(block));
        break;
      default:
        this.add(id ?? block.type, `${block.type}`, { mono: true }).text.append(JSON.stringify(block, null, 2));
    }
  }
}

export class Body extends Still {
  render({ blocks, onTimes, isUser = false }) {
    const entries = [...blocks.blocks.values()];
    return html`<div class="body">
      ${entries.map(
        (block) => html`<div class="block" key=${block.key} tabindex="-1" data-key=${block.key}>
          ${block.inner
            ? html`<${Folded} id=${block.key} title=${clean(block.title)}><${Body} blocks=${block.inner} version=${block.inner.version} onTimes=${onTimes} /><//>`
            : block.title === null
              ? html`<${Text} text=${block.text} isMarkdown=${block.isMarkdown && !isUser} />`
              : html`<${Folded} id=${block.key} title=${clean(block.title)} isFailed=${block.isFailed}>
                  <${Text} text=${block.text} mono=${block.mono} />
                <//>`}
          ${block.call && onTimes && html`<button type="button" class="jump" onClick=${() => onTimes(block.key)}>Times</button>`}
        </div>`,
      )}
    </div>`;
  }
}
