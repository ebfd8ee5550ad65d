/** Crons: tasks that run by the clock, their next and last runs; run one now, pause it. */

import { get, part, post } from "./api";
import type { CronItem, CronPage, CronStarted } from "./api.gen";
import { moment } from "./format";
import { refresh } from "./live";
import { useResource } from "./resource";
import { Link } from "./router";
import { scheduleInWords } from "./schedule";
import { word } from "./search";
import { mayAdminister, say, sayProblem } from "./state";
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
                names={["Task", "Schedule", "Next", "Last run", "If it overlaps or was missed"]}
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
  const start = async () => {
    try {
      const started = await post<CronStarted>(`crons/${part(name)}/run`);
      say(
        started.deduplicated
          ? `${name} runs already, and it allows no overlap.`
          : `Submitted ${name}: ${started.task_id}`,
      );
      refresh();
    } catch (failure) {
      sayProblem(`Cannot run ${name}`, failure);
    }
  };
  const pause = async () => {
    try {
      await post(`crons/${part(name)}/${cron.held ? "resume" : "pause"}`);
      say(cron.held ? `${name} runs by the clock again.` : `${name} is paused: the clock starts no more runs.`);
      refresh();
    } catch (failure) {
      sayProblem(`Cannot ${cron.held ? "resume" : "pause"} ${name}`, failure);
    }
  };
  return (
    <tr>
      <td>
        <Link to="jobs" query={{ q: word("task", name) }}>
          <strong>{name}</strong>
        </Link>{" "}
        {cron.paused && (
          <span class="state" data-state="paused">
            paused
          </span>
        )}
      </td>
      <td>
        {scheduleInWords(cron.expression)}
        <span class="two">
          <code>{cron.expression}</code> {cron.tz}
        </span>
      </td>
      <td>
        <Time at={cron.next_at} />
        <span class="two">
          {cron.upcoming.slice(1).map((at) => (
            <>
              <Time key={at} at={at} />{" "}
            </>
          ))}
        </span>
      </td>
      <td>
        {cron.last ? (
          <>
            <span class="row">
              <StateBadge state={cron.last.status} /> <JobLink id={cron.last.task_id} />
              <Time at={cron.last.created_at} />
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
      <td>
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
