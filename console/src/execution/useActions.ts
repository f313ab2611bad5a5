import { useMemo, useRef } from "react";
import type { Action } from "../actions/action";
import * as of from "../actions/executionActions";
import { resolutionsOf } from "../actions/reviewActions";
import type { ExecutionDocument, ReviewRow } from "../api/documents";
import { usePermissions, useSignedIn } from "../session/session";

const FINAL = new Set(["succeeded", "canceled", "failed"]);

/** What the signed-in user may do with an execution now. `helpful` unblocks it; `others` are always possible. */
export function useActions(execution: ExecutionDocument, seq: number, review: ReviewRow | undefined) {
  const may = usePermissions();
  const { roles } = useSignedIn();
  const signalId = useRef(crypto.randomUUID());
  return useMemo(() => {
    const subject: of.Subject = { id: execution.execution_id, seq, steps: execution.steps.map((step) => step.path) };
    const mayWrite = may("executions:write");
    const others: Action[] = [];
    if (mayWrite && !FINAL.has(execution.status)) {
      if (execution.status !== "paused") others.push(of.pause(subject));
      else others.push(of.resume(subject));
      if (!execution.cancel_requested) others.push(of.cancel(subject));
    }
    if (mayWrite && execution.status === "failed") others.push(of.retry(subject, may("effects:again")));
    const helpful = helpfulActions(execution, subject, review, {
      mayWrite,
      mayDecide: may("approvals:write") && (!review?.permission || may(review.permission) || roles.includes("admin")),
      mayRepeat: may("effects:again"),
      signalId: signalId.current,
    });
    const names = new Set(helpful.map((action) => action.id));
    return { helpful, others: others.filter((action) => !names.has(action.id)) };
  }, [execution, seq, review, may, roles]);
}

interface Rights {
  mayWrite: boolean;
  mayDecide: boolean;
  mayRepeat: boolean;
  signalId: string;
}

function helpfulActions(
  { blocked }: ExecutionDocument,
  subject: of.Subject,
  review: ReviewRow | undefined,
  { mayWrite, mayDecide, mayRepeat, signalId }: Rights,
): Action[] {
  if (!blocked) return [];
  const found: Action[] = [];
  const has = (command: string) => blocked.commands.includes(command);
  if (has("resume") && mayWrite && blocked.reason === "paused") found.push(of.resume(subject));
  if (has("approve") && mayDecide && review?.kind === "approval") {
    found.push(of.approve(subject, review.step_id), of.reject(subject, review.step_id));
  }
  if (mayDecide && review && review.kind !== "approval")
    found.push(...resolutionsOf(review, blocked.commands, mayRepeat));
  if (has("signal") && mayWrite && blocked.waiting_for) found.push(of.signal(subject, blocked.waiting_for, signalId));
  return found;
}
