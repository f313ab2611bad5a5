import { expect, test } from "vitest";
import type { GraphDocument, GraphNode, GraphScope } from "../api/documents";
import { type Box, type Direction, layOut } from "./layout";
import { visibleGraph } from "./visibleGraph";

const SCOPES = ["", "teams", "teams/one", "teams/two", "teams/three"];

const scopes = SCOPES.map(
  (path) => ({ path, parent: path ? path.split("/").slice(0, -1).join("/") : null, label: path }) as GraphScope,
);
const nodes = SCOPES.slice(2).flatMap((scope) =>
  ["read", "write"].map((name) => ({ id: `${scope}/${name}`, scope, name, kind: "step" }) as GraphNode),
);
const edges = SCOPES.slice(2).map((scope) => ({ from: `${scope}/read`, to: `${scope}/write`, kind: "dependency" }));
const GRAPH = { seq: 1, scopes, nodes, edges } as GraphDocument;

const contains = (outer: Box, inner: Box) =>
  outer.x <= inner.x &&
  outer.y <= inner.y &&
  outer.x + outer.width >= inner.x + inner.width &&
  outer.y + outer.height >= inner.y + inner.height;

const overlap = (one: Box, other: Box) =>
  one.x < other.x + other.width &&
  other.x < one.x + one.width &&
  one.y < other.y + other.height &&
  other.y < one.y + one.height;

test.each<Direction>(["LR", "TB"])("scopes enclose their contents and do not overlap (%s)", (direction) => {
  const drawing = visibleGraph(GRAPH, new Map());
  const boxes = layOut(drawing, direction);
  const of = (id: string) => boxes.get(id) as Box;
  for (const { id, parent } of drawing.shapes) if (parent) expect(contains(of(parent), of(id))).toBe(true);
  for (const one of drawing.shapes) {
    for (const other of drawing.shapes) {
      if (one.id < other.id && one.parent === other.parent) expect(overlap(of(one.id), of(other.id))).toBe(false);
    }
  }
});
