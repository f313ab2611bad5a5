import type { Blocked } from "../api/documents";

/** Why an execution is blocked, and who or what unblocks it, in words. */
export interface Explanation {
  title: string;
  help: string;
}

type Explain = (subject: string) => Explanation;

const EXPLANATIONS: Record<Blocked["reason"], Explain> = {
  approval: (step) => ({
    title: `Step “${step}” waits for approval`,
    help: "A person with the role approver can approve or reject it.",
  }),
  review: (step) => ({
    title: `Step “${step}” needs a decision`,
    help: "The service cannot know what happened. A person with the role approver can tell.",
  }),
  compensation_required: (step) => ({
    title: `Step “${step}” asks for compensation`,
    help: "A person with the role approver decides whether completed steps are undone.",
  }),
  signal: (name) => ({
    title: `Waits for the signal “${name}”`,
    help: "The system that owns the signal sends it. An operator can send it by hand.",
  }),
  timer: (step) => ({ title: `Step “${step}” waits for its time`, help: "It continues by itself." }),
  retry: (step) => ({ title: `Step “${step}” failed and is tried again`, help: "It continues by itself." }),
  bus: (step) => ({
    title: `The message bus cannot be reached: “${step}” waits for it`,
    help: "It continues when a worker can reach the bus again.",
  }),
  callback: (step) => ({
    title: `Step “${step}” waits for an answer from outside`,
    help: "The external system answers with a callback, or the deadline passes.",
  }),
  concurrency_key: (key) => ({
    title: `Another execution with the concurrency key “${key}” runs`,
    help: "It starts when the other one has ended.",
  }),
  limit: (name) => ({
    title: `The limit “${name}” is reached`,
    help: "It continues when other steps have finished, or when an administrator raises the limit.",
  }),
  tenant_limit: () => ({
    title: "The tenant's limit of executions is reached",
    help: "It continues when other executions have ended, or when an administrator raises the limit.",
  }),
  slot: (step) => ({
    title: `All workers are busy: step “${step}” waits for a free slot`,
    help: "It continues when another step has finished. More workers help.",
  }),
  paused: (reason) => ({
    title: reason ? `Paused: ${reason}` : "Paused",
    help: "An operator can resume it.",
  }),
  no_worker: (step) => ({
    title: `No running worker has the code for “${step}”`,
    help: "Start a worker that loads it: tenuto worker --app MODULE.",
  }),
  incompatible: (what) => ({
    title: what ? `The code cannot read a stored value: ${what}` : "The history cannot be read or written",
    help: "Start a worker whose code can read it, or cancel the execution.",
  }),
  reconcile: (step) => ({
    title: `Whether “${step}” took effect is not known`,
    help: "Its outcome is being looked up.",
  }),
  worker_lost: (step) => ({
    title: `The worker that ran “${step}” is gone`,
    help: "Another worker takes over by itself.",
  }),
};

export function explain(blocked: Blocked): Explanation {
  const known: Explain | undefined = EXPLANATIONS[blocked.reason]; // the service may be newer than this page
  return known?.(blocked.waiting_for ?? "") ?? { title: `Blocked: ${blocked.reason}`, help: "" };
}
