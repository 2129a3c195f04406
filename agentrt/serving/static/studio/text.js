// Texts as the page shows them: as text nodes, without characters that hide or reorder.

export const FIRST_SHOWN = 20_000; // characters of one text, so that a line of megabytes does not stop the page
export const MORE_SHOWN = 200_000;

// Invisible characters, and those that change the reading order, are shown by their numbers.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\u{e0000}-\u{e007f}]/gu;
export const clean = (text) =>
  String(text).replace(/\r\n/g, "\n").replace(HIDDEN, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);

// JSON with line breaks and unchanged tokens: a number that JavaScript cannot hold must not look like another one.
export function pretty(text) {
  let tokens;
  try {
    JSON.parse(text);
    tokens = text.length < MORE_SHOWN && text.match(/"(?:[^"\\]+|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  } catch {
    // Not JSON, or not yet.
  }
  if (!tokens) return text;
  let depth = 0;
  let written = "";
  const breakLine = () => (written += `\n${"  ".repeat(Math.min(depth, 40))}`);
  tokens.forEach((token, index) => {
    if (token === "}" || token === "]") {
      depth -= 1;
      if (tokens[index - 1] !== "{" && tokens[index - 1] !== "[") breakLine();
    }
    // As JSON writes them, so that the text stays the same JSON.
    written += token.replace(HIDDEN, (found) => found.replace(/[^]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`));
    if (token === ":") written += " ";
    if (token === ",") breakLine();
    if (token === "{" || token === "[") {
      depth += 1;
      if (tokens[index + 1] !== "}" && tokens[index + 1] !== "]") breakLine();
    }
  });
  return written;
}

export const duration = (ms) =>
  ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${Math.round(ms)} ms` : ms < 600_000 ? `${(ms / 1000).toFixed(2)} s` : `${(ms / 60_000).toFixed(0)} min`;
export const count = (number) => Number(number ?? 0).toLocaleString("en");
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
export const money = (cost) => (cost == null ? "unknown" : cost === 0 ? "$0" : `$${Number(cost.toPrecision(3))}`);

export function usageText(usage) {
  if (!usage || usage.input_tokens == null) return "";
  const cached = usage.cache_input_tokens ? `, ${usage.cache_input_tokens} cached` : "";
  const parts = Object.values(usage.subagents ?? {});
  const own = (name) => parts.reduce((rest, part) => rest - part[name], usage[name]);
  const ofIt = parts.length ? `, ${own("input_tokens")} + ${own("output_tokens")} its own` : "";
  return `${usage.estimated ? "about " : ""}${usage.input_tokens} + ${usage.output_tokens ?? 0} tokens${cached}${ofIt}`;
}

export function dataText(block) {
  const source = block.source ?? {};
  const size = source.data ? `, ${Math.round((source.data.length * 3) / 4).toLocaleString("en")} bytes` : "";
  return `[${block.name ?? "data"}: ${source.media_type ?? "?"}${size}${source.url ? `, ${source.url}` : ""}]`;
}

export function outputText(output) {
  if (typeof output === "string") return output;
  return (output ?? []).map((part) => (part.type === "text" ? part.text : dataText(part))).join("\n");
}

// A growing text: its shown part is limited, so that its cost does not grow.
export class LongText {
  version = 0;

  constructor(text = "") {
    this.set(text);
  }

  append(text) {
    const shown = clean(text);
    this.parts.push(shown);
    this.size += shown.length;
    if (this.head.length < this.limit) this.head += shown.slice(0, this.limit - this.head.length);
    this.version += 1;
  }

  set(text) {
    this.parts = [];
    this.size = 0;
    this.head = "";
    this.limit ??= FIRST_SHOWN;
    this.append(text);
  }

  showMore() {
    this.limit += MORE_SHOWN;
    this.parts = [this.parts.join("")];
    this.head = this.parts[0].slice(0, this.limit);
    this.version += 1;
  }

  read() {
    return this.parts.join("");
  }
}
