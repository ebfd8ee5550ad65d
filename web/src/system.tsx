/** System: what doctor finds, facts of the store, settings without secrets, bulk operations, and the audit. */

import { get } from "./api";
import type { AuditPage, BulkPage, SystemReply } from "./api.gen";
import { brief, full, seconds } from "./format";
import { useResource } from "./resource";
import { mayAdminister } from "./state";
import { Columns, Empty, Problem, StateBadge, Time } from "./ui";

export function System() {
  const { data, problem, reload } = useResource(
    mayAdminister.value ? "system" : null,
    () => get<SystemReply>("system"),
    { live: false },
  );
  if (!mayAdminister.value) {
    return (
      <>
        <h1>System</h1>
        <div class="card">
          <Empty title="This page needs a token with the scope admin." />
        </div>
      </>
    );
  }
  return (
    <>
      <div class="title">
        <h1>System</h1>
        {data && (
          <small>
            Headway {data.version}, namespace {data.namespace}
          </small>
        )}
        <span class="end">
          <button type="button" onClick={reload}>
            Check again
          </button>
        </span>
      </div>
      <Problem of="The state of the system" problem={problem} data={data} />
      {data && (
        <>
          <section class="card flush">
            <header>
              <h2>Checks</h2>
            </header>
            <div class="scroll">
              <table>
                <tbody>
                  {data.checks.map((check) => (
                    <tr key={check.name}>
                      <td>
                        <StateBadge state={check.status === "warning" ? "warn" : check.status} />
                      </td>
                      <th scope="row">{check.name}</th>
                      <td>
                        {check.detail}
                        {check.advice && <div class="soft">{check.advice}</div>}
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          </section>
          <div class="cards">
            <section class="card">
              <h2>Store</h2>
              <FactList facts={data.store} />
            </section>
            <section class="card">
              <h2>How soon jobs recover</h2>
              <FactList
                facts={Object.fromEntries(Object.entries(data.recovery).map(([name, value]) => [name, seconds(value)]))}
              />
            </section>
          </div>
          <section class="card">
            <details>
              <summary>Settings</summary>
              <FactList
                facts={Object.fromEntries(
                  Object.entries(data.settings).map(([name, value]) => [name, brief(value, 200)]),
                )}
              />
            </details>
          </section>
        </>
      )}
      <Operations />
      <Audit />
    </>
  );
}

function FactList({ facts }: { facts: Record<string, string> }) {
  return (
    <dl class="facts">
      {Object.entries(facts).map(([name, value]) => (
        <>
          <dt key={name}>{name.replace(/_seconds$/, "").replaceAll("_", " ")}</dt>
          <dd>{value}</dd>
        </>
      ))}
    </dl>
  );
}

function Operations() {
  const { data, problem } = useResource("operations", () => get<BulkPage>("bulk"));
  if (!data?.items.length) return <Problem of="The bulk actions" problem={problem} />;
  return (
    <section class="card flush">
      <header>
        <h2>Bulk actions</h2>
      </header>
      <div class="scroll">
        <table>
          <Columns names={["When", "Who", "What", "State", ["Changed", "num"]]} />
          <tbody>
            {data.items.slice(0, 20).map((one) => (
              <tr key={one.operation_id}>
                <td>
                  <Time at={one.created_at} />
                </td>
                <td>{one.who}</td>
                <td>
                  {one.action.replace("_", " ")} <code>{brief(one.filter, 100)}</code>
                </td>
                <td>
                  <StateBadge state={one.status} /> {one.error}
                </td>
                <td class="num">
                  {full(one.changed)} of {full(one.count)}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Audit() {
  const { data, problem } = useResource("audit", () => get<AuditPage>("audit", { limit: 50 }));
  return (
    <section class="card flush">
      <header>
        <h2>Audit</h2>
        <small>what operators did, newest first</small>
      </header>
      <Problem of="The audit" problem={problem} />
      {data && !data.entries.length && <Empty title="No operator has changed anything yet." />}
      {data && data.entries.length > 0 && (
        <div class="scroll">
          <table>
            <Columns names={["When", "Who", "What", "Target", "Before and after"]} />
            <tbody>
              {data.entries.map((entry) => (
                <tr key={`${entry.at} ${entry.what} ${entry.target}`}>
                  <td>
                    <Time at={entry.at} />
                  </td>
                  <td>{entry.who}</td>
                  <td>{entry.what}</td>
                  <td class="mono">{brief(entry.target, 60)}</td>
                  <td>
                    {(entry.before !== null && entry.before !== undefined) ||
                    (entry.after !== null && entry.after !== undefined) ? (
                      <details>
                        <summary>show</summary>
                        <pre tabIndex={0}>
                          {JSON.stringify(entry.before, null, 2)} → {JSON.stringify(entry.after, null, 2)}
                        </pre>
                      </details>
                    ) : null}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
