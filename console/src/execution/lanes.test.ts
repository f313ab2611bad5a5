import { expect, test } from "vitest";
import type { AttemptRow } from "../api/documents";
import { lanesOf, Scale } from "./lanes";

const at = (second: number) => new Date(second * 1_000).toISOString();

function attempt(
  step: string,
  number: number,
  from: number,
  to: number | null,
  more: Partial<AttemptRow> = {},
): AttemptRow {
  return {
    path: step,
    step_id: step,
    kind: "forward",
    status: "succeeded",
    attempt_number: number,
    started_at: at(from),
    finished_at: to === null ? null : at(to),
    retry_after_at: null,
    ...more,
  } as AttemptRow;
}

test("a step has one lane with its attempts of every phase and the waits between them", () => {
  const lanes = lanesOf([
    attempt("pay", 1, 10, 11, { status: "retrying", retry_after_at: at(14) }),
    attempt("pay", 2, 15, 16),
    attempt("book", 1, 0, 1),
    attempt("book", 1, 20, 21, { kind: "compensation" }),
  ]);
  expect(lanes.map(({ name, bars }) => [name, bars.map(({ kind, tone, from, to }) => [kind, tone, from, to])])).toEqual(
    [
      [
        "book",
        [
          ["attempt", "succeeded", 0, 1_000],
          ["attempt", "compensation", 20_000, 21_000],
        ],
      ],
      [
        "pay",
        [
          ["attempt", "timer", 10_000, 11_000],
          ["retry-wait", "timer", 11_000, 15_000],
          ["attempt", "succeeded", 15_000, 16_000],
        ],
      ],
    ],
  );
});

test("a retry that has not begun waits until it is due", () => {
  const [lane] = lanesOf([attempt("pay", 1, 10, 11, { status: "retrying", retry_after_at: at(99) })]);
  expect(lane?.bars.at(-1)).toMatchObject({ kind: "retry-wait", from: 11_000, to: 99_000 });
});

test("the scale is linear, and shortens idle time on request", () => {
  const lanes = lanesOf([attempt("a", 1, 0, 10), attempt("b", 1, 90, 100)]);
  const linear = new Scale(lanes, 0, 100_000, false);
  expect([0, 50_000, 100_000].map((time) => linear.place(time))).toEqual([0, 0.5, 1]);
  const collapsed = new Scale(lanes, 0, 100_000, true);
  expect(collapsed.breaks).toHaveLength(1);
  expect(collapsed.place(10_000)).toBeCloseTo(0.48);
  expect(collapsed.place(90_000)).toBeCloseTo(0.52);
  expect(collapsed.place(100_000)).toBe(1);
});
