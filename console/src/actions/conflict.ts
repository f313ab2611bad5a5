import { apiUrl, fetched, get } from "../api/client";
import type { EventDocument, ExecutionDocument } from "../api/documents";
import { executionPath } from "../api/queries";
import { StreamReader } from "../live/stream";
import { parseJson } from "../values/json";

/** What another person did in the meantime, and how the execution is now. */
export interface Conflict {
  execution: ExecutionDocument;
  actor: string | null;
  at: string | null;
  deed: string;
}

const DEEDS: Record<string, string> = {
  paused: "paused the execution",
  resumed: "resumed the execution",
  cancel: "canceled the execution",
  run: "retried the execution",
  signal: "sent a signal",
  waited: "sent a signal",
};

/** Reads the events after the last one that the reader had seen. The last one by a person tells who acted first. */
export async function readConflict(executionId: string, seenSeq: number): Promise<Conflict> {
  const [execution, events] = await Promise.all([
    get<ExecutionDocument>(executionPath(executionId)),
    eventsAfter(executionId, seenSeq),
  ]);
  const last = events.findLast((event) => event.actor !== null);
  return { execution, actor: last?.actor ?? null, at: last?.at ?? null, deed: last ? deedOf(last) : "" };
}

async function eventsAfter(executionId: string, seq: number): Promise<EventDocument[]> {
  const url = apiUrl(`${executionPath(executionId)}/events`, { follow: "false" });
  const response = await fetched(url, { headers: { "Last-Event-ID": String(seq) } });
  if (!response.ok) return [];
  return new StreamReader()
    .read(await response.text())
    .filter((event) => event.type !== "end")
    .map((event) => parseJson(event.data) as EventDocument);
}

export function deedOf(event: Pick<EventDocument, "type" | "data">): string {
  const resolution = (event.data as Record<string, unknown> | null)?.["resolution"];
  if (resolution === "approved" || resolution === "rejected") return `${resolution} it`;
  if (typeof resolution === "string") return `resolved it: ${resolution.replaceAll("_", " ")}`;
  return DEEDS[event.type] ?? `did “${event.type}”`;
}
