// The shell: a session with a program under a terminal. What is typed is sent by the line; what it says is plain text.

import { open } from "./task.js";

const $ = (id) => document.getElementById(id);
const ROWS = 24;
const COLUMNS = 80;
const KEPT = 100_000; // Letters on the screen.
const TRIES = 10; // The session waits a little longer than so many seconds for us to come back.
// Colours, titles and the like, that a terminal would carry out.
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-_])/g;

let socket = null;
let ticket = null; // What it takes to come back.
let tries = 0;

function print(text) {
  let shown = $("screen").textContent;
  for (const letter of text.replace(ESCAPES, "").replaceAll("\r\n", "\n")) {
    if (letter === "\b") shown = shown.slice(0, -1);
    else if (letter === "\r") shown = shown.slice(0, shown.lastIndexOf("\n") + 1);
    else if (letter >= " " || letter === "\n" || letter === "\t") shown += letter;
  }
  $("screen").textContent = shown.slice(-KEPT);
  $("screen").scrollTop = $("screen").scrollHeight;
}

function note(text) {
  const shown = $("screen").textContent;
  print(`${shown && !shown.endsWith("\n") ? "\n" : ""}— ${text}\n`);
}

function show(isOpen) {
  for (const id of ["line", "send", "interrupt"]) $(id).disabled = !isOpen;
  $("talk").textContent = isOpen ? "Close" : "Open";
}

function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function connect(query) {
  const decoder = new TextDecoder();
  let isOver = false;
  socket = open("interactive", query);
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => {
    if (typeof data !== "string") return print(decoder.decode(data, { stream: true }));
    const message = JSON.parse(data);
    isOver = ["result", "halted", "denied"].includes(message.type);
    if (message.type === "started") {
      if (!ticket) {
        note("open");
        $("line").disabled = false;
        $("line").focus({ preventScroll: true });
      }
      ticket = { task_id: message.task_id, resume: message.resume };
      tries = 0;
      show(true);
      send({ type: "resize", rows: ROWS, columns: COLUMNS });
    } else if (message.type === "text") print(message.data);
    else if (message.type === "denied") note(`denied: ${message.error}`);
    else if (message.type === "halted") note(`halted: ${message.reason}`);
    else if (message.type === "result") {
      note(message.status === "completed" ? `ended with code ${message.result}` : (message.error?.message ?? message.status));
    }
  };
  socket.onclose = ({ code, reason }) => {
    if (!isOver && code === 1006 && ticket && tries < TRIES) {
      tries += 1;
      setTimeout(() => ticket && connect(ticket), 1000);
      return;
    }
    if (!isOver) note(reason || "the line is broken");
    ticket = null;
    socket = null;
    show(false);
  };
}

$("talk").addEventListener("click", () => {
  if (socket) send({ type: "close" });
  else connect({ task_type: "shell" });
});

$("typed").addEventListener("submit", (event) => {
  event.preventDefault();
  send({ type: "text", data: `${$("line").value}\n` });
  $("line").value = "";
});

$("interrupt").addEventListener("click", () => send({ type: "text", data: "\u0003" }));

addEventListener("pagehide", () => send({ type: "close" }));
