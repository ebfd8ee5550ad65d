/** The dashboard: the frame around all screens, the keys, and which screen an address shows. */

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, signedOut } from "./api";
import type { SessionInfo } from "./api.gen";
import { Batch, Batches } from "./batches";
import { Crons } from "./crons";
import { DeadLetters } from "./deadletters";
import { Job } from "./job";
import { Jobs } from "./jobs";
import { KEYS, useKeys } from "./keys";
import { Limits } from "./limits";
import { overview, startLive } from "./live";
import { Now } from "./now";
import { Head } from "./numbers";
import { Policy } from "./policy";
import { Link, parts } from "./router";
import { SignIn } from "./signin";
import { dismiss, seesAll, session, toasts } from "./state";
import { System } from "./system";
import { Tenants } from "./tenants";
import { Count, Dialog, Empty } from "./ui";
import { Workers } from "./workers";

/** The screens in the order of the navigation. `all`: it concerns all tenants, so a tenant's token does not see it. */
const SCREENS: { path: string; name: string; all: boolean; show: () => preact.JSX.Element }[] = [
  { path: "", name: "Now", all: true, show: Now },
  { path: "jobs", name: "Jobs", all: false, show: Jobs },
  { path: "tenants", name: "Tenants", all: true, show: Tenants },
  { path: "limits", name: "Limits", all: true, show: Limits },
  { path: "workers", name: "Workers", all: true, show: Workers },
  { path: "dead-letters", name: "Dead letters", all: false, show: DeadLetters },
  { path: "crons", name: "Crons", all: true, show: Crons },
  { path: "batches", name: "Batches", all: false, show: Batches },
  { path: "policy", name: "Policy", all: true, show: Policy },
  { path: "system", name: "System", all: true, show: System },
];

function Screen() {
  const [first = "", second] = parts.value;
  useEffect(() => {
    const name = SCREENS.find((screen) => screen.path === first)?.name ?? "Not found";
    document.title = `${second ? `${second.slice(-8)} · ` : ""}${name} · Headway`;
  }, [first, second]);
  if (first === "jobs" && second) return <Job key={second} id={second} />;
  if (first === "batches" && second) return <Batch key={second} id={second} />;
  const screen = SCREENS.find((one) => one.path === first);
  if (screen === undefined || second) {
    return (
      <Empty title="There is no such page.">
        <Link to="">Go to Now</Link>
      </Empty>
    );
  }
  if (screen.all && !seesAll.value) {
    if (first === "") return <Jobs />;
    return <Empty title="Your token is for one tenant, and this page concerns all tenants." />;
  }
  const Show = screen.show;
  return <Show />;
}

function Nav() {
  const found = overview.value;
  const [first = ""] = parts.value;
  return (
    <nav aria-label="Pages">
      {SCREENS.filter((screen) => seesAll.value || !screen.all).map((screen) => (
        <Link key={screen.path} to={screen.path} aria-current={first === screen.path ? "page" : undefined}>
          {screen.name}
          {screen.path === "dead-letters" && found !== null && found.dead_letters > 0 && (
            <span class="n bad" aria-hidden="true">
              <Count value={found.dead_letters} />
            </span>
          )}
        </Link>
      ))}
    </nav>
  );
}

function Logo() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" fill="#0f766e" />
      <g fill="#fff">
        <rect x="7" y="8" width="18" height="4" rx="2" />
        <rect x="7" y="14" width="12" height="4" rx="2" opacity=".8" />
        <rect x="7" y="20" width="7" height="4" rx="2" opacity=".6" />
      </g>
    </svg>
  );
}

function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((toast) => (
        <div key={toast.id} class="toast" data-kind={toast.bad ? "bad" : "good"}>
          <span>{toast.text}</span>
          <button type="button" onClick={() => dismiss(toast.id)} aria-label="Dismiss">
            ×
          </button>
        </div>
      ))}
    </div>
  );
}

function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl class="facts">
        {KEYS.map(([keys, text]) => (
          <>
            <dt key={keys}>
              {keys.split(" ").map((key) => (
                <>
                  <kbd key={key}>{key}</kbd>{" "}
                </>
              ))}
            </dt>
            <dd>{text}</dd>
          </>
        ))}
      </dl>
      <div class="row end">
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function App() {
  const [help, setHelp] = useState(false);
  useKeys(() => setHelp(true));
  if (signedOut.value) return <SignIn />;
  if (session.value === null) return <p class="empty">Loading…</p>;
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <div class="frame">
        <aside class="side">
          <Link to="" class="brand" aria-label="Headway, to the first page">
            <Logo /> Headway
          </Link>
          <Nav />
          <footer>
            <span>
              Press <kbd>?</kbd> for keys
            </span>
          </footer>
        </aside>
        <div>
          <Head onHelp={() => setHelp(true)} />
          <main id="main" tabIndex={-1}>
            <Screen />
          </main>
        </div>
      </div>
      <Toasts />
      {help && <Help onClose={() => setHelp(false)} />}
    </>
  );
}

async function start(): Promise<void> {
  const room = document.getElementById("app");
  if (room === null) throw new Error("the page has no element #app");
  render(<App />, room);
  startLive();
  for (;;) {
    try {
      const found = await get<SessionInfo>("session");
      session.value = found;
      signedOut.value = !found.signed_in;
      return;
    } catch {
      if (signedOut.value) return;
      await new Promise((resolve) => setTimeout(resolve, 2_000));
    }
  }
}

void start();
