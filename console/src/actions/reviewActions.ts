import { CircleCheck, CircleOff, type LucideIcon, RotateCcw, Trash2, Undo2, X } from "lucide-react";
import type { DeadLetterRow, ReviewRow } from "../api/documents";
import { type Action, type Entered, type Field, jsonPair, option, textPair } from "./action";
import { REQUIRED_REASON } from "./executionActions";

type Resolution = "completed" | "not_completed" | "retry" | "compensate" | "dismiss";

interface Meaning {
  verb: string;
  icon: LucideIcon;
  isDangerous: boolean;
  effect: (step: string, kind: ReviewRow["kind"]) => string;
}

const MEANINGS: Record<Resolution, Meaning> = {
  completed: {
    verb: "It was completed",
    icon: CircleCheck,
    isDangerous: false,
    effect: (step, kind) =>
      kind === "compensation_failed"
        ? `You confirm that the compensation of “${step}” is done. The rollback continues without calling its handler.`
        : `You confirm that “${step}” took effect. It succeeds with the result below, and the execution continues.`,
  },
  not_completed: {
    verb: "It was not completed",
    icon: CircleOff,
    isDangerous: false,
    effect: (step) =>
      `You confirm that “${step}” had no effect. It is tried again if its policy allows, otherwise it fails.`,
  },
  retry: {
    verb: "Try again",
    icon: RotateCcw,
    isDangerous: false,
    effect: (step) => `The handler of “${step}” is called again.`,
  },
  compensate: {
    verb: "Compensate",
    icon: Undo2,
    isDangerous: true,
    effect: () => "The execution fails, and its completed steps are compensated. This cannot be undone.",
  },
  dismiss: {
    verb: "Dismiss",
    icon: X,
    isDangerous: true,
    effect: (step, kind) =>
      kind === "dead_letter"
        ? "The dead letter is closed, and the execution stays failed."
        : `“${step}” stays as it is, and the execution continues without it.`,
  },
};

/** The number of the event that opened a review: its id ends with it. */
export function openedSeq(reviewId: string): number {
  const seq = Number(reviewId.slice(reviewId.lastIndexOf(".") + 1));
  return Number.isSafeInteger(seq) ? seq : 0;
}

type Reviewed = Pick<ReviewRow, "id" | "kind" | "execution_id" | "step_id">;

export function resolve(review: Reviewed, resolution: string, mayRepeat: boolean): Action | null {
  const meaning = MEANINGS[resolution as Resolution];
  if (!meaning) return null;
  return {
    id: `resolve:${resolution}`,
    title: `${meaning.verb}: ${review.step_id}`,
    verb: meaning.verb,
    icon: meaning.icon,
    isDangerous: meaning.isDangerous,
    effect: meaning.effect(review.step_id, review.kind),
    fields: fieldsOf(resolution, review.kind, mayRepeat),
    path: `/v1/reviews/${encodeURIComponent(review.id)}:resolve`,
    body: (entered) => [
      ["resolution", JSON.stringify(resolution)],
      ...jsonPair(entered, "result"),
      ...(entered["again"] ? [["again", "true"] as [string, string]] : []),
      ...textPair(entered, "reason"),
    ],
    command: (entered) => [
      ...["tenuto", "reviews", "resolve", review.id, resolution, ...option(entered, "result")],
      ...(entered["again"] ? ["--again"] : []),
      ...option(entered, "reason"),
    ],
    executionId: review.execution_id,
    seenSeq: openedSeq(review.id),
  };
}

function fieldsOf(resolution: string, kind: ReviewRow["kind"], mayRepeat: boolean): Field[] {
  const fields: Field[] = [];
  if (resolution === "completed" && kind !== "compensation_failed" && kind !== "escalation") {
    fields.push({
      kind: "json",
      name: "result",
      label: "Result",
      note: "Optional JSON. Becomes the result of the step.",
    });
  }
  if (resolution === "retry" && kind === "compensation" && mayRepeat) {
    const note = "The receiver sees a new request, with a new idempotency key.";
    fields.push({ kind: "flag", name: "again", label: "Repeat the effect", note });
  }
  return [...fields, REQUIRED_REASON];
}

/** The resolutions that a kind of review accepts. The execution's `blocked.commands` is more precise, if it names them. */
const RESOLUTIONS: Record<ReviewRow["kind"], readonly Resolution[]> = {
  approval: [],
  compensation: ["completed", "not_completed", "retry", "compensate"],
  compensation_failed: ["retry", "completed", "dismiss"],
  indeterminate: ["completed", "not_completed", "compensate"],
  escalation: ["completed"],
  dead_letter: ["dismiss"],
};

/** The actions that resolve a review. `commands` are those of the blocked execution, if this review blocks it. */
export function resolutionsOf(review: Reviewed, commands: readonly string[], mayRepeat: boolean): Action[] {
  const named = commands.filter((each) => each.startsWith("resolve:")).map((each) => each.slice("resolve:".length));
  const chosen = named.length ? named : RESOLUTIONS[review.kind];
  return chosen.map((each) => resolve(review, each, mayRepeat)).filter((action) => action !== null);
}

function letterAction(letter: DeadLetterRow, verb: "reprocess" | "discard") {
  return {
    id: verb,
    fields: [REQUIRED_REASON],
    path: `/v1/dlq/${encodeURIComponent(letter.id)}:${verb}`,
    body: (entered: Entered) => textPair(entered, "reason"),
    command: (entered: Entered) => ["tenuto", "dlq", verb, letter.id, ...option(entered, "reason")],
    executionId: letter.execution_id,
    seenSeq: openedSeq(letter.id),
  };
}

export function reprocess(letter: DeadLetterRow): Action {
  return {
    ...letterAction(letter, "reprocess"),
    title: `Reprocess “${letter.step_id}”`,
    verb: "Reprocess",
    icon: RotateCcw,
    isDangerous: false,
    effect: `The execution is retried: its next run starts with “${letter.step_id}”, and results of completed steps are kept.`,
  };
}

export function discard(letter: DeadLetterRow): Action {
  return {
    ...letterAction(letter, "discard"),
    title: `Discard the dead letter of “${letter.step_id}”`,
    verb: "Discard",
    icon: Trash2,
    isDangerous: true,
    effect: "The dead letter is closed, and the execution stays failed. It can still be retried from its own page.",
  };
}
