/** Jobs: a search, its rows with why each waits and when it starts, and actions on rows or on all that match. */

import { Component, type RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ActionButtons, actionsFor, Confirmations } from "./actions";
import { get } from "./api";
import type { TaskPage, TaskReply } from "./api.gen";
import { attempts, brief, full, parameters, plural, seconds } from "./format";
import { list } from "./keys";
import { selected } from "./live";
import { REASONS } from "./reasons";
import { useResource } from "./resource";
import { go, Link, query, setQuery } from "./router";
import { SearchBox, STATES, word } from "./search";
import { maySubmit } from "./state";
import { Age, Choice, Command, Empty, Problem, StartRange, StateBadge } from "./ui";

const LIMITS = [
  ["50", "50"],
  ["100", "100"],
  ["500", "500"],
] as const;
const COSTLY = 5_000; // Jobs that a search has passed.
const STATE = /(^|\s)state:(\S+)/;
/** Columns, with a class for their width: it does not depend on the rows, so nothing moves when they change. */
const HEAD = [
  ["State", "c-state"],
  ["Task", "c-task"],
  ["Tenant", "c-tenant wide"],
  ["Lane", "c-lane wide"],
  ["For", "c-for num"],
  ["Attempt", "c-attempt num roomy"],
  ["Why, progress or error", "wide"],
  ["Starts in", "c-start wide"],
] as const;

const WINDOW_ABOVE = 100; // Rows beyond which only those near the screen are in the document.
const BEYOND = 12; // Rows above and below the screen that are there as well.
const ROW_PIXELS = 49; // As in the style sheet; measured once a row is there.

/** Return which rows to draw: all of a short list, of a long one those near the screen. */
function useWindow(count: number, body: RefObject<HTMLTableSectionElement | null>) {
  const [range, setRange] = useState({ first: 0, last: 40 });
  const long = count > WINDOW_ABOVE;
  const height = useRef(ROW_PIXELS);
  useEffect(() => {
    if (!long) return;
    const look = () => {
      const table = body.current;
      if (table === null) return;
      const row = table.querySelector<HTMLTableRowElement>("tr[id]");
      if (row?.offsetHeight) height.current = row.offsetHeight;
      const above = -table.getBoundingClientRect().top;
      const first = Math.max(0, Math.floor(above / height.current) - BEYOND);
      const last = Math.min(count, Math.ceil((above + innerHeight) / height.current) + BEYOND);
      setRange((before) => (before.first === first && before.last === last ? before : { first, last }));
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [long, count, body]);
  return long ? { ...range, height: height.current } : { first: 0, last: count, height: height.current };
}

/** The room of rows that are not drawn. */
function Spacer({ rows, height }: { rows: number; height: number }) {
  if (rows <= 0) return null;
  return (
    <tr>
      <td colSpan={9} style={{ height: `${rows * height}px`, padding: 0 }} />
    </tr>
  );
}

/** Keep the objects of rows that did not change, so that only changed rows are drawn again. */
function useStableRows(items: TaskReply[] | undefined): TaskReply[] {
  const kept = useRef(new Map<string, { text: string; task: TaskReply }>());
  const source = useRef<TaskReply[] | undefined>(undefined);
  const rows = useRef<TaskReply[]>([]);
  if (items !== source.current) {
    const before = kept.current;
    source.current = items;
    kept.current = new Map();
    rows.current = (items ?? []).map((task) => {
      const text = shown(task);
      const old = before.get(task.task_id);
      const stable = old?.text === text ? old : { text, task };
      kept.current.set(task.task_id, stable);
      return stable.task;
    });
  }
  return rows.current;
}

/** Return what a row shows of a job: if it is the same, the row is. */
function shown(task: TaskReply): string {
  const { estimate, why, error, progress, payload } = task;
  return JSON.stringify([
    [task.status, payload, task.tenant, task.priority, task.duration, since(task), task.attempt_count],
    [why?.map((reason) => reason.text), error?.type, error?.message, progress, task.reason, task.assigned_worker_id],
    [
      seconds(estimate?.p50),
      seconds(estimate?.p90),
      task.cancel_requested_at,
      task.status === "completed" && task.result,
    ],
  ]);
}

export function Jobs() {
  const text = query.value.get("q") ?? "";
  const limit = query.value.get("limit") ?? "50";
  const cursor = query.value.get("cursor");
  const key = `${text}\n${limit}\n${cursor}`;
  // Rows come first. Why they wait takes longer to compute, and follows.
  const wanted = { q: text, limit, cursor, redact: true };
  const plain = useResource(/\bwhy:/.test(text) ? null : key, () => get<TaskPage>("tasks", wanted), { live: false });
  // A search that reads many jobs is not repeated by itself.
  const [costly, setCostly] = useState("");
  const read = async () => {
    const page = await get<TaskPage>("tasks", { ...wanted, explain: true });
    setCostly((page.searched ?? 0) > COSTLY ? key : "");
    return page;
  };
  const explained = useResource(key, read, { live: costly !== key });
  const data = explained.data ?? plain.data;
  const problem = explained.problem;
  const rows = useStableRows(data?.items);
  const state = STATE.exec(text)?.[2] ?? "";
  const words = text.split(/\s+/).some((one) => one && !/^\w+:/.test(one));
  // A power of two, so that the axis of all bars seldom changes.
  const longest = 2 ** Math.ceil(Math.log2(Math.max(1, ...rows.map((row) => row.estimate?.p90 ?? 0))));
  const body = useRef<HTMLTableSectionElement>(null);
  const drawn = useWindow(rows.length, body);
  const { marked, current, toggle, all, clear } = useSelection(rows, text, body);
  const search = (value: string) => {
    clear();
    go("jobs", { q: value, limit: limit === "50" ? null : limit });
  };
  const pick = (value: string) => {
    const rest = text.replace(STATE, "").trim();
    search(value ? `${word("state", value)} ${rest}`.trim() : rest);
  };
  const chosen = rows.filter((row) => marked.has(row.task_id));
  return (
    <>
      <div class="title">
        <h1>Jobs</h1>
        <SearchBox text={text} onSearch={search} {...(problem ? { problem: problem.message } : {})} />
      </div>
      <div class="row">
        <Choice
          name="State"
          value={state}
          options={[["", "All"], ...STATES.map((name) => [name, name.replace("_", " ")] as const)]}
          onChange={pick}
        />
        <span class="grow" />
        <MatchActions
          text={text}
          states={state ? state.split(",") : []}
          rows={rows}
          more={Boolean(data?.next_cursor)}
        />
      </div>
      <Problem of="The list" problem={problem} data={data} />
      {data === null ? null : rows.length === 0 ? (
        <div class="card">
          {data.next_cursor ? (
            <Empty title={`None of the ${cursor ? "next" : "newest"} ${full(data.searched ?? 0)} jobs matches.`}>
              <button type="button" onClick={() => setQuery({ cursor: data.next_cursor })}>
                Search older jobs
              </button>
              {words && (
                <small>Words are compared with the arguments of each job, which takes longer than fields.</small>
              )}
            </Empty>
          ) : text ? (
            <Empty title="No job matches.">
              <button type="button" onClick={() => search("")}>
                Clear the search
              </button>
            </Empty>
          ) : (
            <Empty title="There are no jobs yet.">
              Submit one: <Command text="headway submit demo.sleep seconds=5" />
            </Empty>
          )}
        </div>
      ) : (
        <section class="card flush" aria-label="Jobs">
          <div class="scroll">
            <table class="jobs" aria-rowcount={rows.length + 1}>
              <thead>
                <tr>
                  {maySubmit.value && (
                    <th scope="col" class="box">
                      <input
                        type="checkbox"
                        aria-label="Select all rows"
                        checked={marked.size > 0 && marked.size === rows.length}
                        onChange={all}
                      />
                    </th>
                  )}
                  {HEAD.map(([name, kind]) => (
                    <th key={name} scope="col" class={kind}>
                      {name}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody ref={body}>
                <Spacer rows={drawn.first} height={drawn.height} />
                {rows.slice(drawn.first, drawn.last).map((task, index) => (
                  <JobRow
                    key={task.task_id}
                    index={drawn.first + index + 2}
                    task={task}
                    selectable={maySubmit.value}
                    marked={marked.has(task.task_id)}
                    current={current === task.task_id}
                    longest={longest}
                    toggle={toggle}
                  />
                ))}
                <Spacer rows={rows.length - drawn.last} height={drawn.height} />
              </tbody>
            </table>
          </div>
        </section>
      )}
      <div class="row">
        {cursor && (
          <button type="button" onClick={() => setQuery({ cursor: null })}>
            Newest
          </button>
        )}
        {data?.next_cursor && rows.length > 0 && (
          <button type="button" onClick={() => setQuery({ cursor: data.next_cursor })}>
            Older
          </button>
        )}
        {data?.next_cursor && rows.length > 0 && rows.length < Number(limit) && (
          <small>
            {rows.length} of the {cursor ? "next" : "newest"} {full(data.searched ?? 0)} jobs match.
          </small>
        )}
        <span class="grow" />
        <span class="row">
          <small>Rows</small>
          <Choice name="Rows" value={limit as "50"} options={LIMITS} onChange={(value) => setQuery({ limit: value })} />
        </span>
      </div>
      {chosen.length > 0 && (
        <div class="acting">
          <strong>{plural(chosen.length, "job")} selected</strong>
          <ActionButtons
            states={chosen.map((task) => task.status)}
            filter={{ id: chosen.map((task) => task.task_id) }}
            what={plural(chosen.length, "selected job")}
            onDone={clear}
          />
          <button type="button" class="plain" onClick={clear}>
            Clear
          </button>
        </div>
      )}
      <Confirmations />
    </>
  );
}

/** Actions on everything that the search finds, not only on the rows of this page. */
function MatchActions(given: { text: string; states: string[]; rows: TaskReply[]; more: boolean }) {
  if (!given.text || !given.rows.length) return null;
  const states = given.states.length ? given.states : [...new Set(given.rows.map((row) => row.status))];
  if (!actionsFor(states).length) return null;
  return (
    <span class="row">
      <small>All that match</small>
      <ActionButtons small states={states} filter={given.text} what="all jobs that match" />
    </span>
  );
}

/** Which rows are selected and which is the current one, for keys and for the mouse. */
function useSelection(rows: TaskReply[], text: string, body: RefObject<HTMLTableSectionElement | null>) {
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set());
  const [current, setCurrent] = useState<string | null>(null);
  const toggle = useRef((id: string) => {
    setMarked((before) => {
      const after = new Set(before);
      if (!after.delete(id)) after.add(id);
      return after;
    });
  }).current;
  const clear = () => setMarked(new Set());
  const all = () => setMarked(marked.size === rows.length ? new Set() : new Set(rows.map((row) => row.task_id)));
  selected.value = marked.size;
  useEffect(() => clear, [text]);
  useEffect(
    () => () => {
      selected.value = 0;
      Object.assign(list, { move: null, select: null, open: null, clear: null });
    },
    [],
  );
  list.move = (by) => {
    const index = rows.findIndex((row) => row.task_id === current);
    const place = Math.max(0, Math.min(rows.length - 1, index < 0 ? 0 : index + by));
    const next = rows[place];
    if (next === undefined) return;
    setCurrent(next.task_id);
    const row = document.getElementById(`job-${next.task_id}`);
    if (row) row.scrollIntoView({ block: "nearest" });
    else scrollBy(0, (body.current?.getBoundingClientRect().top ?? 0) + place * ROW_PIXELS - innerHeight / 2);
  };
  list.select = () => {
    if (current !== null && maySubmit.value) toggle(current);
  };
  list.open = () => {
    if (current !== null) go(`jobs/${encodeURIComponent(current)}`);
  };
  list.clear = clear;
  return { marked, current, toggle, all, clear };
}

interface RowProps {
  task: TaskReply;
  index: number;
  selectable: boolean;
  marked: boolean;
  current: boolean;
  longest: number;
  toggle: (id: string) => void;
}

/** Since when a job is in its state. */
export function since(task: TaskReply): string | null {
  if (task.completed_at) return task.completed_at;
  if (task.status === "executing") return task.started_at;
  return task.eligible_at ?? task.created_at;
}

class JobRow extends Component<RowProps> {
  override shouldComponentUpdate(next: RowProps): boolean {
    const waits = next.task.status === "queued";
    return (
      next.task !== this.props.task ||
      next.index !== this.props.index ||
      next.marked !== this.props.marked ||
      next.current !== this.props.current ||
      next.selectable !== this.props.selectable ||
      (waits && next.longest !== this.props.longest)
    );
  }

  override render({ task, index, selectable, marked, current, longest, toggle }: RowProps) {
    const id = task.task_id;
    const start = task.status === "queued" && task.estimate && (
      <StartRange p50={task.estimate.p50} p90={task.estimate.p90} most={longest} />
    );
    return (
      <tr id={`job-${id}`} aria-rowindex={index} data-current={current ? "true" : undefined}>
        {selectable && (
          <td>
            <input
              type="checkbox"
              aria-label={`Select ${task.payload.task_type} ${id.slice(-8)}`}
              checked={marked}
              onChange={() => toggle(id)}
            />
          </td>
        )}
        <td>
          <StateBadge state={task.status} />
        </td>
        <td>
          <Link to={`jobs/${encodeURIComponent(id)}`} class="name" title={id}>
            {task.payload.task_type}
          </Link>
          <span class="two mono">{parameters(task.payload.parameters) || id.slice(-8)}</span>
          <span class="narrow">
            <Reasoning task={task} />
            {start}
          </span>
        </td>
        <td class="wide clamp" title={task.tenant ?? ""}>
          <span>{task.tenant ?? "–"}</span>
        </td>
        <td class="wide cut">
          {task.priority}
          {task.duration && <small class="two">{task.duration}</small>}
        </td>
        <td class="num">
          <Age at={since(task)} />
        </td>
        <td class="num roomy">
          {task.attempt_count} <small>of {attempts(task.max_retries)}</small>
        </td>
        <td class="clamp wide">
          <Reasoning task={task} />
        </td>
        <td class="wide">{start || <span class="soft">–</span>}</td>
      </tr>
    );
  }
}

/** The one line that says most about a job in its state. */
function Reasoning({ task }: { task: TaskReply }) {
  const [first] = task.why ?? [];
  if (task.status === "queued") {
    if (!task.why) return <span class="soft">…</span>;
    if (first === undefined) return <span class="soft">the next claim takes it</span>;
    return (
      <span title={(task.why ?? []).map((reason) => reason.text).join("\n")}>{first.text || REASONS[first.code]}</span>
    );
  }
  if (task.status === "executing") {
    const { fraction, note } = task.progress ?? {};
    return (
      <span>
        {fraction !== undefined && (
          <progress value={fraction} max={1} aria-label={`Progress of ${task.payload.task_type}`} />
        )}{" "}
        {task.cancel_requested_at ? "asked to stop" : note}
        <small class="two">on {task.assigned_worker_id}</small>
      </span>
    );
  }
  if (task.error) {
    return (
      <span title={task.error.message}>
        {task.error.type}: {brief(task.error.message, 90)}
      </span>
    );
  }
  return <span class="soft">{task.reason ?? (task.status === "completed" ? brief(task.result, 60) : "–")}</span>;
}
