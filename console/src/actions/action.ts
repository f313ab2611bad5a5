import type { LucideIcon } from "lucide-react";

/** What the reader enters in the dialog of an action, by the name of the field. */
export type Entered = Record<string, string>;

export type Field =
  | { kind: "text"; name: string; label: string; required: boolean; note?: string }
  | { kind: "json"; name: string; label: string; note?: string }
  | { kind: "choice"; name: string; label: string; options: readonly Option[] }
  | { kind: "flag"; name: string; label: string; note?: string; needs?: string };

export interface Option {
  value: string;
  label: string;
  note?: string;
}

/** A write that the console offers: what it does, and the request and the command that do it. */
export interface Action {
  id: string;
  title: string;
  verb: string;
  icon: LucideIcon;
  isDangerous: boolean;
  /** What happens, in one or two sentences. */
  effect: string;
  fields: readonly Field[];
  path: string;
  /** The fields of the body, as JSON text, so that numbers are sent as they were entered. */
  body: (entered: Entered) => [name: string, json: string][];
  command: (entered: Entered) => string[];
  executionId: string;
  /** The last event that the reader has seen, if the page knows it. Later ones tell who acted first. */
  seenSeq: number;
}

export function bodyText(action: Action, entered: Entered): string {
  return `{${action
    .body(entered)
    .map(([name, json]) => `${JSON.stringify(name)}:${json}`)
    .join(",")}}`;
}

/** The pair of a text field, if something was entered. */
export function textPair(entered: Entered, name: string): [string, string][] {
  const text = entered[name]?.trim() ?? "";
  return text ? [[name, JSON.stringify(text)]] : [];
}

/** The pair of a JSON field, if something was entered. */
export function jsonPair(entered: Entered, name: string): [string, string][] {
  const text = entered[name]?.trim() ?? "";
  return text ? [[name, text]] : [];
}

/** An option of a command, if its field was filled in. */
export function option(entered: Entered, field: string, name = `--${field}`): string[] {
  const text = entered[field]?.trim() ?? "";
  return text ? [name, text] : [];
}
