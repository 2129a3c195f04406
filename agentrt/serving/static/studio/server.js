// The server: requests with the reader's token, and its streams of events.

import { setOffline, state, update } from "./store.js";

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered with status ${status}`);
    this.status = status;
    this.code = error?.code;
    this.problems = error?.problems ?? [];
  }
}

export function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const byId = (id) => document.getElementById(id);
let signingIn = null;

function signIn(note) {
  signingIn ??= new Promise((resolve) => {
    byId("login-note").textContent = note;
    byId("token").value = "";
    byId("login").addEventListener(
      "close",
      () => {
        signingIn = null;
        const token = byId("token").value.trim();
        byId("token").value = "";
        if (token) sessionStorage.setItem("token", token);
        resolve();
      },
      { once: true },
    );
    byId("login").showModal();
  });
  return signingIn;
}

export const isSigningIn = () => signingIn !== null;

export function signOut() {
  sessionStorage.removeItem("token");
  location.reload();
}

export async function request(path, { method = "GET", body, headers = {}, signal, query = {} } = {}) {
  const parameters = new URLSearchParams(query);
  if (state.agent !== null) parameters.set("agent", state.agent);
  const url = `api/${path}${parameters.size ? `?${parameters}` : ""}`;
  for (;;) {
    const token = sessionStorage.getItem("token");
    const response = await fetch(url, {
      method,
      signal,
      cache: "no-store",
      credentials: "same-origin",
      headers: {
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...(token === null ? {} : { Authorization: `Bearer ${token}` }),
        ...headers,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    if (state.isSignedIn !== (token !== null)) {
      state.isSignedIn = token !== null;
      update();
    }
    if (response.status !== 401) return response;
    // Another request may have asked for the token meanwhile.
    if (token === sessionStorage.getItem("token")) await signIn(token === null ? "" : "The server does not know this token.");
  }
}

export async function call(path, options) {
  const response = await request(path, options);
  setOffline(false);
  if (response.status === 304 || response.status === 204) return null;
  const value = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, value.error);
  if (response.headers.has("ETag")) value.etag = response.headers.get("ETag");
  return value;
}

export const sessionPath = (id, rest = "") => `sessions/${encodeURIComponent(id)}${rest}`;
export const runPath = (sessionId, replyId, rest = "") => `runs/${encodeURIComponent(sessionId)}/${encodeURIComponent(replyId)}${rest}`;

export async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  let end = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    parts.push(value);
    // Joined only where an event ends: one may come in thousands of pieces.
    const isWhole = (end + value).includes("\n\n");
    end = value.slice(-1) || end;
    if (!isWhole) continue;
    const messages = parts.join("").split("\n\n");
    parts = [messages.pop()];
    for (const message of messages) {
      const fields = { data: "" };
      for (const line of message.split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
      }
      if (fields.data) yield fields;
    }
  }
}
