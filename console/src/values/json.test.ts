import { describe, expect, test } from "vitest";
import { ExactNumber, formatJson, parseJson } from "./json";

describe("JSON with exact numbers", () => {
  test.each(["12345678901234567890", "0.1000000000000000055511151231257827", "1.0", "-0", "1e400", "1E2"])(
    "%s keeps its digits",
    (number) => {
      const parsed = parseJson(`{"amount":${number}}`) as { amount: unknown };
      expect(parsed.amount).toBeInstanceOf(ExactNumber);
      expect(String(parsed.amount)).toBe(number);
      expect(formatJson(parsed)).toBe(`{"amount":${number}}`);
    },
  );

  test("a number that JavaScript represents stays a number", () => {
    expect(parseJson("[0, 42, -7, 0.5, 9007199254740991]")).toEqual([0, 42, -7, 0.5, 9007199254740991]);
  });

  test("text that looks like a number stays text", () => {
    expect(parseJson('["12345678901234567890"]')).toEqual(["12345678901234567890"]);
  });
});
