// The state of the page, which is drawn once per frame, however many events a frame brings.

import { Refused } from "./server.js";

export const state = {
  view: null, // until the server has answered
  pane: "chat", // on a narrow screen
  agent: null,
  agents: [],
  chains: null,
  hasReports: false,
  servesRuns: false, // whether the server shows recorded runs
  playground: false, // the layers that a rerun may leave out; true for any, false if nothing runs again
  problem: null,
  isOffline: false,
};

let draw = () => {};
let isWanted = false;
let afterwards = [];

export function drawWith(render) {
  draw = render;
}

// `then` runs after the page is drawn, for example to move the focus.
export function update(then) {
  if (then) afterwards.push(then);
  if (isWanted) return;
  isWanted = true;
  requestAnimationFrame(() => {
    isWanted = false;
    draw();
    const actions = afterwards;
    afterwards = [];
    for (const action of actions) action();
  });
}

export function set(values) {
  Object.assign(state, values);
  update();
}

export const mayLeaveOut = (layer) => state.playground === true || (state.playground || []).includes(layer);

export function setOffline(isOffline) {
  if (state.isOffline !== isOffline) set({ isOffline });
}

// Runs a request of a click; a failure is shown.
export function guarded(action) {
  return async (...args) => {
    try {
      set({ problem: null });
      return await action(...args);
    } catch (error) {
      if (error instanceof Refused) set({ problem: error.message });
      else if (error instanceof TypeError && !/fetch|network/i.test(error.message)) throw error; // an error of this page
      else set({ isOffline: true, problem: "The server cannot be reached. Nothing was changed; try again." });
    }
  };
}

export function flash(element) {
  element.scrollIntoView({ block: "center" });
  element.focus({ preventScroll: true });
  element.classList.add("flash");
  setTimeout(() => element.classList.remove("flash"), 1500);
}
