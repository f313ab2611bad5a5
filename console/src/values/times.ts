import type { Preferences } from "../preferences/preferences";

const UNITS = [
  ["day", 86_400_000],
  ["hour", 3_600_000],
  ["minute", 60_000],
  ["second", 1_000],
] as const;

const relative = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });
const DATE = { year: "numeric", month: "2-digit", day: "2-digit" } as const;
const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" } as const;

/** A time as the reader prefers it. */
export function timeText(iso: string, times: Preferences["times"], now: number): string {
  if (times === "relative") return relativeText(Date.parse(iso) - now);
  return times === "utc" ? `${clockText(iso, "UTC")} UTC` : clockText(iso);
}

/** Both absolute forms, for a tooltip. */
export function fullTimeText(iso: string): string {
  return `${clockText(iso)} local · ${iso}`;
}

export function relativeText(difference: number): string {
  const size = Math.abs(difference);
  if (size < 1_000) return "now";
  const [unit, length] = UNITS.find(([, each]) => size >= each) ?? UNITS[3];
  return relative.format(Math.trunc(difference / length), unit);
}

/** `2026-11-18 09:30:00`, in the reader's time zone or another one. */
export function clockText(iso: string, timeZone?: string): string {
  const zone = timeZone ? { timeZone } : {};
  return new Date(iso).toLocaleString("sv-SE", { ...DATE, ...CLOCK, ...zone });
}

/** A length of time with two units at most: `412 ms`, `3.4 s`, `10 min 40 s`, `2 h 5 min`. */
export function durationText(milliseconds: number): string {
  const ms = Math.max(0, Math.round(milliseconds));
  if (ms < 1_000) return `${ms} ms`;
  if (ms < 60_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  if (ms < 3_600_000) return twoUnits(ms, 60_000, "min", 1_000, "s");
  if (ms < 86_400_000) return twoUnits(ms, 3_600_000, "h", 60_000, "min");
  return twoUnits(ms, 86_400_000, "d", 3_600_000, "h");
}

function twoUnits(ms: number, large: number, largeUnit: string, small: number, smallUnit: string): string {
  const rest = Math.floor((ms % large) / small);
  return `${Math.floor(ms / large)} ${largeUnit}${rest ? ` ${rest} ${smallUnit}` : ""}`;
}
