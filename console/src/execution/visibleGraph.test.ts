import { describe, expect, test } from "vitest";
import type { GraphDocument, GraphNode, GraphScope } from "../api/documents";
import { MOST_SHAPES, visibleGraph } from "./visibleGraph";

const step = (id: string, scope = ""): GraphNode => ({ id, scope, path: id, name: id, kind: "step" }) as GraphNode;
const scope = (path: string, parent: string | null): GraphScope => ({ path, parent, label: path }) as GraphScope;

const NESTED = {
  seq: 1,
  scopes: [scope("", null), scope("group", ""), scope("group/inner", "group")],
  nodes: [step("first"), step("group/a", "group"), step("group/inner/b", "group/inner"), step("last")],
  edges: [
    { from: "first", to: "group", kind: "dependency" },
    { from: "group/a", to: "group/inner", kind: "dependency" },
    { from: "group/inner/b", to: "last", kind: "dependency" },
  ],
} as GraphDocument;

describe("the visible part of a graph", () => {
  test("scopes are drawn around their contents", () => {
    const { shapes } = visibleGraph(NESTED, new Map());
    expect(shapes.map(({ id, parent }) => [id, parent])).toEqual([
      ["group", ""],
      ["first", ""],
      ["last", ""],
      ["group/inner", "group"],
      ["group/a", "group"],
      ["group/inner/b", "group/inner"],
    ]);
  });

  test("a folded scope is one box, and its edges lead to that box", () => {
    const { shapes, lines } = visibleGraph(NESTED, new Map([["group", false]]));
    expect(shapes.map(({ id }) => id)).toEqual(["group", "first", "last"]);
    expect(shapes[0]).toMatchObject({ isFolded: true, steps: 2 });
    expect(lines.map(({ from, to }) => [from, to])).toEqual([
      ["first", "group"],
      ["group", "last"],
    ]);
  });

  test("a scope that does not fit is folded", () => {
    expect(visibleGraph(NESTED, new Map(), 4).shapes.map(({ id }) => id)).toEqual(["group", "first", "last"]);
  });

  test("never more boxes than the limit", () => {
    const nodes = Array.from({ length: 1_000 }, (_, n) => step(`s${n}`));
    const { shapes } = visibleGraph({ seq: 1, scopes: [scope("", null)], nodes, edges: [] }, new Map());
    expect(shapes).toHaveLength(MOST_SHAPES);
    expect(shapes.at(-1)).toMatchObject({ kind: "rest", steps: 1_000 - MOST_SHAPES + 1 });
  });
});
