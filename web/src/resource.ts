/** Data of a screen: read when the screen opens, and again with each beat of the live stream. */

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiProblem } from "./api";
import { beat } from "./live";

interface Resource<Data> {
  data: Data | null;
  problem: ApiProblem | null;
  reload: () => void;
}

/**
 * Read data again whenever `key` changes, on each beat, and after `reload`. Data of a failed read stays on the screen
 * beside its problem. `live: false` reads it once for each key. `keep` returns the data of the key before until the new
 * data is there.
 */
export function useResource<Data>(
  key: string | null,
  read: () => Promise<Data>,
  { live = true, keep = false }: { live?: boolean; keep?: boolean } = {},
): Resource<Data> {
  const [state, setState] = useState<{ key: string | null; data: Data | null; problem: ApiProblem | null }>({
    key: null,
    data: null,
    problem: null,
  });
  const [turn, setTurn] = useState(0);
  const reading = useRef<{ key: string; turn: number } | null>(null);
  const seen = live ? beat.value : 0;
  useEffect(() => {
    if (key === null || (reading.current?.key === key && reading.current.turn === turn)) return;
    const mine = { key, turn };
    reading.current = mine;
    read().then(
      (data) => {
        if (reading.current !== mine) return; // A later read has begun.
        reading.current = null;
        setState({ key, data, problem: null });
      },
      (failure: unknown) => {
        if (reading.current !== mine) return;
        reading.current = null;
        const problem = failure instanceof ApiProblem ? failure : new ApiProblem(0, "internal", String(failure));
        setState((before) => ({ key, data: before.key === key || keep ? before.data : null, problem }));
      },
    );
  }, [key, turn, seen]);
  const current = state.key === key;
  return {
    data: current || keep ? state.data : null,
    problem: current ? state.problem : null,
    reload: () => setTurn((number) => number + 1),
  };
}
