/** A filter of the list of executions, as a parameter of the URL and of the API. */
export interface Filter {
  name: string;
  label: string;
  kind: "choice" | "text" | "number" | "time" | "flag";
  options?: readonly string[];
  placeholder?: string;
}

const STATUSES = ["running", "waiting_approval", "paused", "succeeded", "failed", "canceled"] as const;
export const ERROR_CLASSES = [
  "TRANSIENT",
  "RETRYABLE",
  "NON_RETRYABLE",
  "RATE_LIMITED",
  "DEPENDENCY_FAILED",
  "COMPENSATION_REQUIRED",
  "INDETERMINATE",
] as const;

export const FILTERS: readonly Filter[] = [
  { name: "status", label: "Status", kind: "choice", options: STATUSES },
  { name: "blocked", label: "Blocked", kind: "flag" },
  { name: "definition", label: "Definition", kind: "text", placeholder: "order.fulfil" },
  { name: "version", label: "Version", kind: "number", placeholder: "1" },
  { name: "error_class", label: "Error class", kind: "choice", options: ERROR_CLASSES },
  { name: "target_id", label: "Target", kind: "text", placeholder: "A-1040" },
  { name: "correlation_id", label: "Correlation id", kind: "text" },
  { name: "since", label: "Started since", kind: "time" },
  { name: "before", label: "Started before", kind: "time" },
];

/** The query of the API for the parameters of the page. */
export function queryOf(parameters: URLSearchParams): Record<string, string> {
  const query: Record<string, string> = {};
  for (const { name } of FILTERS) {
    const value = parameters.get(name);
    if (value) query[name] = value;
  }
  const text = parameters.get("q")?.trim();
  if (text) query["q"] = text;
  if (parameters.get("order") === "oldest") query["order"] = "oldest";
  return query;
}

export function activeFilters(parameters: URLSearchParams): Filter[] {
  return FILTERS.filter(({ name }) => parameters.get(name));
}

/** A local time of a form as RFC 3339, and back. */
export function timeOfForm(local: string): string {
  return local ? new Date(local).toISOString() : "";
}

export function formTime(iso: string): string {
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return "";
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
