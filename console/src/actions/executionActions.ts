import { Ban, Check, CirclePause, CirclePlay, Radio, RotateCcw, X } from "lucide-react";
import { executionPath } from "../api/queries";
import { type Action, type Entered, type Field, jsonPair, option, textPair } from "./action";

/** The execution that an action is about, as far as actions need it. */
export interface Subject {
  id: string;
  seq: number;
  steps: readonly string[];
}

const REASON: Field = {
  kind: "text",
  name: "reason",
  label: "Reason",
  required: false,
  note: "Recorded in the history.",
};
export const REQUIRED_REASON: Field = {
  ...REASON,
  required: true,
  note: "Required. Recorded in the history and the audit log.",
};

const withoutFields = () => [] as [string, string][];

function base(subject: Subject, path: string): Pick<Action, "path" | "executionId" | "seenSeq" | "isDangerous"> {
  return {
    path: `${executionPath(subject.id)}${path}`,
    executionId: subject.id,
    seenSeq: subject.seq,
    isDangerous: false,
  };
}

export function pause(subject: Subject): Action {
  return {
    ...base(subject, ":pause"),
    id: "pause",
    title: "Pause the execution",
    verb: "Pause",
    icon: CirclePause,
    effect: "Running steps finish, and no new ones start. Timers stand still until the execution is resumed.",
    fields: [REASON],
    body: (entered) => textPair(entered, "reason"),
    command: (entered) => ["tenuto", "pause", subject.id, ...option(entered, "reason")],
  };
}

export function resume(subject: Subject): Action {
  return {
    ...base(subject, ":resume"),
    id: "resume",
    title: "Resume the execution",
    verb: "Resume",
    icon: CirclePlay,
    effect: "The execution continues where it was paused. Steps that are ready start at once.",
    fields: [],
    body: withoutFields,
    command: () => ["tenuto", "resume", subject.id],
  };
}

const MODES: Field = {
  kind: "choice",
  name: "mode",
  label: "Mode",
  options: [
    { value: "", label: "As defined", note: "The mode in the definition." },
    { value: "drain", label: "Drain", note: "Waits for running steps, then ends. Completed steps stay as they are." },
    { value: "terminate", label: "Terminate", note: "Ends at once. Running steps are abandoned." },
    { value: "compensate", label: "Compensate", note: "Waits for running steps, then undoes completed ones." },
  ],
};

export function cancel(subject: Subject): Action {
  return {
    ...base(subject, ":cancel"),
    id: "cancel",
    title: "Cancel the execution",
    verb: "Cancel execution",
    icon: Ban,
    isDangerous: true,
    effect: "No new steps start, and the execution ends as canceled. This cannot be undone.",
    fields: [MODES, REASON],
    body: (entered) => [...textPair(entered, "mode"), ...textPair(entered, "reason")],
    command: (entered) => ["tenuto", "cancel", subject.id, ...option(entered, "mode"), ...option(entered, "reason")],
  };
}

export function retry(subject: Subject, mayRepeat: boolean): Action {
  const again: Field = {
    kind: "flag",
    name: "again",
    label: "Repeat completed effects from that step on",
    note: "With new idempotency keys: receivers see new requests.",
    needs: "from",
  };
  return {
    ...base(subject, ":retry"),
    id: "retry",
    title: "Retry the execution",
    verb: "Retry",
    icon: RotateCcw,
    effect: "Starts the next run. Results of completed steps are kept; failed and compensated steps run again.",
    fields: [
      {
        kind: "choice",
        name: "from",
        label: "Start from",
        options: [
          { value: "", label: "The failed steps" },
          ...subject.steps.map((step) => ({ value: step, label: step })),
        ],
      },
      ...(mayRepeat ? [again] : []),
      REQUIRED_REASON,
    ],
    body: (entered) => [
      ...textPair(entered, "from"),
      ...(repeats(entered) ? [["again", "true"] as [string, string]] : []),
      ...textPair(entered, "reason"),
    ],
    command: (entered) => [
      ...["tenuto", "retry", subject.id, ...option(entered, "from")],
      ...(repeats(entered) ? ["--again"] : []),
      ...option(entered, "reason"),
    ],
  };
}

function repeats(entered: Entered): boolean {
  return Boolean(entered["again"] && entered["from"]);
}

const DECISION_FIELDS: readonly Field[] = [
  { kind: "text", name: "comment", label: "Comment", required: false, note: "Recorded with the decision." },
  { kind: "json", name: "data", label: "Data", note: "Optional JSON. Becomes the result of the step." },
];

function decision(
  subject: Subject,
  step: string,
  verb: "approve" | "reject",
): Pick<Action, "fields" | "body" | "command"> & ReturnType<typeof base> {
  return {
    ...base(subject, `/steps/${encodeURIComponent(step)}:${verb}`),
    fields: DECISION_FIELDS,
    body: (entered) => [...textPair(entered, "comment"), ...jsonPair(entered, "data")],
    command: (entered) => ["tenuto", verb, subject.id, step, ...option(entered, "comment"), ...option(entered, "data")],
  };
}

export function approve(subject: Subject, step: string): Action {
  return {
    ...decision(subject, step, "approve"),
    id: "approve",
    title: `Approve “${step}”`,
    verb: "Approve",
    icon: Check,
    effect: `Step “${step}” succeeds, and the steps that depend on it start.`,
  };
}

export function reject(subject: Subject, step: string): Action {
  return {
    ...decision(subject, step, "reject"),
    id: "reject",
    title: `Reject “${step}”`,
    verb: "Reject",
    icon: X,
    isDangerous: true,
    effect: `Step “${step}” fails. What follows is defined by the saga: completed steps may be compensated.`,
  };
}

/** `id` makes the request repeatable: signals with the same id are one signal. */
export function signal(subject: Subject, name: string, id: string): Action {
  return {
    ...base(subject, `/signals/${encodeURIComponent(name)}`),
    id: "signal",
    title: `Send the signal “${name}”`,
    verb: "Send signal",
    icon: Radio,
    effect: `The step that waits for “${name}” receives the payload as its result and succeeds.`,
    fields: [{ kind: "json", name: "payload", label: "Payload", note: "Optional JSON." }],
    body: (entered) => [...jsonPair(entered, "payload"), ["id", JSON.stringify(id)]],
    command: (entered) => ["tenuto", "signal", subject.id, name, ...option(entered, "payload"), "--key", id],
  };
}
