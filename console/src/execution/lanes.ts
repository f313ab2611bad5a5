import type { AttemptRow } from "../api/documents";
import { lookOf, type Tone } from "../elements/status";

/** A piece of a lane: an attempt, or the wait before the next one. */
export interface Bar {
  from: number;
  to: number | null;
  kind: "attempt" | "retry-wait" | "wait";
  tone: Tone;
  label: string;
}

/** A line of the timeline: everything that a step did. */
export interface Lane {
  path: string;
  name: string;
  bars: Bar[];
}

const PHASES: Record<AttemptRow["kind"], string> = {
  forward: "attempt",
  compensation: "compensation",
  guard: "guard",
  reconcile: "reconcile",
  plan: "plan",
};

/** The lanes of attempts, by the time at which each step began. `waits` are the paths of steps that only wait: for a
 * person, a signal or a time. */
export function lanesOf(attempts: readonly AttemptRow[], waits: ReadonlyMap<string, Tone> = new Map()): Lane[] {
  const lanes = new Map<string, Lane>();
  const nextStarts = startsByStep(attempts);
  for (const attempt of attempts) {
    if (attempt.started_at === null) continue;
    const known = lanes.get(attempt.path);
    const lane = known ?? { path: attempt.path, name: attempt.step_id, bars: [] };
    if (!known) lanes.set(attempt.path, lane);
    lane.bars.push(attemptBar(attempt, waits.get(attempt.path)));
    const wait = waitBar(attempt, nextStarts);
    if (wait) lane.bars.push(wait);
  }
  const start = (lane: Lane) => Math.min(...lane.bars.map((bar) => bar.from));
  return [...lanes.values()].sort((one, other) => start(one) - start(other));
}

function attemptBar(attempt: AttemptRow, wait: Tone | undefined): Bar {
  const look = lookOf(attempt.status);
  const isDone = look.tone === "succeeded" || look.tone === "running";
  const tone = attempt.kind === "compensation" && isDone ? "compensation" : look.tone;
  return {
    from: Date.parse(attempt.started_at ?? ""),
    to: attempt.finished_at === null ? null : Date.parse(attempt.finished_at),
    kind: wait ? "wait" : "attempt",
    tone: wait && isDone ? wait : tone,
    label: `${PHASES[attempt.kind]} ${attempt.attempt_number}: ${look.word}`,
  };
}

/** The wait after a failed attempt lasts until the next one begins, or until it is due. */
function waitBar(attempt: AttemptRow, starts: ReadonlyMap<string, number[]>): Bar | null {
  if (attempt.retry_after_at === null || attempt.finished_at === null) return null;
  const from = Date.parse(attempt.finished_at);
  const next = starts.get(attempt.path)?.find((start) => start >= from);
  return {
    from,
    to: next ?? Date.parse(attempt.retry_after_at),
    kind: "retry-wait",
    tone: "timer",
    label: "waits for the retry",
  };
}

function startsByStep(attempts: readonly AttemptRow[]): Map<string, number[]> {
  const starts = new Map<string, number[]>();
  for (const { path, started_at } of attempts) {
    if (started_at === null) continue;
    const known = starts.get(path);
    if (known) known.push(Date.parse(started_at));
    else starts.set(path, [Date.parse(started_at)]);
  }
  for (const each of starts.values()) each.sort((one, other) => one - other);
  return starts;
}

/** Maps times to places between 0 and 1. Idle time can be shortened to a small part of the width. */
export class Scale {
  readonly #points: [time: number, place: number][] = [];

  constructor(lanes: readonly Lane[], from: number, to: number, collapseIdle: boolean) {
    const span = Math.max(1, to - from);
    const idle = collapseIdle ? idleTimes(lanes, from, to, span / 20) : [];
    const idleSpan = idle.reduce((sum, [start, end]) => sum + end - start, 0);
    const busy = Math.max(1, span - idleSpan);
    const kept = idle.length ? Math.min(0.04, 0.4 / idle.length) : 0; // of the width, for each idle time
    const unit = (1 - kept * idle.length) / busy;
    let place = 0;
    let at = from;
    this.#points.push([at, 0]);
    for (const [start, end] of idle) {
      place += (start - at) * unit;
      this.#points.push([start, place]);
      place += kept;
      this.#points.push([end, place]);
      at = end;
    }
    this.#points.push([Math.max(to, from + 1), 1]);
  }

  place(time: number): number {
    const index = this.#points.findIndex(([at]) => at >= time);
    if (index < 0) return 1;
    const [after, right] = this.#points[index] ?? [time, 0];
    const [before, left] = this.#points[index - 1] ?? [after, right];
    return after === before ? right : left + ((time - before) / (after - before)) * (right - left);
  }

  /** The shortened times, as places. */
  get breaks(): [number, number][] {
    const found: [number, number][] = [];
    for (let index = 1; index + 2 < this.#points.length; index += 2) {
      found.push([this.#points[index]?.[1] ?? 0, this.#points[index + 1]?.[1] ?? 0]);
    }
    return found;
  }
}

/** The times in which no attempt ran that are longer than `least`. */
function idleTimes(lanes: readonly Lane[], from: number, to: number, least: number): [number, number][] {
  const bars = lanes
    .flatMap((lane) => lane.bars)
    .filter((bar) => bar.kind === "attempt")
    .sort((one, other) => one.from - other.from);
  const idle: [number, number][] = [];
  let busyUntil = from;
  for (const bar of bars) {
    if (bar.from - busyUntil > least) idle.push([busyUntil, bar.from]);
    busyUntil = Math.max(busyUntil, bar.to ?? to);
  }
  if (to - busyUntil > least) idle.push([busyUntil, to]);
  return idle;
}
