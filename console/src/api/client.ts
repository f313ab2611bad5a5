import { PREFIX } from "../place";
import { parseJson } from "../values/json";
import type { ProblemDocument } from "./documents";
import { ConnectionLost, foreignProblem, Problem } from "./problem";

export type Query = Record<string, string | number | boolean | readonly string[] | undefined>;

export interface Answer<T> {
  status: number;
  body: T;
}

let csrfToken = "";
let onSignedOut: () => void = () => undefined;

/** Sets the token that writes of this session repeat in a header. */
export function setCsrfToken(token: string | null): void {
  csrfToken = token ?? "";
}

/** Calls a function when a request is refused because the session has ended. */
export function whenSignedOut(listener: () => void): void {
  onSignedOut = listener;
}

/** The URL of a path of the API, below the place where the service is mounted. */
export function apiUrl(path: string, query: Query = {}): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === "" || value === false) continue;
    for (const each of Array.isArray(value) ? value : [value]) parameters.append(name, String(each));
  }
  const text = parameters.toString();
  return `${PREFIX}${path}${text ? `?${text}` : ""}`;
}

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  const init = signal ? { signal } : {};
  return (await send<T>(apiUrl(path, query), init)).body;
}

/** Sends a write. `body` is JSON text, so that numbers arrive as they were entered. */
export function write<T>(method: "POST" | "DELETE", path: string, body?: string): Promise<Answer<T>> {
  const headers: Record<string, string> = {};
  if (csrfToken) headers["X-Tenuto-CSRF"] = csrfToken;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return send<T>(apiUrl(path), { method, headers, ...(body === undefined ? {} : { body }) });
}

async function send<T>(url: string, init: RequestInit): Promise<Answer<T>> {
  const response = await fetched(url, init);
  const text = await response.text();
  if (response.ok) return { status: response.status, body: (text ? parseJson(text) : null) as T };
  if (response.status === 401) onSignedOut();
  throw problemOf(response, text);
}

/** Fetches with the session's cookie. Rejects with `ConnectionLost` if there is no response. */
export async function fetched(url: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(url, { credentials: "same-origin", cache: "no-store", ...init });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ConnectionLost(error);
  }
}

function problemOf(response: Response, text: string): Problem {
  try {
    const document = parseJson(text) as Partial<ProblemDocument>;
    if (typeof document.code === "string") return new Problem(document as ProblemDocument);
  } catch {
    // not JSON: a proxy answered
  }
  return foreignProblem(response.status, response.statusText);
}
