import { useSyncExternalStore } from "react";
import { usePreferences } from "../preferences/preferences";
import { durationText, fullTimeText, timeText } from "../values/times";

const listeners = new Set<() => void>();
let now = Date.now();
let timer: ReturnType<typeof setInterval> | undefined;

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(() => {
    now = Date.now();
    for (const each of listeners) each();
  }, 1_000);
  return () => {
    listeners.delete(listener);
    if (listeners.size) return;
    clearInterval(timer);
    timer = undefined;
  };
}

/** The time in milliseconds, renewed each second for the whole page at once. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}

export function Time({ at }: { at: string | null }) {
  const { times } = usePreferences();
  const current = useNow();
  if (at === null) return <span className="secondary">–</span>;
  return (
    <time className="nowrap" dateTime={at} title={fullTimeText(at)}>
      {timeText(at, times, current)}
    </time>
  );
}

/** How long something took, or has taken so far. */
export function Elapsed({ from, to }: { from: string | null; to: string | null }) {
  const current = useNow();
  if (from === null) return <span className="secondary">–</span>;
  const end = to === null ? Math.max(current, Date.parse(from)) : Date.parse(to);
  return <span className="nowrap">{durationText(end - Date.parse(from))}</span>;
}
