/** A number that JavaScript cannot represent as it was written: `12345678901234567890`, `1.0`, `1e400`. */
export class ExactNumber {
  constructor(readonly source: string) {}

  toString(): string {
    return this.source;
  }
}

export type Json = null | boolean | number | string | ExactNumber | Json[] | { [key: string]: Json };

interface Source {
  source?: string;
}

type Reviver = (key: string, value: unknown, context: Source) => unknown;

// TypeScript's library does not describe the third argument of a reviver and `JSON.rawJSON` yet.
const parseWith = JSON.parse as unknown as (text: string, reviver: Reviver) => unknown;
const { rawJSON } = JSON as unknown as { rawJSON(text: string): unknown };

/** Parses JSON. A number that would change becomes an `ExactNumber`; all others are ordinary numbers. */
export function parseJson(text: string): unknown {
  return parseWith(text, (_key, value, { source }) =>
    typeof value === "number" && source !== undefined && String(value) !== source ? new ExactNumber(source) : value,
  );
}

/** Writes JSON, with every `ExactNumber` as it was read. */
export function formatJson(value: unknown, indent?: number): string {
  return (
    JSON.stringify(value, (_key, each) => (each instanceof ExactNumber ? rawJSON(each.source) : each), indent) ?? ""
  );
}
