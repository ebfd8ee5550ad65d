/** The head of every page: five numbers, the live dot, the environment, who the reader is. */

import { get, remove, signedOut } from "./api";
import type { QueueStats, SessionInfo } from "./api.gen";
import { plural } from "./format";
import { connection, overview, RATES, rate, selected, setRate } from "./live";
import { useResource } from "./resource";
import { Link } from "./router";
import { nextTheme, sayProblem, seesAll, session, theme } from "./state";
import { Age, Count, Menu } from "./ui";

const LABEL = document.querySelector<HTMLMetaElement>('meta[name="headway-label"]')?.content ?? "";

function labelKind(label: string): string {
  if (/prod|live/i.test(label)) return "danger";
  if (/stag|test|qa|pre/i.test(label)) return "caution";
  return /dev|local/i.test(label) ? "safe" : "other";
}

export function Head({ onHelp }: { onHelp: () => void }) {
  return (
    <header class="top">
      {seesAll.value ? <Five /> : <TenantNumbers />}
      <div class="end">
        {LABEL && (
          <span class="label" data-kind={labelKind(LABEL)}>
            {LABEL}
          </span>
        )}
        <Live />
        <Reader />
        <button type="button" class="plain" onClick={nextTheme} title={`Theme: ${theme.value} (t)`}>
          {theme.value === "dark" ? "☾" : theme.value === "light" ? "☀" : "◐"}
          <span class="hidden">Theme: {theme.value}</span>
        </button>
        <button type="button" class="plain" onClick={onHelp} title="Keys (?)">
          ?<span class="hidden"> Keyboard shortcuts</span>
        </button>
      </div>
    </header>
  );
}

function Five() {
  const found = overview.value;
  return (
    <dl class="five">
      <div>
        <dt>waiting</dt>
        <dd>
          <Link to="jobs" query={{ q: "state:queued" }}>
            {found ? <Count value={found.waiting} /> : "–"}
          </Link>
        </dd>
      </div>
      <div>
        <dt>running</dt>
        <dd>
          <Link to="jobs" query={{ q: "state:executing" }}>
            {found ? <Count value={found.running} /> : "–"}
          </Link>
        </dd>
      </div>
      <div>
        <dt>oldest waits</dt>
        <dd>{found?.oldest_at ? <Age at={found.oldest_at} /> : "–"}</dd>
      </div>
      <div>
        <dt>failed in 1 h</dt>
        <dd>
          <Link to="jobs" query={{ q: "state:failed,dead_letter" }}>
            {found ? <Count value={found.failed_last_hour} /> : "–"}
          </Link>
        </dd>
      </div>
      <div>
        <dt>workers</dt>
        <dd>
          <Link to="workers">{found ? <Count value={found.workers} /> : "–"}</Link>
        </dd>
      </div>
    </dl>
  );
}

/** What a reader with a token of one tenant sees: that tenant's tasks. */
function TenantNumbers() {
  const { data } = useResource(session.value ? "stats" : null, () => get<QueueStats>("queue/stats"));
  const lanes = Object.values(data?.queues ?? {});
  return (
    <dl class="five">
      <div>
        <dt>waiting</dt>
        <dd>{data ? <Count value={lanes.reduce((sum, lane) => sum + lane.depth, 0)} /> : "–"}</dd>
      </div>
      <div>
        <dt>tenant</dt>
        <dd>{session.value?.tenant ?? "–"}</dd>
      </div>
    </dl>
  );
}

function Live() {
  const words = { live: `every ${rate.value} s`, paused: "paused", lost: "not connected" };
  const text = selected.value ? `paused: ${plural(selected.value, "row")} selected` : words[connection.value];
  return (
    <div class="row">
      <span class="dot" data-on={connection.value} />
      <Menu name={text} small>
        {RATES.map((value) => (
          <button key={value} type="button" onClick={() => setRate(value)} aria-pressed={rate.value === value}>
            every {value} s
          </button>
        ))}
        <button type="button" onClick={() => setRate(0)} aria-pressed={rate.value === 0}>
          pause
        </button>
      </Menu>
    </div>
  );
}

function Reader() {
  const reader = session.value;
  if (!reader?.token_id) return null;
  const leave = async () => {
    try {
      await remove<SessionInfo>("session");
      session.value = null;
      signedOut.value = true;
    } catch (failure) {
      sayProblem("You are still signed in", failure);
    }
  };
  return (
    <Menu name={reader.scopes.includes("admin") ? "operator" : "reader"} small>
      <small>
        token {reader.token_id}
        <br />
        may {reader.scopes.join(", ")}
        {reader.tenant && (
          <>
            <br />
            tenant {reader.tenant}
          </>
        )}
      </small>
      <button type="button" onClick={leave}>
        Sign out
      </button>
    </Menu>
  );
}
