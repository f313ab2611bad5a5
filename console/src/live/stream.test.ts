import { expect, test } from "vitest";
import { StreamReader } from "./stream";

test("events are read from chunks that end anywhere", () => {
  const text = 'id: 7\nevent: status\ndata: {"a":1}\n\n: keep alive\n\nevent: reset\ndata: {}\n\n';
  for (let at = 0; at <= text.length; at++) {
    const reader = new StreamReader();
    const events = [...reader.read(text.slice(0, at)), ...reader.read(text.slice(at))];
    expect(events).toEqual([
      { id: "7", type: "status", data: '{"a":1}' },
      { id: "7", type: "reset", data: "{}" },
    ]);
  }
});

test("data of several lines is joined", () => {
  expect(new StreamReader().read("data: one\ndata:two\n\n")).toEqual([{ id: "", type: "message", data: "one\ntwo" }]);
});

test("a comment can carry the id to continue after", () => {
  const reader = new StreamReader();
  expect(reader.read("id: 9\n: here\n\n")).toEqual([]);
  expect(reader.lastId).toBe("9");
});
