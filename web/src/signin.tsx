/** The page to sign in with a token. */

import { useState } from "preact/hooks";
import { post, signedOut } from "./api";
import type { SessionInfo } from "./api.gen";
import { session } from "./state";

export function SignIn() {
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const enter = async (event: SubmitEvent) => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const token = String(new FormData(form).get("token") ?? "").trim();
    setBusy(true);
    setProblem("");
    try {
      session.value = await post<SessionInfo>("session", { token });
      signedOut.value = false;
    } catch (failure) {
      setProblem(failure instanceof Error ? failure.message : String(failure));
    }
    setBusy(false);
  };
  return (
    <main class="signin">
      <form class="card" onSubmit={enter}>
        <h1>Sign in to Headway</h1>
        <p class="soft">
          This server asks for a token. An operator makes one with <code>headway token create --scope read,admin</code>.
        </p>
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <label class="field">
          Token
          <input name="token" type="password" autocomplete="current-password" required placeholder="hw_…" />
        </label>
        <p />
        <button type="submit" class="primary" disabled={busy}>
          Sign in
        </button>
      </form>
    </main>
  );
}
