import { expect, test } from "vitest";
import { parseJson } from "./json";
import { findInJson } from "./search";

const VALUE = parseJson(
  '{"order":{"id":"A-1","total":12345678901234567890},"lines":[{"sku":"a"},{"sku":"b"}]}',
) as never;

test.each([
  ["a-1", ["$/order/id"], ["$", "$/order"]],
  ["78901234567890", ["$/order/total"], ["$", "$/order"]],
  ["LINES", ["$/lines"], ["$"]],
  ["sku", ["$/lines/0/sku", "$/lines/1/sku"], ["$", "$/lines", "$/lines/0", "$/lines/1"]],
  ["  ", [], []],
  ["nothing", [], []],
])("%s", (text, matches, above) => {
  const found = findInJson(VALUE, text);
  expect([...found.matches]).toEqual(matches);
  expect([...found.above]).toEqual(above);
});
