/** Tenants: what each had against what it is entitled to, the one that suffers most first. */

import { get } from "./api";
import type { TenantItem, TenantPage } from "./api.gen";
import { percent, seconds } from "./format";
import { PauseButton } from "./now";
import { useResource } from "./resource";
import { Link, query, setQuery } from "./router";
import { word } from "./search";
import { mayAdminister } from "./state";
import { Age, Columns, Count, Empty, Problem, StateBadge } from "./ui";

export function Tenants() {
  const name = query.value.get("name") ?? "";
  const cursor = query.value.get("cursor");
  const { data, problem } = useResource(`${cursor}`, () => get<TenantPage>("tenants", { cursor }));
  const items = (data?.items ?? []).filter((item) => item.tenant.toLowerCase().includes(name.toLowerCase()));
  const most = Math.max(0.01, ...items.map((item) => Math.max(item.entitled_share, item.had_share ?? 0)));
  return (
    <>
      <div class="title">
        <h1>Tenants</h1>
        <input
          type="search"
          class="grow"
          aria-label="Filter tenants by name"
          placeholder="Filter by name"
          value={name}
          onInput={(event) => setQuery({ name: event.currentTarget.value || null }, true)}
        />
      </div>
      <p class="soft">
        A tenant is entitled to its part of the weights of all tenants with work in the last hour. Tenants that wait and
        had less than that come first.
      </p>
      <Problem of="The list of tenants" problem={problem} data={data} />
      {data && items.length === 0 && (
        <div class="card">
          {name ? (
            <Empty title="No tenant has this name." />
          ) : (
            <Empty title="No job has a tenant.">
              Headway shares slots fairly between tenants. Name one: <code>task.using(tenant="acme").enqueue(…)</code>
            </Empty>
          )}
        </div>
      )}
      {items.length > 0 && (
        <section class="card flush" aria-label="Tenants">
          <div class="scroll">
            <table>
              <Columns
                names={[
                  "Tenant",
                  ["Weight", "num"],
                  "Share of the last hour",
                  ["Running", "num"],
                  ["Waiting", "num"],
                  ["Oldest", "num"],
                  ["Waited p50 / p90", "num"],
                  "Limits at their cap",
                ]}
                actions={mayAdminister.value}
              />
              <tbody>
                {items.map((item) => (
                  <Tenant key={item.tenant} item={item} most={most} />
                ))}
              </tbody>
            </table>
          </div>
          <ul class="legend inset">
            <li>
              <i class="r1" />
              had
            </li>
            <li>
              <i class="r5" />
              had less than entitled while it waits
            </li>
            <li>
              <i class="mark" />
              entitled to
            </li>
          </ul>
        </section>
      )}
      {data && !data.complete && <p class="note">There are more tenants than are counted. These are the busiest.</p>}
      <div class="row">
        {cursor && (
          <button type="button" onClick={() => setQuery({ cursor: null })}>
            First page
          </button>
        )}
        {data?.next_cursor && (
          <button type="button" onClick={() => setQuery({ cursor: data.next_cursor })}>
            Next page
          </button>
        )}
      </div>
    </>
  );
}

function Tenant({ item, most }: { item: TenantItem; most: number }) {
  const had = item.had_share ?? 0;
  const text = `had ${item.had_share === null ? "nothing yet" : percent(had)}, entitled to ${percent(item.entitled_share)}`;
  return (
    <tr>
      <td>
        <Link to="jobs" query={{ q: word("tenant", item.tenant) }}>
          <strong>{item.tenant}</strong>
        </Link>{" "}
        {item.paused && <StateBadge state="paused" />}
      </td>
      <td class="num">{item.weight}</td>
      <td>
        <span class="share" role="img" aria-label={text} title={text}>
          <span class={`r${item.unfairness > 0 ? 5 : 1}`} style={{ width: `${(had / most) * 100}%` }} />
          <i style={{ left: `${(item.entitled_share / most) * 100}%` }} />
        </span>
        <small>
          {item.had_share === null ? "–" : percent(had)} of {percent(item.entitled_share)}
        </small>
      </td>
      <td class="num">
        <Count value={item.running} />
      </td>
      <td class="num">
        <Link to="jobs" query={{ q: `state:queued ${word("tenant", item.tenant)}` }}>
          <Count value={item.waiting} />
        </Link>
      </td>
      <td class="num">
        <Age at={item.oldest_at} />
      </td>
      <td class="num">
        {seconds(item.wait_p50)} / {seconds(item.wait_p90)}
      </td>
      <td>
        {item.limits_at_cap.map((name) => (
          <span key={name} class="chip">
            {name}
          </span>
        ))}
      </td>
      {mayAdminister.value && (
        <td class="num">
          <PauseButton what={{ tenant: item.tenant }} paused={item.paused} />
        </td>
      )}
    </tr>
  );
}
