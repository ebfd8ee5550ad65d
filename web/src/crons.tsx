/** Crons: tasks that run by the clock, their next and last runs; run one now, pause it. */

import { attempt } from "./actions";
import { get, part, post } from "./api";
import type { CronItem, CronPage, CronStarted } from "./api.gen";
import { moment } from "./format";
import { useResource } from "./resource";
import { Link } from "./router";
import { scheduleInWords } from "./schedule";
import { word } from "./search";
import { mayAdminister } from "./state";
import { ActionButton, Columns, Empty, JobLink, Problem, StateBadge, Time } from "./ui";

export function Crons() {
  const { data, problem } = useResource("crons", () => get<CronPage>("crons"));
  return (
    <>
      <div class="title">
        <h1>Crons</h1>
      </div>
      <Problem of="The list of crons" problem={problem} data={data} />
      {data && !data.items.length && (
        <div class="card">
          <Empty title="There are no crons.">
            A task with a schedule appears here when its worker starts: <code>@app.cron("0 3 * * *")</code>
          </Empty>
        </div>
      )}
      {data && data.items.length > 0 && (
        <section class="card flush" aria-label="Crons">
          <div class="scroll">
            <table>
              <Columns
                names={["Task", "Schedule", "Next", "Last run", ["Overlap, missed", "roomy"]]}
                actions={mayAdminister.value}
              />
              <tbody>
                {data.items.map((cron) => (
                  <Cron key={cron.task_type} cron={cron} />
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
    </>
  );
}

function Cron({ cron }: { cron: CronItem }) {
  const name = cron.task_type;
  const start = () =>
    attempt(`run ${name}`, async () => {
      const started = await post<CronStarted>(`crons/${part(name)}/run`);
      return started.deduplicated
        ? `${name} runs already, and it allows no overlap.`
        : `Submitted ${name}: ${started.task_id}`;
    });
  const verb = cron.held ? "resume" : "pause";
  const pause = () =>
    attempt(`${verb} ${name}`, async () => {
      await post(`crons/${part(name)}/${verb}`);
      return cron.held ? `${name} runs by the clock again.` : `${name} is paused: the clock starts no more runs.`;
    });
  return (
    <tr>
      <td>
        <Link to="jobs" query={{ q: word("task", name) }}>
          <strong>{name}</strong>
        </Link>{" "}
        {cron.paused && <StateBadge state="paused" />}
      </td>
      <td>
        {scheduleInWords(cron.expression)}
        <span class="two">
          <code>{cron.expression}</code> {cron.tz}
        </span>
      </td>
      <td>
        <Time at={cron.next_at} />
        <span class="two whole">
          {cron.upcoming.slice(1).map((at) => (
            <>
              then <Time key={at} at={at} />{" "}
            </>
          ))}
        </span>
      </td>
      <td>
        {cron.last ? (
          <>
            <StateBadge state={cron.last.status} />{" "}
            <span class="nowrap">
              <JobLink id={cron.last.task_id} /> <Time at={cron.last.created_at} />
            </span>
            <span class="runs" role="img" aria-label={`The last ${cron.recent.length} runs`}>
              {cron.recent.toReversed().map((run) => (
                <span
                  key={run.task_id}
                  class="run"
                  data-state={run.status}
                  title={`${run.status}, ${moment(run.created_at)}`}
                />
              ))}
            </span>
          </>
        ) : (
          <span class="soft">none yet</span>
        )}
      </td>
      <td class="roomy">
        overlap: {cron.overlap} <span class="two">missed runs: {cron.catch_up}</span>
      </td>
      {mayAdminister.value && (
        <td>
          <span class="row end">
            <ActionButton class="small" run={start} aria-label={`Run now: ${name}`}>
              Run now
            </ActionButton>
            <ActionButton class="small" run={pause} aria-label={`${cron.held ? "Resume" : "Pause"} ${name}`}>
              {cron.held ? "Resume" : "Pause"}
            </ActionButton>
          </span>
        </td>
      )}
    </tr>
  );
}
