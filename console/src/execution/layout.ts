import { Graph, layout } from "@dagrejs/dagre";
import type { Drawing, Shape } from "./visibleGraph";

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export const STEP = { width: 188, height: 52 };
const LABEL = 28; // above the contents of a scope
const PADDING = 12;

export type Direction = "LR" | "TB";

/** Places the boxes of a drawing. Compensations do not influence it, because they lead backwards. */
export function layOut({ shapes, lines }: Drawing, direction: Direction): Map<string, Box> {
  const graph = new Graph({ compound: true, multigraph: false });
  graph.setGraph({ rankdir: direction, nodesep: 24, ranksep: direction === "LR" ? 56 : 40, marginx: 16, marginy: 16 });
  graph.setDefaultEdgeLabel(() => ({}));
  const isOpen = (shape: Shape) => shape.kind === "scope" && !shape.isFolded;
  for (const shape of shapes) graph.setNode(shape.id, isOpen(shape) ? {} : { ...STEP });
  for (const shape of shapes) if (shape.parent) graph.setParent(shape.id, shape.parent);
  const ends = new Ends(shapes);
  for (const { from, to, kind } of lines) {
    if (kind === "compensation") continue;
    for (const one of ends.of(from)) for (const other of ends.of(to)) graph.setEdge(one, other);
  }
  layout(graph);
  const boxes = new Map<string, Box>();
  // from the inside out: a scope encloses what is in it
  for (const shape of [...shapes].reverse()) {
    const inside = shapes.filter(({ parent }) => parent === shape.id).map(({ id }) => boxes.get(id));
    boxes.set(shape.id, enclosing(inside.filter((box) => box !== undefined)) ?? boxOf(graph.node(shape.id)));
  }
  return boxes;
}

function boxOf({ x, y, width, height }: Box): Box {
  return { x: x - width / 2, y: y - height / 2, width, height };
}

function enclosing(boxes: readonly Box[]): Box | null {
  if (!boxes.length) return null;
  const x = Math.min(...boxes.map((box) => box.x)) - PADDING;
  const y = Math.min(...boxes.map((box) => box.y)) - LABEL;
  const right = Math.max(...boxes.map((box) => box.x + box.width)) + PADDING;
  const bottom = Math.max(...boxes.map((box) => box.y + box.height)) + PADDING;
  return { x, y, width: right - x, height: bottom - y };
}

/** Edges of a scope with visible contents stand for edges of the steps in it, because the layout knows no others. */
class Ends {
  readonly #children = new Map<string, Shape[]>();

  constructor(shapes: readonly Shape[]) {
    for (const shape of shapes) {
      const known = this.#children.get(shape.parent);
      if (known) known.push(shape);
      else this.#children.set(shape.parent, [shape]);
    }
  }

  of(id: string): string[] {
    const children = this.#children.get(id);
    return children ? children.flatMap((child) => this.of(child.id)).slice(0, 12) : [id];
  }
}
