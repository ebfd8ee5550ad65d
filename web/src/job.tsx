/** Job: its timeline, why it waits or what it had waited for, when it starts, attempts, arguments, result and output. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ActionButtons, Confirmations } from "./actions";
import { address, get, part } from "./api";
import type { ProgramOutput, TaskReply, Why } from "./api.gen";
import { attempts, moment, plural, seconds, shell } from "./format";
import { now, refresh } from "./live";
import { REASONS } from "./reasons";
import { useResource } from "./resource";
import { Link } from "./router";
import { word } from "./search";
import { Columns, Copy, copy, Empty, JobLink, Json, Menu, Problem, Stacked, StartRange, StateBadge, Time } from "./ui";

const HISTORY_MAX = 600; // Estimates that a page keeps.
const HISTORY_FROM_MS = 3_000; // Milliseconds after which the history is drawn.
// A page opens after "queued".
const EVENTS = ["released", "started", "downgraded", "progress", "output", "retried", "finished"];
const ENDED = ["completed", "failed", "cancelled", "dead_letter"];

export function Job({ id }: { id: string }) {
  const { data: task, problem, reload } = useResource(id, () => get<TaskReply>(`tasks/${part(id)}`, { redact: true }));
  useEvents(id, task?.status, reload);
  if (task === null) {
    if (problem?.status === 404) {
      return (
        <Empty title="There is no such job.">
          It may have been removed some time after it ended. <Link to="jobs">Look for others</Link>
        </Empty>
      );
    }
    return problem ? <Problem of="The job" problem={problem} /> : <p class="soft">Reading the job…</p>;
  }
  return (
    <>
      <div class="title">
        <h1>{task.payload.task_type}</h1>
        <StateBadge state={task.status} />
        <code class="soft">{id}</code>
        <span class="end">
          <ActionButtons states={[task.status]} filter={{ id: [id] }} what={`job ${id.slice(-8)}`} onDone={refresh} />
          <Menu name="Copy">
            <button type="button" onClick={() => copy(id)}>
              the id
            </button>
            <button type="button" onClick={() => copy(asCommand(task))}>
              as headway submit …
            </button>
            <button type="button" onClick={() => copy(asCurl(task))}>
              as curl
            </button>
          </Menu>
        </span>
      </div>
      <Problem of="The job" problem={problem} />
      <div class="cards">
        <Waiting task={task} />
        <section class="card">
          <h2>Timeline</h2>
          <Timeline task={task} />
        </section>
      </div>
      <div class="cards">
        <section class="card">
          <header>
            <h2>Arguments</h2>
            <span class="end">
              <Copy text={JSON.stringify(task.payload.parameters, null, 2)} name="Copy arguments" />
            </span>
          </header>
          <Json value={task.payload.parameters} />
        </section>
        <Outcome task={task} />
      </div>
      <Output task={task} />
      <Attempts task={task} />
      <Facts task={task} />
      <Confirmations />
    </>
  );
}

/** Follow the events of a job, so that its page changes with it. */
function useEvents(id: string, status: string | undefined, reload: () => void): void {
  const [seen, setSeen] = useState(0);
  const ended = status === undefined || ENDED.includes(status);
  useEffect(() => {
    if (ended) return;
    const stream = new EventSource(address(`tasks/${part(id)}/events`));
    const count = () => setSeen((number) => number + 1);
    for (const kind of EVENTS) stream.addEventListener(kind, count);
    stream.addEventListener("finished", () => stream.close());
    return () => stream.close();
  }, [id, ended]);
  useEffect(() => {
    if (seen) reload();
  }, [seen]);
}

function Waiting({ task }: { task: TaskReply }) {
  const waits = task.status === "queued";
  const { data } = useResource(
    waits ? null : `${task.task_id} ${task.epoch}`,
    () => get<Why>(`tasks/${part(task.task_id)}/why`),
    {
      live: false,
    },
  );
  if (waits) {
    const reasons = task.why ?? [];
    return (
      <section class="card">
        <header>
          <h2>Why it waits</h2>
          {task.queue_position !== null && task.queue_position !== undefined && (
            <small class="end">{plural(task.queue_position, "job")} would start before it</small>
          )}
        </header>
        {reasons.length ? (
          <ol>
            {reasons.map((reason) => (
              <li key={`${reason.code} ${reason.text}`}>
                {reason.text} <span class="chip">{reason.code}</span>
              </li>
            ))}
          </ol>
        ) : (
          <p>Nothing holds it back: the next claim of a worker takes it.</p>
        )}
        <h3>When it starts</h3>
        {task.estimate?.p50 === null || !task.estimate ? (
          <p class="soft">
            Not known yet. An estimate needs a worker, and past runs of the tasks ahead or a duration that they declare.
          </p>
        ) : (
          <>
            <StartRange
              p50={task.estimate.p50}
              p90={task.estimate.p90}
              most={Math.max(1, task.estimate.p90 ?? 1) * 1.3}
            />
            <small>
              p50 to p90, by{" "}
              {task.estimate.basis === "learned"
                ? "what was learned from past jobs"
                : `${task.estimate.basis} durations`}
            </small>
            <EstimateHistory task={task} />
          </>
        )}
      </section>
    );
  }
  const pieces = Object.entries(data?.waited_seconds ?? {})
    .filter(([, value]) => value > 0)
    .sort((one, other) => other[1] - one[1])
    .map(([name, value]) => ({ name, value, title: REASONS[name] ? `for ${REASONS[name]}` : name }));
  const started = task.started_at ?? task.completed_at;
  const waited = started ? (Date.parse(started) - Date.parse(task.created_at)) / 1_000 : null;
  return (
    <section class="card">
      <header>
        <h2>What it waited for</h2>
        {waited !== null && <small class="end">{seconds(Math.max(0, waited))} from submit to its last start</small>}
      </header>
      {pieces.length ? (
        <Stacked pieces={pieces} />
      ) : (
        <p class="soft">
          {data === null ? "Reading…" : "It waited too briefly for a sample of reasons, or they are no longer kept."}
        </p>
      )}
      {data !== null && data.passed_over > 0 && (
        <p>{plural(data.passed_over, "later job")} of its lane and tenant started before it.</p>
      )}
    </section>
  );
}

/** How the estimate of a start has changed while the page was open: a band from p50 to p90, with a line at p50. */
function EstimateHistory({ task }: { task: TaskReply }) {
  const points = useRef<{ at: number; p50: number; p90: number }[]>([]);
  const { p50 = null, p90 = null } = task.estimate ?? {};
  const known = points.current;
  if (p50 !== null && (known.at(-1)?.p50 !== p50 || known.at(-1)?.p90 !== (p90 ?? p50))) {
    known.push({ at: now.value, p50, p90: p90 ?? p50 });
    if (known.length > HISTORY_MAX) known.shift();
  }
  const [first, last] = [known[0], known.at(-1)];
  if (!first || !last || last.at - first.at < HISTORY_FROM_MS) return null;
  const top = Math.max(...known.map((one) => one.p90), 1);
  const place = (one: { at: number }, value: number) =>
    `${(((one.at - first.at) / (last.at - first.at)) * 100).toFixed(2)},${(38 - (value / top) * 36).toFixed(2)}`;
  const middle = known.map((one) => place(one, one.p50));
  const upper = known.map((one) => place(one, one.p90));
  const name = `The estimate in the last ${seconds((last.at - first.at) / 1_000)}: from ${seconds(first.p50)} to ${seconds(last.p50)} (p50), at most ${seconds(top)}`;
  return (
    <figure>
      <svg viewBox="0 0 100 40" preserveAspectRatio="none" role="img" aria-label={name}>
        <title>{name}</title>
        <path class="band" d={`M${middle.join("L")}L${upper.reverse().join("L")}Z`} />
        <path class="line" d={`M${middle.join("L")}`} />
      </svg>
      <figcaption>
        <small>
          {seconds(first.p50)} – {seconds(first.p90)}, {seconds((last.at - first.at) / 1_000)} earlier
        </small>
        <small>now</small>
      </figcaption>
    </figure>
  );
}

function Timeline({ task }: { task: TaskReply }) {
  const steps: { name: string; at: string; kind?: string; more?: string }[] = [
    { name: "Submitted", at: task.created_at },
  ];
  if (task.run_after) steps.push({ name: "Not before", at: task.run_after });
  for (const attempt of task.attempts.slice(-8)) {
    steps.push({
      name: `Attempt ${attempt.number} ended: ${attempt.reason}`,
      at: attempt.ended_at,
      kind: "bad",
      more: `after ${seconds((Date.parse(attempt.ended_at) - Date.parse(attempt.started_at)) / 1_000)}${attempt.error ? `, ${attempt.error.type}` : ""}`,
    });
  }
  if (task.status === "queued" && task.eligible_at) steps.push({ name: "Waits", at: task.eligible_at, kind: "now" });
  if (task.started_at && !task.attempts.some((one) => one.started_at === task.started_at)) {
    const worker = task.assigned_worker_id ? `on ${task.assigned_worker_id}` : "";
    steps.push({ name: `Attempt ${task.attempt_count} started`, at: task.started_at, kind: "now", more: worker });
  }
  if (task.cancel_requested_at) steps.push({ name: "Asked to stop", at: task.cancel_requested_at });
  if (task.completed_at) {
    const ran = task.started_at ? seconds((Date.parse(task.completed_at) - Date.parse(task.started_at)) / 1_000) : null;
    steps.push({
      name: task.status.replace("_", " ").replace(/^./, (letter) => letter.toUpperCase()),
      at: task.completed_at,
      kind: task.status === "completed" ? "good" : task.status === "cancelled" ? "" : "bad",
      more: [ran && task.status === "completed" ? `ran ${ran}` : "", task.reason ?? ""].filter(Boolean).join(", "),
    });
  }
  return (
    <ol class="timeline">
      {steps.map((step, index) => (
        <li key={index} data-kind={step.kind}>
          <strong>{step.name}</strong> <Time at={step.at} />
          <br />
          <small>
            {moment(step.at)}
            {step.more && ` · ${step.more}`}
          </small>
        </li>
      ))}
    </ol>
  );
}

function Outcome({ task }: { task: TaskReply }) {
  if (task.error) {
    return (
      <section class="card">
        <h2>Error</h2>
        <p>
          <strong>{task.error.type}</strong>: {task.error.message}
        </p>
        {task.error.traceback && <Json value={task.error.traceback} />}
        <p class="inset">
          <Link to="jobs" query={{ q: `${word("task", task.payload.task_type)} ${word("error", task.error.type)}` }}>
            Other jobs with this error
          </Link>
        </p>
      </section>
    );
  }
  if (task.progress && task.status === "executing") {
    return (
      <section class="card">
        <h2>Progress</h2>
        <progress value={task.progress.fraction} max={1} aria-label="Progress" />{" "}
        {Math.round(task.progress.fraction * 100)} %<p>{task.progress.note}</p>
      </section>
    );
  }
  return (
    <section class="card">
      <h2>Result</h2>
      {task.status === "completed" ? <Json value={task.result} /> : <p class="soft">It has no result yet.</p>}
      {task.result_error && <p class="problem">{task.result_error}</p>}
    </section>
  );
}

function Output({ task }: { task: TaskReply }) {
  const { data } = useResource(
    `${task.task_id} ${task.status}`,
    () => get<ProgramOutput>(`tasks/${part(task.task_id)}/output`),
    {
      live: task.status === "executing",
      keep: true,
    },
  );
  if (!data?.chunks.length) return null;
  return (
    <section class="card">
      <h2>Output</h2>
      <pre tabIndex={0}>{data.chunks.map((chunk) => chunk.text).join("")}</pre>
    </section>
  );
}

function Attempts({ task }: { task: TaskReply }) {
  if (!task.attempts.length) return null;
  return (
    <section class="card flush">
      <header>
        <h2>Attempts that did not complete it</h2>
      </header>
      <div class="scroll">
        <table>
          <Columns names={[["Attempt", "num"], "Ended", ["Ran", "num"], "How", "Error", "Worker"]} />
          <tbody>
            {task.attempts.toReversed().map((attempt) => (
              <tr key={`${attempt.number} ${attempt.epoch}`}>
                <td class="num">{attempt.number}</td>
                <td>
                  <Time at={attempt.ended_at} />
                </td>
                <td class="num">{seconds((Date.parse(attempt.ended_at) - Date.parse(attempt.started_at)) / 1_000)}</td>
                <td>{attempt.reason}</td>
                <td>
                  {attempt.error && (
                    <details>
                      <summary>
                        {attempt.error.type}: {attempt.error.message}
                      </summary>
                      {attempt.error.traceback && <Json value={attempt.error.traceback} />}
                    </details>
                  )}
                </td>
                <td class="mono">{attempt.worker_id}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Facts({ task }: { task: TaskReply }) {
  const facts: [string, preact.ComponentChildren][] = [
    [
      "Lane",
      task.effective_priority === task.priority
        ? task.priority
        : `${task.priority}, counts as ${task.effective_priority}`,
    ],
    [
      "Tenant",
      task.tenant && (
        <Link to="jobs" query={{ q: word("tenant", task.tenant) }}>
          {task.tenant}
        </Link>
      ),
    ],
    [
      "Duration",
      task.duration && `${task.duration}${task.assigned_duration ? `, runs on ${task.assigned_duration}` : ""}`,
    ],
    [
      "Worker",
      task.assigned_worker_id && (
        <Link to="jobs" query={{ q: word("worker", task.assigned_worker_id) }}>
          {task.assigned_worker_id}
        </Link>
      ),
    ],
    [
      "Attempts",
      `${task.attempt_count} of ${attempts(task.max_retries)}${task.crashes ? `, ${plural(task.crashes, "crash", "crashes")}` : ""}`,
    ],
    ["Timeout", seconds(task.timeout_seconds)],
    ["Expires", task.expires_at && <Time at={task.expires_at} />],
    ["Needs", task.needs.length ? task.needs.join(", ") : null],
    ["Limits", task.limits.length ? task.limits.join(", ") : null],
    ["Idempotency key", task.idempotency_key],
    ["Unique key", task.unique_key],
    ["Trace", <code key="trace">{task.trace_id}</code>],
    [
      "Job",
      <JobLink key="id" id={task.task_id}>
        {task.task_id}
      </JobLink>,
    ],
  ];
  return (
    <section class="card">
      <h2>Facts</h2>
      <dl class="facts">
        {facts
          .filter(([, value]) => value)
          .map(([name, value]) => (
            <>
              <dt key={name}>{name}</dt>
              <dd>{value}</dd>
            </>
          ))}
      </dl>
    </section>
  );
}

/** Return the command that submits the same job again. */
function asCommand(task: TaskReply): string {
  const words = ["headway", "submit", task.payload.task_type];
  const given = task.payload.parameters ?? {};
  if (Object.keys(given).length) words.push("--json-args", JSON.stringify(given));
  words.push("--priority", task.priority);
  if (task.tenant) words.push("--tenant", task.tenant);
  if (task.duration) words.push("--duration", task.duration);
  return words.map(shell).join(" ");
}

/** Return the HTTP call that submits the same job again. */
function asCurl(task: TaskReply): string {
  const body = {
    task_type: task.payload.task_type,
    parameters: task.payload.parameters ?? {},
    priority: task.priority,
    ...(task.tenant ? { tenant: task.tenant } : {}),
    ...(task.duration ? { duration: task.duration } : {}),
  };
  return `curl -X POST ${shell(address("tasks"))} -H 'Authorization: Bearer hw_…' -H 'Content-Type: application/json' -d ${shell(JSON.stringify(body))}`;
}
