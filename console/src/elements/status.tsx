import {
  CircleCheck,
  CircleDashed,
  CirclePlay,
  CircleSlash,
  CircleX,
  Clock,
  type LucideIcon,
  Undo2,
  UserRoundCheck,
} from "lucide-react";

export type Tone = "running" | "succeeded" | "failed" | "person" | "timer" | "compensation" | "inactive";

interface Look {
  tone: Tone;
  icon: LucideIcon;
  word: string;
}

const RUNNING: Look = { tone: "running", icon: CirclePlay, word: "running" };

/** Every status of executions, steps, attempts and compensations. */
const STATUSES: Record<string, Look> = {
  pending: { tone: "inactive", icon: CircleDashed, word: "pending" },
  running: RUNNING,
  retrying: { tone: "timer", icon: Clock, word: "retrying" },
  waiting_approval: { tone: "person", icon: UserRoundCheck, word: "waiting for approval" },
  awaiting_approval: { tone: "person", icon: UserRoundCheck, word: "waiting for approval" },
  succeeded: { tone: "succeeded", icon: CircleCheck, word: "succeeded" },
  failed: { tone: "failed", icon: CircleX, word: "failed" },
  timed_out: { tone: "failed", icon: CircleX, word: "timed out" },
  paused: { tone: "inactive", icon: CircleSlash, word: "paused" },
  canceled: { tone: "inactive", icon: CircleSlash, word: "canceled" },
  skipped: { tone: "inactive", icon: CircleSlash, word: "skipped" },
  compensating: { tone: "compensation", icon: Undo2, word: "compensating" },
  compensated: { tone: "compensation", icon: Undo2, word: "compensated" },
  compensation_failed: { tone: "failed", icon: CircleX, word: "compensation failed" },
  waiting: { tone: "timer", icon: Clock, word: "waiting" },
};

const FAULTS = new Set(["incompatible", "no_worker", "worker_lost", "bus"]);
const PERSON_REASONS = new Set(["approval", "review", "compensation_required"]);

export function lookOf(status: string): Look {
  return STATUSES[status] ?? { ...RUNNING, tone: "inactive", word: status.replaceAll("_", " ") };
}

/** The tone of a reason why an execution or a step is blocked. */
export function toneOfReason(reason: string): Tone {
  if (PERSON_REASONS.has(reason)) return "person";
  if (reason === "paused") return "inactive";
  return FAULTS.has(reason) ? "failed" : "timer";
}

/** The status of a step: what its compensation does is more recent than what the step did. */
export function stepStatus(status: string, compensation: string | null | undefined, blocked?: string | null): string {
  if (compensation === "done") return "compensated";
  if (compensation === "failed") return "compensation_failed";
  if (compensation && compensation !== "none" && compensation !== "skipped") return "compensating";
  if (status === "running" && blocked && blocked !== "callback") {
    return PERSON_REASONS.has(blocked) ? "awaiting_approval" : "waiting";
  }
  return status;
}

/** A status as icon and word. The word carries the meaning; the colour only repeats it. */
export function Status({ status, strong = false, word }: { status: string; strong?: boolean; word?: string }) {
  const look = lookOf(status);
  return (
    <span className={`status tone-${look.tone}${strong ? " strong" : ""}`}>
      <look.icon size={strong ? 14 : 16} aria-hidden="true" />
      <span className="word">{word ?? look.word}</span>
    </span>
  );
}
