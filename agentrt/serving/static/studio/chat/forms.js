// Cards of pending questions: approvals, results of tools that run elsewhere, and forms of user agents.

import { Refused, call } from "../server.js";
import { guarded, update } from "../store.js";
import { clean, pretty } from "../text.js";
import { Plain, html } from "../widgets.js";
import { useRef, useState } from "../vendor/htm-preact.js";

const place = (question, callId) => (question.inside?.[callId]?.length ? ` in ${question.inside[callId].join(" > ")}` : "");

// The page that a server asks its user to open; a call of the model's own may have any URL among its arguments.
function pageOf({ id, name, input }) {
  if (!id.includes("/") || !["mcp_login", "mcp_elicitation"].includes(name)) return null;
  try {
    const url = new URL(JSON.parse(input).url);
    return ["https:", "http:"].includes(url.protocol) ? url : null;
  } catch {
    return null;
  }
}

// `onAnswer` sends the answer; a second click must not send a second one.
export function QuestionCard({ question, mayEdit, onAnswer, children }) {
  const Card = question.type === "REQUIRE_USER_CONFIRM" ? Confirm : External;
  return html`<${Card} key=${`${question.reply_id}:${question.seq}`} question=${question} mayEdit=${mayEdit} onAnswer=${onAnswer}>${children}<//>`;
}

function Confirm({ question, mayEdit, onAnswer, children }) {
  const [decisions, setDecisions] = useState({});
  const isSent = useRef(false);
  const fields = useRef({});
  const field = (callId, name) => (element) => (fields.current[`${name}:${callId}`] = element);
  const decide = (toolCall, confirmed) =>
    guarded(async () => {
      const decided = { ...decisions, [toolCall.id]: confirmed };
      setDecisions(decided);
      if (isSent.current || Object.keys(decided).length < question.tool_calls.length) return;
      isSent.current = true;
      const results = question.tool_calls.map((other) => {
        const original = pretty(other.input);
        const edited = fields.current[`input:${other.id}`]?.value;
        return {
          confirmed: decided[other.id],
          // Unchanged to the byte, unless the reader edited it.
          tool_call: { ...other, input: edited !== undefined && edited !== original ? edited : other.input },
          rules: [],
          feedback: fields.current[`feedback:${other.id}`]?.value || null,
        };
      });
      try {
        await onAnswer({ type: "USER_CONFIRM_RESULT", reply_id: question.reply_id, confirm_results: results });
      } catch (error) {
        isSent.current = false;
        throw error;
      }
    });
  return html`<div class="card agent">
    ${question.tool_calls.map((toolCall) => {
      const original = pretty(toolCall.input);
      const canEdit = mayEdit && !toolCall.id.includes("/");
      const decided = decisions[toolCall.id];
      const page = pageOf(toolCall);
      return html`<div key=${toolCall.id} role="group" aria-label=${clean(`Call of ${toolCall.name}`)}>
        <h3>${clean(page ? `Open a page of ${page.host}?` : `May ${toolCall.name}${place(question, toolCall.id)} run?`)}</h3>
        <p class="note">${clean(question.questions?.[toolCall.id]?.message ?? "")}</p>
        ${canEdit
          ? html`<textarea class="json" rows=${Math.min(12, original.split("\n").length + 1)} aria-label=${clean(`Arguments of ${toolCall.name}`)} spellcheck=${false}
              defaultValue=${original} ref=${field(toolCall.id, "input")}></textarea>`
          : page
            ? html`<p><a class="button" target="_blank" rel="noopener noreferrer" href=${page.href}>Open ${page.host}</a></p>`
            : html`<${Plain} source=${original} />`}
        <label><input aria-label="Feedback" placeholder="Feedback, for the model" ref=${field(toolCall.id, "feedback")} /></label>
        <div class="row">
          <button type="button" class="allow" aria-pressed=${decided === true ? "true" : null} onClick=${decide(toolCall, true)}>${page ? "Done" : "Allow"}</button>
          <button type="button" class="deny" aria-pressed=${decided === false ? "true" : null} onClick=${decide(toolCall, false)}>Deny</button>
        </div>
      </div>`;
    })}
    ${children}
  </div>`;
}

function External({ question, onAnswer, children }) {
  const inputs = useRef([]);
  const submit = guarded(async (event) => {
    event.preventDefault();
    await onAnswer({
      type: "EXTERNAL_EXECUTION_RESULT",
      reply_id: question.reply_id,
      execution_results: question.tool_calls.map(({ id, name }, index) => ({ type: "tool_result", id, name, output: inputs.current[index].value })),
    });
  });
  return html`<form class="card agent" onSubmit=${submit}>
    ${question.tool_calls.map(
      (toolCall, index) => html`<div key=${toolCall.id}>
        <h3>${clean(`Run ${toolCall.name}${place(question, toolCall.id)}, and write its result`)}</h3>
        <${Plain} source=${pretty(toolCall.input)} />
        <textarea rows="3" aria-label="Result" ref=${(element) => (inputs.current[index] = element)}></textarea>
      </div>`,
    )}
    <div class="row"><button type="submit">Send results</button></div>
    ${children}
  </form>`;
}

// Questions of user agents

export const board = { inputs: [] };

export async function readInputs() {
  const { inputs } = await call("inputs");
  board.inputs = inputs;
  update();
}

export function InputCard({ input }) {
  const [problems, setProblems] = useState((input.problems ?? []).join("; "));
  const { schema } = input;
  const fields = schema ? schemaFields(schema) : [];
  const controls = useRef(new Map());
  const answer = useRef();
  const submit = guarded(async (event) => {
    event.preventDefault();
    const values = schema ? {} : null;
    for (const field of fields) {
      const value = field.read(controls.current.get(field.name));
      if (value !== undefined) values[field.name] = value;
    }
    try {
      await call(`inputs/${encodeURIComponent(input.input_id)}`, { method: "POST", body: { text: answer.current.value, values } });
      board.inputs = board.inputs.filter((other) => other !== input);
      update();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      setProblems([error.message, ...error.problems].join("; "));
    }
  });
  return html`<form class="card user-agent" onSubmit=${submit} novalidate>
    <h3>${clean(`${input.agent_name} asks for your answer`)}</h3>
    <label>Answer<textarea rows="2" aria-label="Answer" ref=${answer}></textarea></label>
    ${fields.map((field) => html`<label key=${field.name}>${clean(field.hint)}${field.control(field.name, (element) => controls.current.set(field.name, element))}</label>`)}
    <p class="failed" role="alert">${clean(problems)}</p>
    <div class="row"><button type="submit">Send answer</button></div>
  </form>`;
}

function resolveSchema(schema, root) {
  const name = /^#\/\$defs\/(.*)$/.exec(schema?.$ref ?? "")?.[1];
  const found = name === undefined ? schema : { ...root.$defs?.[name], ...schema };
  const variants = (found?.anyOf ?? []).filter((variant) => variant.type !== "null");
  return variants.length === 1 ? { ...resolveSchema(variants[0], root), ...found, anyOf: undefined } : (found ?? {});
}

function schemaFields(root) {
  const required = new Set(root.required ?? []);
  return Object.entries(root.properties ?? {}).map(([name, part]) => {
    const schema = resolveSchema(part, root);
    const hint = [schema.title ?? name, required.has(name) ? "" : "optional", schema.description ?? ""].filter(Boolean).join(", ");
    return { name, hint, ...schemaControl(schema, required.has(name)) };
  });
}

function schemaControl(schema, isRequired) {
  const choices = schema.enum ?? (schema.const === undefined ? null : [schema.const]);
  if (choices) {
    const chosen = schema.default === undefined ? (isRequired ? 0 : -1) : choices.indexOf(schema.default);
    return {
      control: (name, ref) => html`<select name=${name} ref=${ref}>
        ${!isRequired && html`<option value=""></option>`}
        ${choices.map((choice, index) => html`<option value=${String(index)} selected=${index === chosen}>${clean(choice)}</option>`)}
      </select>`,
      read: ({ value }) => (value === "" ? undefined : choices[Number(value)]),
    };
  }
  if (schema.type === "boolean") {
    return {
      control: (name, ref) => html`<input type="checkbox" name=${name} ref=${ref} defaultChecked=${schema.default === true} />`,
      read: ({ checked }) => checked,
    };
  }
  if (schema.type === "integer" || schema.type === "number") {
    return {
      control: (name, ref) => html`<input inputmode="decimal" name=${name} ref=${ref} defaultValue=${schema.default ?? ""} />`,
      read: ({ value }) => (value.trim() === "" ? undefined : Number.isNaN(Number(value)) ? value : Number(value)),
    };
  }
  if (schema.type === "string") {
    const isSecret = schema.format === "password";
    const initial = typeof schema.default === "string" && !isSecret ? schema.default : "";
    return {
      control: (name, ref) => html`<input name=${name} ref=${ref} type=${isSecret ? "password" : "text"} autocomplete=${isSecret ? "off" : "on"} defaultValue=${initial} />`,
      read: ({ value }) => (value === "" && !isRequired ? undefined : value),
    };
  }
  return {
    control: (name, ref) => html`<textarea class="json" rows="3" placeholder="JSON" name=${name} ref=${ref} defaultValue=${schema.default == null ? "" : JSON.stringify(schema.default, null, 2)}></textarea>`,
    read({ value }) {
      if (value.trim() === "") return undefined;
      try {
        return JSON.parse(value);
      } catch {
        return value;
      }
    },
  };
}
