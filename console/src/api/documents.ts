import type { components } from "./schema";

type Schemas = components["schemas"];

export type AttemptRow = Schemas["AttemptRow"];
export type Blocked = Schemas["Blocked"];
export type CloneDocument = Schemas["CloneDocument"];
export type DeadLetterRow = Schemas["DeadLetterRow"];
export type EventDocument = Schemas["EventDocument"];
export type ExecutionDocument = Schemas["ExecutionDocument"];
export type ExecutionSummary = Schemas["ExecutionSummary"];
export type GraphDocument = Schemas["GraphDocument"];
export type GraphNode = Schemas["GraphNode"];
export type GraphScope = Schemas["GraphScope"];
export type IdentityDocument = Schemas["IdentityDocument"];
export type OverviewDocument = Schemas["OverviewDocument"];
export type ProblemDocument = Schemas["Problem"];
export type ReviewRow = Schemas["ReviewRow"];
export type StepDocument = Schemas["StepDocument"];

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}
