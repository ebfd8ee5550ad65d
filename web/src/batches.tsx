/** Batches: how far each is and when it ends; one batch with a graph of its jobs, if it is small. */

import { attempt } from "./actions";
import { get, part, post } from "./api";
import { count, full, plural, seconds } from "./format";
import { useResource } from "./resource";
import { Link, query, setQuery } from "./router";
import { maySubmit } from "./state";
import { ActionButton, Choice, Columns, Command, Empty, Menu, Problem, StateBadge, Time } from "./ui";

interface BatchItem {
  batch_id: string;
  name: string;
  key: string | null;
  tenant: string | null;
  status: "open" | "running" | "completed" | "failed" | "cancelled";
  counts: {
    total: number;
    held: number;
    waiting: number;
    running: number;
    completed: number;
    failed: number;
    cancelled: number;
  };
  created_at: string;
  finished_at: string | null;
  ends_in_seconds: number | null;
}

interface BatchPage {
  items: BatchItem[];
  next_cursor: string | null;
}

interface BatchGraph {
  nodes: { task_id: string; task_type: string; status: string }[];
  edges: { source: string; target: string; on_failure: string }[];
}

const STATES = [
  ["", "All"],
  ["running", "running"],
  ["completed", "completed"],
  ["failed", "failed"],
  ["cancelled", "cancelled"],
] as const;
const PARTS = [
  ["completed", "r4"],
  ["failed", "r5"],
  ["cancelled", "r7"],
  ["running", "r1"],
  ["waiting", "r0"],
  ["held", "r0"],
] as const;

export function Batches() {
  const status = query.value.get("status") ?? "";
  const cursor = query.value.get("cursor");
  const { data, problem } = useResource(`${status} ${cursor}`, () =>
    get<BatchPage>("batches", { status, cursor, limit: 50 }),
  );
  const absent = problem?.status === 404;
  const items = data?.items ?? [];
  return (
    <>
      <div class="title">
        <h1>Batches</h1>
        <Choice
          name="State"
          value={status as ""}
          options={STATES as never}
          onChange={(value) => setQuery({ status: value || null, cursor: null })}
        />
      </div>
      {!absent && <Problem of="The list of batches" problem={problem} data={data} />}
      {(absent || (data && !items.length)) && (
        <div class="card">
          <Empty title={status ? `No batch is ${status}.` : "There are no batches yet."}>
            A batch counts many jobs as one and runs another when all have ended:{" "}
            <code>with app.batch("import-7") as batch:</code>
          </Empty>
        </div>
      )}
      {items.length > 0 && (
        <section class="card flush" aria-label="Batches">
          <div class="scroll">
            <table>
              <Columns
                names={[
                  "Batch",
                  "State",
                  "Progress",
                  ["Waiting", "num"],
                  ["Running", "num"],
                  ["Failed", "num"],
                  ["Made", "num"],
                  ["Ends", "num"],
                ]}
              />
              <tbody>
                {items.map((batch) => (
                  <tr key={batch.batch_id}>
                    <td>
                      <Link to={`batches/${encodeURIComponent(batch.batch_id)}`}>
                        <strong>{batch.name}</strong>
                      </Link>
                      <span class="two">{batch.tenant}</span>
                    </td>
                    <td>
                      <StateBadge state={batch.status} />
                    </td>
                    <td>
                      <Parts batch={batch} />
                    </td>
                    <td class="num">{count(batch.counts.waiting + batch.counts.held)}</td>
                    <td class="num">{count(batch.counts.running)}</td>
                    <td class="num">{count(batch.counts.failed)}</td>
                    <td class="num">
                      <Time at={batch.created_at} />
                    </td>
                    <td class="num">
                      <Ending batch={batch} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
      {data?.next_cursor && (
        <button type="button" onClick={() => setQuery({ cursor: data.next_cursor })}>
          Older
        </button>
      )}
    </>
  );
}

function Parts({ batch }: { batch: BatchItem }) {
  const { counts } = batch;
  const ended = counts.completed + counts.failed + counts.cancelled;
  const text = PARTS.map(([name]) => `${full(counts[name])} ${name}`).join(", ");
  return (
    <>
      <div class="bar" role="img" aria-label={`${text}, of ${full(counts.total)}`} title={text}>
        {PARTS.map(([name, colour]) => (
          <span key={name} class={colour} style={{ width: `${(counts[name] / Math.max(1, counts.total)) * 100}%` }} />
        ))}
      </div>
      <small>
        {count(ended)} of {plural(counts.total, "job")}
      </small>
    </>
  );
}

function Ending({ batch }: { batch: BatchItem }) {
  if (batch.finished_at) return <Time at={batch.finished_at} />;
  return batch.ends_in_seconds === null ? <span class="soft">–</span> : <>in about {seconds(batch.ends_in_seconds)}</>;
}

export function Batch({ id }: { id: string }) {
  const { data: batch, problem } = useResource(id, () => get<BatchItem>(`batches/${part(id)}`));
  const { data: graph } = useResource(`${id} ${batch?.status}`, () => get<BatchGraph>(`batches/${part(id)}/graph`));
  if (batch === null) {
    if (problem?.status === 404) return <Empty title="There is no such batch." />;
    return problem ? <Problem of="The batch" problem={problem} /> : <p class="soft">Reading the batch…</p>;
  }
  const ended = batch.finished_at !== null;
  const act = (verb: "cancel" | "retry", body: object, done: string) =>
    attempt(`${verb} the batch`, async () => {
      await post(`batches/${part(id)}/${verb}`, body);
      return done;
    });
  return (
    <>
      <div class="title">
        <h1>{batch.name}</h1>
        <StateBadge state={batch.status} />
        <code class="soft">{id}</code>
        {maySubmit.value && (
          <span class="end">
            {!ended && (
              <ActionButton class="danger" run={() => act("cancel", {}, "The batch is being cancelled.")}>
                Cancel
              </ActionButton>
            )}
            {batch.counts.failed > 0 && (
              <Menu name="Retry">
                <button type="button" onClick={() => act("retry", { mode: "failed" }, "The failed jobs run again.")}>
                  the failed jobs
                </button>
                <button
                  type="button"
                  onClick={() =>
                    act("retry", { mode: "failed_and_after" }, "The failed jobs and those after them run again.")
                  }
                >
                  the failed jobs and those after them
                </button>
                <button type="button" onClick={() => act("retry", { mode: "all" }, "All jobs run again.")}>
                  all jobs
                </button>
              </Menu>
            )}
          </span>
        )}
      </div>
      <Problem of="The batch" problem={problem} />
      <section class="card">
        <header>
          <h2>Progress</h2>
          <small class="end">
            <span>
              made <Time at={batch.created_at} />
            </span>
            {(ended || batch.ends_in_seconds !== null) && (
              <span>
                {ended ? "ended " : "ends "}
                <Ending batch={batch} />
              </span>
            )}
          </small>
        </header>
        <Parts batch={batch} />
        <dl class="five inset">
          {PARTS.map(([name, colour]) => (
            <div key={name}>
              <dt>
                <i class={colour} />
                {name}
              </dt>
              <dd>{full(batch.counts[name])}</dd>
            </div>
          ))}
        </dl>
        <p class="inset">
          <Command text={`headway batch show ${id}`} />
        </p>
      </section>
      {graph && graph.nodes.length > 0 && (
        <section class="card">
          <h2>Jobs and what they depend on</h2>
          <Graph graph={graph} />
        </section>
      )}
    </>
  );
}

const BOX = { width: 150, height: 34, across: 40, down: 14 };

/** Return the column of each job: one more than the furthest of those it depends on. */
function columns(graph: BatchGraph): Map<string, number> {
  const before = new Map<string, string[]>();
  for (const edge of graph.edges) before.set(edge.target, [...(before.get(edge.target) ?? []), edge.source]);
  const found = new Map<string, number>();
  const column = (id: string): number => {
    const known = found.get(id);
    if (known !== undefined) return known;
    found.set(id, 0); // A graph has no cycles; if it had one, this ends it.
    const value = Math.max(-1, ...(before.get(id) ?? []).map(column)) + 1;
    found.set(id, value);
    return value;
  };
  for (const node of graph.nodes) column(node.task_id);
  return found;
}

function Graph({ graph }: { graph: BatchGraph }) {
  const column = columns(graph);
  const filled = new Map<number, number>();
  const place = new Map<string, { x: number; y: number }>();
  for (const node of graph.nodes) {
    const at = column.get(node.task_id) ?? 0;
    const row = filled.get(at) ?? 0;
    filled.set(at, row + 1);
    place.set(node.task_id, { x: at * (BOX.width + BOX.across) + 1, y: row * (BOX.height + BOX.down) + 1 });
  }
  const width = filled.size * (BOX.width + BOX.across);
  const height = Math.max(...filled.values()) * (BOX.height + BOX.down);
  return (
    <div class="graph">
      <svg
        width={width}
        height={height}
        role="group"
        aria-label={`${plural(graph.nodes.length, "job")}, ${plural(graph.edges.length, "dependency", "dependencies")}`}
      >
        {graph.edges.map((edge) => {
          const from = place.get(edge.source);
          const to = place.get(edge.target);
          if (!from || !to) return null;
          const start = from.x + BOX.width;
          const half = (to.x - start) / 2;
          const [y1, y2] = [from.y + BOX.height / 2, to.y + BOX.height / 2];
          return (
            <path
              key={`${edge.source} ${edge.target}`}
              d={`M${start},${y1}C${start + half},${y1} ${to.x - half},${y2} ${to.x},${y2}`}
              stroke-dasharray={edge.on_failure === "run" ? "4 3" : undefined}
            />
          );
        })}
        {graph.nodes.map((node) => {
          const { x, y } = place.get(node.task_id) ?? { x: 0, y: 0 };
          return (
            <Link
              key={node.task_id}
              to={`jobs/${encodeURIComponent(node.task_id)}`}
              aria-label={`${node.task_type}, ${node.status}`}
            >
              <g data-state={node.status}>
                <title>
                  {node.task_type} {node.status}
                </title>
                <rect x={x} y={y} width={BOX.width} height={BOX.height} rx="6" />
                <text x={x + 10} y={y + 21}>
                  {node.task_type.length > 20 ? `${node.task_type.slice(0, 19)}…` : node.task_type}
                </text>
              </g>
            </Link>
          );
        })}
      </svg>
    </div>
  );
}
