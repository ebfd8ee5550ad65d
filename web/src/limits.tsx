/** Limits: how full each is and who waits for it; and the ladder as nested boxes with the jobs that sit on its rungs. */

import { get } from "./api";
import type { LadderReply, LimitItem, LimitsReply, RungItem, RungTask } from "./api.gen";
import { plural, seconds } from "./format";
import { useResource } from "./resource";
import { Link } from "./router";
import { Columns, Count, Empty, JobLink, Meter, Problem, Time } from "./ui";

export function Limits() {
  const { data, problem } = useResource("limits", () => get<LimitsReply>("limits"));
  return (
    <>
      <div class="title">
        <h1>Limits</h1>
        <span class="end">
          <Link to="policy" class="button">
            Draft a change
          </Link>
        </span>
      </div>
      <Problem of="The limits" problem={problem} data={data} />
      {data && (
        <>
          <section class="card flush" aria-label="Limits">
            {data.items.length ? <Table items={data.items} /> : <NoLimits />}
          </section>
          <section class="card">
            <header>
              <h2>Ladder of durations</h2>
              {data.ladder && (
                <small>
                  {plural(data.ladder.slots, "slot")}. A rung holds its own jobs and those of all longer rungs.
                </small>
              )}
            </header>
            {data.ladder ? <Ladder ladder={data.ladder} /> : <NoLadder />}
          </section>
        </>
      )}
    </>
  );
}

function NoLimits() {
  return (
    <Empty title="There are no limits.">
      <p>
        A limit bounds how many jobs run at once, or start in a minute: <code>@app.task(limits=[…])</code>, or{" "}
        <code>[limits]</code> in the policy.
      </p>
    </Empty>
  );
}

function NoLadder() {
  return (
    <Empty title="The policy has no ladder.">
      With a ladder, long jobs cannot take all slots: short ones keep room. <Link to="policy">See the policy</Link>
    </Empty>
  );
}

function Table({ items }: { items: LimitItem[] }) {
  return (
    <div class="scroll">
      <table>
        <Columns names={["Limit", "Counts", "Running", "Rate", ["Waiting", "num"], "Fullest"]} />
        <tbody>
          {items.map((item) => (
            <Limit key={`${item.source} ${item.name}`} item={item} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Limit({ item }: { item: LimitItem }) {
  const fullest = item.top_keys[0];
  return (
    <tr>
      <td>
        <strong>{item.name}</strong>
        <span class="two">of the {item.source}</span>
      </td>
      <td>
        {item.by ? `by ${item.by}` : "all together"}
        <span class="two">{item.tasks.length ? item.tasks.join(", ") : "all tasks"}</span>
      </td>
      <td>
        {item.concurrency === null ? (
          <span class="soft">–</span>
        ) : item.by ? (
          <>
            <span class="nowrap">
              {item.running} <small>in all, {item.concurrency} each</small>
            </span>
            {fullest && (
              <Meter
                part={fullest.running}
                whole={item.concurrency}
                over={fullest.running >= item.concurrency}
                name={`${fullest.value ?? "all"}: ${fullest.running} of ${item.concurrency}`}
              />
            )}
          </>
        ) : (
          <>
            {item.running} <small>of {item.concurrency}</small>
            <Meter
              part={item.running}
              whole={item.concurrency}
              over={item.running >= item.concurrency}
              name={`${item.running} of ${item.concurrency}`}
            />
          </>
        )}
      </td>
      <td>
        {item.rate ?? <span class="soft">–</span>}
        {item.next_start_at && (
          <span class="two">
            next start <Time at={item.next_start_at} />
          </span>
        )}
      </td>
      <td class="num">
        <Count value={item.waiting} />
      </td>
      <td>
        {item.top_keys
          .filter((key) => key.value !== null)
          .slice(0, 4)
          .map((key) => (
            <span key={key.key} class="chip" title={`${key.running} run, ${key.waiting} wait`}>
              {key.key.split("=").slice(1).join(" / ")} {key.running}
              {item.concurrency !== null && `/${item.concurrency}`}
            </span>
          ))}
      </td>
    </tr>
  );
}

function Ladder({ ladder }: { ladder: LadderReply }) {
  return <Rung rungs={ladder.rungs} tasks={ladder.tasks} slots={ladder.slots} />;
}

/** A rung with all longer rungs inside it, because a longer job also takes room on each shorter rung. */
function Rung({ rungs, tasks, slots }: { rungs: RungItem[]; tasks: RungTask[]; slots: number }) {
  const [rung, ...longer] = rungs;
  if (rung === undefined) return null;
  const most = rung.most ?? slots;
  const text = `${rung.running_from} of ${most} run on ${rung.name} or longer`;
  return (
    <div class="rung">
      <header>
        <strong>{rung.name}</strong>
        <small>up to {seconds(rung.seconds)}</small>
        <small class="end">
          {text}
          {rung.waiting > 0 && `, ${plural(rung.waiting, "job")} wait`}
        </small>
      </header>
      <Meter part={rung.running_from} whole={most} over={rung.running_from >= most} name={text} />
      <div class="row inset">
        {tasks
          .filter((task) => task.rung === rung.name)
          .map((task) => (
            <span
              key={task.task_id}
              class="chip"
              title={task.next_lowered ? "It is lowered first if another job needs its place" : ""}
            >
              <JobLink id={task.task_id}>{task.task_type}</JobLink> {task.tenant} · ends <Time at={task.ends_at} />
              {task.next_lowered && " · lowered next"}
            </span>
          ))}
      </div>
      <Rung rungs={longer} tasks={tasks} slots={slots} />
    </div>
  );
}
