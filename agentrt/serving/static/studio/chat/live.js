// A reply in progress: its blocks, those of its sub-agents, and its time line.

import { Timeline } from "../runs/timeline.js";
import { outputText, pretty } from "../text.js";
import { Blocks } from "./blocks.js";

export class Live {
  constructor(id) {
    this.id = id;
    this.seq = 0;
    this.end = null; // the event that ended it
    this.timeline = new Timeline(id);
    this.blocks = new Blocks();
    this.bodies = new Map([[id, this.blocks]]);
    this.children = []; // of sub-agents, which are shown after the end too
  }

  apply(event) {
    if (event.seq) this.seq = Math.max(this.seq, event.seq);
    this.timeline.apply(event);
    if (event.type === "REPLY_END" && event.reply_id === this.id) this.end = event;
    const body = this.bodies.get(event.reply_id) ?? this.blocks;
    this.applyTo(body, event);
    if (body !== this.blocks) this.blocks.version += 1;
  }

  applyTo(body, event) {
    const block = event.block_id;
    const call = event.tool_call_id;
    switch (event.type) {
      case "REPLY_RESUMED":
        body.clear();
        body.showAll(event.blocks, this.children.filter((child) => child.parent === event.reply_id));
        break;
      case "MODEL_CALL_RETRY":
      case "BLOCKS_WITHDRAWN":
        event.block_ids.forEach((id) => [id, `call:${id}`].forEach((key) => body.remove(key)));
        break;
      case "TEXT_BLOCK_START":
        body.add(block, null, { isMarkdown: true });
        break;
      case "THINKING_BLOCK_START":
        body.add(block, "Thinking");
        break;
      case "TEXT_BLOCK_DELTA":
      case "THINKING_BLOCK_DELTA":
        body.append(block, event.delta);
        break;
      case "TEXT_BLOCK_END":
        if (event.text != null) body.setText(block, event.text);
        break;
      case "DATA_BLOCK_START":
        body.add(block, null).text.append(`[${event.name ?? "data"}: ${event.media_type}]`);
        break;
      case "HINT_BLOCK":
        body.add(block, "Note to the model").text.append(event.hint);
        break;
      case "TOOL_CALL_START":
        body.call(call, event.tool_call_name);
        break;
      case "TOOL_CALL_DELTA":
        body.append(`call:${call}`, event.delta);
        break;
      case "TOOL_CALL_END":
        body.setText(`call:${call}`, pretty(body.get(`call:${call}`)?.text.read() ?? ""));
        break;
      case "TOOL_RESULT_START":
        body.result(call, event.tool_call_name);
        break;
      case "TOOL_RESULT_TEXT_DELTA":
        body.result(call, event.tool_call_name);
        body.append(`result:${call}`, event.delta);
        break;
      case "TOOL_RESULT_END":
        body.result(call, event.tool_call_name);
        if (event.output != null) body.setText(`result:${call}`, outputText(event.output));
        body.endResult(call, event.tool_call_name, event.state);
        break;
      case "SUBAGENT_START":
        this.openChild(event, body);
    }
  }

  openChild(event, body) {
    let inner = this.bodies.get(event.child_reply_id);
    if (!inner) {
      inner = new Blocks();
      this.bodies.set(event.child_reply_id, inner);
      this.children.push({ parent: event.reply_id, callId: event.tool_call_id, replyId: event.child_reply_id, name: event.name, inner });
    }
    body.child(event.child_reply_id, event.name, inner);
  }
}
