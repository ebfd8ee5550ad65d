/** Workers: their slots, what they run and know, their heartbeats; drain one. */

import { useState } from "preact/hooks";
import { attempt } from "./actions";
import { get, part, post } from "./api";
import type { WorkerItem, WorkerList } from "./api.gen";
import { useResource } from "./resource";
import { Link, query, setQuery } from "./router";
import { word } from "./search";
import { mayAdminister } from "./state";
import { ActionButton, Choice, Columns, Command, Dialog, Empty, JobLink, Problem, Slots, StateBadge, Time } from "./ui";

const STATES = [
  ["", "All"],
  ["active", "active"],
  ["draining", "draining"],
  ["dead", "dead"],
] as const;

export function Workers() {
  const state = query.value.get("state") ?? "";
  const { data, problem } = useResource("workers", () => get<WorkerList>("workers"));
  const workers = (data?.workers ?? []).filter((worker) => !state || worker.status === state);
  const [draining, setDraining] = useState<WorkerItem | null>(null);
  return (
    <>
      <div class="title">
        <h1>Workers</h1>
        <Choice
          name="State"
          value={state as ""}
          options={STATES as never}
          onChange={(value) => setQuery({ state: value || null })}
        />
      </div>
      <Problem of="The list of workers" problem={problem} data={data} />
      {data && workers.length === 0 && (
        <div class="card">
          <Empty title={state ? `No worker is ${state}.` : "No worker runs."}>
            {!state && (
              <>
                Start one beside this server: <Command text="headway worker APP" />
              </>
            )}
          </Empty>
        </div>
      )}
      {workers.length > 0 && (
        <section class="card flush" aria-label="Workers">
          <div class="scroll">
            <table>
              <Columns
                names={["Worker", "State", "Slots", "Runs", "Offers", ["Heartbeat", "num"]]}
                actions={mayAdminister.value}
              />
              <tbody>
                {workers.map((worker) => (
                  <Worker key={worker.worker_id} worker={worker} onDrain={() => setDraining(worker)} />
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
      {draining && <Drain worker={draining} onClose={() => setDraining(null)} />}
    </>
  );
}

function Worker({ worker, onDrain }: { worker: WorkerItem; onDrain: () => void }) {
  return (
    <tr>
      <td>
        <Link to="jobs" query={{ q: word("worker", worker.worker_id) }} class="mono">
          {worker.worker_id}
        </Link>
        <span class="two">
          {worker.host}, process {worker.pid}, version {worker.version}
        </span>
      </td>
      <td>
        <StateBadge state={worker.status} />
      </td>
      <td>
        <Slots
          used={worker.current_load}
          reserved={Math.max(0, Math.min(worker.reserved, worker.capacity - worker.current_load))}
          total={worker.capacity}
        />
        <small>
          {worker.current_load} of {worker.capacity}
        </small>
      </td>
      <td class="ids">
        {worker.current_tasks.slice(0, 5).map((id) => (
          <>
            <JobLink key={id} id={id} />{" "}
          </>
        ))}
        {worker.current_tasks.length > 5 && <small>and {worker.current_tasks.length - 5} more</small>}
      </td>
      <td class="fill">
        <span class="two" title={worker.task_types.join("\n")}>
          {worker.task_types.includes("*") ? "any task" : worker.task_types.join(", ")}
        </span>
        {worker.capabilities.map((name) => (
          <span key={name} class="chip">
            {name}
          </span>
        ))}
      </td>
      <td class="num">
        <Time at={worker.last_heartbeat} />
        <small class="two">
          started <Time at={worker.started_at} />
        </small>
      </td>
      {mayAdminister.value && (
        <td class="num">
          {worker.status === "active" && (
            <button type="button" class="small" onClick={onDrain}>
              Drain
            </button>
          )}
        </td>
      )}
    </tr>
  );
}

function Drain({ worker, onClose }: { worker: WorkerItem; onClose: () => void }) {
  const run = async () => {
    await attempt(`drain ${worker.worker_id}`, async () => {
      await post(`workers/${part(worker.worker_id)}/drain`);
      return `${worker.worker_id} claims no more jobs and exits when its jobs have ended.`;
    });
    onClose();
  };
  return (
    <Dialog title="Drain worker" onClose={onClose}>
      <p>
        <code>{worker.worker_id}</code> will claim no more jobs, finish the {worker.current_load} that it runs, and
        exit. Whatever started it may start it again.
      </p>
      <div class="row end">
        <button type="button" onClick={onClose}>
          Keep it
        </button>
        <ActionButton class="primary" run={run}>
          Drain
        </ActionButton>
      </div>
    </Dialog>
  );
}
