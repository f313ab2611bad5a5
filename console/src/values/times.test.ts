import { expect, test } from "vitest";
import { durationText, relativeText, timeText } from "./times";

test.each([
  [0, "0 ms"],
  [999, "999 ms"],
  [3_449, "3.4 s"],
  [59_999, "59.9 s"],
  [640_000, "10 min 40 s"],
  [7_200_000, "2 h"],
  [90_000_000, "1 d 1 h"],
])("a duration of %i ms is %s", (ms, text) => expect(durationText(ms)).toBe(text));

test("relative times are in the past or the future", () => {
  expect(relativeText(-12_000)).toBe("12s ago");
  expect(relativeText(7_200_000)).toBe("in 2h");
  expect(relativeText(400)).toBe("now");
});

test("UTC times do not depend on the reader's zone", () => {
  expect(timeText("2026-11-18T09:30:05.123Z", "utc", 0)).toBe("2026-11-18 09:30:05 UTC");
});
