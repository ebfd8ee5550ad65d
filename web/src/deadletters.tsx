/** Dead letters: grouped by task and error, because one cause often fails a thousand jobs. */

import { ActionButtons, Confirmations } from "./actions";
import { get } from "./api";
import type { DeadLetterGroups } from "./api.gen";
import { full } from "./format";
import { overview } from "./live";
import { useResource } from "./resource";
import { Link } from "./router";
import { Columns, Count, Empty, JobLink, Problem, Time } from "./ui";

const VERBS = ["replay", "purge"] as const;

export function DeadLetters() {
  const { data, problem } = useResource("groups", () => get<DeadLetterGroups>("dlq/groups"));
  const groups = data?.groups ?? [];
  return (
    <>
      <div class="title">
        <h1>Dead letters</h1>
        {groups.length > 0 && (
          <span class="end">
            <small>All {full(overview.value?.dead_letters ?? data?.scanned ?? 0)}</small>
            <ActionButtons
              states={["dead_letter"]}
              filter="state:dead_letter"
              only={VERBS}
              what="all dead letters"
              small
            />
          </span>
        )}
      </div>
      <Problem of="The dead letters" problem={problem} data={data} />
      {data && !groups.length && (
        <div class="card">
          <Empty title="There are no dead letters.">A job becomes one when its last retry has failed.</Empty>
        </div>
      )}
      {groups.length > 0 && (
        <section class="card flush" aria-label="Groups of dead letters">
          <div class="scroll">
            <table>
              <Columns
                names={[
                  "Task and error",
                  ["Jobs", "num"],
                  ["1 h", "num"],
                  ["24 h", "num"],
                  ["7 d", "num"],
                  ["Last", "num"],
                  "Example",
                ]}
                actions
              />
              <tbody>
                {groups.map((group) => (
                  <tr key={group.filter}>
                    <td class="fill">
                      <Link to="jobs" query={{ q: group.filter }} class="name">
                        <strong>{group.task_type}</strong> {group.error_type ?? "no error"}
                      </Link>
                      <span class="two" title={group.example_message ?? ""}>
                        {group.example_message}
                      </span>
                    </td>
                    <td class="num">
                      <Count value={group.count} />
                    </td>
                    <td class="num">
                      <Count value={group.last_hour} />
                    </td>
                    <td class="num">
                      <Count value={group.last_day} />
                    </td>
                    <td class="num">
                      <Count value={group.last_week} />
                    </td>
                    <td class="num">
                      <Time at={group.last_at} />
                    </td>
                    <td>
                      <JobLink id={group.example_task_id} />
                    </td>
                    <td>
                      <span class="row end">
                        <ActionButtons
                          small
                          only={VERBS}
                          states={["dead_letter"]}
                          filter={group.filter}
                          what={`${group.task_type} with ${group.error_type ?? "no error"}`}
                        />
                      </span>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </section>
      )}
      {data && !data.complete && (
        <p class="note">These groups count the newest {full(data.scanned)} dead letters. There are older ones.</p>
      )}
      <Confirmations />
    </>
  );
}
