// The page: what is written goes to the queue, what comes of it is shown.

import "./shell.js";
import { ask, follow, words } from "./task.js";

const $ = (id) => document.getElementById(id);
// A drawing that takes its time, on any machine.
const DAWDLE = "wait 3\nrepeat 5\n  forward 60\n  turn 144\nend\n";
const BUSY = 20;

let programs = [];
let busy = [];
let count = 0; // Drawings of this page; in the log they go by their number.
let current = null; // The id of the task that is shown. Earlier ones are listened to until they have ended.

function log(text, isBad = false) {
  const line = document.createElement("li");
  const time = document.createElement("time");
  time.textContent = new Date().toLocaleTimeString();
  line.append(time, text);
  line.classList.toggle("bad", isBad);
  $("log").append(line);
  $("log").scrollTop = $("log").scrollHeight;
}

function caption(text, isBad = false) {
  $("caption").textContent = text;
  $("caption").classList.toggle("bad", isBad);
}

// ---------------------------------------------------------------- drawing

async function contents() {
  const program = programs[$("program").selectedIndex];
  const files = {};
  for (const file of $("files").files) files[file.name] = { base64: await encoded(file) };
  files[program.file] = $("source").value;
  return files;
}

async function encoded(file) {
  let text = "";
  for (const byte of new Uint8Array(await file.arrayBuffer())) text += String.fromCharCode(byte);
  return btoa(text);
}

async function draw(duration) {
  const chosen = new FormData($("form"));
  const format = chosen.get("format");
  const program = programs[$("program").selectedIndex];
  const body = {
    task_type: `${program.name}.draw`,
    on_stop: chosen.get("stop"),
    parameters: { format, files: await contents() },
    duration,
  };
  try {
    const { task_id: id } = await ask("tasks", { method: "POST", body });
    watch(id, format, $("abandon").checked, `${program.title}, ${duration}`);
    $("image").parentElement.scrollIntoView({ block: "nearest" }); // On a phone it is further down.
  } catch (problem) {
    log(problem.message, true);
    caption(problem.message, true);
  }
}

function watch(id, format, abandon, what) {
  const number = ++count;
  log(`${number}: ${what}`);
  show(null);
  $("cancel").hidden = false;
  history.replaceState(null, "", `#${format}/${id}`);
  current = id;
  let newest = null;
  follow(id, abandon, async (message) => {
    newest = message;
    const isBad = ("status" in message && message.status !== "completed") || message.type === "gone";
    if (message.type === "queue") message.why = await reason(id);
    if (message !== newest) return; // Something else has happened meanwhile.
    log(`${number}: ${words(message)}`, isBad);
    if (current !== id) return;
    caption(words(message), isBad);
    if (message.type === "queue") blank("It waits.");
    else if (message.type === "started") blank("It is being drawn.");
    else if (message.type === "result" || message.type === "gone") {
      $("cancel").hidden = true;
      show(id, message.result ?? { files: {} }); // A drawing whose time is up leaves what it had got.
    }
  });
}

/** Say why a task waits, in a few words: free slots may be for others. */
async function reason(id) {
  const { reasons } = await ask(`tasks/${encodeURIComponent(id)}/why`).catch(() => ({ reasons: [] }));
  return reasons[0]?.text;
}

function blank(text) {
  $("blank").textContent = text;
}

/** Show what a program wrote: as an image, in which nothing runs, or as a file to save. */
function show(id, result = { files: {} }) {
  const [name] = Object.keys(result.files);
  const address = name && `drawings/${encodeURIComponent(id)}/${encodeURIComponent(name)}`;
  const isImage = name?.endsWith(".svg") ?? false;
  $("image").hidden = !isImage;
  $("blank").hidden = isImage;
  blank(name ? `${name} is ready to save.` : id ? "There is no drawing." : "Nothing is drawn yet.");
  $("save").hidden = !name;
  if (isImage) $("image").src = address;
  else $("image").removeAttribute("src");
  if (name) {
    $("save").href = address;
    $("save").textContent = `Save ${name}`;
  }
  const said = `${result.stdout ?? ""}${result.stderr ?? ""}`.trim();
  if (said) log(said);
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  draw(event.submitter?.value ?? "default");
});

$("cancel").addEventListener("click", async () => {
  if (current) await ask(`tasks/${current}`, { method: "DELETE" }).catch((problem) => log(problem.message, true));
});

$("program").addEventListener("change", () => {
  $("source").value = programs[$("program").selectedIndex].sample;
});

// ---------------------------------------------------------------- load

$("busy").addEventListener("click", async () => {
  const one = {
    task_type: "draw.draw",
    parameters: { format: "svg", files: { "drawing.txt": DAWDLE } },
    duration: "slow",
  };
  try {
    const answer = await ask("tasks/bulk", { method: "POST", body: Array(BUSY).fill(one) });
    busy.push(...answer.tasks.map((task) => task.task_id));
    log(`${BUSY} slow drawings sent; draw something yourself meanwhile`);
  } catch (problem) {
    log(problem.message, true);
  }
});

$("calm").addEventListener("click", async () => {
  const wanted = busy;
  busy = [];
  // One after another, the last first, so that none of them starts meanwhile. Those that have ended say so.
  for (const id of wanted.reverse()) await ask(`tasks/${id}`, { method: "DELETE" }).catch(() => null);
  log("the slow drawings are cancelled");
});

async function tellLoad() {
  try {
    const { queues, workers } = await ask("queue/stats");
    const waiting = Object.values(queues).reduce((sum, queue) => sum + queue.depth, 0);
    const slots = workers.total_capacity;
    $("load").textContent = slots
      ? `${workers.used_capacity} of ${slots} slots at work, ${waiting} waiting`
      : "No worker is here yet.";
  } catch {
    $("load").textContent = "The service does not answer.";
  }
  setTimeout(tellLoad, 1000);
}

// ---------------------------------------------------------------- begin

const here = await (await fetch("programs")).json();
programs = here.programs;
$("talker").textContent = here.shell;
$("program").append(...programs.map((program) => new Option(program.title, program.name)));
$("source").value = programs[0].sample;
tellLoad();
const [, format, known] = location.hash.match(/^#(svg|pdf)\/([\w-]+)$/) ?? [];
if (known) watch(known, format, false, "drawn before"); // Results outlive the page that asked for them.
